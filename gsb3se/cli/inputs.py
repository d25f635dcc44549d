"""Reading predictions, labels and counts from the files that commands are given."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gsb3se.adaptation import as_probabilities
from gsb3se.counts import ShiftCounts
from gsb3se.errors import some_of
from gsb3se.files import read_npz, read_text
from gsb3se.labels import Label, as_column, as_labels, encode, more_than_once

PROBABILITIES = "probabilities"


@dataclass(frozen=True)
class Columns:
    """Names of the columns, or of the arrays of an NPZ file."""

    label: str = "label"
    prediction: str = "prediction"


@dataclass(frozen=True, eq=False)
class Inputs:
    """Counts, and the soft scores (n, K) where the files have them."""

    counts: ShiftCounts
    validation_labels: NDArray[np.int64] | None = None  # positions in counts.labels
    validation_probabilities: NDArray[np.float64] | None = None
    target_probabilities: NDArray[np.float64] | None = None


def read_inputs(
    validation: Path | None,
    target: Path | None,
    counts: Path | None,
    labels: Path | None,
    columns: Columns,
) -> Inputs:
    """Counts from a counts file, or from a validation and a target file of predictions."""
    if counts is not None:
        if validation is not None or target is not None or labels is not None:
            raise ValueError("give either --counts or --validation and --target, not both")
        return Inputs(ShiftCounts.load(counts))
    if validation is None or target is None:
        raise ValueError("give --validation and --target, or --counts")
    source = read_columns(validation, [columns.label, columns.prediction])
    aim = read_columns(target, [columns.prediction])
    truth, predicted = source[columns.label], source[columns.prediction]
    target_predicted = aim[columns.prediction]
    if all(_is_integer_text(part) for part in (truth, predicted, target_predicted)):
        truth, predicted, target_predicted = map(_to_integers, (truth, predicted, target_predicted))
    names = None if labels is None else read_labels(labels, like=truth)
    made = ShiftCounts.from_predictions(truth, predicted, target_predicted, labels=names)
    return Inputs(
        made,
        encode(as_column(truth, columns.label), made.labels, columns.label),
        _check_scores(validation, source, len(truth), made.n_classes),
        _check_scores(target, aim, len(target_predicted), made.n_classes),
    )


def _check_scores(
    path: Path, arrays: dict[str, NDArray[Any]], n_rows: int, n_classes: int
) -> NDArray[np.float64] | None:
    """The array of probabilities of an NPZ file, a row a prediction and a column a label."""
    if PROBABILITIES not in arrays:
        return None
    found = arrays[PROBABILITIES]
    if found.shape != (n_rows, n_classes) or found.dtype.kind != "f":
        raise ValueError(
            f"{path}: {PROBABILITIES!r} must be ({n_rows}, {n_classes}) numbers, a row a "
            f"prediction and a column a label; got {found.dtype} of shape {found.shape}. Give all "
            "labels, in the order of its columns, with --labels"
        )
    try:
        return as_probabilities(found)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def read_columns(path: Path, wanted: list[str]) -> dict[str, NDArray[Any]]:
    """The wanted columns of a CSV or NPZ file, and an NPZ file's probabilities."""
    if path.suffix == ".csv":
        return _read_csv(path, wanted)
    if path.suffix == ".npz":
        arrays = read_npz(path)
        _check_columns(path, wanted, list(arrays))
        kept = {name: arrays[name] for name in wanted}
        if PROBABILITIES in arrays:
            kept[PROBABILITIES] = arrays[PROBABILITIES]
        return kept
    raise ValueError(f"{path}: expected a .csv or .npz file")


def _read_csv(path: Path, wanted: list[str]) -> dict[str, NDArray[Any]]:
    rows = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
    try:
        header = next(rows, [])
        _check_columns(path, wanted, header)
        places = [header.index(name) for name in wanted]
        values: list[list[str]] = [[] for _ in wanted]
        for row in rows:
            if not row:
                continue
            for place, column, name in zip(places, values, wanted, strict=True):
                if place >= len(row) or not row[place].strip():
                    raise ValueError(f"{path}, line {rows.line_num}: the column {name!r} is empty")
                column.append(row[place].strip())
    except csv.Error as error:
        raise ValueError(f"{path}, line {rows.line_num}: {error}") from None
    return {name: np.array(column) for name, column in zip(wanted, values, strict=True)}


def _check_columns(path: Path, wanted: list[str], found: list[str]) -> None:
    missing = [name for name in wanted if name not in found]
    if missing:
        raise ValueError(
            f"{path} has no column {some_of(missing)}; it has {some_of(found) or 'none'}"
        )
    if twice := [name for name in wanted if found.count(name) > 1]:
        raise ValueError(f"{path} has more than one column {some_of(twice)}")


_INTEGER = re.compile(r"(0|-?[1-9][0-9]{0,17})([.]0*)?")  # not '007', which is a name


def _is_integer_text(column: NDArray[Any]) -> bool:
    """Whether every value is an integer as programs write them, '2' or '2.0'."""
    if column.dtype.kind in "iu":
        return True
    if column.dtype.kind != "U":
        return column.size == 0
    return all(_INTEGER.fullmatch(value) for value in set(column.tolist()))


def _to_integers(column: NDArray[Any]) -> NDArray[Any]:
    if column.dtype.kind in "iu":
        return column
    return np.array([int(value.partition(".")[0]) for value in column.tolist()], dtype=np.int64)


def read_labels(path: Path, like: NDArray[Any] | None = None) -> tuple[Label, ...]:
    """Label names from a text file, one a line, or a JSON list; as integers if ``like`` is."""
    if path.suffix == ".json":
        found = read_json(path)
        if not isinstance(found, list):
            raise ValueError(f"{path}: expected a JSON list of labels")
        return as_labels(found)
    lines = read_text(path).split("\n")
    names = np.array([line.strip() for line in lines if line.strip()])
    if like is not None and like.dtype.kind in "iu" and _is_integer_text(names):
        names = _to_integers(names)
    return as_labels(names.tolist())


def read_json(path: Path) -> Any:
    """Parse a JSON file, or say that it is none."""
    try:
        return json.loads(read_text(path), object_pairs_hook=_distinct_keys)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from None


def _distinct_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if twice := more_than_once(key for key, _ in pairs):
        raise ValueError(f"the JSON object has a key more than once: {some_of(twice)}")
    return dict(pairs)
