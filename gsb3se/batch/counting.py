"""Counting predictions in files of any size, group by group, by polars' streaming engine.

Files are counted in blocks. Each pair of group and class takes two numbers, so memory does not grow
with the number of rows. Blocks stay small while each brings new groups, as in a log sorted by time;
they grow eightfold when a block brings few new groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gsb3se.batch.groups import NO_PREDICTION, Groups
from gsb3se.support.errors import MOST_IN_ALL, require, some_of
from gsb3se.support.files import check_columns, check_distinct, is_panic
from gsb3se.support.labels import Label, as_integer
from gsb3se.support.table_files import header, named_files, not_whole, refuse_rows, scan_tables

if TYPE_CHECKING:
    import polars as pl

_LEAST_ROWS, _BYTES_A_BLOCK = 1 << 21, 1 << 28  # of a block: Parquet, CSV
_NEW = 0.1  # share of new groups in a block from which the next is as small
_CODE_BITS = 24
_HALF = 1 << (_CODE_BITS - 1)  # makes codes positive, of labels and of unknown_labels


@dataclass(frozen=True)
class TargetColumns:
    """Names of the columns of target files.

    Attributes:
        prediction: of the predicted label.
        keys: whose values tell the groups apart; none for one group of all rows.
        count: how many predictions a row stands for, if not one.
    """

    prediction: str = "prediction"
    keys: tuple[str, ...] = ()
    count: str | None = None

    @property
    def all(self) -> list[str]:
        return [*self.keys, self.prediction, *([] if self.count is None else [self.count])]


def count_predictions(
    files: Sequence[Path], columns: TargetColumns, labels: tuple[Label, ...]
) -> Groups:
    """How often each label was predicted in each group; the files are never in memory whole."""
    polars = require("polars", extra="batch")
    is_csv = files[0].suffix == ".csv"
    for path in files:
        check_distinct(path, columns.all, header(path))
    counted = _Entries(polars, columns, labels, is_csv)
    for block in _csv_blocks(files) if is_csv else _parquet_blocks(files, columns, counted):
        try:
            counted.add(_counted(polars, block, columns, is_csv))
        except BaseException as error:
            if not isinstance(error, polars.exceptions.PolarsError) and not is_panic(error):
                raise
            refuse_rows(block.files, error)
    if not counted.keys:
        raise ValueError(f"{named_files(files)} no rows")
    return counted.as_groups()


class _FileBlock(NamedTuple):
    """Some files, or so many rows of one."""

    files: list[Path]
    first: int = 0
    rows: int | None = None


def _csv_blocks(files: Sequence[Path]) -> Iterator[_FileBlock]:
    together: list[Path] = []
    size = 0
    for path in files:
        if together and size + path.stat().st_size > _BYTES_A_BLOCK:
            yield _FileBlock(together)
            together, size = [], 0
        together.append(path)
        size += path.stat().st_size
    yield _FileBlock(together)


def _parquet_blocks(
    files: Sequence[Path], columns: TargetColumns, counted: _Entries
) -> Iterator[_FileBlock]:
    """Small files together, large ones in parts that end where a row group does.

    Args:
        counted: is looked at between blocks for how large the next shall be.
    """
    types: dict[str, Any] = {}
    together: list[Path] = []
    waiting = 0
    for path in files:
        metadata = _parquet_metadata(path, columns, types)
        if together and waiting + metadata.num_rows > counted.block:
            yield _FileBlock(together)
            together, waiting = [], 0
        if metadata.num_rows <= counted.block:
            together.append(path)
            waiting += metadata.num_rows
        else:
            yield from _parts(path, metadata, counted)
    if together:
        yield _FileBlock(together)


def _parquet_metadata(path: Path, columns: TargetColumns, types: dict[str, Any]) -> Any:
    """A file's metadata; ``types`` of the columns must be those of the files before."""
    parquet = require("pyarrow.parquet", extra="batch")
    arrow = require("pyarrow", extra="batch")
    try:
        with parquet.ParquetFile(path) as file:
            metadata, schema = file.metadata, file.schema_arrow
    except (arrow.ArrowInvalid, OSError) as error:
        raise not_whole(path, error) from None
    for name in set(columns.all) & set(schema.names):
        kind = types.setdefault(name, schema.field(name).type)
        if schema.field(name).type != kind:
            raise ValueError(
                f"the column {name!r} is not of the same type in all files: "
                f"{schema.field(name).type} in {path}, {kind} before"
            )
    return metadata


def _parts(path: Path, metadata: Any, counted: _Entries) -> Iterator[_FileBlock]:
    """The row groups of a large file, as many together as a block holds."""
    first = rows = 0
    for number in range(metadata.num_row_groups):
        rows += metadata.row_group(number).num_rows
        if rows >= counted.block:
            yield _FileBlock([path], first, rows)
            first, rows = first + rows, 0
    if rows:
        yield _FileBlock([path], first, rows)


def _counted(polars: Any, block: _FileBlock, columns: TargetColumns, is_csv: bool) -> pl.DataFrame:
    """The block's keys and predictions, and how often each occurs as the last column."""
    scanned, names = scan_tables(polars, block.files, is_csv)
    check_columns(block.files[0], columns.all, names)
    _check_keys(polars, scanned.collect_schema(), columns)
    if block.rows is not None:
        scanned = scanned.slice(block.first, block.rows)
    counted = _grouped(polars, scanned, columns)
    if is_csv and _has_blank(polars, counted.select(columns.all[: len(columns.keys) + 1])):
        blank = [_stripped(polars, name).is_null() for name in names]
        scanned = scanned.filter(~polars.all_horizontal(blank))
        counted = _grouped(polars, scanned, columns)
    return counted if columns.count is None else _checked_counts(polars, counted, columns.count)


def _stripped(polars: Any, name: str) -> Any:
    """A column of text without blanks around it, null where nothing is left."""
    return polars.col(name).str.strip_chars().replace("", None)


def _has_blank(polars: Any, rows: pl.DataFrame) -> bool:
    """Whether a row has nothing in any column: of a blank line, perhaps."""
    blank = [_stripped(polars, name).is_null() for name in rows.columns]
    return bool(rows.select(polars.all_horizontal(blank).any()).item())


def _check_keys(polars: Any, schema: Any, columns: TargetColumns) -> None:
    """Raise ValueError where the values of a key could not be written to any result."""
    plain = (polars.String, polars.Categorical, polars.Enum, polars.Boolean, polars.Null)
    for name in columns.keys:
        kind = schema[name]
        number = kind.is_integer() or kind.is_float()
        if not number and kind not in plain and kind not in (polars.Date, polars.Datetime):
            raise ValueError(
                f"--by {name} must be text, numbers, true and false, or dates; its type is {kind}"
            )


def _grouped(polars: Any, scanned: Any, columns: TargetColumns) -> pl.DataFrame:
    """How often each key and prediction occurs; with a count column also what is wrong of it."""
    named = "n_" + "_".join(columns.all)  # a name that no column has
    by = [*columns.keys, columns.prediction]
    if columns.count is None:
        times = polars.len().cast(polars.Int64).alias(named)
        return scanned.group_by(by).agg(times).collect(engine="streaming")
    count, valid = _as_count(polars, columns.count, scanned.collect_schema()[columns.count])
    wrong = polars.col(columns.count).filter(~valid)
    sums = [
        count.filter(valid).sum().alias(named),
        count.filter(valid).cast(polars.Float64).sum().alias(named + "_about"),
        wrong.len().alias(named + "_wrong"),
        wrong.first().cast(polars.String).alias(named + "_first"),
    ]
    return scanned.group_by(by).agg(sums).collect(engine="streaming")


def _checked_counts(polars: Any, counted: pl.DataFrame, name: str) -> pl.DataFrame:
    """What was counted, if every count was a whole number."""
    named = counted.columns[-4]
    if (bad := counted.filter(polars.col(named + "_wrong") > 0)).height:
        first = bad[0, named + "_first"]
        raise ValueError(
            f"the column {name!r} must hold whole numbers, none negative; found "
            f"{'an empty value' if first is None else repr(first)}"
        )
    if (counted[named + "_about"] > MOST_IN_ALL).any():
        raise ValueError(f"the counts of the column {name!r} exceed 2^53 in all")
    return counted.drop(named + "_about", named + "_wrong", named + "_first")


def _as_count(polars: Any, name: str, kind: Any) -> tuple[Any, Any]:
    """Expressions for a column of counts as whole numbers, and for which of them are valid."""
    column = polars.col(name)
    if kind == polars.String:
        text = column.str.strip_chars()
        valid = text.str.contains(r"^(0|[1-9][0-9]{0,15})([.]0*)?$")
        count = text.str.replace(r"[.]0*$", "").cast(polars.Int64, strict=False)
        return count, valid.fill_null(False)
    if not kind.is_integer() and not kind.is_float():
        raise ValueError(
            f"the column {name!r} must hold whole numbers, none negative; its type is {kind}"
        )
    valid = (column >= 0) & (column <= MOST_IN_ALL)
    if kind.is_float():
        valid = valid & (column == column.round())
    return column.cast(polars.Int64, strict=False), valid.fill_null(False)


class _Entries:
    """What was counted so far: group, class and count of every entry."""

    def __init__(
        self, polars: Any, columns: TargetColumns, labels: tuple[Label, ...], is_csv: bool
    ) -> None:
        self.polars, self.columns, self.labels, self.is_csv = polars, columns, labels, is_csv
        self.places: dict[tuple[Any, ...], int] = {}  # of groups, in the order they were met
        self.keys: list[pl.DataFrame] = []
        self.codes: dict[Any, int] = {label: code for code, label in enumerate(labels)}
        self.entries: list[NDArray[np.int64]] = []  # group and code in one number
        self.times: list[NDArray[np.int64]] = []
        self.merged = 0
        self.total = 0.0  # predictions
        self.block = _LEAST_ROWS  # rows to count next
        self.any_label = False  # whether some prediction was a label
        self.numbers = False  # whether predictions are whole numbers

    def add(self, frame: pl.DataFrame) -> None:
        """Take a block's counts into account."""
        if frame.height == 0:
            return
        before = len(self.places)
        groups = self._groups(frame.select(self.columns.keys), frame.height)
        if len(self.places) <= (1 + _NEW) * before or not self.columns.keys:
            self.block *= 8
        codes = self._codes(frame[self.columns.prediction])
        self.entries.append((groups << _CODE_BITS) + codes + _HALF)
        self.times.append(frame.to_series(-1).to_numpy())
        self.total += float(frame.to_series(-1).sum())
        if self.total > MOST_IN_ALL:
            raise ValueError("the counts of the target files exceed 2^53 in all")
        if sum(map(len, self.entries)) > max(2 * self.merged, 1 << 20):
            self._merge()

    def _groups(self, keys: pl.DataFrame, height: int) -> NDArray[np.int64]:
        """The places of the rows' groups; new ones get the next."""
        if not self.columns.keys:
            self.keys = [keys]
            return np.zeros(height, dtype=np.int64)
        distinct = keys.unique(maintain_order=True)
        rows = distinct.rows()
        new = [place for place, row in enumerate(rows) if row not in self.places]
        self.places |= {rows[place]: len(self.places) + k for k, place in enumerate(new)}
        self.keys.append(distinct[new])
        numbered = distinct.with_columns(
            self.polars.Series("", [self.places[row] for row in rows], self.polars.Int64)
        )
        return _matched(keys, numbered)

    def _codes(self, predicted: pl.Series) -> NDArray[np.int64]:
        distinct = predicted.unique()
        codes = [self._code(value) for value in _as_values(self.polars, distinct)]
        self.numbers = distinct.dtype.is_numeric()
        numbered = distinct.to_frame().with_columns(
            self.polars.Series("", codes, self.polars.Int64)
        )
        return _matched(predicted.to_frame(), numbered)

    def _code(self, value: Label | None) -> int:
        """The place of a prediction among the labels, or below zero."""
        if value is None:
            return NO_PREDICTION
        if isinstance(value, int) != isinstance(self.labels[0], int):
            whole = as_integer(value) if isinstance(value, str) else None
            value = str(value) if isinstance(value, int) else value if whole is None else whole
        code = self.codes.setdefault(value, -2 - (len(self.codes) - len(self.labels)))
        self.any_label = self.any_label or code >= 0
        return code

    def _merge(self) -> None:
        """Sum what was counted of the same group and class."""
        entries = np.concatenate(self.entries)
        self.entries = []
        order = np.argsort(entries, kind="stable")
        entries = entries[order]
        times = np.concatenate(self.times)[order]
        first = np.flatnonzero(np.diff(entries, prepend=-1))
        if len(first) < len(entries):
            entries, times = entries[first], np.add.reduceat(times, first)
        self.entries, self.times, self.merged = [entries], [times], len(entries)

    def as_groups(self) -> Groups:
        """Everything, in the order of the keys."""
        unknown_labels = tuple(value for value, code in self.codes.items() if code < 0)
        self._check_kinds(unknown_labels)
        keys, place = self._ordered_keys()
        for part in self.entries:
            part += (place[part >> _CODE_BITS] - (part >> _CODE_BITS)) << _CODE_BITS
        self._merge()
        (entries,), (times,) = self.entries, self.times
        starts = np.searchsorted(entries, np.arange(int(place.max()) + 2) << _CODE_BITS)
        codes = ((entries & ((1 << _CODE_BITS) - 1)) - _HALF).astype(np.int32)
        return Groups(keys, starts, codes, times, unknown_labels, self.labels)

    def _check_kinds(self, unknown_labels: tuple[Label, ...]) -> None:
        if self.any_label or not unknown_labels or self.numbers == isinstance(self.labels[0], int):
            return
        kinds = ("whole numbers", "text") if self.numbers else ("text", "whole numbers")
        raise ValueError(
            f"the predictions are {kinds[0]} ({some_of(unknown_labels, most=3)}) and the labels "
            f"{kinds[1]} ({some_of(self.labels, most=3)}): write both in one way"
        )

    def _ordered_keys(self) -> tuple[pl.DataFrame, NDArray[np.int64]]:
        """Distinct keys in order, and for every group that was met its place among them.

        Text from CSV files is stripped, and numbers where all of a column's values are; text of
        other files is what it is declared to be.
        """
        keys = self.polars.concat(self.keys)
        if not self.columns.keys:
            return keys, np.zeros(1, dtype=np.int64)
        for name in self.columns.keys:
            if self.is_csv:
                keys = keys.with_columns(_tidy(self.polars, keys[name]))
        distinct = keys.unique().sort(self.columns.keys, nulls_last=True)
        numbered = distinct.with_columns(self.polars.int_range(distinct.height).alias(""))
        return distinct, _matched(keys, numbered)


def _matched(rows: pl.DataFrame, numbered: pl.DataFrame) -> NDArray[np.int64]:
    """For every row the number, in the last column, of the row of ``numbered`` that equals it."""
    joined = rows.join(
        numbered, on=rows.columns, how="left", nulls_equal=True, maintain_order="left"
    )
    return joined.to_series(-1).to_numpy()


def _as_values(polars: Any, distinct: pl.Series) -> list[Label | None]:
    """Distinct predictions as Python's text or whole numbers."""
    if distinct.dtype.is_float() and (distinct == distinct.round()).all():
        distinct = distinct.cast(polars.Int64)
    text = distinct.dtype in (polars.String, polars.Categorical, polars.Enum)
    if not text and not distinct.dtype.is_integer() and distinct.dtype != polars.Null:
        raise ValueError(
            f"predictions must be text or whole numbers; got the type {distinct.dtype}"
        )
    values = distinct.to_list()
    return [value.strip() or None if isinstance(value, str) else value for value in values]


def _tidy(polars: Any, text: pl.Series) -> pl.Series:
    """Text without blanks around it; whole numbers if it spells nothing else."""
    stripped = text.str.strip_chars().replace("", None)
    whole = [None if value is None else as_integer(value) for value in stripped]
    if stripped.null_count() < sum(value is None for value in whole) or not any(
        value is not None for value in whole
    ):
        return stripped
    if len(set(whole)) < stripped.n_unique():  # such as the versions 1 and 1.0
        return stripped
    return polars.Series(text.name, whole, dtype=polars.Int64)
