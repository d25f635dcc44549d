"""Cells of tiny shape: zero, or once in a while a spike.

A Gamma of shape s << 1 and mean s b explains none of a row's counts with probability (1 + b)^-s,
and k of them with about s (b / (1 + b))^k / k: any number from one to b is nearly as likely. The
saddlepoint of a row, smooth as it is, cannot say this; it takes such cells for likelier than they
are, and bends where it comes to their poles. So where a spike would stand out of its row, the cell
is taken to have explained none of the row's counts: a factor (1 + b)^-s, which depends on the level
of the cell's column alone and is taken for a whole column at once. Of a row without counts this is
exact; of another it leaves out the chance that a spike is what was counted, which is small as long
as few are expected. Where many are, or their shapes are not so tiny, they are smooth together and
stay with the other cells.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gsb3se.inference.structured.column_laws import ColumnLaws
from gsb3se.support.simplex import Vector

_TINY_SHAPE = 0.01  # of a Gamma that is zero or a spike
_STANDS_OUT = 0.2  # b, in sds of the row's count
_EXPLAINED = 0.25  # of a row's count, that other cells are expected to give
_MANY, _SOME = 1.0, 0.25  # expected spikes in the median row above which none is treated apart:
_LARGER_SHAPE = 0.003  # the lower limit applies if their mean shape exceeds this

Array = NDArray[Any]


class RareConfusions:
    """The spiky cells of a target's rows.

    Args:
        laws: the columns; target: (K,) counts; likely: (K,) a guess of q.

    Attributes:
        cells: (K, K) which cells they are; rate: (K, K) their means, zero elsewhere.
        expected: how many spikes are left out of the median row with counts.
        shape, scale: (K, 1) of the spiky cells of a column, taken together.
    """

    def __init__(self, laws: ColumnLaws, target: Vector, likely: Vector) -> None:
        rate, variance, sizes = laws.rate, laws.variance, laws.sizes
        dtype, counted = rate.dtype, target > 0
        level = (likely * target.sum() / sizes).astype(dtype)
        noise = (_STANDS_OUT * np.sqrt(target + target**2 / sizes)).astype(dtype)
        stands_out = level * variance > noise[:, None] * rate
        self.cells = (rate * rate < _TINY_SHAPE * variance) & (stands_out | ~counted[:, None])
        shape = np.where(self.cells, rate * (rate / variance), 0)
        # A row that nothing else explains has a spike, and keeps its cells.
        kept = np.where(self.cells, 0, rate) @ level < _EXPLAINED * target
        expected = (shape * np.log1p(level * (variance / rate)))[counted]
        self.expected = float(np.median(expected.sum(axis=1))) if counted.any() else 0.0
        if self.expected > _SOME:
            typical = float((expected * shape[counted]).sum() / expected.sum())
            if self.expected > _MANY or typical > _LARGER_SHAPE:
                kept |= counted
                self.expected = 0.0
        self.cells[kept], shape[kept] = False, 0
        self.rate = np.where(self.cells, rate, 0)
        whole = shape.sum(axis=0)
        self.shape = whole[:, None]
        self.scale = (self.rate.sum(axis=0) / np.maximum(whole, np.finfo(dtype).tiny))[:, None]

    def at(self, eta: Array) -> tuple[Array, Array, Array]:
        """At (K, C) levels, of every column: b, the log factor, and the sum of the cells' means."""
        b = eta * self.scale
        return b, -self.shape * np.log1p(b), self.shape * self.scale / (1 + b)

    def gradient(self, eta: Array, pulled: Array) -> Array:
        """Derivative of the log factor + pulled times the mean by log eta, (K, C)."""
        b = eta * self.scale
        return -self.shape * b / (1 + b) * (1 + pulled * self.scale / (1 + b))
