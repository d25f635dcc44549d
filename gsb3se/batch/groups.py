"""Target counts of many groups, sparse."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gsb3se.support.errors import require, some_of
from gsb3se.support.files import read_npz
from gsb3se.support.labels import Label

if TYPE_CHECKING:
    import polars as pl

NO_PREDICTION = -1  # the code of a row without one; lower ones stand for unknown labels


@dataclass(frozen=True, eq=False)
class Groups:
    """Target counts of many groups, sparse.

    Attributes:
        keys: a row a group, in order; without columns if all rows are one group.
        starts: (G + 1,) where each group's entries begin.
        codes, times: class and count of every entry.
        unknown_labels: predicted labels that are no class; labels: the K classes.
    """

    keys: pl.DataFrame
    starts: NDArray[np.int64]
    codes: NDArray[np.int32]
    times: NDArray[np.int64]
    unknown_labels: tuple[Label, ...]
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
        if (codes == NO_PREDICTION).any():
            n = int(times[codes == NO_PREDICTION].sum())
            raise ValueError(f"{n} of its {int(times.sum())} rows have no prediction")
        if (codes < 0).any():
            unknown = [self.unknown_labels[-2 - code] for code in codes[codes < 0]]
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
        np.savez(content, keys=table, unknown_labels=np.array(self.unknown_labels), **arrays)  # type: ignore[arg-type]
        return content.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes, labels: tuple[Label, ...]) -> Groups:
        """What :meth:`to_bytes` gave.

        Raises:
            ValueError: it is something else.
        """
        polars = require("polars", extra="batch")
        arrays = read_npz(io.BytesIO(content))
        keys = polars.read_parquet(io.BytesIO(arrays["keys"].tobytes()))
        starts, times = (arrays[name].astype(np.int64) for name in ("starts", "times"))
        codes = arrays["codes"].astype(np.int32)
        unknown_labels = tuple(arrays["unknown_labels"].tolist())
        ordered = len(starts) > 1 and starts[0] == 0 and (np.diff(starts) >= 0).all()
        in_range = not len(codes) or (
            codes.min() >= -2 - len(unknown_labels)
            and codes.max() < len(labels)
            and times.min() >= 0
        )
        if not ordered or not in_range or not starts[-1] == len(codes) == len(times):
            raise ValueError("the counts of the groups do not fit together")
        if keys.width and keys.height != len(starts) - 1:
            raise ValueError("the groups do not fit their counts")
        return cls(keys, starts, codes, times, unknown_labels, labels)
