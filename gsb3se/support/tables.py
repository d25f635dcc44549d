"""Columns of predictions from CSV, Parquet and NPZ files, and lists of labels."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gsb3se.support.errors import MOST_IN_ALL, require, some_of
from gsb3se.support.files import check_columns, names_in_npz, read_npz, read_text, whole
from gsb3se.support.labels import LONGEST, Label, as_integer, as_labels, more_than_once
from gsb3se.support.table_files import not_whole, table_files

PROBABILITIES = "probabilities"  # the array of soft scores of an NPZ file


def as_counts(path: Path, column: NDArray[Any], n_rows: int) -> NDArray[np.int64]:
    """A column of counts as whole numbers, one a row."""
    if column.shape != (n_rows,):
        raise ValueError(f"{path}: expected {n_rows} counts, one a row; got shape {column.shape}")
    if column.dtype.kind in "fu" and (column <= 2**53).all() and (np.floor(column) == column).all():
        column = column.astype(np.int64)
    if not is_integer_text(column) or (to_integers(column) < 0).any():
        raise ValueError(f"{path}: counts must be whole numbers, none negative")
    counts = to_integers(column)
    if counts.sum(dtype=float) > MOST_IN_ALL:  # as whole numbers their sums would wrap around
        raise ValueError(f"{path}: the counts exceed 2^53 in all")
    return counts


def read_columns(path: Path, needed: list[str]) -> dict[str, NDArray[Any]]:
    """The needed columns of a CSV, Parquet or NPZ file, and an NPZ file's probabilities.

    For a folder, the columns of all its files are concatenated. Text is stripped, and whole
    numbers become integers, whatever type the file stores.
    """
    if path.is_dir():
        parts = [read_columns(file, needed) for file in table_files([path])]
        return {name: _joined(path, name, [part[name] for part in parts]) for name in needed}
    readers = {".csv": _read_csv, ".npz": _read_npz, ".parquet": _read_parquet}
    if path.suffix not in readers:
        raise ValueError(f"{path}: expected a .csv, .parquet or .npz file, or a folder of them")
    with whole(path):
        columns = readers[path.suffix](path, needed)
        return {
            name: values if name == PROBABILITIES else _tidy(path, name, values)
            for name, values in columns.items()
        }


def _read_npz(path: Path, needed: list[str]) -> dict[str, NDArray[Any]]:
    check_columns(path, needed, names_in_npz(path))
    return read_npz(path, (*needed, PROBABILITIES))


def _joined(path: Path, name: str, parts: list[NDArray[Any]]) -> NDArray[Any]:
    kinds = {part.dtype.kind for part in parts if part.size}
    if len(kinds) > 1:
        raise ValueError(f"{path}: the column {name!r} is not of the same type in all files")
    return np.concatenate([part for part in parts if part.size] or parts)


def _tidy(path: Path, name: str, values: NDArray[Any]) -> NDArray[Any]:
    """A column of text without blanks around it, or of whole numbers as integers."""
    if values.dtype.kind == "f" and values.size:
        finite = np.isfinite(values)
        if finite.all() and (np.abs(values) < 2**53).all() and (values == np.round(values)).all():
            return values.astype(np.int64)
    if values.dtype.kind != "U":
        return values
    if values.dtype.itemsize > 4 * LONGEST:
        _check_length(path, name, max(values.ravel().tolist(), key=len))
    stripped = np.strings.strip(values)
    if (empty := np.flatnonzero(stripped.ravel() == "")).size:
        raise ValueError(f"{path}: the column {name!r} is empty in row {empty[0]}")
    return stripped


def _check_length(path: Path, name: str, text: str) -> None:
    if len(text) > LONGEST:
        raise ValueError(
            f"{path}: the column {name!r} holds a text of {len(text):,} letters; a label has at "
            f"most {LONGEST}"
        )


def _read_parquet(path: Path, needed: list[str]) -> dict[str, NDArray[Any]]:
    parquet = require("pyarrow.parquet", extra="batch")
    types = require("pyarrow", extra="batch").types
    try:
        file = parquet.ParquetFile(path)
    except Exception as error:
        raise not_whole(path, error) from None
    check_columns(path, needed, file.schema_arrow.names)
    columns = {}
    table = file.read(columns=needed)
    for name in needed:
        column = table[name]
        if types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if not (_is_text(types, column.type) or _is_number(types, column.type)):
            raise ValueError(
                f"{path}: the column {name!r} must hold text or numbers; its type is {column.type}"
            )
        if empty := column.null_count:
            raise ValueError(f"{path}: the column {name!r} is empty in {empty} rows")
        if _is_text(types, column.type):
            text = column.to_pylist()
            _check_length(path, name, max(text, key=len, default=""))
            if any("\0" in value for value in set(text)):
                raise ValueError(f"{path}: the column {name!r} holds a NUL, which no label may")
            columns[name] = np.array(text, dtype=str)
        else:
            columns[name] = column.to_numpy()
    return columns


def _is_text(types: Any, kind: Any) -> bool:
    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)


def _is_number(types: Any, kind: Any) -> bool:
    return types.is_integer(kind) or types.is_floating(kind)


def _read_csv(path: Path, needed: list[str]) -> dict[str, NDArray[Any]]:
    rows = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
    try:
        header = next(rows, [])
        check_columns(path, needed, header)
        places = [header.index(name) for name in needed]
        values: list[list[str]] = [[] for _ in needed]
        for row in rows:
            if not any(map(str.strip, row)):
                continue  # a blank line
            for place, column, name in zip(places, values, needed, strict=True):
                if place >= len(row) or not row[place].strip():
                    raise ValueError(f"{path}, line {rows.line_num}: the column {name!r} is empty")
                column.append(row[place].strip())
    except csv.Error as error:
        raise ValueError(f"{path}, line {rows.line_num}: {error}") from None
    for name, column in zip(needed, values, strict=True):
        _check_length(path, name, max(column, key=len, default=""))
    return {name: np.array(column, dtype=str) for name, column in zip(needed, values, strict=True)}


def is_integer_text(column: NDArray[Any]) -> bool:
    """Whether every value is an integer as programs write them, '2' or '2.0'."""
    if column.dtype.kind in "iu":
        return True
    if column.dtype.kind != "U":
        return column.size == 0
    return all(as_integer(value) is not None for value in set(column.tolist()))


def to_integers(column: NDArray[Any]) -> NDArray[Any]:
    """A column of integers, or of text that spells them, as integers."""
    if column.dtype.kind in "iu":
        return column
    return np.array([as_integer(value) for value in column.tolist()], dtype=np.int64)


def read_labels(path: Path, like: NDArray[Any] | None = None) -> tuple[Label, ...]:
    """Label names from a text file, one a line, or a JSON list; as integers if ``like`` is."""
    if path.suffix == ".json":
        content = read_json(path)
        if not isinstance(content, list):
            raise ValueError(f"{path}: expected a JSON list of labels")
        _check_length(path, "labels", max(filter(_is_str, content), key=len, default=""))
        return as_labels(content)
    lines = [line.strip() for line in read_text(path).split("\n") if line.strip()]
    _check_length(path, "labels", max(lines, key=len, default=""))
    names = np.array(lines)
    if like is not None and like.dtype.kind in "iu" and is_integer_text(names):
        names = to_integers(names)
    return as_labels(names.tolist())


def _is_str(value: object) -> bool:
    return isinstance(value, str)


def read_json(path: Path) -> Any:
    """Parse a JSON file, or say that it is none."""
    try:
        return json.loads(read_text(path), object_pairs_hook=_distinct_keys)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from None
    except ValueError as error:  # such as a number of thousands of digits
        raise ValueError(f"{path}: {error}") from None


def _distinct_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if twice := more_than_once(key for key, _ in pairs):
        raise ValueError(f"the JSON object has a key more than once: {some_of(twice)}")
    return dict(pairs)
