"""Files of predictions: which there are, and what their headers say.

polars and pyarrow are imported where they are needed.
"""

from __future__ import annotations

import csv
import glob
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from gsb3se.support.errors import require, some_of
from gsb3se.support.labels import more_than_once

SUFFIXES = (".parquet", ".csv")


def table_files(sources: Sequence[str | os.PathLike[str]]) -> list[Path]:
    """The files that paths, folders and globs stand for, sorted within each.

    Raises:
        ValueError: there are none, or Parquet and CSV files are mixed.
    """
    files = [path for source in map(Path, sources) for path in _expanded(source)]
    if strange := [str(path) for path in files if not path.is_file()]:
        raise ValueError(f"expected regular files, which may be read twice; got {some_of(strange)}")
    if strange := [str(path) for path in files if path.suffix not in SUFFIXES]:
        raise ValueError(f"expected .parquet or .csv files; got {some_of(strange)}")
    if twice := more_than_once(map(str, files)):
        raise ValueError(f"given more than once: {some_of(twice)}")
    if len({path.suffix for path in files}) > 1:
        raise ValueError("give Parquet files or CSV files, not both in one call")
    if empty := [str(path) for path in files if path.stat().st_size == 0]:
        raise ValueError(f"{empty[0]} is empty")
    return files


def _expanded(source: Path) -> list[Path]:
    """The files that one path stands for: itself, those in a folder, or those that match."""
    if source.is_dir():
        inside = sorted(
            path for path in source.rglob("*") if path.suffix in SUFFIXES and path.is_file()
        )
        visible = [path for path in inside if not _is_hidden(path.relative_to(source))]
        if not visible:
            raise ValueError(f"the folder {source} has no .parquet or .csv file")
        return visible
    if source.exists():
        return [source]
    matches = sorted(Path(path) for path in glob.glob(_pattern(source), recursive=True))  # noqa: PTH207
    if not matches:
        raise ValueError(f"{source}: no such file or folder, and no file matches it")
    return matches


def _pattern(source: Path) -> str:
    """A glob whose leading folders are taken as they are named, where they exist."""
    leading, rest = Path(), list(source.parts)
    while len(rest) > 1 and (leading / rest[0]).exists():
        leading /= rest.pop(0)
    return str(Path(glob.escape(str(leading)), *rest))


def values_in(files: Sequence[Path], name: str) -> set[str] | None:
    """Distinct values of a column, as text; None where no file has it.

    Its name may be written in any case, and it may be a folder's, such as model=A/.
    """
    polars = require("polars", extra="batch")
    distinct: set[str] | None = None
    for path in files:
        header(path)  # says of a Parquet file that is not whole what is wrong
        try:
            scanned, names = scan_tables(polars, [path], path.suffix == ".csv")
            columns = [column for column in names if column.strip().casefold() == name]
            if not columns:
                continue
            chosen = polars.col(columns[0]).cast(polars.String).str.strip_chars()
            values = scanned.select(chosen.unique()).collect(engine="streaming").to_series()
        except polars.exceptions.PolarsError as error:
            refuse_rows([path], error)
        distinct = (distinct or set()) | {value for value in values.to_list() if value}
    return distinct


def scan_tables(polars: Any, files: Sequence[Path], is_csv: bool) -> tuple[Any, list[str]]:
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


def header(path: Path) -> list[str]:
    """The column names of a file in file order; duplicates are kept."""
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
        raise not_whole(path, error) from None


def not_whole(path: Path, error: Exception) -> ValueError:
    """What is said of a Parquet file that pyarrow cannot open."""
    return ValueError(f"{path} is not a whole Parquet file: {str(error).splitlines()[0]}")


def refuse_rows(files: Sequence[Path], error: BaseException) -> NoReturn:
    """Say of some files that polars cannot read their rows."""
    reason = str(error).strip().splitlines()[0]
    raise ValueError(f"{named_files(files)} rows that cannot be read: {reason}") from None


def named_files(files: Sequence[Path]) -> str:
    """The beginning of a sentence about some files."""
    return f"{files[0]} has" if len(files) == 1 else f"the {len(files)} target files have"
