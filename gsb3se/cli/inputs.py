"""Reading predictions, labels and counts from the files that commands are given."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from gsb3se.adaptation import as_probabilities
from gsb3se.cli.console import ExistingFile, ExistingSource
from gsb3se.counting import target_files
from gsb3se.counts import MOST_IN_ALL, ShiftCounts
from gsb3se.errors import require, some_of
from gsb3se.files import check_columns, names_in_npz, read_npz, read_text, whole
from gsb3se.labels import (
    LONGEST,
    Label,
    as_column,
    as_integer,
    as_labels,
    as_text_labels,
    check_same_rows_overlap,
    class_names,
    distinct_values,
    encode,
    more_than_once,
)
from gsb3se.simplex import as_distribution

PROBABILITIES = "probabilities"


@dataclass(frozen=True)
class Columns:
    """Names of the columns, or of the arrays of an NPZ file."""

    label: str = "label"
    prediction: str = "prediction"
    count: str | None = None


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
            help="CSV, Parquet or NPZ with true labels and predictions; or a folder of such files.",
        ),
        click.option(
            "--target",
            type=ExistingSource,
            help="CSV, Parquet or NPZ with the target's predictions; or a folder of such files.",
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


def input_files(sources: dict[str, Any]) -> list[Path | None]:
    """The files among what :func:`input_options` gives a command."""
    return [sources[name] for name in ("validation", "target", "counts", "labels")]


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
    label_column: str,
    prediction_column: str,
    count_column: str | None,
) -> Inputs:
    """Counts from a counts file, or from a validation and a target file of predictions."""
    columns = Columns(label_column, prediction_column, count_column)
    if counts is not None:
        if validation is not None or target is not None or labels is not None:
            raise ValueError("give either --counts or --validation and --target, not both")
        return Inputs(ShiftCounts.load(counts))
    if validation is None or target is None:
        raise ValueError("give --validation and --target, or --counts")
    if len({columns.label, columns.prediction, columns.count}) < 3:
        raise ValueError(
            "--label-column, --prediction-column and --count-column must name different columns"
        )
    counted = [] if columns.count is None else [columns.count]
    source = read_columns(validation, [columns.label, columns.prediction, *counted])
    aim = read_columns(target, [columns.prediction, *counted])
    truth, predicted = source[columns.label], source[columns.prediction]
    target_predicted = aim[columns.prediction]
    if all(_is_integer_text(part) for part in (truth, predicted, target_predicted)):
        truth, predicted, target_predicted = map(_to_integers, (truth, predicted, target_predicted))
    names = None if labels is None else read_labels(labels, like=truth)
    if columns.count is not None:
        times = _as_counts(validation, source[columns.count], len(truth))
        target_times = _as_counts(target, aim[columns.count], len(target_predicted))
        weighted = (truth, predicted, target_predicted, times, target_times)
        return Inputs(_weighted_counts(*weighted, names))
    made = ShiftCounts.from_predictions(truth, predicted, target_predicted, labels=names)
    return Inputs(
        made,
        encode(as_column(truth, columns.label), made.labels, columns.label),
        _check_scores(validation, source, len(truth), made.n_classes),
        _check_scores(target, aim, len(target_predicted), made.n_classes),
    )


def read_validation(
    path: Path, columns: Columns, model: str | None, labels: tuple[Label, ...] | Path | None
) -> dict[str, ShiftCounts]:
    """The validation counts of each model, by its name; of one alone, by "".

    Args:
        model: the column that names the model.
        labels: every class as a graph or a result names it, or a file of them; by default the
            labels and predictions that occur.

    Returns:
        Counts over the same classes; their target is a stand-in.
    """
    more = [name for name in (columns.count, model) if name is not None]
    found = read_columns(path, [columns.label, columns.prediction, *more])
    truth, predicted = found[columns.label], found[columns.prediction]
    if len(truth) == 0:
        raise ValueError(f"{path} has no rows")
    if _is_integer_text(truth) and _is_integer_text(predicted):
        truth, predicted = _to_integers(truth), _to_integers(predicted)
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
        times = _as_counts(path, found[columns.count], len(truth))
    rows = encode(predicted, labels, f"{path}, {columns.prediction}")
    cells = encode(truth, labels, f"{path}, {columns.label}")
    models = np.full(len(truth), "") if model is None else found[model].astype(str)
    n = len(labels)
    counts = {}
    for name in np.unique(models).tolist():
        here = models == name
        if not times[here].any():
            raise ValueError(f"{path} has no validation rows{name and f' of the model {name!r}'}")
        confusion = sparse.coo_array((times[here], (rows[here], cells[here])), shape=(n, n))
        counts[name] = ShiftCounts(confusion, np.ones(n, dtype=np.int64), labels)
    return counts


def _as_numbered(labels: tuple[Label, ...]) -> tuple[Label, ...]:
    """A graph's names for classes that are whole numbers in a file: numbers, or else positions."""
    if isinstance(labels[0], int):
        return labels
    whole = as_text_labels([str(label) for label in labels])
    return whole if isinstance(whole[0], int) else tuple(range(len(labels)))


def read_shares(path: Path, labels: tuple[Label, ...]) -> NDArray[np.float64]:
    """A share for every label, from a CSV or Parquet file with the columns class and share."""
    found = read_columns(path, ["class", "share"])
    names = found["class"]
    if isinstance(labels[0], int) and _is_integer_text(names):
        names = _to_integers(names)
    try:
        shares = found["share"].astype(float)
    except ValueError:
        raise ValueError(f"{path}: the column 'share' must hold numbers") from None
    if twice := more_than_once(names.tolist()):
        raise ValueError(f"{path} has more than one share of {some_of(twice)}")
    known = dict(zip(names.tolist(), shares.tolist(), strict=True))
    if strange := [name for name in known if name not in labels]:
        raise ValueError(
            f"{path} has a share of {some_of(strange)}, unknown among the {len(labels)} labels "
            f"({some_of(labels, most=3)})"
        )
    if missing := [label for label in labels if label not in known]:
        raise ValueError(f"{path} has no share of {some_of(missing)}")
    return as_distribution([known[label] for label in labels], f"the shares of {path}")


def _weighted_counts(
    truth: NDArray[Any],
    predicted: NDArray[Any],
    target: NDArray[Any],
    times: NDArray[np.int64],
    target_times: NDArray[np.int64],
    labels: tuple[Label, ...] | None,
) -> ShiftCounts:
    """Counts from rows that stand for several predictions each."""
    truth, predicted, target = (as_column(part, "a column") for part in (truth, predicted, target))
    names = class_names((truth, predicted), target) if labels is None else labels
    n = len(names)
    rows, columns = encode(predicted, names, "predictions"), encode(truth, names, "labels")
    confusion = sparse.coo_array((times, (rows, columns)), shape=(n, n))
    summed = np.zeros(n, dtype=np.int64)
    np.add.at(summed, encode(target, names, "predictions"), target_times)
    return ShiftCounts(confusion, summed, names)


def _as_counts(path: Path, column: NDArray[Any], n_rows: int) -> NDArray[np.int64]:
    """A column of counts as whole numbers, one a row."""
    if column.shape != (n_rows,):
        raise ValueError(f"{path}: expected {n_rows} counts, one a row; got shape {column.shape}")
    if column.dtype.kind in "fu" and (column <= 2**53).all() and (np.floor(column) == column).all():
        column = column.astype(np.int64)
    if not _is_integer_text(column) or (_to_integers(column) < 0).any():
        raise ValueError(f"{path}: counts must be whole numbers, none negative")
    counts = _to_integers(column)
    if counts.sum(dtype=float) > MOST_IN_ALL:  # as whole numbers their sums would wrap around
        raise ValueError(f"{path}: the counts exceed 2^53 in all")
    return counts


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
    """The wanted columns of a CSV, Parquet or NPZ file, and an NPZ file's probabilities.

    Of a folder those of all its files, one after the other. Text is stripped, and whole numbers
    are integers however they are kept.
    """
    if path.is_dir():
        parts = [read_columns(file, wanted) for file in target_files([path])]
        return {name: _joined(path, name, [part[name] for part in parts]) for name in wanted}
    readers = {".csv": _read_csv, ".npz": _read_npz, ".parquet": _read_parquet}
    if path.suffix not in readers:
        raise ValueError(f"{path}: expected a .csv, .parquet or .npz file, or a folder of them")
    with whole(path):
        columns = readers[path.suffix](path, wanted)
        return {
            name: values if name == PROBABILITIES else _tidy(path, name, values)
            for name, values in columns.items()
        }


def _read_npz(path: Path, wanted: list[str]) -> dict[str, NDArray[Any]]:
    check_columns(path, wanted, names_in_npz(path))
    return read_npz(path, (*wanted, PROBABILITIES))


def _joined(path: Path, name: str, parts: list[NDArray[Any]]) -> NDArray[Any]:
    kinds = {part.dtype.kind for part in parts if part.size}
    if len(kinds) > 1:
        raise ValueError(f"{path}: the column {name!r} is not of the same type in all files")
    return np.concatenate([part for part in parts if part.size] or parts)


def _tidy(path: Path, name: str, values: NDArray[Any]) -> NDArray[Any]:
    """A column of text without blanks around it, or of whole numbers as integers."""
    if values.dtype.kind == "f" and values.size:
        known = np.isfinite(values)
        if known.all() and (np.abs(values) < 2**53).all() and (values == np.round(values)).all():
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


def _read_parquet(path: Path, wanted: list[str]) -> dict[str, NDArray[Any]]:
    parquet = require("pyarrow.parquet", extra="batch")
    types = require("pyarrow", extra="batch").types
    try:
        file = parquet.ParquetFile(path)
    except Exception as error:
        told = str(error).splitlines()[0]
        raise ValueError(f"{path} is not a whole Parquet file: {told}") from None
    check_columns(path, wanted, file.schema_arrow.names)
    columns = {}
    table = file.read(columns=wanted)
    for name in wanted:
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


def _read_csv(path: Path, wanted: list[str]) -> dict[str, NDArray[Any]]:
    rows = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
    try:
        header = next(rows, [])
        check_columns(path, wanted, header)
        places = [header.index(name) for name in wanted]
        values: list[list[str]] = [[] for _ in wanted]
        for row in rows:
            if not any(map(str.strip, row)):
                continue  # a blank line
            for place, column, name in zip(places, values, wanted, strict=True):
                if place >= len(row) or not row[place].strip():
                    raise ValueError(f"{path}, line {rows.line_num}: the column {name!r} is empty")
                column.append(row[place].strip())
    except csv.Error as error:
        raise ValueError(f"{path}, line {rows.line_num}: {error}") from None
    for name, column in zip(wanted, values, strict=True):
        _check_length(path, name, max(column, key=len, default=""))
    return {name: np.array(column, dtype=str) for name, column in zip(wanted, values, strict=True)}


def _is_integer_text(column: NDArray[Any]) -> bool:
    """Whether every value is an integer as programs write them, '2' or '2.0'."""
    if column.dtype.kind in "iu":
        return True
    if column.dtype.kind != "U":
        return column.size == 0
    return all(as_integer(value) is not None for value in set(column.tolist()))


def _to_integers(column: NDArray[Any]) -> NDArray[Any]:
    if column.dtype.kind in "iu":
        return column
    return np.array([as_integer(value) for value in column.tolist()], dtype=np.int64)


def read_labels(path: Path, like: NDArray[Any] | None = None) -> tuple[Label, ...]:
    """Label names from a text file, one a line, or a JSON list; as integers if ``like`` is."""
    if path.suffix == ".json":
        found = read_json(path)
        if not isinstance(found, list):
            raise ValueError(f"{path}: expected a JSON list of labels")
        _check_length(path, "labels", max(filter(_is_str, found), key=len, default=""))
        return as_labels(found)
    lines = [line.strip() for line in read_text(path).split("\n") if line.strip()]
    _check_length(path, "labels", max(lines, key=len, default=""))
    names = np.array(lines)
    if like is not None and like.dtype.kind in "iu" and _is_integer_text(names):
        names = _to_integers(names)
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
