"""Counting predictions in files of any size, group by group, by polars' streaming engine."""

from __future__ import annotations

import glob
import io
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from gsb3se.errors import require, some_of
from gsb3se.labels import Label, as_integer, more_than_once

if TYPE_CHECKING:
    import polars as pl

SUFFIXES = (".parquet", ".csv")
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


def target_files(sources: Sequence[str | os.PathLike[str]]) -> list[Path]:
    """The files that paths, folders and globs stand for, sorted within each.

    Raises:
        ValueError: there are none, or Parquet and CSV files are mixed.
    """
    found: list[Path] = []
    for source in map(Path, sources):
        if source.is_dir():
            inside = sorted(path for path in source.rglob("*") if path.suffix in SUFFIXES)
            here = [path for path in inside if not _is_hidden(path.relative_to(source))]
            if not here:
                raise ValueError(f"the folder {source} has no .parquet or .csv file")
        elif source.exists():
            here = [source]
        else:
            here = sorted(Path(path) for path in glob.glob(str(source), recursive=True))  # noqa: PTH207
            if not here:
                raise ValueError(f"{source}: no such file or folder, and no file matches it")
        found += here
    if strange := [str(path) for path in found if path.suffix not in SUFFIXES]:
        raise ValueError(f"expected .parquet or .csv files; got {some_of(strange)}")
    if twice := more_than_once(map(str, found)):
        raise ValueError(f"given more than once: {some_of(twice)}")
    if len({path.suffix for path in found}) > 1:
        raise ValueError("give Parquet files or CSV files, not both in one call")
    for path in found:
        _check_whole(path)
    return found


def _is_hidden(path: Path) -> bool:
    return any(part.startswith((".", "_")) for part in path.parts)


def _check_whole(path: Path) -> None:
    """Say which file is empty or cut short; polars would not name it."""
    size = path.stat().st_size
    if size == 0:
        raise ValueError(f"{path} is empty")
    if path.suffix == ".parquet":
        with path.open("rb") as file:
            begins = file.read(4)
            file.seek(max(size - 4, 0))
            ends = file.read(4)
        if begins != b"PAR1" or ends != b"PAR1":
            raise ValueError(f"{path} is not a whole Parquet file: write or copy it anew")


def count_predictions(files: Sequence[Path], columns: TargetColumns) -> pl.DataFrame:
    """How often each label was predicted in each group.

    Returns:
        The key columns, ``columns.prediction``, and the number of rows or the sum of their counts
        as the last column; sorted by the keys. The files are read in parts, never whole.
    """
    polars = require("polars", extra="batch")
    csv = files[0].suffix == ".csv"
    try:
        scanned = _scan(polars, files, csv)
        _check_columns(files, columns, scanned.collect_schema().names())
        counted = scanned.group_by([*columns.keys, columns.prediction]).agg(
            _times(polars, columns).alias(_count_name(columns))
        )
        frame = counted.collect(engine="streaming")
    except polars.exceptions.PolarsError as error:
        _refuse(files, columns, error)
    if columns.count is not None and (frame[_count_name(columns)] < 0).any():
        raise ValueError(f"the column {columns.count!r} has counts below 0")
    if frame.height == 0:
        raise ValueError(f"{_named(files)} no rows")
    if csv:
        frame = _stripped(polars, frame, columns)
    return frame.sort([*columns.keys, columns.prediction], nulls_last=True)


def _scan(polars: Any, files: Sequence[Path], csv: bool) -> pl.LazyFrame:
    # Text from CSV whatever it looks like: a guess from the first rows would fail on later ones.
    if csv:
        return polars.scan_csv(files, infer_schema=False)
    return polars.scan_parquet(files, hive_partitioning=False)


def _check_columns(files: Sequence[Path], columns: TargetColumns, found: list[str]) -> None:
    if missing := [name for name in columns.all if name not in found]:
        raise ValueError(
            f"{files[0]} has no column {some_of(missing)}; it has {some_of(found) or 'none'}"
        )


def _times(polars: Any, columns: TargetColumns) -> pl.Expr:
    if columns.count is None:
        return polars.len().cast(polars.Int64)
    count = polars.col(columns.count).cast(polars.Int64)
    return polars.when((count < 0).any()).then(-1).otherwise(count.sum())


def _count_name(columns: TargetColumns) -> str:
    """A name that no column has."""
    return "n_" + "_".join(columns.all)


def _refuse(files: Sequence[Path], columns: TargetColumns, error: Exception) -> NoReturn:
    told = str(error).strip().splitlines()[0]
    if "SchemaError" in type(error).__name__ or "dtype" in told or "data type" in told:
        raise ValueError(
            f"the columns {some_of(columns.all)} are not of the same type in all files: {told}"
        ) from None
    raise ValueError(f"{_named(files)} rows that cannot be read: {told}") from None


def _named(files: Sequence[Path]) -> str:
    return f"{files[0]} has" if len(files) == 1 else f"the {len(files)} target files have"


def _stripped(polars: Any, frame: pl.DataFrame, columns: TargetColumns) -> pl.DataFrame:
    """Text without blanks around it, and keys as whole numbers where all of them are."""
    text = polars.col(*columns.keys, columns.prediction).str.strip_chars()
    frame = frame.with_columns(text.replace("", None))
    for key in columns.keys:
        known = frame[key].drop_nulls().unique().to_list()
        if known and all(as_integer(value) is not None for value in known):
            frame = frame.with_columns(
                frame[key].replace_strict(
                    known, [as_integer(value) for value in known], return_dtype=polars.Int64
                )
            )
    summed = polars.col(_count_name(columns)).sum()
    return frame.group_by([*columns.keys, columns.prediction]).agg(summed)


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

    def names(self) -> Iterator[str]:
        """A name for every group, such as ``"monday, model-a"``."""
        for group in range(len(self)):
            yield ", ".join(map(str, self.values(group))) or "all"


def as_groups(frame: pl.DataFrame, columns: TargetColumns, labels: tuple[Label, ...]) -> Groups:
    """What :func:`count_predictions` found, in terms of the labels."""
    polars = require("polars", extra="batch")
    predicted = frame[columns.prediction]
    known = predicted.drop_nulls().unique(maintain_order=True)
    values = _as_label_values(polars, known, labels)
    position = {label: code for code, label in enumerate(labels)}
    strangers = tuple(value for value in values if value not in position)
    numbers = isinstance(labels[0], int)
    if len(strangers) == len(values) > 0 and numbers != known.dtype.is_numeric():
        kinds = ("whole numbers", "text") if known.dtype.is_numeric() else ("text", "whole numbers")
        raise ValueError(
            f"the predictions are {kinds[0]} ({some_of(known.to_list(), most=3)}) and the labels "
            f"{kinds[1]} ({some_of(labels, most=3)}): write both in one way"
        )
    position |= {stranger: -2 - place for place, stranger in enumerate(strangers)}
    codes = predicted.replace_strict(
        known,
        polars.Series([position[value] for value in values], dtype=polars.Int32),
        default=None,
        return_dtype=polars.Int32,
    ).fill_null(_NO_PREDICTION)
    keys, starts = frame.select(columns.keys), np.zeros(1, dtype=np.int64)
    if columns.keys:
        run = keys.select(polars.struct(polars.all()).rle_id()).to_series().to_numpy()
        starts = np.flatnonzero(np.diff(run, prepend=-1))
        keys = keys[starts]
    return Groups(
        keys,
        np.append(starts, frame.height),
        codes.to_numpy(),
        frame[_count_name(columns)].to_numpy(),
        strangers,
        labels,
    )


def _as_label_values(polars: Any, known: pl.Series, labels: tuple[Label, ...]) -> list[Label]:
    """Distinct predictions as labels: text that spells whole numbers as those, if labels are."""
    if known.dtype.is_float() and (known == known.round()).all():
        known = known.cast(polars.Int64)
    text = known.dtype in (polars.String, polars.Categorical, polars.Enum)
    if not text and not known.dtype.is_integer():
        raise ValueError(f"predictions must be text or whole numbers; got the type {known.dtype}")
    values = known.to_list()
    if not isinstance(labels[0], int):
        return [str(value) for value in values]
    if not text:
        return values
    whole = map(as_integer, values)
    return [
        value if number is None else number for value, number in zip(values, whole, strict=True)
    ]


def to_bytes(frame: pl.DataFrame) -> bytes:
    """A frame as the bytes of a Parquet file."""
    memory = io.BytesIO()
    frame.write_parquet(memory)
    return memory.getvalue()


def from_bytes(content: bytes) -> pl.DataFrame:
    """What :func:`to_bytes` wrote."""
    return require("polars", extra="batch").read_parquet(io.BytesIO(content))
