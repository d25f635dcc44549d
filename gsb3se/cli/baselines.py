"""gsb3se baselines: the classical point estimates."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import click
import numpy as np

from gsb3se import baselines as methods
from gsb3se.cli.console import File, console, plain_speech, table
from gsb3se.cli.count_options import PROBABILITIES, Inputs, input_files, input_options, read_inputs
from gsb3se.support.errors import GSB3SEWarning, some_of
from gsb3se.support.files import as_csv, as_json, check_output, write_text
from gsb3se.support.labels import printable
from gsb3se.support.limits import ROWS_SHOWN
from gsb3se.support.simplex import Vector

_METHODS = ("bbse", "bbse-raw", "rlls", "mlls", "em")


@click.command()
@input_options
@click.option(
    "--method",
    "chosen",
    multiple=True,
    type=click.Choice(_METHODS),
    help="May be repeated; by default all that the files allow.",
)
@click.option("--out", type=File, help="Write the estimates to a .csv or .json file.")
def baselines(chosen: tuple[str, ...], out: Path | None, **sources: Any) -> None:
    """Estimate the target prior by BBSE, RLLS, MLLS and EM.

    EM needs soft scores: an array "probabilities" (rows by classes, in the order of the labels) in
    the target's NPZ file. If the validation file has one too, they are calibrated on it by BCTS.

    \b
    gsb3se baselines --validation val.csv --target new.csv --out estimates.csv
    gsb3se baselines --validation val.npz --target new.npz --method em --method rlls
    """
    with plain_speech():
        check_output(out, "--out", ".csv", ".json", inputs=input_files(sources))
        inputs = read_inputs(sources)
        names = chosen or tuple(name for name in _METHODS if name != "em" or _allows_em(inputs))
        estimates = {name: _estimate(name, inputs) for name in names}
        if out is not None:
            write = _as_csv if out.suffix.lower() == ".csv" else _as_json
            write_text(out, write(inputs, estimates))
        _show(inputs, estimates)
        if out is not None:
            console.print(f"wrote {out}")


def _allows_em(inputs: Inputs) -> bool:
    if inputs.target_probabilities is None:
        return False
    if inputs.counts.without_validation:
        warnings.warn(
            "EM is left out: it needs the source prior of every class, and "
            f"{some_of(inputs.counts.without_validation)} have no validation rows",
            GSB3SEWarning,
            stacklevel=2,
        )
        return False
    return True


def _estimate(name: str, inputs: Inputs) -> Vector:
    if name == "bbse-raw":
        return methods.bbse(inputs.counts, project=False)
    if name != "em":
        return getattr(methods, name)(inputs.counts)
    probs = inputs.target_probabilities
    if probs is None:
        raise ValueError(f"em needs an array {PROBABILITIES!r} in the target's NPZ file")
    if inputs.validation_probabilities is not None and inputs.validation_labels is not None:
        calibrator = methods.calibrate(
            _log(inputs.validation_probabilities), inputs.validation_labels, method="bcts"
        )
        probs = calibrator(_log(probs))
    return methods.em(probs, inputs.counts.validation_shares)


def _log(probs: np.ndarray) -> np.ndarray:
    return np.log(np.maximum(probs, 1e-12))


def _show(inputs: Inputs, estimates: dict[str, Vector]) -> None:
    counts = inputs.counts
    order = np.argsort(-counts.target, kind="stable")[:ROWS_SHOWN]
    shown = table(str(counts), "class", "validation rows", "predicted", *estimates)
    for i in sorted(order):
        shown.add_row(
            printable(counts.labels[i]),
            f"{counts.validation_sizes[i]}",
            f"{counts.target[i] / counts.n_target:.4f}",
            *(f"{q[i]:.4f}" for q in estimates.values()),
        )
    console.print(shown)
    if counts.n_classes > ROWS_SHOWN:
        console.print(
            f"the {ROWS_SHOWN} most predicted of {counts.n_classes} classes; all with --out"
        )


def _as_csv(inputs: Inputs, estimates: dict[str, Vector]) -> str:
    counts = inputs.counts
    shares = zip(*(q.tolist() for q in estimates.values()), strict=True)
    sizes, target = counts.validation_sizes.tolist(), counts.target.tolist()
    columns = zip(counts.labels, sizes, target, shares, strict=True)
    rows = ([label, size, count, *share] for label, size, count, share in columns)
    return as_csv(["class", "n_validation", "n_target", *estimates], rows)


def _as_json(inputs: Inputs, estimates: dict[str, Vector]) -> str:
    return as_json(
        {
            "labels": inputs.counts.labels,
            "n_validation": inputs.counts.validation_sizes.tolist(),
            "n_target": inputs.counts.target.tolist(),
            "estimates": {name: q.tolist() for name, q in estimates.items()},
        }
    )
