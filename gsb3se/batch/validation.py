"""Validation counts of each model, and source shares, from files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gsb3se.model.counts import ConfusionCounts, count_pairs
from gsb3se.support.errors import some_of
from gsb3se.support.labels import (
    Label,
    as_column,
    as_text_labels,
    check_same_rows_overlap,
    distinct_values,
    encode,
    more_than_once,
)
from gsb3se.support.simplex import as_distribution
from gsb3se.support.tables import (
    as_counts,
    is_integer_text,
    read_columns,
    read_labels,
    to_integers,
)


@dataclass(frozen=True)
class TableColumns:
    """Names of the columns of a file, or of the arrays of an NPZ file.

    Attributes:
        label, prediction: of the true and the predicted class.
        count: how many predictions a row stands for, if not one.
    """

    label: str = "label"
    prediction: str = "prediction"
    count: str | None = None


def read_validation(
    path: Path, columns: TableColumns, model: str | None, labels: tuple[Label, ...] | Path | None
) -> dict[str, ConfusionCounts]:
    """The validation counts of each model, by its name; of one alone, by "".

    Args:
        model: the column that names the model.
        labels: every class as a graph or a result names it, or a file of them; by default the
            labels and predictions that occur.

    Returns:
        Counts over the same classes.
    """
    more = [name for name in (columns.count, model) if name is not None]
    table = read_columns(path, [columns.label, columns.prediction, *more])
    truth, predicted = table[columns.label], table[columns.prediction]
    if len(truth) == 0:
        raise ValueError(f"{path} has no rows")
    if is_integer_text(truth) and is_integer_text(predicted):
        truth, predicted = to_integers(truth), to_integers(predicted)
    if isinstance(labels, Path):
        labels = read_labels(labels, like=truth)
    elif labels is not None and truth.dtype.kind in "iu":
        labels = _as_numbered(labels)
    truth, predicted = as_column(truth, columns.label), as_column(predicted, columns.prediction)
    if labels is None:
        check_same_rows_overlap(distinct_values(truth), distinct_values(predicted))
        labels = distinct_values(truth, predicted)
    times = np.ones(len(truth), dtype=np.int64)
    if columns.count is not None:
        times = as_counts(path, table[columns.count], len(truth))
    rows = encode(predicted, labels, f"{path}, {columns.prediction}")
    cells = encode(truth, labels, f"{path}, {columns.label}")
    models = np.full(len(truth), "") if model is None else table[model].astype(str)
    n = len(labels)
    counts = {}
    for name in np.unique(models).tolist():
        here = models == name
        if not times[here].any():
            raise ValueError(f"{path} has no validation rows{name and f' of the model {name!r}'}")
        confusion = count_pairs(rows[here], cells[here], n, times[here])
        counts[name] = ConfusionCounts(confusion, labels)
    return counts


def _as_numbered(labels: tuple[Label, ...]) -> tuple[Label, ...]:
    """A graph's names for classes that are whole numbers in a file: numbers, or else positions."""
    if isinstance(labels[0], int):
        return labels
    whole = as_text_labels([str(label) for label in labels])
    return whole if isinstance(whole[0], int) else tuple(range(len(labels)))


def read_shares(path: Path, labels: tuple[Label, ...]) -> NDArray[np.float64]:
    """A share for every label, from a CSV or Parquet file with the columns class and share."""
    table = read_columns(path, ["class", "share"])
    names = table["class"]
    if isinstance(labels[0], int) and is_integer_text(names):
        names = to_integers(names)
    try:
        shares = table["share"].astype(float)
    except ValueError:
        raise ValueError(f"{path}: the column 'share' must hold numbers") from None
    if twice := more_than_once(names.tolist()):
        raise ValueError(f"{path} has more than one share of {some_of(twice)}")
    by_class = dict(zip(names.tolist(), shares.tolist(), strict=True))
    if strange := [name for name in by_class if name not in labels]:
        raise ValueError(
            f"{path} has a share of {some_of(strange)}, unknown among the {len(labels)} labels "
            f"({some_of(labels, most=3)})"
        )
    if missing := [label for label in labels if label not in by_class]:
        raise ValueError(f"{path} has no share of {some_of(missing)}")
    return as_distribution([by_class[label] for label in labels], f"the shares of {path}")
