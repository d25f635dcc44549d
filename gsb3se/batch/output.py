"""The results of a batch as one tidy table, with one row per group and class."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from gsb3se.batch.groups import Groups
from gsb3se.batch.jobs import Job
from gsb3se.batch.journal import FAILED, GroupResult, Journal
from gsb3se.support.errors import require
from gsb3se.support.files import write_atomically

if TYPE_CHECKING:
    import polars as pl

SUFFIXES = (".parquet", ".csv", ".jsonl")
COLUMNS = (
    *("class", "mean", "sd", "low", "high", "source", "n_target", "n_validation", "effective_n"),
    *("shift", "shift_probability", "status", "message", "level", "alert"),
)
_ROWS_A_BLOCK = 50_000


@dataclass
class BatchOutcome:
    """A batch in a few figures; ``gs.batch.run`` returns it.

    Attributes:
        path: of the table that was written; groups: their keys and counts, in its order.
        statuses: how many groups ended with which.
        alerts: place and result of every group whose shift is an alert.
        first_failure: why the first group failed, if one did.
    """

    path: Path
    groups: Groups
    statuses: Counter[str] = field(default_factory=Counter)
    alerts: list[tuple[int, GroupResult]] = field(default_factory=list)
    first_failure: str = ""

    def add(self, place: int, result: GroupResult, certainty: float) -> None:
        """Take one more group into account."""
        self.statuses[result.status] += 1
        if result.status == FAILED and not self.first_failure:
            self.first_failure = result.message
        if result.probability is not None and result.probability >= certainty:
            self.alerts.append((place, result._replace(numbers=None)))


def write_results(
    path: str | os.PathLike[str], job: Job, groups: Groups, journal: Journal, certainty: float
) -> BatchOutcome:
    """Write all groups to a .parquet, .csv or .jsonl file, whole or not at all.

    Args:
        certainty: probability of a shift beyond the alert from which a group is flagged.

    Returns:
        What they amount to.
    """
    outcome = BatchOutcome(Path(path), groups)
    frames = _frames(job, groups, journal, outcome, certainty)
    suffix = Path(path).suffix.lower()
    write = {".parquet": _write_parquet, ".csv": _write_csv, ".jsonl": _write_lines}[suffix]
    # The journal lets in one run at a time, so what is there was left by one that was killed.
    beside = Path(path).resolve().with_name(journal.path.with_suffix(".written").name)
    write_atomically(path, lambda file: write(file, frames), beside=beside)
    return outcome


def _frames(
    job: Job, groups: Groups, journal: Journal, outcome: BatchOutcome, certainty: float
) -> Iterator[pl.DataFrame]:
    """The table in blocks of some ten thousand rows."""
    size = max(1, _ROWS_A_BLOCK // len(job.labels))
    numbered = enumerate(journal.results())
    while block := list(islice(numbered, size)):
        for place, result in block:
            outcome.add(place, result, certainty)
        yield _frame(job, groups, block)


def _frame(job: Job, groups: Groups, block: list[tuple[int, GroupResult]]) -> pl.DataFrame:
    polars = require("polars", extra="batch")
    n, places = len(job.labels), [place for place, _ in block]
    results = [result for _, result in block]
    missing = np.full((4, n), np.nan)
    numbers = np.stack([missing if r.numbers is None else r.numbers for r in results])
    mean, sd, low, high = numbers.transpose(1, 0, 2).reshape(4, -1)
    with np.errstate(divide="ignore", invalid="ignore"):
        effective = mean * (1 - mean) / sd**2
    models = [job.model_of(groups, place) for place in places]
    zeros = np.zeros(n)
    source = [job.source_priors.get(model, zeros * np.nan) for model in models]
    validation = [
        job.problems[model].counts.validation_sizes if model in job.problems else zeros
        for model in models
    ]

    def each(values: list[Any], dtype: Any) -> pl.Series:
        """One value a group, for all its classes."""
        return polars.Series(values, dtype=dtype)[np.repeat(np.arange(len(block)), n)]

    columns = {
        "class": list(job.labels) * len(block),
        "mean": mean,
        "sd": sd,
        "low": low,
        "high": high,
        "source": np.concatenate(source),
        "n_target": each([groups.n_target(place) for place in places], polars.Int64),
        "n_validation": np.concatenate(validation).astype(np.int64),
        "effective_n": effective,
        "shift": each([r.shift for r in results], polars.Float64),
        "shift_probability": each([r.probability for r in results], polars.Float64),
        "status": each([r.status for r in results], polars.String),
        "message": each([r.message or None for r in results], polars.String),
        "level": np.full(n * len(block), job.level),
        "alert": np.full(n * len(block), job.alert),
    }
    numeric = polars.col(polars.Float64)
    finite_or_null = polars.when(numeric.is_finite()).then(numeric)
    table = polars.DataFrame(columns).with_columns(finite_or_null)
    if not groups.keys.width:
        return table
    return polars.concat([groups.keys[np.repeat(places, n)], table], how="horizontal")


def _write_parquet(file: BinaryIO, frames: Iterator[pl.DataFrame]) -> None:
    parquet = require("pyarrow.parquet", extra="batch")
    writer = None
    for frame in frames:
        table = frame.to_arrow()
        if writer is None:
            writer = parquet.ParquetWriter(file, table.schema, compression="zstd")
        writer.write_table(table)
    if writer is not None:
        writer.close()


def _write_csv(file: BinaryIO, frames: Iterator[pl.DataFrame]) -> None:
    for number, frame in enumerate(frames):
        frame.write_csv(file, include_header=number == 0)


def _write_lines(file: BinaryIO, frames: Iterator[pl.DataFrame]) -> None:
    for frame in frames:
        frame.write_ndjson(file)
