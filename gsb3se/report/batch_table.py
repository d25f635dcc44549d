"""The result of ``gsb3se batch``, read back and checked."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gsb3se.batch.journal import FAILED
from gsb3se.drawing.figures import Drift
from gsb3se.support.errors import require, some_of
from gsb3se.support.labels import as_labels, as_text_labels
from gsb3se.support.simplex import Matrix

_NUMBERS = ("mean", "low", "high", "source", "shift", "shift_probability", "level", "alert")
_NEEDED = ("class", *_NUMBERS, "status", "message", "n_target")


@dataclass(frozen=True, eq=False)
class BatchTable:
    """The result of ``gsb3se batch``, group by group.

    Attributes:
        keys: names of the columns that tell groups apart; groups: their values, G of them.
        drift: all groups in order.
        status, message: of each group; n_target: its predictions.
    """

    keys: list[str]
    groups: list[tuple[Any, ...]]
    drift: Drift
    status: list[str]
    message: list[str]
    n_target: NDArray[np.int64]

    def part(self, places: NDArray[np.int64]) -> Drift:
        """Some of the windows, by the last of their keys."""
        names = [str(self.groups[place][-1]) if self.keys else "all" for place in places]
        by_window = ("shift", "flagged", "mean", "low", "high", "source")
        chosen = {name: getattr(self.drift, name)[places] for name in by_window}
        return replace(self.drift, names=names, **chosen)

    def name(self, place: int) -> str:
        """A group by its keys."""
        return self.drift.names[place]


def read_batch(path: str | os.PathLike[str], certainty: float = 0.95) -> BatchTable:
    """Read what ``gsb3se batch`` wrote."""
    polars = require("polars", extra="batch")
    suffix = Path(path).suffix.lower()
    # Types are declared by what gsb3se batch writes: the first rows of a file may tell others.
    read: dict[str, Callable[..., Any]] = {
        ".parquet": lambda: polars.read_parquet(path, glob=False),
        ".csv": lambda: polars.read_csv(path, infer_schema=False, glob=False),
        ".jsonl": lambda: polars.read_ndjson(path, infer_schema_length=None),
    }
    if suffix not in read:
        raise ValueError(f"{path}: expected a .parquet, .csv or .jsonl file of gsb3se batch")
    try:
        table = read[suffix]()
        if missing := [name for name in _NEEDED if name not in table.columns]:
            raise ValueError(f"{path} is no result of gsb3se batch: it lacks {some_of(missing)}")
        table = table.with_columns(
            *(polars.col(name).cast(polars.Float64) for name in _NUMBERS),
            *(polars.col(name).cast(polars.String) for name in ("status", "message")),
            polars.col("n_target").cast(polars.Int64),
        )
    except polars.exceptions.PolarsError as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"{path} cannot be read: {reason}") from None
    keys = table.columns[: table.columns.index("class")]
    classes = table["class"].unique(maintain_order=True).to_list()
    n = len(classes)
    if table.height == 0:
        raise ValueError(f"{path} has no rows")
    if table["class"].to_list() != classes * (table.height // n):
        raise ValueError(
            f"{path} is no result of gsb3se batch: every group must have {n} rows, in the same "
            "order of the classes"
        )
    first = table.gather_every(n)
    _check_table(path, table, first, keys, n)

    def whole(name: str) -> Matrix:
        return table[name].to_numpy().reshape(-1, n)

    groups = first.select(keys).rows() if keys else [()]
    probability = first["shift_probability"].fill_null(0).to_numpy()
    drift = Drift(
        [", ".join(map(str, group)) or "all" for group in groups],
        first["shift"].to_numpy(),
        probability >= certainty,
        float(first["alert"][0]),
        whole("mean"),
        whole("low"),
        whole("high"),
        whole("source"),
        as_text_labels(classes) if suffix == ".csv" else as_labels(classes),
        float(first["level"][0]),
    )
    messages = [message or "" for message in first["message"].to_list()]
    n_target = first["n_target"].to_numpy()
    return BatchTable(keys, groups, drift, first["status"].to_list(), messages, n_target)


def _check_table(path: object, table: Any, first: Any, keys: list[str], n: int) -> None:
    """Raise ValueError where numbers of a batch's result cannot be such."""

    def check(fine: Any, reason: str) -> None:
        if not np.all(fine):
            raise ValueError(f"{path} is no result of gsb3se batch: {reason}")

    own = [*keys, "status", "shift", "shift_probability", "level", "alert", "n_target"]
    for name in own:
        fine = table[name].eq_missing(first[name].gather(np.arange(table.height) // n))
        check(fine.to_numpy(), f"{name!r} differs within a group")
    level, alert = first["level"].to_numpy(), first["alert"].to_numpy()
    check(first["status"].is_not_null().to_numpy(), "a status is missing")
    check((level == level[0]) & (alert == alert[0]), "levels or alerts differ between groups")
    check(0 < level[0] < 1 and 0 <= alert[0] <= 2, "level or alert is out of its range")
    check((first["n_target"].fill_null(-1) >= 0).to_numpy(), "'n_target' is missing or negative")
    usable = (table["status"] != FAILED).to_numpy()
    low, mean, high, source = (table[x].to_numpy() for x in ("low", "mean", "high", "source"))
    check(((low >= 0) & (low <= high) & (high <= 1))[usable], "an interval is missing or invalid")
    check(((mean >= 0) & (mean <= 1) & (source >= 0) & (source <= 1))[usable], "a share is none")
    shift = table["shift"].to_numpy()[usable]
    check((shift >= 0) & (shift <= 2.000001), "a shift is missing or out of its range")
