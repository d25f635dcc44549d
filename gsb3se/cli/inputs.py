"""Reading predictions, labels and counts from the files that commands are given."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gsb3se.counts import ShiftCounts
from gsb3se.errors import some_of
from gsb3se.files import read_npz, read_text
from gsb3se.labels import Label, as_labels

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
    parts = [source[columns.label], source[columns.prediction], aim[columns.prediction]]
    if all(_is_integer_text(part) for part in parts):
        parts = [part.astype(np.int64) for part in parts]
    names = None if labels is None else read_labels(labels, like=parts[0])
    made = ShiftCounts.from_predictions(parts[0], parts[1], parts[2], labels=names)
    position = {label: index for index, label in enumerate(made.labels)}
    truth = np.array([position[value] for value in parts[0].tolist()], dtype=np.int64)
    return Inputs(made, truth, source.get(PROBABILITIES), aim.get(PROBABILITIES))


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
    rows = csv.reader(io.StringIO(read_text(path), newline=""))
    header = next(rows, [])
    _check_columns(path, wanted, header)
    places = [header.index(name) for name in wanted]
    values: list[list[str]] = [[] for _ in wanted]
    for row in rows:
        if not row:
            continue
        for place, column, name in zip(places, values, wanted, strict=True):
            if place >= len(row) or row[place] == "":
                raise ValueError(f"{path}, line {rows.line_num}: the column {name!r} is empty")
            column.append(row[place])
    return {name: np.array(column) for name, column in zip(wanted, values, strict=True)}


def _check_columns(path: Path, wanted: list[str], found: list[str]) -> None:
    missing = [name for name in wanted if name not in found]
    if missing:
        raise ValueError(
            f"{path} has no column {some_of(missing)}; it has {some_of(found) or 'none'}"
        )
    if twice := [name for name in wanted if found.count(name) > 1]:
        raise ValueError(f"{path} has more than one column {some_of(twice)}")


def _is_integer_text(column: NDArray[Any]) -> bool:
    """Whether every value is an integer written as one would write it (so not '007')."""
    if column.dtype.kind in "iu":
        return True
    if column.dtype.kind != "U":
        return False
    distinct = set(column.tolist())
    return all(value.lstrip("-").isdecimal() and str(int(value)) == value for value in distinct)


def read_labels(path: Path, like: NDArray[Any] | None = None) -> tuple[Label, ...]:
    """Label names from a text file, one a line, or a JSON list; as integers if ``like`` is."""
    if path.suffix == ".json":
        found = read_json(path)
        if not isinstance(found, list):
            raise ValueError(f"{path}: expected a JSON list of labels")
        return as_labels(found)
    lines = read_text(path).splitlines()
    names = np.array([line.strip() for line in lines if line.strip()])
    if like is not None and like.dtype.kind in "iu" and _is_integer_text(names):
        names = names.astype(np.int64)
    return as_labels(names.tolist())


def read_json(path: Path) -> Any:
    """Parse a JSON file, or say that it is none."""
    try:
        return json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from None
