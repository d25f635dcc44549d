"""gsb3se compare: every backend and baseline beside HMC, on the user's data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from gsb3se import plots
from gsb3se.cli.console import File, console, notes, plain_speech
from gsb3se.cli.count_options import input_files, input_options, read_inputs
from gsb3se.cli.demo import run_experiment
from gsb3se.cli.model_options import ModelChoice, model_options
from gsb3se.compare import cache as results_cache
from gsb3se.compare import comparison
from gsb3se.graph import LabelGraph
from gsb3se.inference.contracts import BACKENDS
from gsb3se.model.counts import ShiftCounts
from gsb3se.model.simulation import simulate_classifier
from gsb3se.support.files import check_output
from gsb3se.support.simplex import Vector

_CHOICES = [name for name in BACKENDS if name != "hmc"]
_COLUMNS = {
    "mean_error": "mean",
    "mean_error_95": "95 %",
    "sd_error": "sd",
    "low_error": "low",
    "high_error": "high",
    "wasserstein": "W1",
    "l1": "L1",
}


@click.command()
@input_options
@click.option("--digits", is_flag=True, help="Instead of files: the real shift of gsb3se demo.")
@click.option("--simulate", type=click.IntRange(2), help="Instead of files: K made-up classes.")
@click.option("--rows", default=50, show_default=True, help="With --simulate: labels a class.")
@click.option("--n-target", default=5000, show_default=True, help="With --simulate: predictions.")
@click.option(
    "--backend",
    "backends",
    multiple=True,
    type=click.Choice(_CHOICES),
    help=f"May be repeated; by default {', '.join(comparison.DEFAULT_BACKENDS)}.",
)
@click.option(
    "--baseline",
    "baselines",
    multiple=True,
    type=click.Choice([*comparison.POINT_ESTIMATES, "none"]),
    help="May be repeated; by default all.",
)
@model_options
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option(
    "--cache",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where finished posteriors are kept; by default in the user's cache folder.",
)
@click.option("--no-cache", is_flag=True, help="Keep nothing, and use nothing that was kept.")
@click.option("--out", type=File, multiple=True, help="Write to .json or .csv; may be repeated.")
@click.option("--plot", type=File, help="Draw all intervals to a .png, .pdf or .svg file.")
def compare(
    model: ModelChoice,
    seed: int,
    cache: Path | None,
    no_cache: bool,
    out: tuple[Path, ...],
    plot: Path | None,
    **given: Any,
) -> None:
    """How close is each backend to HMC, on these data?

    Takes the files that gsb3se estimate takes. Errors are those of the classes' shares in units of
    HMC's sd, medians over the classes: of the mean (and its 95 % quantile), of the sd, of the
    interval's two ends, and the Wasserstein distance. The first row is HMC's own noise, one half
    of its draws against the other.

    What is finished is kept, and a second call, or one after a stop, goes on from there; --out
    files are written after every backend.

    \b
    gsb3se compare --digits --prior anchored --plot compared.png
    gsb3se compare --validation val.csv --target new.csv --graph graph.npz --out table.csv
    gsb3se compare --simulate 30 --backend structured --backend variational
    """
    with plain_speech():
        files = [model.graph, *input_files(given)]
        for path in out:
            check_output(path, "--out", ".json", ".csv", inputs=files)
        check_output(plot, "--plot", *plots.SUFFIXES, inputs=files)
        if cache is not None and no_cache:
            raise ValueError("give --cache or --no-cache, not both")
        counts, graph, truth = _data(model, seed, given)

        def landed(so_far: comparison.Comparison) -> None:
            for path in out:
                so_far.save(path)

        with console.status("comparing") as status:

            def tell(name: str) -> None:
                status.update(f"{counts.n_classes} shares by {name}")
                notes.print(f"{name} ...", style="dim")

            result = comparison.compare(
                counts,
                graph,
                prior=model.prior,
                backends=given["backends"] or comparison.DEFAULT_BACKENDS,
                point_estimates=_without_none(given["baselines"]),
                reference=model.hmc,
                truth=truth,
                level=model.level,
                seed=seed,
                cache=None if no_cache else cache or results_cache.default_folder(),
                tell=tell,
                landed=landed,
            )
        if plot is not None:
            result.plot(plot)
        _show(result, counts)
        for path in (*out, *([] if plot is None else [plot])):
            console.print(f"wrote {path}")


def _data(
    model: ModelChoice, seed: int, given: Mapping[str, Any]
) -> tuple[ShiftCounts, LabelGraph | None, Vector | None]:
    """Counts, graph and, where it is known, the truth."""
    digits, n_classes = given["digits"], given["simulate"]
    if not digits and n_classes is None:
        counts = read_inputs(given).counts
        return counts, model.graph_for(counts), None
    files = (model.graph, *input_files(given))
    if (digits and n_classes is not None) or any(file is not None for file in files):
        raise ValueError("give files, or --digits, or --simulate K: one of the three")
    if n_classes is not None:
        return simulate_classifier(n_classes, given["rows"], given["n_target"], seed)
    experiment = run_experiment(seed, train=300, validation=40, alpha=1.0)
    return experiment.counts, experiment.graph, experiment.realised


def _without_none(baselines: tuple[str, ...]) -> tuple[str, ...]:
    if "none" in baselines:
        return ()
    return baselines or comparison.POINT_ESTIMATES


def _show(result: comparison.Comparison, counts: ShiftCounts) -> None:
    present = [name for name in _COLUMNS if any(name in row.figures for row in result.rows)]
    console.print(f"{counts}\nerrors in units of HMC's sd, medians over the classes:")
    shown = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))  # fits 80 columns
    shown.add_column("estimator", no_wrap=True)
    for title in (*(_COLUMNS[name] for name in present), "s", "loading", "speed-up"):
        shown.add_column(title, justify="right", no_wrap=True)
    shown.add_column("status")
    for row in result.rows:
        figures = (f"{row.figures[name]:.2f}" if name in row.figures else "" for name in present)
        timed = row.status != "failed"
        faster = f"{row.speed_up:.{0 if row.speed_up > 10 else 1}f}"
        loading = f"{row.loading:.1f}" if row.loading else ""
        times = (f"{row.seconds:.2g}", loading, faster) if timed else ("", "", "")
        shown.add_row(row.name, *figures, *times, row.status)
    console.print(shown)
    if result.complaints:
        complaints = "; ".join(result.complaints)
        notes.print(
            f"note: HMC's chains are no reference here: {complaints}. Raise --warmup and --draws; "
            "with few labels the posterior may have several modes",
            style="yellow",
        )
    for row in result.rows:
        if row.status == "failed":
            notes.print(f"note: {row.name} failed: {row.message}", style="yellow")
