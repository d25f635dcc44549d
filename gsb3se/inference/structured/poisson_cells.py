"""Moments of a Poisson site under a Gaussian: the one-dimensional integrals of the columns.

A cell with n counts has the site exp(n x - e^x). Under a Gaussian N(m, v) its tilted law is
N(x; m, v) exp(n x - e^x) / Z, and two numbers say all that is needed of it:

    rate  lambda = E[e^x],    curvature  kappa = lambda - Var(e^x) = -d^2 log Z / dm^2 > 0,

for E[x] = m + v (n - lambda), Var(x) = v - v^2 kappa, and Var(e^x) = lambda - kappa. The counted
cells are few and integrated as they come. The empty ones are nearly all there are, and read off a
table over (m, sqrt v).
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import RectBivariateSpline
from scipy.special import log_ndtr

from gsb3se.support.simplex import Vector

Array = NDArray[np.float64]

# The table: means from _LOWEST to _HIGHEST, sds from 0 to _WIDEST, in steps of _STEP; integrated at
# every _COARSE-th of them, at every one up to _NARROW where the moments bend most, and splined
# between.
_LOWEST, _HIGHEST, _WIDEST, _NARROW = -40.0, 10.0, 12.0, 1.0
_GUMBEL_MEAN, _GUMBEL_VARIANCE = -np.euler_gamma, np.pi**2 / 6  # of x under exp(x - e^x)
_STEP, _COARSE = 0.05, 5
_LOG_ROOT_2PI = np.log(2 * np.pi) / 2
_REACH = 8.5  # sds of the Gaussian that the table's integrals cover
_NODE_STEP = 0.25
_WALL = 4.0  # exp(-e^4) is nothing
_COUNTED_NODES = np.arange(-17.0, 8.01, 0.25)  # in widths of the tilted law about its mode
_NEWTON_STEPS = 60


class SiteMoments(NamedTuple):
    """rate: E[e^x]; curvature: rate - Var(e^x); the shape of the input each."""

    rate: Array
    curvature: Array


class CountedMoments(NamedTuple):
    """The moments of cells with counts.

    Attributes:
        rate, curvature: as of :class:`SiteMoments`.
        mean: E[x].
        precision: that the site adds to the Gaussian's, 1 / Var(x) - 1 / v. The curvature tells it
            too, but loses its digits where v is far wider than the site.
    """

    rate: Array
    curvature: Array
    mean: Array
    precision: Array


def counted_moments(counts: Vector, mean: Vector, variance: Vector) -> CountedMoments:
    """Moments of cells with counts, by the trapezoid rule about the mode of each; (N,) each.

    >>> counted_moments(np.array([4.0]), np.zeros(1), np.array([1e-9])).rate.round(6)
    array([1.])
    """
    mode = tilted_mode(counts, mean, variance)
    width = 1 / np.sqrt(1 / variance + np.exp(mode))
    x = mode + width * _COUNTED_NODES[:, None]
    log_density = counts * x - np.exp(x) - (x - mean) ** 2 / (2 * variance)
    weight = np.exp(log_density - log_density.max(axis=0))
    weight /= weight.sum(axis=0)
    reached = (weight * x).sum(axis=0)
    spread = (weight * (x - reached) ** 2).sum(axis=0)
    # By the moments of x: those of e^x would lose their digits in large counts.
    kept = spread / variance
    return CountedMoments(
        counts - (reached - mean) / variance,
        (1 - kept) / variance,
        reached,
        (1 - kept) / spread,
    )


def _moments(x: Array, log_density: Array) -> SiteMoments:
    """Moments from points at equal distances along axis 0."""
    weight = np.exp(log_density - log_density.max(axis=0))
    weight /= weight.sum(axis=0)
    e = np.exp(x)
    rate = (weight * e).sum(axis=0)
    return SiteMoments(rate, rate - (weight * (e - rate) ** 2).sum(axis=0))


def tilted_mode(counts: Vector, mean: Vector, variance: Vector) -> Vector:
    """The x with n - e^x = (x - m) / v, by Newton steps that are monotone from the right."""
    counted = counts > 0
    level = np.where(counted, np.log(np.maximum(counts, 1)), -np.inf)
    # At the mode e^x <= n + (m - log n)^+ / v; without counts, x <= max(0, log(m / v)) and x <= m.
    above = np.maximum(mean - np.where(counted, level, 0.0), 0.0) / variance
    bound = np.log(np.maximum(counts + above, np.where(counted, 0.0, 1.0)))
    x = np.minimum(np.maximum(level, mean), bound)
    for _ in range(_NEWTON_STEPS):
        e = np.exp(x)
        step = (counts - e - (x - mean) / variance) / (e + 1 / variance)
        x = x + step
        if np.abs(step).max(initial=0.0) < 1e-10:
            break
    return x


class EmptyCellTable:
    """rate and curvature of a cell without counts, by bilinear interpolation."""

    def __init__(self) -> None:
        step = _COARSE * _STEP
        mean = np.arange(_LOWEST, _HIGHEST + step / 2, step)
        narrow = np.arange(_STEP, _NARROW, _STEP)
        sd = np.concatenate([narrow, np.arange(_NARROW, _WIDEST + step / 2, step)])
        log_rate = np.empty((len(sd) + 1, len(mean)))
        relative = np.empty_like(log_rate)
        # Without a spread the cell is the number e^m.
        log_rate[0], relative[0] = mean, 1.0
        for k, s in enumerate(sd, start=1):
            moments = _empty_moments(mean, s)
            log_rate[k] = np.log(moments.rate)
            # curvature = rate / (1 + v rate) where the Gaussian is narrow; smooth relative to it
            relative[k] = moments.curvature * (1 / moments.rate + s**2)
        axes = np.concatenate([[0.0], sd]), mean
        fine = (
            np.arange(0, _WIDEST + _STEP / 2, _STEP),
            np.arange(_LOWEST, _HIGHEST + _STEP / 2, _STEP),
        )
        # Both tables are asked for at the same places: as the real and the imaginary part of one
        # array an entry of both is fetched at once, and interpolated by the same products.
        table = RectBivariateSpline(*axes, log_rate)(*fine) + 1j * RectBivariateSpline(
            *axes, relative
        )(*fine)
        self._shape = table.shape
        self._log_rate_and_relative = table.astype(np.complex64).ravel()

    def __call__(self, mean: Array, sd: Array) -> SiteMoments:
        """Moments under N(mean, sd^2), both of one shape."""
        if sd.size and sd.max() > _WIDEST:
            far = sd > _WIDEST
            moments = SiteMoments(*(part.copy() for part in self(mean, np.minimum(sd, _WIDEST))))
            moments.rate[far], moments.curvature[far] = _wide_moments(mean[far], sd[far])
            return moments
        rows, columns = self._shape
        down = np.clip(sd * (1 / _STEP), 0.0, rows - 1.001)
        across = (mean - _LOWEST) * (1 / _STEP)
        inside = np.clip(across, 0.0, columns - 1.001)
        outside = np.minimum(across - inside, 0.0)
        across = inside
        i, j = down.astype(np.int32), across.astype(np.int32)
        down -= i
        across -= j
        at = i * columns + j
        flat = self._log_rate_and_relative
        above = flat[at]
        above += (flat[at + 1] - above) * across
        at += columns
        below = flat[at]
        below += (flat[at + 1] - below) * across
        above += (below - above) * down
        # Below the table the rate goes as e^m; above it nobody is for long.
        rate = np.exp(above.real + outside * _STEP)
        return SiteMoments(rate, above.imag * rate / (1 + sd**2 * rate))


def _wide_moments(mean: Array, sd: Array) -> SiteMoments:
    """Moments of an empty cell under a Gaussian far wider than the site's wall.

    exp(-e^x) is the probability that a Gumbel variable G exceeds x, so that Z = P(x < G). With a
    normal G of the same mean and variance, Z is a probit in m, and so are its log derivatives.
    """
    spread = np.sqrt(sd.astype(float) ** 2 + _GUMBEL_VARIANCE)
    u = (_GUMBEL_MEAN - mean) / spread
    hazard = np.exp(-(u**2) / 2 - _LOG_ROOT_2PI - log_ndtr(u))
    return SiteMoments(hazard / spread, hazard * (hazard + u) / spread**2)


def _empty_moments(mean: Vector, sd: float) -> SiteMoments:
    """Moments of an empty cell at (N,) means and one sd, by the trapezoid rule."""
    mode = tilted_mode(np.zeros_like(mean), mean, np.full_like(mean, sd**2))
    width = 1 / np.sqrt(1 / sd**2 + np.exp(mode))
    low = mode - _REACH * sd
    # To the right the law ends at its wall, where e^x is a few times one; E[e^x] may come from
    # there even if the law itself is far to the left.
    high = np.minimum(mode + _REACH * sd, np.maximum(mode + _REACH * width, _WALL))
    points = int(np.ceil(((high - low) / np.minimum(_NODE_STEP, width / 2)).max()))
    x = low + (high - low) * np.linspace(0, 1, max(points, 64))[:, None]
    return _moments(x, -np.exp(x) - (x - mean) ** 2 / (2 * sd**2))


@cache
def empty_cell_table() -> EmptyCellTable:
    """The table, made once."""
    return EmptyCellTable()
