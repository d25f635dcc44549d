"""The options that say where the counts of a command come from, and how they are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from gsb3se.batch.validation import TableColumns
from gsb3se.cli.console import ExistingFile, ExistingSource
from gsb3se.model.counts import ShiftCounts, count_codes, count_pairs
from gsb3se.support.labels import Label, as_column, class_names, encode
from gsb3se.support.simplex import as_probabilities
from gsb3se.support.tables import (
    PROBABILITIES,
    as_counts,
    is_integer_text,
    read_columns,
    read_labels,
    to_integers,
)

label_column = click.option("--label-column", default="label", show_default=True)
prediction_column = click.option("--prediction-column", default="prediction", show_default=True)
count_column = click.option(
    "--count-column", help="A column that says how many predictions each row stands for."
)
certainty = click.option(
    "--certainty",
    type=click.FloatRange(0, 1),
    default=0.95,
    show_default=True,
    help="Posterior probability of a distance beyond the alert from which a group is flagged.",
)


def input_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say where the counts come from; read them with :func:`read_inputs`."""
    options = (
        click.option(
            "--validation",
            type=ExistingSource,
            help="CSV, Parquet or NPZ with true labels and predictions; or a folder of CSV or "
            "Parquet files.",
        ),
        click.option(
            "--target",
            type=ExistingSource,
            help="CSV, Parquet or NPZ with the target's predictions; or a folder of CSV or Parquet "
            "files.",
        ),
        click.option(
            "--counts", type=ExistingFile, help="Instead of both: a saved ShiftCounts file."
        ),
        click.option(
            "--labels",
            type=ExistingFile,
            help="All classes in order: a name a line, or a JSON list.",
        ),
        label_column,
        prediction_column,
        count_column,
    )
    for option in reversed(options):
        command = option(command)
    return command


def input_files(sources: Mapping[str, Any]) -> list[Path | None]:
    """The files among what :func:`input_options` gives a command."""
    return [sources[name] for name in ("validation", "target", "counts", "labels")]


@dataclass(frozen=True, eq=False)
class Inputs:
    """Counts, and the soft scores (n, K) where the files have them."""

    counts: ShiftCounts
    validation_labels: NDArray[np.int64] | None = None  # positions in counts.labels
    validation_probabilities: NDArray[np.float64] | None = None
    target_probabilities: NDArray[np.float64] | None = None


def read_inputs(sources: Mapping[str, Any]) -> Inputs:
    """Counts from a counts file, or from a validation and a target file of predictions.

    Args:
        sources: what :func:`input_options` gives a command.
    """
    validation, target, labels = (sources[name] for name in ("validation", "target", "labels"))
    columns = TableColumns(
        *(sources[f"{name}_column"] for name in ("label", "prediction", "count"))
    )
    if sources["counts"] is not None:
        if validation is not None or target is not None or labels is not None:
            raise ValueError("give either --counts or --validation and --target, not both")
        return Inputs(ShiftCounts.load(sources["counts"]))
    if validation is None or target is None:
        raise ValueError("give --validation and --target, or --counts")
    if len({columns.label, columns.prediction, columns.count}) < 3:
        raise ValueError(
            "--label-column, --prediction-column and --count-column must name different columns"
        )
    counted = [] if columns.count is None else [columns.count]
    rows = read_columns(validation, [columns.label, columns.prediction, *counted])
    aim = read_columns(target, [columns.prediction, *counted])
    truth, predicted = rows[columns.label], rows[columns.prediction]
    target_predicted = aim[columns.prediction]
    if all(is_integer_text(part) for part in (truth, predicted, target_predicted)):
        truth, predicted, target_predicted = map(to_integers, (truth, predicted, target_predicted))
    names = None if labels is None else read_labels(labels, like=truth)
    if columns.count is not None:
        times = as_counts(validation, rows[columns.count], len(truth))
        target_times = as_counts(target, aim[columns.count], len(target_predicted))
        return Inputs(
            _weighted_counts((truth, predicted, target_predicted), times, target_times, names)
        )
    counts = ShiftCounts.from_predictions(truth, predicted, target_predicted, labels=names)
    return Inputs(
        counts,
        encode(as_column(truth, columns.label), counts.labels, columns.label),
        _check_scores(validation, rows, len(truth), counts.n_classes),
        _check_scores(target, aim, len(target_predicted), counts.n_classes),
    )


def _weighted_counts(
    columns: tuple[NDArray[Any], NDArray[Any], NDArray[Any]],
    times: NDArray[np.int64],
    target_times: NDArray[np.int64],
    labels: tuple[Label, ...] | None,
) -> ShiftCounts:
    """Counts from rows that stand for several predictions each.

    Args:
        columns: true labels and predictions of the validation rows, predictions of the target.
    """
    truth, predicted, target = (as_column(part, "a column") for part in columns)
    names = class_names((truth, predicted), target) if labels is None else labels
    rows, cells = encode(predicted, names, "predictions"), encode(truth, names, "labels")
    aim = encode(target, names, "predictions")
    n = len(names)
    confusion = count_pairs(rows, cells, n, times)
    return ShiftCounts(confusion, count_codes(aim, n, target_times), names)


def _check_scores(
    path: Path, arrays: dict[str, NDArray[Any]], n_rows: int, n_classes: int
) -> NDArray[np.float64] | None:
    """The array of probabilities of an NPZ file, a row a prediction and a column a label."""
    if PROBABILITIES not in arrays:
        return None
    scores = arrays[PROBABILITIES]
    if scores.shape != (n_rows, n_classes) or scores.dtype.kind != "f":
        raise ValueError(
            f"{path}: {PROBABILITIES!r} must be ({n_rows}, {n_classes}) numbers, a row a "
            f"prediction and a column a label; got {scores.dtype} of shape {scores.shape}. Give "
            "all labels, in the order of its columns, with --labels"
        )
    try:
        return as_probabilities(scores)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
