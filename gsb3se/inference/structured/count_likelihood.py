"""The target counts given the class levels, every confusion cell integrated out.

Let the cells g_ji of the columns be independent Gammas (:class:`ColumnLaws`), c_i = g_i / u_i with
u_i = sum_j g_ji, and measure each class by its *level* eta_i = n' q_i / u_i in place of q_i. Then
the expected target counts are sum_i eta_i g_ji: row j involves its own cells alone, so that given
eta the rows are independent, and the multinomial is that of independent Poisson counts with a free
total. Each count is a Poisson mixed over a sum of Gammas, whose cumulant function is explicit,

    K(nu) = -sum_i s_i log(1 - (e^nu - 1) b_i),   s: shapes,  b_i = eta_i / rate_i,

and whose probability is given by the saddlepoint K'(nu) = n, with error O(1/n) relative and smooth
in eta: log p(n) = K(nu) - n nu - log(2 pi K''(nu)) / 2; for n = 0 it is exactly K(-inf). A class's
share comes back as log q_i = log eta_i + log u_i, u_i given eta being nearly log-normal with
moments that the same saddlepoint gives.

Of each row the cells that matter are kept one by one; the many that hardly do are one Gamma of
their common mean and variance. Cells of tiny shape that would stand out of their row, if they were
not zero, have factors of their own (:mod:`gsb3se.inference.structured.rare_confusions`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg.blas import dsyrk, ssyrk

from gsb3se.inference.structured.column_laws import ColumnLaws
from gsb3se.inference.structured.rare_confusions import RareConfusions
from gsb3se.support.simplex import Matrix, Vector

_WORTH_A_TERM = 0.01  # share of a row's variance from which a cell is kept by itself
_MOST_TERMS = 16  # kept cells a class on average, at most
_NEWTON_STEPS = 40
_SADDLE_TOLERANCE = 1e-4  # of nu; the value's error is its square times K'', up to the count's
_LEAST_TOLERANCE = {np.float32: 1e-5, np.float64: 1e-12}  # that digits allow
_ROOM_TOLERANCE = 0.01  # of the distance to the pole
_TOWARDS_POLE = 0.1  # of the way that is left, when a step would cross the pole
_FLOOR = 1e-9  # of the rest of a row, in units of its column's size

Array = NDArray[Any]


class CountGeometry(NamedTuple):
    """At one point: what the Gaussian there is made of.

    Attributes:
        information: (K, K) about log eta.
        response: (K,) d log u_i / d log eta_i, negative: a higher level makes its cells smaller.
        own: (K,) and tied: (K, K): Cov(log u) = diag(own) - tied'tied, given eta and the counts.
    """

    information: Matrix
    response: Vector
    own: Vector
    tied: Matrix

    def covariance(self) -> Matrix:
        """(K, K) of log u given eta and the counts."""
        return np.diag(self.own) - _gram(self.tied)

    def roughness(self, laplacian: Any) -> float:
        """E[d'L d] for d ~ N(0, covariance), without the matrix."""
        smooth = laplacian @ self.tied.T
        whole = float(laplacian.diagonal() @ self.own)
        return whole - float(np.einsum("ij,ji->", smooth, self.tied, dtype=float))


class _Saddle(NamedTuple):
    """The tilted cells: kept ones (N, C), rests of rows (K, C), and sums over rows."""

    room: Array  # e^-nu less its pole, positive
    slack: Array  # e^-nu - 1
    h: Array
    p: Array
    h_rest: Array
    p_rest: Array
    s_rest: Array
    inverse: Array  # 1 / b
    inverse_rest: Array
    mean_rest: Array
    variance_rest: Array
    slope: Array  # K''; one for empty rows
    eta: Array
    steps: int  # Newton's


class CountValues(NamedTuple):
    """At C points: log likelihood (C,), log u (K, C), and the saddlepoints for the gradient."""

    log_likelihood: Array
    log_totals: Array
    saddle: _Saddle


class CountLikelihood:
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
        self._empty = target == 0
        self.rare = RareConfusions(laws, target, likely)
        spread = (likely / laws.sizes) ** 2 * (laws.sizes / (laws.sizes + 1))
        weight = variance * spread.astype(self.dtype)
        weight[self.rare.cells] = 0
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
        self._shape = (cell_rate * (cell_rate / cell_variance))[:, None]
        self._scale = (cell_variance / cell_rate)[:, None]
        self._cell_mean = self._shape * self._scale
        apart = kept | self.rare.cells
        floor = (_FLOOR * laws.sizes).astype(self.dtype)
        self._rest = np.where(apart, 0, rate) + floor
        self._rest_variance = np.where(apart, 0, variance) + floor**2  # of shape one: no spike
        position = np.arange(len(self._row))
        ones = np.ones(len(position), dtype=self.dtype)
        size = (n, len(position))
        self._by_row = sparse.csr_array((ones, (self._row, position)), shape=size)
        self._by_column = sparse.csr_array((ones, (self._column, position)), shape=size)
        # The first kept cells of all rows, the second ones, and so on: their minimum takes a few
        # passes over whole blocks, where reduceat goes cell by cell.
        rank = position - np.searchsorted(self._row, self._row)
        self._layers = [
            (self._row[rank == k], position[rank == k]) for k in range(rank.max(initial=-1) + 1)
        ]
        self._counts = np.maximum(target, 1).astype(self.dtype)[:, None]
        wanted = min(_SADDLE_TOLERANCE, 1 / float(self._counts.max()))
        self._tolerance = max(wanted, _LEAST_TOLERANCE[self.dtype.type])

    @property
    def n_terms(self) -> int:
        """Cells kept by themselves."""
        return len(self._row)

    def levels_at(self, q: Vector) -> Vector:
        """log eta where q is likely and every u at its mean."""
        return np.log(q * self.target.sum() / self.sizes)

    def evaluate(self, log_eta: Array, near: Array | None = None) -> CountValues:
        """Value and log u at (K, C) points; O(K^2) a point.

        Args:
            near: the room at points near by, to start the saddlepoints from.
        """
        at = self._saddle(log_eta, near)
        value = self._by_row @ (self._shape * np.log(at.h)) + at.s_rest * np.log(at.h_rest)
        value += self._counts * np.log1p(at.slack) - np.log(at.slope) / 2  # zero for empty rows
        totals = self._by_column @ (self._cell_mean * at.h) + self._rest.T @ at.h_rest
        _, log_factor, spiky_mean = self.rare.at(at.eta)
        value += log_factor
        totals += spiky_mean
        return CountValues(value.sum(axis=0, dtype=float), np.log(totals), at)

    def gradient(self, values: CountValues, pull: Array) -> Array:
        """Derivative by log eta of the log likelihood + pull . log u, (K, C).

        With h and p as functions of (nu, log b): dh = h p dnu + h (h - 1) dlog b and
        dp = p (1 + p) dnu + p h dlog b; nu follows K' = n, dnu = -sum s p h dlog b / K''.
        """
        at, shape = values.saddle, self._shape
        sp, sp_rest = shape * at.p, at.s_rest * at.p_rest
        twice, twice_rest = 1 + 2 * at.p, 1 + 2 * at.p_rest
        third = self._by_row @ (sp * (1 + at.p) * twice)
        third += sp_rest * (1 + at.p_rest) * twice_rest
        pulled = pull * np.exp(-values.log_totals)
        pull_cell = pulled.take(self._column, axis=0)
        pull_cell *= self._cell_mean
        pull_cell *= at.h
        pull_rest = (self._rest @ pulled) * at.h_rest
        along_nu = self._by_row @ (pull_cell * at.p) + pull_rest * at.p_rest
        # What a change of K' at fixed nu costs: through log K'' and through u.
        half = 0.5 / at.slope
        half[self._empty] = 0
        price = (third * half - along_nu) / at.slope
        price[self._empty] = 0
        by_cell = pull_cell + shape
        by_cell *= at.h - 1
        twice *= half.take(self._row, axis=0)
        at_cell = price.take(self._row, axis=0)
        at_cell -= twice
        at_cell *= sp
        at_cell *= at.h
        by_cell += at_cell
        by_scale = (at.s_rest + pull_rest) * (at.h_rest - 1)
        by_scale += sp_rest * at.h_rest * (price - half * twice_rest)
        by_shape = at.s_rest * np.log(at.h_rest) + sp_rest * (price - half * (1 + at.p_rest))
        gradient = self._rest_variance.T @ ((by_scale - by_shape) / at.variance_rest)
        gradient *= 2 * at.eta
        gradient += self._rest.T @ ((2 * by_shape - by_scale) / at.mean_rest)
        gradient *= at.eta
        gradient += self._by_column @ by_cell
        gradient += self.rare.gradient(at.eta, pulled)
        return gradient

    def geometry(self, log_eta: Vector, values: CountValues | None = None) -> CountGeometry:
        """Information about log eta, and the law of log u given it, at one point.

        Args:
            values: what :meth:`evaluate` found there, if it was asked.
        """
        at = self._saddle(log_eta[:, None].astype(self.dtype)) if values is None else values.saddle
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
        moved = table(
            shape * p * h / eta[self._column], at.s_rest[:, 0] * p_rest * h_rest / mean_rest
        )
        moved *= eta
        moved *= root  # d n_j / d log eta_i
        own = self._by_column @ (shape * scale**2 * h**2)
        own += self._rest_variance.T @ h_rest**2
        totals = self._by_column @ (shape * scale * h) + self._rest.T @ h_rest
        response = self._by_column @ (shape * scale * h * (h - 1))
        response -= np.einsum("ji,ji->i", tied, moved)
        b, _, spiky_mean = (part[:, 0] for part in self.rare.at(at.eta))
        own += spiky_mean * self.rare.scale[:, 0] / (1 + b)
        totals += spiky_mean
        response -= spiky_mean * b / (1 + b)
        tied /= totals
        information = _gram(moved)
        information[np.diag_indices(len(b))] += self.rare.shape[:, 0] * b / (1 + b) ** 2
        return CountGeometry(
            information,
            np.clip((response / totals).astype(float), -0.99, 0.0),
            (own / totals**2).astype(float),
            tied,
        )

    def draw_shares(self, log_eta: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """Predicted shares r given (K, C) levels, (K, C), and E[C] over the points, (K, K)."""
        at = self._saddle(log_eta)
        bh, bh_rest = at.h / at.inverse, at.h_rest / at.inverse_rest
        mean = self._by_row @ (self._shape * bh) + at.s_rest * bh_rest
        variance = self._by_row @ (self._shape * bh**2) + at.s_rest * bh_rest**2
        counted = ~self._empty[:, None]
        tied = self._by_row @ (self._shape * bh * at.p) + at.s_rest * bh_rest * at.p_rest
        variance -= np.where(counted, tied * (tied / at.slope), 0)
        shape = (mean**2 / np.maximum(variance, 1e-12 * mean**2)).astype(float)
        drawn = rng.gamma(shape) * (mean / shape)
        np.maximum(drawn, np.finfo(float).tiny, out=drawn)
        totals = self._by_column @ (self._cell_mean * at.h) + self._rest.T @ at.h_rest
        b, _, spiky_mean = self.rare.at(at.eta)
        totals += spiky_mean
        confusion = self._rest * ((at.h_rest @ (1 / totals).T) / log_eta.shape[1])
        confusion += self.rare.rate * (1 / ((1 + b) * totals)).mean(axis=1)
        cells = self._cell_mean * at.h / totals[self._column]
        confusion[self._row, self._column] += cells.mean(axis=1)
        return drawn / drawn.sum(axis=0), confusion / confusion.sum(axis=0)

    def _saddle(self, log_eta: Array, near: Array | None = None) -> _Saddle:
        """The tilts at which K' = n.

        In e^-nu each term is s p, 1 / p = e^-nu (1 + 1 / b) - 1, and 1 / K' is concave and nearly
        linear: Newton steps on 1 / K' = 1 / n take a few rounds. Cells of tiny shape have their
        root so near the pole 1 / (1 + least) of the largest b, least = 1 / b, that no digit of
        e^-nu would be left of the distance. So that distance, the room, is what is solved for:
        1 / p = room (1 + 1 / b) + (1 / b - least) / (1 + least), without cancellation.
        """
        eta = np.exp(log_eta)
        inverse = 1 / (eta.take(self._column, axis=0) * self._scale)  # 1 / b
        shape, counts = self._shape, self._counts
        mean = self._rest @ eta
        variance = self._rest_variance @ (eta * eta)
        inverse_rest, s_rest = mean / variance, mean * mean / variance
        least = inverse_rest.copy()
        for rows, cells in self._layers:
            least[rows] = np.minimum(least[rows], inverse[cells])
        pole = 1 / (1 + least)
        room = least * pole if near is None else near  # e^-nu = 1 to begin with
        grown, grown_rest = 1 + inverse, 1 + inverse_rest
        beyond = inverse - least.take(self._row, axis=0)
        beyond *= pole.take(self._row, axis=0)
        beyond_rest = (inverse_rest - least) * pole
        for steps in range(1, _NEWTON_STEPS + 1):
            p = room.take(self._row, axis=0)
            p *= grown
            p += beyond
            np.reciprocal(p, out=p)
            p_rest = room * grown_rest
            p_rest += beyond_rest
            np.reciprocal(p_rest, out=p_rest)
            sp, sp_rest = shape * p, s_rest * p_rest
            first = self._by_row @ sp + sp_rest
            sp *= p
            slope = self._by_row @ sp + sp_rest * p_rest
            slope += first
            move = (first - counts) * first
            move /= slope
            move /= counts
            move[self._empty] = 0
            nearly = np.abs(move).max() < self._tolerance
            move *= room + pole
            # Near the pole a step that is nothing in nu may be much of the way that is left.
            if steps == _NEWTON_STEPS or (
                nearly and (np.abs(move) <= _ROOM_TOLERANCE * room).all()
            ):
                break
            move += room
            room = np.fmax(move, _TOWARDS_POLE * room)  # never across the pole, nor lost
        slack, tilt = room - least * pole, room + pole
        h = p * tilt.take(self._row, axis=0)
        h *= inverse
        h_rest = p_rest * tilt * inverse_rest
        if self._empty.any():
            slope[self._empty] = 1
            gone = self._empty[self._row]
            p[gone], h[gone] = 0, inverse[gone] / grown[gone]
            p_rest[self._empty] = 0
            h_rest[self._empty] = (inverse_rest / (1 + inverse_rest))[self._empty]
            slack[self._empty] = 0
        return _Saddle(
            *(room, slack, h, p, h_rest, p_rest, s_rest, inverse, inverse_rest),
            *(mean, variance, slope, eta, steps),
        )


def _gram(matrix: Matrix) -> Matrix:
    """A'A in double, half of it computed and the rest mirrored."""
    syrk = ssyrk if matrix.dtype == np.float32 else dsyrk
    lower = syrk(1.0, matrix.T, lower=True).astype(float)
    lower += np.tril(lower, -1).T
    return lower
