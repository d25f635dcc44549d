"""Counting predictions in files of any size, group by group, by polars' streaming engine.

Files are counted in blocks, and what a block holds is kept as two numbers an entry: memory grows
with neither rows nor, to speak of, groups. Blocks are small while each brings new groups, as in a
log, and grow where groups are mixed, where a small one would be as much work as a large one.
"""

from __future__ import annotations

import csv
import glob
import io
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from gsb3se.counts import MOST_IN_ALL
from gsb3se.errors import require, some_of
from gsb3se.files import check_columns, check_distinct, is_panic, read_npz
from gsb3se.labels import Label, as_integer, more_than_once

if TYPE_CHECKING:
    import polars as pl

SUFFIXES = (".parquet", ".csv")
_LEAST_ROWS, _BYTES_A_BLOCK = 1 << 21, 1 << 28  # of a block: Parquet, CSV
_NEW = 0.1  # share of new groups in a block from which the next is as small
_CODE_BITS = 24
_HALF = 1 << (_CODE_BITS - 1)  # makes codes positive, of labels and of strangers
_NO_PREDICTION = -1  # the code of a row without one; lower ones stand for unknown labels


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


@dataclass(frozen=True, eq=False)
class Groups:
    """Target counts of many groups, sparse.

    Attributes:
        keys: a row a group, in order; without columns if all rows are one group.
        starts: (G + 1,) where each group's entries begin.
        codes, times: class and count of every entry.
        strangers: predicted labels that are no class; labels: the K classes.
    """

    keys: pl.DataFrame
    starts: NDArray[np.int64]
    codes: NDArray[np.int32]
    times: NDArray[np.int64]
    strangers: tuple[Label, ...]
    labels: tuple[Label, ...]

    def __len__(self) -> int:
        return len(self.starts) - 1

    def target(self, group: int) -> NDArray[np.int64]:
        """(K,) counts of a group.

        Raises:
            ValueError: some of its rows cannot be counted.
        """
        here = slice(self.starts[group], self.starts[group + 1])
        codes, times = self.codes[here], self.times[here]
        if (codes == _NO_PREDICTION).any():
            n = int(times[codes == _NO_PREDICTION].sum())
            raise ValueError(f"{n} of its {int(times.sum())} rows have no prediction")
        if (codes < 0).any():
            unknown = [self.strangers[-2 - code] for code in codes[codes < 0]]
            raise ValueError(
                f"it has predictions {some_of(unknown)}, unknown among the {len(self.labels)} "
                f"labels ({some_of(self.labels, most=3)}): name every class with --labels"
            )
        if times.sum() == 0:
            raise ValueError("it has no target predictions")
        return np.bincount(codes, weights=times, minlength=len(self.labels)).astype(np.int64)

    def n_target(self, group: int) -> int:
        """Rows, or the sum of their counts, of a group."""
        return int(self.times[self.starts[group] : self.starts[group + 1]].sum())

    def values(self, group: int) -> tuple[Any, ...]:
        """The values of its keys."""
        return self.keys.row(group) if self.keys.width else ()

    def name(self, group: int) -> str:
        """Its name, such as ``"monday, model-a"``."""
        return ", ".join(map(str, self.values(group))) or "all"

    def to_bytes(self) -> bytes:
        """Everything but the labels."""
        keys, content = io.BytesIO(), io.BytesIO()
        self.keys.write_parquet(keys)
        arrays = {"starts": self.starts, "codes": self.codes, "times": self.times}
        table = np.frombuffer(keys.getvalue(), dtype=np.uint8)
        np.savez(content, keys=table, strangers=np.array(self.strangers), **arrays)  # type: ignore[arg-type]
        return content.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes, labels: tuple[Label, ...]) -> Groups:
        """What :meth:`to_bytes` gave.

        Raises:
            ValueError: it is something else.
        """
        polars = require("polars", extra="batch")
        found = read_npz(io.BytesIO(content))
        keys = polars.read_parquet(io.BytesIO(found["keys"].tobytes()))
        starts, times = (found[name].astype(np.int64) for name in ("starts", "times"))
        codes = found["codes"].astype(np.int32)
        strangers = tuple(found["strangers"].tolist())
        ordered = len(starts) > 1 and starts[0] == 0 and (np.diff(starts) >= 0).all()
        known = not len(codes) or (
            codes.min() >= -2 - len(strangers) and codes.max() < len(labels) and times.min() >= 0
        )
        if not ordered or not known or not starts[-1] == len(codes) == len(times):
            raise ValueError("the counts of the groups do not fit together")
        if keys.width and keys.height != len(starts) - 1:
            raise ValueError("the groups do not fit their counts")
        return cls(keys, starts, codes, times, strangers, labels)


def target_files(sources: Sequence[str | os.PathLike[str]]) -> list[Path]:
    """The files that paths, folders and globs stand for, sorted within each.

    Raises:
        ValueError: there are none, or Parquet and CSV files are mixed.
    """
    found: list[Path] = []
    for source in map(Path, sources):
        if source.is_dir():
            inside = sorted(
                path for path in source.rglob("*") if path.suffix in SUFFIXES and path.is_file()
            )
            here = [path for path in inside if not _is_hidden(path.relative_to(source))]
            if not here:
                raise ValueError(f"the folder {source} has no .parquet or .csv file")
        elif source.exists():
            here = [source]
        else:
            here = sorted(Path(path) for path in glob.glob(_pattern(source), recursive=True))  # noqa: PTH207
            if not here:
                raise ValueError(f"{source}: no such file or folder, and no file matches it")
        found += here
    if strange := [str(path) for path in found if not path.is_file()]:
        raise ValueError(f"expected regular files, which may be read twice; got {some_of(strange)}")
    if strange := [str(path) for path in found if path.suffix not in SUFFIXES]:
        raise ValueError(f"expected .parquet or .csv files; got {some_of(strange)}")
    if twice := more_than_once(map(str, found)):
        raise ValueError(f"given more than once: {some_of(twice)}")
    if len({path.suffix for path in found}) > 1:
        raise ValueError("give Parquet files or CSV files, not both in one call")
    if empty := [str(path) for path in found if path.stat().st_size == 0]:
        raise ValueError(f"{empty[0]} is empty")
    return found


def _pattern(source: Path) -> str:
    """A glob whose leading folders are taken as they are named, where they exist."""
    known, rest = Path(), list(source.parts)
    while len(rest) > 1 and (known / rest[0]).exists():
        known /= rest.pop(0)
    return str(Path(glob.escape(str(known)), *rest))


def values_in(files: Sequence[Path], name: str) -> set[str] | None:
    """Distinct values of a column, as text; None where no file has it.

    Its name may be written in any case, and it may be a folder's, such as model=A/.
    """
    polars = require("polars", extra="batch")
    found: set[str] | None = None
    for path in files:
        _header(path)  # says of a Parquet file that is not whole what is wrong
        try:
            scanned, names = _scan(polars, [path], path.suffix == ".csv")
            columns = [column for column in names if column.strip().casefold() == name]
            if not columns:
                continue
            chosen = polars.col(columns[0]).cast(polars.String).str.strip_chars()
            values = scanned.select(chosen.unique()).collect(engine="streaming").to_series()
        except polars.exceptions.PolarsError as error:
            _refuse([path], error)
        found = (found or set()) | {value for value in values.to_list() if value}
    return found


def _scan(polars: Any, files: Sequence[Path], is_csv: bool) -> tuple[Any, list[str]]:
    """Files as one table that is not read yet, and the names of its columns."""
    if is_csv:  # as text whatever it looks like: a guess from the first rows may fail later
        scanned = polars.scan_csv(files, infer_schema=False, glob=False)
    else:
        # Folders such as day=2026-11-18/ are a column, as the tools that write them mean it.
        partitioned = any("=" in part for path in files for part in path.parts[:-1])
        scanned = polars.scan_parquet(files, hive_partitioning=partitioned, glob=False)
    return scanned, scanned.collect_schema().names()


def _is_hidden(path: Path) -> bool:
    return any(part.startswith((".", "_")) for part in path.parts)


def count_predictions(
    files: Sequence[Path], columns: TargetColumns, labels: tuple[Label, ...]
) -> Groups:
    """How often each label was predicted in each group; the files are never in memory whole."""
    polars = require("polars", extra="batch")
    is_csv = files[0].suffix == ".csv"
    for path in files:
        check_distinct(path, columns.all, _header(path))
    counted = _Entries(polars, columns, labels, is_csv)
    for block in _csv_blocks(files) if is_csv else _parquet_blocks(files, columns, counted):
        try:
            counted.add(_counted(polars, block, columns, is_csv))
        except BaseException as error:
            if not isinstance(error, polars.exceptions.PolarsError) and not is_panic(error):
                raise
            _refuse(block.files, error)
    if not counted.keys:
        raise ValueError(f"{_named(files)} no rows")
    return counted.as_groups()


def _header(path: Path) -> list[str]:
    """The names of a file's columns as they stand there, twice if they do."""
    if path.suffix == ".csv":
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            try:
                return next(csv.reader(file), [])
            except csv.Error as error:
                raise ValueError(f"{path}, line 1: {error}") from None
    parquet = require("pyarrow.parquet", extra="batch")
    try:
        return list(parquet.read_schema(path).names)
    except Exception as error:
        told = str(error).splitlines()[0]
        raise ValueError(f"{path} is not a whole Parquet file: {told}") from None


class _Block(NamedTuple):
    """Some files, or so many rows of one."""

    files: list[Path]
    first: int = 0
    rows: int | None = None


def _csv_blocks(files: Sequence[Path]) -> Iterator[_Block]:
    together: list[Path] = []
    size = 0
    for path in files:
        if together and size + path.stat().st_size > _BYTES_A_BLOCK:
            yield _Block(together)
            together, size = [], 0
        together.append(path)
        size += path.stat().st_size
    yield _Block(together)


def _parquet_blocks(
    files: Sequence[Path], columns: TargetColumns, counted: _Entries
) -> Iterator[_Block]:
    """Small files together, large ones in parts that end where a row group does.

    Args:
        counted: is looked at between blocks for how large the next shall be.
    """
    parquet = require("pyarrow.parquet", extra="batch")
    arrow = require("pyarrow", extra="batch")
    types: dict[str, Any] = {}
    together: list[Path] = []
    waiting = 0
    for path in files:
        try:
            with parquet.ParquetFile(path) as file:
                metadata, schema = file.metadata, file.schema_arrow
        except (arrow.ArrowInvalid, OSError) as error:
            told = str(error).splitlines()[0]
            raise ValueError(f"{path} is not a whole Parquet file: {told}") from None
        for name in set(columns.all) & set(schema.names):
            kind = types.setdefault(name, schema.field(name).type)
            if schema.field(name).type != kind:
                raise ValueError(
                    f"the column {name!r} is not of the same type in all files: "
                    f"{schema.field(name).type} in {path}, {kind} before"
                )
        if together and waiting + metadata.num_rows > counted.block:
            yield _Block(together)
            together, waiting = [], 0
        if metadata.num_rows <= counted.block:
            together.append(path)
            waiting += metadata.num_rows
            continue
        first = rows = 0
        for number in range(metadata.num_row_groups):
            rows += metadata.row_group(number).num_rows
            if rows >= counted.block:
                yield _Block([path], first, rows)
                first, rows = first + rows, 0
        if rows:
            yield _Block([path], first, rows)
    if together:
        yield _Block(together)


def _counted(polars: Any, block: _Block, columns: TargetColumns, is_csv: bool) -> pl.DataFrame:
    """The block's keys and predictions, and how often each occurs as the last column."""
    scanned, names = _scan(polars, block.files, is_csv)
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
    told = [
        count.filter(valid).sum().alias(named),
        count.filter(valid).cast(polars.Float64).sum().alias(named + "_about"),
        wrong.len().alias(named + "_wrong"),
        wrong.first().cast(polars.String).alias(named + "_first"),
    ]
    return scanned.group_by(by).agg(told).collect(engine="streaming")


def _checked_counts(polars: Any, counted: pl.DataFrame, name: str) -> pl.DataFrame:
    """What was counted, if every count was a whole number."""
    named = counted.columns[-4]
    if (bad := counted.filter(polars.col(named + "_wrong") > 0)).height:
        found = bad[0, named + "_first"]
        raise ValueError(
            f"the column {name!r} must hold whole numbers, none negative; found "
            f"{'an empty value' if found is None else repr(found)}"
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


def _refuse(files: Sequence[Path], error: BaseException) -> NoReturn:
    told = str(error).strip().splitlines()[0]
    raise ValueError(f"{_named(files)} rows that cannot be read: {told}") from None


def _named(files: Sequence[Path]) -> str:
    return f"{files[0]} has" if len(files) == 1 else f"the {len(files)} target files have"


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
        self.known = False  # whether some prediction was a label
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
            return _NO_PREDICTION
        if isinstance(value, int) != isinstance(self.labels[0], int):
            whole = as_integer(value) if isinstance(value, str) else None
            value = str(value) if isinstance(value, int) else value if whole is None else whole
        code = self.codes.setdefault(value, -2 - (len(self.codes) - len(self.labels)))
        self.known = self.known or code >= 0
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
        strangers = tuple(value for value, code in self.codes.items() if code < 0)
        self._check_kinds(strangers)
        keys, place = self._ordered_keys()
        for part in self.entries:
            part += (place[part >> _CODE_BITS] - (part >> _CODE_BITS)) << _CODE_BITS
        self._merge()
        (entries,), (times,) = self.entries, self.times
        starts = np.searchsorted(entries, np.arange(int(place.max()) + 2) << _CODE_BITS)
        codes = ((entries & ((1 << _CODE_BITS) - 1)) - _HALF).astype(np.int32)
        return Groups(keys, starts, codes, times, strangers, self.labels)

    def _check_kinds(self, strangers: tuple[Label, ...]) -> None:
        if self.known or not strangers or self.numbers == isinstance(self.labels[0], int):
            return
        kinds = ("whole numbers", "text") if self.numbers else ("text", "whole numbers")
        raise ValueError(
            f"the predictions are {kinds[0]} ({some_of(strangers, most=3)}) and the labels "
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
