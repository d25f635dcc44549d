"""gsb3se batch: many groups of predictions at once, from files of any size."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from gsb3se.batch import BatchOutcome, run
from gsb3se.batch.journal import FAILED
from gsb3se.cli import count_options
from gsb3se.cli.console import (
    ExistingFile,
    ExistingSource,
    File,
    cleaning_up_on_sigterm,
    console,
    notes,
    plain_speech,
    table,
)
from gsb3se.cli.model_options import ModelChoice, backend_options, model_options
from gsb3se.support.labels import printable

_ALERTS_SHOWN = 20
_ALERT_EXIT_CODE = 3


@click.command()
@click.argument("target", nargs=-1, required=True)
@click.option(
    "--validation",
    type=ExistingSource,
    required=True,
    help="CSV, Parquet or NPZ with true labels and predictions; or a folder of CSV or Parquet.",
)
@click.option("--by", multiple=True, help="A column that tells groups apart; may be repeated.")
@click.option(
    "--model-column", help="A column that names the model, in the validation file as well."
)
@click.option(
    "--pool-models",
    is_flag=True,
    help="Take all rows for one classifier's, though the files have a column model.",
)
@click.option("--labels", type=ExistingFile, help="All classes: a name a line, or a JSON list.")
@count_options.label_column
@count_options.prediction_column
@count_options.count_column
@model_options
@backend_options
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option("--out", type=File, required=True, help="A .parquet, .csv or .jsonl file.")
@click.option("--resume", is_flag=True, help="Go on where a call that was stopped had got to.")
@click.option(
    "--workers",
    type=click.IntRange(1),
    help="Processes; by default one a core where the work is worth it.",
)
@click.option("--dask", metavar="ADDRESS", help="Of a dask scheduler; or local, to start one here.")
@click.option(
    "--source-prior",
    type=ExistingFile,
    help="CSV with columns class and share, that shifts are measured from; by default the shares "
    "of the validation labels.",
)
@click.option(
    "--alert",
    type=click.FloatRange(0, 2),
    default=0.5,
    show_default=True,
    help="L1 distance to the source prior beyond which a shift raises an alert.",
)
@count_options.certainty
@click.option(
    "--fail-on-alert", is_flag=True, help=f"Exit with {_ALERT_EXIT_CODE} if a group is flagged."
)
def batch(
    target: tuple[str, ...], out: Path, model: ModelChoice, fail_on_alert: bool, **options: Any
) -> None:
    """Infer every group of the TARGET files: windows, segments, models.

    TARGET is a Parquet or CSV file, a folder of them, or a glob, of any size; each row is a
    prediction. The result has one row per group and class: mean, sd, interval, status, and how far
    the group is from the source prior. A group that fails says why and does not stop the others.

    \b
    gsb3se batch logs.parquet --validation val.csv --by day --out shares.parquet
    gsb3se batch logs/ --validation val.csv --by day --backend amortized --out shares.csv
    gsb3se batch 'logs/*.csv' --validation val.csv --by day --out shares.csv --resume
    gsb3se batch logs/ --validation all.csv --model-column model --by day --out shares.jsonl
    gsb3se batch logs/ --validation val.csv --by day --out shares.parquet --dask local
    """
    with plain_speech(), cleaning_up_on_sigterm():
        try:
            options |= {"graph": model.graph, "prior": model.prior, "level": model.level}
            outcome = run(target, out=out, **options)
        except BaseException as error:
            for note in getattr(error, "__notes__", ()):
                notes.print(note)
            raise
        _show(outcome, options["alert"], options["certainty"])
        console.print(f"wrote {out}")
    if fail_on_alert and outcome.alerts:
        sys.exit(_ALERT_EXIT_CODE)


def _show(outcome: BatchOutcome, alert: float, certainty: float) -> None:
    """How many groups ended how, and the flagged ones."""
    groups = outcome.groups
    counted = ", ".join(f"{n} {status}" for status, n in outcome.statuses.most_common())
    console.print(f"{len(groups)} groups of {len(groups.labels)} classes: {counted}")
    if failed := outcome.statuses[FAILED]:
        notes.print(
            f"note: {failed} groups failed, the first because {outcome.first_failure}",
            style="yellow",
        )
    if not outcome.alerts:
        console.print(
            f"no group is farther than {alert:g} from the source prior with a probability of "
            f"{certainty:g}"
        )
        return
    console.print(
        f"{len(outcome.alerts)} groups farther than {alert:g} from the source prior (L1), with "
        f"a probability of {certainty:g} at least:"
    )
    key = ", ".join(groups.keys.columns) or "group"
    shown = table("", key, "predictions", "distance", "probability")
    worst = sorted(outcome.alerts, key=lambda flagged: -(flagged[1].shift or 0))
    for place, result in worst[:_ALERTS_SHOWN]:
        figures = (f"{groups.n_target(place)}", f"{result.shift:.3f}", f"{result.probability:.3f}")
        shown.add_row(printable(groups.name(place)), *figures)
    console.print(shown)
    if len(worst) > _ALERTS_SHOWN:
        console.print(f"the {_ALERTS_SHOWN} farthest; the others are in the file")
