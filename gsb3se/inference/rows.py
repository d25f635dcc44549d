"""The target counts given the class levels, every confusion cell integrated out.

Let the cells g_ji of the columns be independent Gammas (:class:`ColumnLaws`), c_i = g_i / u_i with
u_i = sum_j g_ji, and measure each class by its *level* eta_i = n' q_i / u_i in place of q_i. Then
the expected target counts are sum_i eta_i g_ji: row j involves its own cells alone, so that given
eta the rows are independent, and the multinomial is that of independent Poisson counts with a free
total. Each count is a Poisson mixed over a sum of Gammas, whose cumulant function is explicit,

    K(nu) = -sum_i s_i log(1 - (e^nu - 1) b_i),   s: shapes,  b_i = eta_i / rate_i,

and whose probability is given by the saddlepoint K'(nu) = n, with error O(1/n) relative and smooth
in eta: log p(n) = K(nu) - n nu - log(2 pi K''(nu)) / 2; for n = 0 it is exactly K(-inf). A class's
share comes back as log q_i = log eta_i + log u_i, u_i given eta being nearly log-normal with moments
that the same saddlepoint gives.

Of each row the cells that matter are kept one by one; the many that hardly do are one Gamma of
their common mean and variance.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from gsb3se.inference.columns import ColumnLaws
from gsb3se.simplex import Matrix, Vector

_WORTH_A_TERM = 0.01  # share of a row's variance from which a cell is kept by itself
_MOST_TERMS = 16  # kept cells a class on average, at most
_NEWTON_STEPS = 40
_SADDLE_TOLERANCE = 1e-5
_LARGEST_MOVE = 2.0  # of nu in a step
_FLOOR = 1e-9  # of the rest of a row, in units of its column's size

Array = NDArray[Any]


class RowValues(NamedTuple):
    """At C points: log likelihood (C,), its gradient by log eta and log u, (K, C) each."""

    log_likelihood: Array
    gradient: Array
    log_totals: Array


class RowGeometry(NamedTuple):
    """At one point: what the Gaussian there is made of.

    Attributes:
        information: (K, K) about log eta.
        covariance: (K, K) of log u given eta and the counts.
        response: (K,) d log u_i / d log eta_i: a level that rises presses its own cells.
    """

    information: Matrix
    covariance: Matrix
    response: Vector


class _Saddle(NamedTuple):
    """The tilted cells: kept ones (N, C), rests of rows (K, C), and sums over rows."""

    zeta: Array
    h: Array
    p: Array
    h_rest: Array
    p_rest: Array
    s_rest: Array
    b_rest: Array
    mean_rest: Array
    variance_rest: Array
    slope: Array  # K''
    eta: Array
    steps: int


class TargetRows:
    """log p(target counts | eta) for many eta at once.

    Args:
        laws: the columns.
        target: (K,) counts.
        likely: (K,) a guess of q, to tell which cells matter.
    """

    def __init__(self, laws: ColumnLaws, target: Vector, likely: Vector) -> None:
        n = len(target)
        self.target, self.sizes = target, laws.sizes
        self.dtype = laws.rate.dtype
        rate, variance = laws.rate, laws.variance
        spread = (likely / laws.sizes) ** 2 * (laws.sizes / (laws.sizes + 1))
        weight = variance * spread.astype(self.dtype)
        noise = (rate @ (likely / laws.sizes)) / target.sum() + weight.sum(axis=1)
        weight /= noise[:, None].astype(self.dtype)
        threshold = _WORTH_A_TERM
        kept = weight > threshold
        if kept.sum() > _MOST_TERMS * n:
            candidates = weight[kept]
            threshold = np.partition(candidates, -_MOST_TERMS * n)[-_MOST_TERMS * n]
            kept = weight > threshold
        self._row, self._column = np.nonzero(kept)
        cell_rate, cell_variance = rate[kept], variance[kept]
        self._shape = (cell_rate**2 / cell_variance)[:, None]
        self._scale = (cell_variance / cell_rate)[:, None]
        self._rest = np.where(kept, 0, rate) + (_FLOOR * laws.sizes).astype(self.dtype)
        self._rest_variance = np.where(kept, 0, variance)
        self._rest_variance += (_FLOOR * laws.sizes).astype(self.dtype)
        position = np.arange(len(self._row))
        ones = np.ones(len(position), dtype=self.dtype)
        size = (n, len(position))
        self._by_row = sparse.csr_array((ones, (self._row, position)), shape=size)
        self._by_column = sparse.csr_array((ones, (self._column, position)), shape=size)
        self._first = np.flatnonzero(np.diff(self._row, prepend=-1))
        self._empty = target == 0
        self._counts = target.astype(self.dtype)[:, None]
        self._log_counts = np.log(np.maximum(self._counts, 1))
        self.most_steps = 0

    @property
    def n_terms(self) -> int:
        """Cells kept by themselves."""
        return len(self._row)

    def levels_at(self, q: Vector) -> Vector:
        """log eta where q is likely and every u at its mean."""
        return np.log(q * self.target.sum() / self.sizes)

    def evaluate(self, log_eta: Array) -> RowValues:
        """Value, gradient and log u at (K, C) points; O(K^2) a point."""
        at = self._saddle(log_eta)
        counted = ~self._empty[:, None]
        shape, s_rest = self._shape, at.s_rest
        sp, sp_rest = shape * at.p, s_rest * at.p_rest
        third = self._by_row @ (sp * (1 + at.p) * (1 + 2 * at.p))
        third += sp_rest * (1 + at.p_rest) * (1 + 2 * at.p_rest)
        slope = np.where(counted, at.slope, 1)
        log_h_rest = np.log(at.h_rest)
        value = self._by_row @ (shape * np.log(at.h)) + s_rest * log_h_rest
        nu = np.log(np.where(counted, at.zeta, 1))
        value -= np.where(counted, self._counts * nu + np.log(slope) / 2, 0)
        half = np.where(counted, 0.5 / slope, 0)
        bend = third / slope
        by_cell = shape * (at.h - 1)
        by_cell -= sp * at.h * half[self._row] * (1 + 2 * at.p - bend[self._row])
        by_scale = s_rest * (at.h_rest - 1)
        by_scale -= sp_rest * at.h_rest * half * (1 + 2 * at.p_rest - bend)
        by_shape = s_rest * log_h_rest - sp_rest * half * (1 + at.p_rest - bend)
        c = log_eta.shape[1]
        stacked = np.hstack([(2 * by_shape - by_scale) / at.mean_rest, at.h_rest])
        back = self._rest.T @ stacked
        gradient = self._rest_variance.T @ ((by_scale - by_shape) / at.variance_rest)
        gradient *= 2 * at.eta
        gradient += back[:, :c]
        gradient *= at.eta
        gradient += self._by_column @ by_cell
        totals = self._by_column @ (shape * self._scale * at.h) + back[:, c:]
        return RowValues(value.sum(axis=0, dtype=float), gradient, np.log(totals))

    def geometry(self, log_eta: Vector) -> RowGeometry:
        """Information about log eta, and the law of log u given it, at one point."""
        at = self._saddle(log_eta[:, None].astype(self.dtype))
        n = len(log_eta)
        h, p, h_rest, p_rest = (x[:, 0] for x in (at.h, at.p, at.h_rest, at.p_rest))
        weight = np.where(self._empty, 0, 1 / np.maximum(at.slope[:, 0], 1e-30)).astype(self.dtype)
        shape, scale = self._shape[:, 0], self._scale[:, 0]

        def table(cells: Array, rest: Array) -> Matrix:
            """Kept cells in their places, and the rest of each row in proportion to its parts."""
            full = self._rest * rest[:, None]
            full[self._row, self._column] += cells
            return full

        eta, mean_rest = at.eta[:, 0], at.mean_rest[:, 0]
        root = np.sqrt(weight)[:, None]
        tied = root * table(scale * shape * p * h, h_rest * p_rest)  # Cov(g_ji, n_j)
        moved = table(shape * p * h / eta[self._column], at.s_rest[:, 0] * p_rest * h_rest / mean_rest)
        moved *= eta
        moved *= root  # d n_j / d log eta_i
        pressed = tied.T @ tied
        own = self._by_column @ (shape * scale**2 * h**2)
        own += self._rest_variance.T @ h_rest**2
        totals = self._by_column @ (shape * scale * h) + self._rest.T @ h_rest
        response = self._by_column @ (shape * scale * h * (h - 1))
        response -= np.einsum("ji,ji->i", tied, moved)
        return RowGeometry(
            (moved.T @ moved).astype(float),
            ((np.diag(own) - pressed) / np.outer(totals, totals)).astype(float),
            np.clip((response / totals).astype(float), -0.99, 0.0),
        )

    def draw_shares(self, log_eta: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """Predicted shares r given (K, C) levels, (K, C), and E[C] over the points, (K, K)."""
        at = self._saddle(log_eta)
        bh, bh_rest = at.p, at.p_rest
        zeta = np.where(self._empty[:, None], 1, at.zeta)
        bh = np.where(self._empty[self._row, None], self._b(at) * at.h, bh / zeta[self._row])
        bh_rest = np.where(self._empty[:, None], at.b_rest * at.h_rest, bh_rest / zeta)
        mean = self._by_row @ (self._shape * bh) + at.s_rest * bh_rest
        variance = self._by_row @ (self._shape * bh**2) + at.s_rest * bh_rest**2
        counted = ~self._empty[:, None]
        tied = self._by_row @ (self._shape * bh * at.p) + at.s_rest * bh_rest * at.p_rest
        variance -= np.where(counted, tied**2 / np.where(counted, at.slope, 1), 0)
        shape = (mean**2 / np.maximum(variance, 1e-12 * mean**2)).astype(float)
        drawn = rng.gamma(shape) * (mean / shape)
        np.maximum(drawn, np.finfo(float).tiny, out=drawn)
        totals = self._by_column @ (self._shape * self._scale * at.h) + self._rest.T @ at.h_rest
        confusion = self._rest * ((at.h_rest @ (1 / totals).T) / log_eta.shape[1])
        cells = self._shape * self._scale * at.h / totals[self._column]
        confusion[self._row, self._column] += cells.mean(axis=1)
        return drawn / drawn.sum(axis=0), confusion / confusion.sum(axis=0)

    def _b(self, at: _Saddle) -> Array:
        return at.eta[self._column] * self._scale

    def _saddle(self, log_eta: Array) -> _Saddle:
        """Newton steps on log K'(nu) = log n, kept below the pole of K."""
        eta = np.exp(log_eta)
        b, shape = eta[self._column] * self._scale, self._shape
        mean = self._rest @ eta
        variance = self._rest_variance @ (eta * eta)
        b_rest, s_rest = variance / mean, mean * mean / variance
        largest = b_rest.copy()
        if len(self._first):
            rows = self._row[self._first]
            peaks = np.maximum.reduceat(b, self._first, axis=0)
            largest[rows] = np.maximum(largest[rows], peaks)
        pole = 1 + 1 / largest
        zeta = np.ones_like(mean)
        zeta[self._empty] = 0
        for steps in range(1, _NEWTON_STEPS + 1):
            here = zeta[self._row]
            h = 1 / (1 - (here - 1) * b)
            p = here * b * h
            h_rest = 1 / (1 - (zeta - 1) * b_rest)
            p_rest = zeta * b_rest * h_rest
            sp, sp_rest = shape * p, s_rest * p_rest
            first = self._by_row @ sp + sp_rest
            slope = self._by_row @ (sp * (1 + p)) + sp_rest * (1 + p_rest)
            move = self._log_counts - np.log(np.maximum(first, 1e-30))
            move *= first / np.maximum(slope, 1e-30)
            move[self._empty] = 0
            if steps == _NEWTON_STEPS or np.abs(move).max() < _SADDLE_TOLERANCE:
                break
            ahead = zeta * np.exp(np.clip(move, -_LARGEST_MOVE, _LARGEST_MOVE))
            zeta = np.where(ahead < pole, ahead, (zeta + pole) / 2)
        self.most_steps = max(self.most_steps, steps)
        return _Saddle(
            zeta, h, p, h_rest, p_rest, s_rest, b_rest, mean, variance, slope, eta, steps
        )
