"""gsb3se estimate: the posterior of the target's class shares."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np

from gsb3se import plots
from gsb3se.cli.console import File, console, plain_speech, table
from gsb3se.cli.count_options import input_files, input_options, read_inputs
from gsb3se.cli.model_options import (
    ModelChoice,
    backend_options,
    checkpoint_file,
    model_options,
)
from gsb3se.estimate import Backend
from gsb3se.estimate import estimate as infer
from gsb3se.model.counts import ShiftCounts
from gsb3se.posterior.posterior import Posterior
from gsb3se.support.files import as_csv, as_json, check_output, write_text
from gsb3se.support.labels import printable
from gsb3se.support.limits import ROWS_SHOWN


@click.command()
@input_options
@model_options
@backend_options
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option("--strict", is_flag=True, help="Fail, and write nothing, if the status is not ok.")
@click.option(
    "--out",
    type=File,
    multiple=True,
    help="Write to .csv, .json, or .npz (the posterior itself); may be repeated.",
)
@click.option("--plot", type=File, help="Draw the intervals to a .png, .pdf or .svg file.")
def estimate(
    model: ModelChoice,
    backend: Backend,
    seed: int,
    strict: bool,
    out: tuple[Path, ...],
    plot: Path | None,
    **sources: Any,
) -> None:
    """Infer how often each class occurs in the target, with intervals.

    Validation rows have a true label and a prediction, target rows a prediction. With
    --count-column each row stands for several.

    \b
    gsb3se estimate --validation val.csv --target new.csv --graph graph.npz --out shares.csv
    gsb3se estimate --counts counts.npz --backend amortized --checkpoint encoder.safetensors
    """
    with plain_speech():
        files = [model.graph, checkpoint_file(backend), *input_files(sources)]
        for path in out:
            check_output(path, "--out", ".csv", ".json", ".npz", inputs=files)
        check_output(plot, "--plot", *plots.SUFFIXES, inputs=files)
        counts, level = read_inputs(sources).counts, model.level
        graph = model.graph_for(counts)
        with console.status(f"inferring {counts.n_classes} shares by {type(backend).__name__}"):
            posterior = infer(
                counts, graph, prior=model.prior, backend=backend, seed=seed, strict=strict
            )
        for path in out:
            _write(path, posterior, counts, level)
        if plot is not None:
            predicted = counts.target / counts.n_target
            plots.intervals(posterior, plot, level=level, others={"predicted": predicted})
        _show(posterior, counts, level)
        for path in (*out, *([] if plot is None else [plot])):
            console.print(f"wrote {path}")


def _show(posterior: Posterior, counts: ShiftCounts, level: float) -> None:
    """The most frequent classes in a table, then the status."""
    percent = f"{100 * level:.3g} %"
    shown = table(
        str(counts), "class", "validation rows", "predicted", "mean", "sd", f"{percent} interval"
    )
    rows = posterior.rows(level)
    for i in np.argsort(-posterior.mean, kind="stable")[:ROWS_SHOWN]:
        shown.add_row(
            printable(counts.labels[i]),
            f"{counts.validation_sizes[i]}",
            f"{counts.target[i] / counts.n_target:.4f}",
            f"{rows['mean'][i]:.4f}",
            f"{rows['sd'][i]:.4f}",
            f"{rows['low'][i]:.4f} to {rows['high'][i]:.4f}",
        )
    console.print(shown)
    if counts.n_classes > ROWS_SHOWN:
        console.print(f"the {ROWS_SHOWN} most frequent of {counts.n_classes}; all with --out")
    console.print(f"status: {posterior.diagnostics.status.value}")


def _write(path: Path, posterior: Posterior, counts: ShiftCounts, level: float) -> None:
    if path.suffix.lower() == ".npz":
        posterior.save(path)
        return
    rows = posterior.rows(level)
    status = posterior.diagnostics.status.value
    each = list(zip(*rows.values(), strict=True))
    if path.suffix.lower() == ".csv":
        header = [*rows, "n_target", "status"]
        write_text(path, as_csv(header, ([*row, counts.n_target, status] for row in each)))
        return
    content = {
        "backend": posterior.backend,
        "level": level,
        "n_target": counts.n_target,
        "n_validation": counts.n_validation,
        "status": status,
        "message": posterior.diagnostics.message,
        "classes": [dict(zip(rows, row, strict=True)) for row in each],
        "figures": posterior.diagnostics.figures,
    }
    write_text(path, as_json(content))
