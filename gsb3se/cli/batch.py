"""gsb3se batch: many groups of predictions at once, from files of any size."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from gsb3se import __version__, batch_output, counting
from gsb3se.batch import Job, Outcome, run
from gsb3se.batch_places import InProcess, OnDask
from gsb3se.cli import inputs
from gsb3se.cli.console import (
    ExistingFile,
    ExistingSource,
    File,
    check_output,
    cleaning_up_on_sigterm,
    console,
    notes,
    plain_speech,
    table,
)
from gsb3se.cli.inputs import Columns, read_shares, read_validation
from gsb3se.cli.model_options import backend_options, checkpoint_file, in_order, model_options
from gsb3se.counting import Groups, TargetColumns
from gsb3se.counts import ShiftCounts
from gsb3se.errors import some_of
from gsb3se.estimate import Backend, BatchBackend, identity
from gsb3se.files import read_npz, whole
from gsb3se.graph import LabelGraph
from gsb3se.journal import FAILED, DamagedJournal, Journal, as_plan, file_stamp
from gsb3se.labels import printable
from gsb3se.prior import Prior
from gsb3se.problem import Problem
from gsb3se.progress import progress_bar
from gsb3se.results_cache import content_hash
from gsb3se.simplex import Vector

_MODEL = "model"  # what a column that names the classifier is usually called
_ALERTS_SHOWN = 20
_ALERT_EXIT_CODE = 3


@click.command()
@click.argument("target", nargs=-1, required=True)
@click.option(
    "--validation",
    type=ExistingSource,
    required=True,
    help="CSV, Parquet or NPZ with true labels and predictions; or a folder of such files.",
)
@click.option(
    "--by", "keys", multiple=True, help="A column that tells groups apart; may be repeated."
)
@click.option(
    "--model-column", help="A column that names the model, in the validation file as well."
)
@click.option(
    "--pool-models",
    is_flag=True,
    help="Take all rows for one classifier's, though the files have a column model.",
)
@click.option("--labels", type=ExistingFile, help="All classes: a name a line, or a JSON list.")
@inputs.label_column
@inputs.prediction_column
@inputs.count_column
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
    help="L1 distance to the source prior beyond which a shift is one.",
)
@inputs.certainty
@click.option(
    "--fail-on-alert", is_flag=True, help=f"Exit with {_ALERT_EXIT_CODE} if a group is flagged."
)
def batch(
    target: tuple[str, ...],
    validation: Path,
    keys: tuple[str, ...],
    model_column: str | None,
    pool_models: bool,
    labels: Path | None,
    label_column: str,
    prediction_column: str,
    count_column: str | None,
    backend: Backend,
    graph: Path | None,
    prior: Prior,
    level: float,
    seed: int,
    out: Path,
    resume: bool,
    workers: int | None,
    dask: str | None,
    source_prior: Path | None,
    alert: float,
    certainty: float,
    fail_on_alert: bool,
) -> None:
    """Infer every group of the TARGET files: windows, segments, models.

    TARGET is a Parquet or CSV file, a folder of them, or a glob, of any size; each row is a
    prediction. The result has a row a group and class: mean, sd, interval, status, and how far the
    group is from the source prior. A group that fails says why and does not stop the others.

    \b
    gsb3se batch logs.parquet --validation val.csv --by day --out shares.parquet
    gsb3se batch logs/ --validation val.csv --by day --backend amortized --out shares.csv
    gsb3se batch 'logs/*.csv' --validation val.csv --by day --out shares.csv --resume
    gsb3se batch logs/ --validation all.csv --model-column model --by day --out shares.jsonl
    gsb3se batch logs/ --validation val.csv --by day --out shares.parquet --dask local
    """
    with plain_speech(), cleaning_up_on_sigterm():
        columns = _target_columns(keys, model_column, prediction_column, count_column)
        files = counting.target_files(target)
        read = (validation, labels, graph, source_prior, checkpoint_file(backend), *files)
        check_output(out, "--out", *batch_output.SUFFIXES, inputs=read)
        if model_column is None and not pool_models:
            _check_one_model(validation, files)
        similar = None if graph is None else LabelGraph.load(graph)
        found = read_validation(
            validation,
            Columns(label_column, prediction_column, count_column),
            model_column,
            labels or (None if similar is None else similar.labels),
        )
        if similar is not None:
            similar = in_order(similar, next(iter(found.values())).labels)
        job = Job(
            *_problems(found, similar, prior, source_prior),
            _quiet(backend),
            level,
            alert,
            seed,
            model_column is not None,
        )
        plan = _plan(job, columns, files)
        unfinished = out.with_name(out.name + ".unfinished")
        with Journal(unfinished, plan, resume) as journal:
            try:
                groups = _count(journal, files, columns, job)
                with (
                    _place(dask, workers, job.backend, len(groups)) as place,
                    progress_bar(f"{len(groups)} groups", len(groups)) as tell,
                ):
                    run(job, groups, journal, place, tell)
                if (why := journal.only_failures()) is not None:
                    raise ValueError(f"no group could be inferred, the first because {why}")
                outcome = batch_output.write_results(out, job, groups, journal, certainty)
            except KeyboardInterrupt:
                notes.print(f"stopped; the same call with --resume goes on ({unfinished})")
                raise
            except DamagedJournal:
                raise
            except Exception:
                if not journal.discard_if_empty():
                    notes.print("what is finished is kept: the same call with --resume goes on")
                raise
            journal.discard()
        _show(outcome, groups, job, certainty)
        console.print(f"wrote {out}")
    if fail_on_alert and outcome.alerts:
        sys.exit(_ALERT_EXIT_CODE)


def _target_columns(
    keys: tuple[str, ...], model: str | None, prediction: str, count: str | None
) -> TargetColumns:
    columns = TargetColumns(prediction, (*([] if model is None else [model]), *keys), count)
    if len(set(columns.all)) < len(columns.all):
        raise ValueError("--by, --model-column, --prediction-column and --count-column must differ")
    if taken := [key for key in columns.keys if key in batch_output.COLUMNS]:
        raise ValueError(
            f"--by {taken[0]} would be two columns of the result: rename it in the target files"
        )
    return columns


def _check_one_model(validation: Path, files: list[Path]) -> None:
    """Refuse to pool the predictions of several classifiers unless that is asked for."""
    if validation.suffix == ".npz":
        column = read_npz(validation, [_MODEL]).get(_MODEL)
        here = None if column is None else set(column.astype(str).tolist())
    else:
        here = counting.values_in(counting.target_files([validation]), _MODEL)
    there = None if here is None else counting.values_in(files, _MODEL)
    if here is None or there is None or len(here | there) <= 1:
        return
    raise ValueError(
        f"the validation and target files have a column {_MODEL!r}, with "
        f"{some_of(sorted(here)) or 'no value'} in {validation} and "
        f"{some_of(sorted(there)) or 'no value'} in the target: give --model-column {_MODEL} to "
        "infer each by its own confusions, or --pool-models to take them for one classifier"
    )


def _problems(
    validation: Mapping[str, ShiftCounts],
    graph: LabelGraph | None,
    prior: Prior,
    source_prior: Path | None,
) -> tuple[dict[str, Problem], dict[str, Vector]]:
    problems = {name: Problem(counts, graph, prior) for name, counts in validation.items()}
    priors = {name: counts.validation_shares for name, counts in validation.items()}
    if source_prior is not None:
        given = read_shares(source_prior, next(iter(validation.values())).labels)
        priors = dict.fromkeys(validation, given)
    return problems, priors


def _quiet(backend: Any) -> Backend:
    """The backend without a progress bar of its own: there is one of all groups."""
    return replace(backend, progress=False) if hasattr(backend, "progress") else backend


def _plan(job: Job, columns: TargetColumns, files: list[Path]) -> dict[str, str]:
    """Everything the result depends on."""
    return as_plan(
        gsb3se_version=__version__,
        target_files=[file_stamp(path) for path in files],
        columns=columns,
        validation_graph_and_prior={k: content_hash(p, "") for k, p in job.problems.items()},
        labels=job.labels,
        source_prior={k: p.tolist() for k, p in job.source_priors.items()},
        backend=identity(job.backend),
        level=job.level,
        alert=job.alert,
        seed=job.seed,
    )


def _count(journal: Journal, files: list[Path], columns: TargetColumns, job: Job) -> Groups:
    """Count the target files, unless a run that was stopped has."""
    kept = journal.counted
    if kept is not None:
        with whole(journal.path):
            return Groups.from_bytes(kept, job.labels)
    with notes.status(f"counting {len(files)} files"):
        groups = counting.count_predictions(files, columns, job.labels)
    journal.keep_counted(groups.to_bytes())
    return groups


def _place(
    dask: str | None, workers: int | None, backend: Backend, total: int
) -> InProcess | OnDask:
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    if dask is not None:
        return OnDask(dask, workers or cores)
    if workers is None:  # a pass over many windows takes less than to start helpers for them
        workers = 1 if isinstance(backend, BatchBackend) else cores
    return InProcess(workers, total)


def _show(outcome: Outcome, groups: Groups, job: Job, certainty: float) -> None:
    """How many groups ended how, and the flagged ones."""
    told = ", ".join(f"{n} {status}" for status, n in outcome.statuses.most_common())
    console.print(f"{len(groups)} groups of {len(job.labels)} classes: {told}")
    if failed := outcome.statuses[FAILED]:
        notes.print(
            f"note: {failed} groups failed, the first because {outcome.first_failure}",
            style="yellow",
        )
    if not outcome.alerts:
        console.print(
            f"no group is farther than {job.alert:g} from the source prior with a probability of "
            f"{certainty:g}"
        )
        return
    console.print(
        f"{len(outcome.alerts)} groups farther than {job.alert:g} from the source prior (L1), with "
        f"a probability of {certainty:g} at least:"
    )
    key = ", ".join(groups.keys.columns) or "group"
    shown = table("", key, "predictions", "distance", "probability")
    worst = sorted(outcome.alerts, key=lambda alert: -(alert[1].shift or 0))
    for place, found in worst[:_ALERTS_SHOWN]:
        figures = (f"{groups.n_target(place)}", f"{found.shift:.3f}", f"{found.probability:.3f}")
        shown.add_row(printable(groups.name(place)), *figures)
    console.print(shown)
    if len(worst) > _ALERTS_SHOWN:
        console.print(f"the {_ALERTS_SHOWN} farthest; the others are in the file")
