"""Monotone maps that turn a standard normal into a confusion cell, one for each cell.

Given everything but itself, a cell x = log g has the density

    n x - e^x - (x - m)^2 / (2 v) - (eta e^x - wanted)^2 / (2 noise):

its validation counts, the cavity of its column's field, and what its row of the target leaves for
it. With counts that is nearly a Gaussian; without, it is a wide Gaussian below and a wall above,
where the cell would have been counted. A *hinge* has both: slope ``wide`` below its place, slope
``narrow`` above it. Fitted to a few quantiles it makes the cell nearly normal. How nearly does
not affect the result, because the log density includes the slope of the map.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

Array = NDArray[Any]

_SEARCH_POINTS, _SEARCHES = 300, 3
_POINTS = 200
_NEGLIGIBLE = 16.0  # nats below the maximum
_LOW, _BELOW, _ABOVE, _HIGH = -2.5, -1.0, 3.0, 4.0  # normal scores at which slopes are read
_LEAST_SLOPE = 0.02  # of the narrow side, in units of the wide one
_SHARPNESS = (1.0, 6.0)  # of the bend: about one unit of x


class Hinges(NamedTuple):
    """x = centre + narrow y - (wide - narrow) softplus(-sharp (y - place)) / sharp."""

    centre: Array
    wide: Array
    narrow: Array
    place: Array
    sharp: Array

    def bend(self, y: Array) -> tuple[Array, Array, Array]:
        """x - centre, its slope, and the slope's slope, at y."""
        gap = self.wide - self.narrow
        turn = self.sharp * (y - self.place)
        small = np.exp(-np.abs(turn))
        whole = 1 + small
        side = np.where(turn < 0, 1, small)
        side /= whole  # 1 far below the place, 0 far above
        small /= whole
        small /= whole
        small *= -gap * self.sharp
        np.log(whole, out=whole)
        whole -= np.minimum(turn, 0)  # softplus(-turn)
        whole *= -gap / self.sharp
        whole += self.narrow * y
        side *= gap
        side += self.narrow
        return whole, side, small

    def astype(self, dtype: type) -> Hinges:
        """The same in another precision, with an axis for chains."""
        return Hinges(*(part[..., None].astype(dtype) for part in self))


def fit_hinges(
    counts: Array, mean: Array, variance: Array, level: Array, wanted: Array, noise: Array
) -> Hinges:
    """Hinges whose quantiles are those of the cells; all arguments of one shape.

    Args:
        counts: n; mean, variance: of the cavity.
        level: eta; wanted, noise: what the target's row leaves for eta e^x, and its variance.

    >>> one = np.ones(1)
    >>> fitted = fit_hinges(0 * one, -20 * one, one, one, 0 * one, one)
    >>> [round(float(part[0]), 1) for part in fitted[:3]]  # far below its wall: the cavity
    [-20.0, 1.0, 1.0]
    """
    shape = counts.shape
    n, m, v, eta, rest, spread = (
        np.ravel(part).astype(float) for part in (counts, mean, variance, level, wanted, noise)
    )

    def log_density(x: Array) -> Array:
        rate = np.exp(x)
        found = n * x - rate
        found -= (x - m) ** 2 / (2 * v)
        found -= (eta * rate - rest) ** 2 / (2 * spread)
        return found

    low = np.minimum(m - 7 * np.sqrt(v), np.log(n + 0.01) - 2)
    high = np.maximum(np.log(n + 6 * np.sqrt(n + 1) + 20), low + 0.1)
    for _ in range(_SEARCHES):
        x = low + (high - low) * np.linspace(0, 1, _SEARCH_POINTS)[:, None]
        value = log_density(x)
        alive = value > value.max(axis=0) - _NEGLIGIBLE
        first, last = alive.argmax(axis=0), _SEARCH_POINTS - 1 - alive[::-1].argmax(axis=0)
        low = _at(x, np.maximum(first - 1, 0))
        high = _at(x, np.minimum(last + 1, _SEARCH_POINTS - 1))
    # The points are dense above, where the wall is.
    x = high - (high - low) * np.linspace(1, 0, _POINTS)[:, None] ** 2
    value = log_density(x)
    weight = np.exp(value - value.max(axis=0))
    mass = (weight[1:] + weight[:-1]) / 2 * np.diff(x, axis=0)
    none = np.zeros_like(x[:1])
    below = np.concatenate([none, mass.cumsum(axis=0)])
    above = np.concatenate([mass[::-1].cumsum(axis=0)[::-1], none])

    def quantile(score: float) -> Array:
        tail = above if score > 0 else below
        tail = tail * (np.sign(0.5 - score) / tail.max(axis=0))  # rising, either way
        level = np.sign(0.5 - score) * ndtr(-abs(score))
        after = np.clip((tail < level).sum(axis=0), 1, _POINTS - 1)
        y0, y1, x0, x1 = (_at(part, i) for part in (tail, x) for i in (after - 1, after))
        return x0 + (x1 - x0) * np.clip((level - y0) / np.maximum(y1 - y0, 1e-300), 0, 1)

    lowest, lower, middle, higher, highest = map(quantile, (_LOW, _BELOW, 0.0, _ABOVE, _HIGH))
    wide = np.maximum((lower - lowest) / (_BELOW - _LOW), 1e-8)
    narrow = np.clip((highest - higher) / (_HIGH - _ABOVE), _LEAST_SLOPE * wide, wide)
    gap = wide - narrow
    bent = highest - lowest + _LOW * wide - _HIGH * narrow
    place = np.where(gap > 0.02 * wide, bent / np.maximum(gap, 1e-12), 0.0)
    fitted = Hinges(
        np.zeros_like(wide), wide, narrow, np.clip(place, _LOW, _HIGH), np.clip(wide, *_SHARPNESS)
    )
    centre = middle - fitted.bend(np.zeros_like(wide))[0]
    return Hinges(*(part.reshape(shape) for part in fitted._replace(centre=centre)))


def _at(table: Array, index: Array) -> Array:
    return np.take_along_axis(table, index[None], axis=0)[0]
