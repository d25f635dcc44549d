"""gsb3se estimate: the posterior of the target's class shares."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import click
import numpy as np

from gsb3se import plots
from gsb3se.cli.console import ExistingFile, File, check_output, console, plain_speech, table
from gsb3se.cli.inputs import input_options, read_inputs
from gsb3se.counts import ShiftCounts
from gsb3se.estimate import BACKENDS, DEFAULT_BACKEND, Backend, as_backend
from gsb3se.estimate import estimate as infer
from gsb3se.files import write_text
from gsb3se.graph import LabelGraph
from gsb3se.inference.hmc import HMC
from gsb3se.posterior import Posterior
from gsb3se.prior import Prior

_ROWS_SHOWN = 25


@click.command()
@input_options
@click.option("--graph", type=ExistingFile, help="A saved label graph; without it, none is known.")
@click.option(
    "--backend", type=click.Choice(list(BACKENDS)), default=DEFAULT_BACKEND, show_default=True
)
@click.option("--chains", default=HMC.chains, show_default=True, help="Of hmc.")
@click.option("--warmup", default=HMC.warmup, show_default=True, help="Of hmc.")
@click.option("--draws", default=HMC.draws, show_default=True, help="Of hmc, a chain.")
@click.option(
    "--prior",
    type=click.Choice(["paper", "anchored"]),
    default="paper",
    show_default=True,
    help="anchored: the columns are centred on the right and on similar labels.",
)
@click.option("--a-q", default=1.0, show_default=True, help="Gamma shape of tau_q.")
@click.option("--b-q", default=1.0, show_default=True, help="Gamma rate of tau_q.")
@click.option("--a-c", default=1.0, show_default=True, help="Gamma shape of tau_C.")
@click.option("--b-c", default=1.0, show_default=True, help="Gamma rate of tau_C.")
@click.option(
    "--level",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.9,
    show_default=True,
    help="Of the intervals.",
)
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
    graph: Path | None,
    backend: str,
    chains: int,
    warmup: int,
    draws: int,
    prior: str,
    a_q: float,
    b_q: float,
    a_c: float,
    b_c: float,
    level: float,
    seed: int,
    strict: bool,
    out: tuple[Path, ...],
    plot: Path | None,
    **sources: Any,
) -> None:
    """Infer how often each class occurs in the target, with intervals.

    Validation rows have a true label and a prediction, target rows a prediction. With
    --count-column each row stands for several.
    """
    with plain_speech():
        for path in out:
            check_output(path, "--out", ".csv", ".json", ".npz")
        check_output(plot, "--plot", *plots.SUFFIXES)
        chosen: Backend = as_backend(backend)
        if backend == "hmc":
            chosen = HMC(chains, warmup, draws)
        make = Prior.anchored if prior == "anchored" else Prior
        hyper = make(a_q, b_q, a_c, b_c)
        counts = read_inputs(**sources).counts
        known = None if graph is None else _load_graph(graph, counts)
        with console.status(f"inferring {counts.n_classes} shares by {backend}"):
            posterior = infer(counts, known, prior=hyper, backend=chosen, seed=seed, strict=strict)
        for path in out:
            _write(path, posterior, counts, level)
        if plot is not None:
            predicted = counts.target / counts.n_target
            plots.intervals(posterior, plot, level=level, others={"predicted": predicted})
        _show(posterior, counts, level)
        for path in (*out, *([] if plot is None else [plot])):
            console.print(f"wrote {path}")


def _load_graph(path: Path, counts: ShiftCounts) -> LabelGraph:
    """The graph, in the order of the counts' labels where it names the same ones."""
    graph = LabelGraph.load(path)
    if graph.labels is not None and set(graph.labels) == set(counts.labels):
        return graph.reordered(counts.labels)
    return graph


def _show(posterior: Posterior, counts: ShiftCounts, level: float) -> None:
    """The most frequent classes in a table, then the status."""
    percent = f"{100 * level:.3g} %"
    shown = table(
        str(counts), "class", "validation rows", "predicted", "mean", "sd", f"{percent} interval"
    )
    rows = posterior.rows(level)
    for i in np.argsort(-posterior.mean, kind="stable")[:_ROWS_SHOWN]:
        shown.add_row(
            str(counts.labels[i]),
            f"{counts.validation_sizes[i]}",
            f"{counts.target[i] / counts.n_target:.4f}",
            f"{rows['mean'][i]:.4f}",
            f"{rows['sd'][i]:.4f}",
            f"{rows['low'][i]:.4f} to {rows['high'][i]:.4f}",
        )
    console.print(shown)
    if counts.n_classes > _ROWS_SHOWN:
        console.print(f"the {_ROWS_SHOWN} most frequent of {counts.n_classes}; all with --out")
    console.print(f"status: {posterior.diagnostics.status.value}")


def _write(path: Path, posterior: Posterior, counts: ShiftCounts, level: float) -> None:
    if path.suffix.lower() == ".npz":
        posterior.save(path)
        return
    rows = posterior.rows(level)
    if path.suffix.lower() == ".csv":
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*rows, "n_target", "status"])
        status = posterior.diagnostics.status.value
        for row in zip(*rows.values(), strict=True):
            writer.writerow([*row, counts.n_target, status])
        write_text(path, text.getvalue())
        return
    content = {
        "backend": posterior.backend,
        "level": level,
        "n_target": counts.n_target,
        "n_validation": counts.n_validation,
        "status": posterior.diagnostics.status.value,
        "message": posterior.diagnostics.message,
        "classes": [dict(zip(rows, row, strict=True)) for row in zip(*rows.values(), strict=True)],
        "figures": _finite(dict(posterior.diagnostics.figures)),
    }
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def _finite(value: Any) -> Any:
    """JSON has no infinity: null stands for it."""
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    return value.item() if isinstance(value, np.generic) else value
