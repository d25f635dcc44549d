"""The whole posterior, cells and strengths included, in coordinates where it is nearly N(0, I).

The state is (log eta, x, s): levels eta_i = n' q_i / Lambda_i, columns x_i with free levels and
Lambda_i = sum_j exp(x_ji), and s = (log tau_C, alpha, beta), the last two if anchored. With tau_q
integrated out its log density is

    sum_ji [n_ji x_ji - e^{x_ji}] + sum_j [n'_j log mu_j - mu_j],   mu_j = sum_i eta_i e^{x_ji}
    - tau_C / 2 sum_i (x_i - mu_i)'L(x_i - mu_i) + K (K-1) / 2 log tau_C + log p(s)
    - (a_q + (K-1) / 2) log(b_q + theta'L theta / 2),   theta = log eta + log Lambda:

exact, for the Poisson counts with free totals are the multinomial ones of the hierarchy.

The D = K + K^2 + S coordinates z = (z_eta, z_x, z_s) come from what the structured backend knows.
Each cell is a hinge (:mod:`gsb3se.inference.cell_maps`) of a y that is nearly N(0, 1); a column's y
have the correlations of its Gaussian, (tau_C L + diag(pi_i))^-1, in whose modes tau_C is a scale,

    U'diag(pi)U = I,  U'LU = diag(omega):  x ~ U diag(1 + tau_C omega)^-1/2 z;

a row's y give way together to what the target says of mu_j; levels follow the strengths, and cells
follow both. O(K^3) a point, as K products of K x K; arrays of cells are (true i, predicted j, C).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gsb3se.inference.cell_maps import Array, Hinges, fit_hinges
from gsb3se.inference.columns import (
    ColumnLaws,
    ColumnPropagation,
    Hyper,
    Kept,
    as_hyper,
    as_vector,
)
from gsb3se.inference.target import Frame
from gsb3se.problem import Problem
from gsb3se.simplex import Matrix, Vector, softmax

_STEP = 0.3  # of a strength, for differences
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(32)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()
_PIVOT = 3.0  # normal score of a wall, about which its cell's spread grows and shrinks
_RECENTRINGS, _RECENTRING_POINTS = 6, 64


class Point(NamedTuple):
    """Log density (C,), force (D, C), theta (K, C), and strengths (S, C) at C points."""

    value: Array
    force: Array
    theta: Array
    strengths: Array


class ColumnGaussians(NamedTuple):
    """The Gaussians of all columns at the best strengths, and how they move with these.

    Attributes:
        strengths: (S,) of (log tau_C, alpha, beta).
        curvature: (S, S) of the log evidence by them.
        rate, variance: (K, K) of the cells, a row a column as everything here.
        mean, precision: (K, K) of x, and pi.
        sd: (K, K) of x; covariance: (K, K, K).
        mean_slope, log_sd_slope: (K, K, S) by the strengths.
    """

    strengths: Vector
    curvature: Matrix
    rate: Matrix
    variance: Matrix
    mean: Matrix
    precision: Matrix
    sd: Matrix
    covariance: Array
    mean_slope: Array
    log_sd_slope: Array


def column_gaussians(
    run: ColumnPropagation, laws: ColumnLaws, curvature: Matrix
) -> ColumnGaussians:
    """Propagate the columns at the best strengths and to both sides of them; O(K^4)."""
    best, free = as_vector(laws.hyper), len(curvature)
    mean, precision = _gaussian(run, laws.hyper)
    covariance = _covariance(run.problem, laws.hyper.tau, precision)
    by_strength = []
    for k in range(free):
        ends = []
        for sign in (1, -1):
            beside = best.copy()
            beside[k] += sign * _STEP
            hyper = as_hyper(beside)
            moved, sharper = _gaussian(run, hyper)
            spread = np.einsum("ijj->ij", _covariance(run.problem, hyper.tau, sharper))
            ends.append(np.stack([moved, np.log(spread) / 2]))
        by_strength.append((ends[0] - ends[1]) / (2 * _STEP))
    mean_slope, log_sd_slope = np.stack(by_strength, axis=-1)
    return ColumnGaussians(
        best[:free],
        curvature,
        laws.rate.T.astype(float),
        laws.variance.T.astype(float),
        mean,
        precision,
        np.sqrt(np.einsum("ijj->ij", covariance)),
        covariance,
        mean_slope,
        log_sd_slope,
    )


def _gaussian(run: ColumnPropagation, hyper: Hyper) -> tuple[Matrix, Matrix]:
    """Mean and site precisions of all columns, a row a column."""
    n = run.n_classes
    found = Kept(*(np.empty((n, n), dtype=run.dtype) for _ in range(4)))
    known = run.sizes > 0
    if known.any():
        run.run(hyper, np.flatnonzero(known), found)
    assert found.mean is not None and found.precision is not None
    mean, precision = found.mean.T.astype(float), found.precision.T.astype(float)
    if not known.all():
        # A class without rows: its prior, with a total of about one.
        anchor = run.anchor(hyper, np.flatnonzero(~known)).T.astype(float)
        share = softmax(anchor, axis=1)
        mean[~known], precision[~known] = np.log(share), 1 / n
    return mean, precision


def _covariance(problem: Problem, tau: float, precision: Matrix) -> Array:
    n = len(precision)
    matrices = np.repeat(tau * problem.graph.laplacian.toarray()[None], n, axis=0)
    diagonal = np.arange(n)
    matrices[:, diagonal, diagonal] += precision
    return np.linalg.inv(matrices)


class ExactDensity:
    """The exact log density and its force for many points at once.

    Args:
        problem: counts, graph and prior.
        columns: the columns' Gaussians.
        frame: where the levels are, marginally.
        dtype: single or double precision.
    """

    def __init__(
        self, problem: Problem, columns: ColumnGaussians, frame: Frame, dtype: type
    ) -> None:
        n, prior = problem.n_classes, problem.prior
        self.n_classes, self.n_strengths, self.dtype = n, len(columns.strengths), dtype
        self._b_q, self._shape_q = prior.b_q, problem.tau_shapes[0]
        self._shape_C, self._b_C = problem.tau_shapes[1], prior.b_C
        self._anchor_sd = prior.anchor_sd
        laplacian = problem.graph.laplacian.toarray()
        counts, target = problem.counts.confusion.toarray().T.astype(float), problem.target
        eta, spread = np.exp(frame.centre.astype(float)), frame.spread.astype(float)

        hinges = _hinges(problem, columns, eta, (spread**2).sum(axis=1))
        bent, _, _ = hinges.bend(_NODES[:, None, None])
        middle = np.tensordot(_WEIGHTS, bent, 1)
        sd = np.sqrt(np.tensordot(_WEIGHTS, (bent - middle) ** 2, 1))
        # The spread of a cell with a wall changes about the wall, of another about its middle.
        pivot = hinges.bend(_PIVOT * (1 - hinges.narrow / hinges.wide))[0]
        by_spread = columns.log_sd_slope
        by_place = columns.mean_slope - (middle - pivot)[..., None] * by_spread

        scaled = columns.precision**-0.5
        omega, modes = np.linalg.eigh(scaled[:, :, None] * laplacian * scaled[:, None, :])
        modes *= (scaled / sd)[:, :, None]
        tied = columns.covariance / (sd[:, :, None] * sd[:, None, :])

        # How log mu_j answers to cells, levels and strengths.
        rate = np.exp(hinges.centre + bent)
        mean_rate = np.tensordot(_WEIGHTS, rate, 1)
        share = eta[:, None] * mean_rate
        share /= share.sum(axis=0)
        load = share * np.tensordot(_WEIGHTS * _NODES, rate, 1) / mean_rate
        moved = by_place + by_spread * (bent - pivot)[..., None]
        pulled = np.einsum("a,aij,aijk->ijk", _WEIGHTS, rate, moved) / mean_rate[..., None]
        by_strength = np.einsum("ij,ijk->jk", share, pulled)
        root = np.sqrt(target)
        values, vectors = np.linalg.eigh(
            root[:, None] * np.einsum("ij,ijk,ik->jk", load, tied, load) * root
        )
        values, sides = np.maximum(values, 1e-12), root[:, None] * vectors
        weight = (sides / (1 + values)) @ sides.T  # of a row's residual, cells integrated out
        cross = share @ weight @ by_strength
        follow = -spread @ (spread.T @ cross)
        information = columns.curvature + by_strength.T @ weight @ by_strength + cross.T @ follow
        widths, axes = np.linalg.eigh((information + information.T) / 2)
        widths = np.maximum(widths, np.linalg.eigvalsh(columns.curvature)[0] / 2)

        def typed(array: Array) -> Array:
            return np.ascontiguousarray(array, dtype=dtype)

        self._hinges = hinges.astype(dtype)
        self._base, self._pivot = typed(hinges.centre + pivot)[..., None], typed(pivot)[..., None]
        self._by_place, self._by_spread = typed(by_place), typed(by_spread)
        self._place_back = typed(by_place.transpose(0, 2, 1))
        self._spread_back = typed(by_spread.transpose(0, 2, 1))
        self._omega, self._modes = typed(np.maximum(omega, 0))[..., None], typed(modes)
        self._back = typed(modes.transpose(0, 2, 1))
        self._tied, self._load = typed(tied), typed(load)
        self._give = typed((sides * (((1 + values) ** -0.5 - 1) / values)) @ sides.T)
        self._level_answer = typed(weight @ share.T)
        self._strength_answer = typed(weight @ by_strength)
        self._offset, self._weight = typed(np.zeros((n, 1))), weight
        self._centre, self._spread = typed(frame.centre)[:, None], typed(spread)
        self._follow, self._axes = typed(follow), typed(axes / np.sqrt(widths))
        self._strengths = typed(columns.strengths)[:, None]
        self._counts, self._target = typed(counts)[..., None], typed(target)[:, None]
        self._missing = typed(problem.column_sizes == 0)[:, None]  # of a proper law of Lambda
        self._laplacian = typed(laplacian)
        if prior.is_anchored:
            anchor = np.stack([np.eye(n), problem.graph.weights.toarray().T], axis=-1)
            self._anchor, self._anchor_back = typed(anchor), typed(anchor.transpose(0, 2, 1))
        self._recentre()

    def start(self, log_eta: Array, rng: np.random.Generator) -> Array:
        """Coordinates (D, C) at given levels (K, C), cells and strengths from their Gaussians."""
        z = self._draw(log_eta.shape[1], rng)
        eta, _, strengths = self._parts(z)
        apart = log_eta - self._centre - self._follow @ (self._axes @ strengths)
        eta[:] = np.linalg.solve(self._spread.astype(float), apart.astype(float))
        return z

    def _draw(self, points: int, rng: np.random.Generator) -> Array:
        n = self.n_classes
        return rng.standard_normal((n + n * n + self.n_strengths, points), dtype=self.dtype)

    def _parts(self, z: Array) -> tuple[Array, Array, Array]:
        """Views of the coordinates of levels (K, C), cells (K, K, C) and strengths (S, C)."""
        n = self.n_classes
        return z[:n], z[n : n + n * n].reshape(n, n, -1), z[n + n * n :]

    def at(self, z: Array, valued: bool = True) -> Point:
        """Force and, if ``valued``, value at (D, C) coordinates."""
        there = self._forward(z)
        strengths, log_eta, x, bend = there.strengths, there.log_eta, there.x, there.bend
        rate = np.exp(x)
        totals, eta = rate.sum(axis=1), np.exp(log_eta)
        mu = np.einsum("ic,ijc->jc", eta, rate)
        theta = log_eta + np.log(totals)
        tau, weights = np.exp(strengths[0].astype(float)), strengths[1:].astype(float)
        apart = x
        if self._anchor_sd is not None:
            apart = x - np.matmul(self._anchor, strengths[1:])
        smooth = np.matmul(self._laplacian, apart)
        apart = apart * smooth
        strain = self._b_C + _total(apart) / 2
        pull = self._laplacian @ theta
        rate_q = self._b_q + np.einsum("ic,ic->c", theta, pull, dtype=float) / 2
        pull *= -(self._shape_q / rate_q).astype(self.dtype)

        value = np.zeros(len(tau))
        if valued:
            value += _total(self._counts * x)
            value += (self._target * np.log(mu) - mu).sum(axis=0, dtype=float)
            value += (self._missing * np.log(totals) - totals).sum(axis=0, dtype=float)
            value += self._shape_C * np.log(tau) - tau * strain - self._shape_q * np.log(rate_q)
            value += _total(np.log(bend[1])) + _total(np.log(there.shrink))
            if self._anchor_sd is not None:
                value -= (weights**2).sum(axis=0) / (2 * self._anchor_sd**2)

        by_strength = np.zeros((self.n_strengths, len(tau)))
        by_strength[0] = self._shape_C - tau * strain
        if self._anchor_sd is not None:
            by_strength[1:] = tau * _summed(self._anchor_back, smooth)
            by_strength[1:] -= weights / self._anchor_sd**2

        excess = self._target / mu - 1
        by_level = eta * np.einsum("ijc,jc->ic", rate, excess) + pull
        force = eta[:, None] * excess
        force += ((self._missing + pull) / totals - 1)[:, None]
        force *= rate
        force += self._counts
        smooth *= tau.astype(self.dtype)
        force -= smooth  # by x
        by_strength += _summed(self._place_back, force)
        by_strength += _summed(self._spread_back, force * there.stretched)
        force *= there.scale
        force *= bend[1]
        force += bend[2] / bend[1]  # by y
        by_row = np.einsum("ij,ijc->jc", self._load, np.matmul(self._tied, force))
        force += self._load[..., None] * (self._give @ by_row)
        by_strength -= _summed(self._spread_back, force * there.own)
        force /= there.scale
        slopes = np.empty_like(z)
        to_eta, by_mode, to_strengths = self._parts(slopes)
        np.matmul(self._back, force, out=by_mode)
        by_mode *= there.shrink
        # The modes' scales answer to log tau_C with -tau omega / (1 + tau omega) / 2.
        given = 1 - there.shrink**2
        by_strength[0] -= _total((by_mode * self._parts(z)[1] + 1) * given) / 2
        by_level -= self._level_answer.T @ by_row
        by_strength += self._follow.T @ by_level - self._strength_answer.T @ by_row
        to_eta[:] = self._spread.T @ by_level
        to_strengths[:] = self._axes.T @ by_strength
        return Point(value, slopes, theta, strengths)

    def predicted(self, z: Array) -> tuple[Array, Matrix]:
        """Shares r of predictions at C points, (K, C), and the mean of C over them, (K, K)."""
        there = self._forward(z)
        rate = np.exp(there.x)
        mu = np.einsum("ic,ijc->jc", np.exp(there.log_eta), rate)
        rate /= rate.sum(axis=1)[:, None]
        return mu / mu.sum(axis=0), rate.mean(axis=2, dtype=float).T

    def _forward(self, z: Array) -> _Forward:
        eta, cells, free = self._parts(z)
        moved = self._axes @ free
        strengths = self._strengths + moved
        apart = self._spread @ eta + self._follow @ moved
        shrink = 1 / np.sqrt(1 + np.exp(strengths[0]) * self._omega)
        scale = np.exp(np.matmul(self._by_spread, moved))
        own = np.matmul(self._modes, shrink * cells)
        own /= scale
        given = self._offset + self._give @ np.einsum("ij,ijc->jc", self._load, own)
        given -= self._level_answer @ apart + self._strength_answer @ moved
        y = np.matmul(self._tied, self._load[..., None] * given)
        y += own
        bend = self._hinges.bend(y)
        stretched = scale * (bend[0] - self._pivot)
        x = np.matmul(self._by_place, moved)
        x += self._base
        x += stretched
        return _Forward(strengths, self._centre + apart, shrink, scale, own, bend, stretched, x)

    def _recentre(self) -> None:
        """Move the rows' offsets to where their predictions meet the target on average."""
        rng = np.random.default_rng(0)
        wanted = np.log(np.maximum(self._target, 0.5))
        for _ in range(_RECENTRINGS):
            z = self._draw(_RECENTRING_POINTS, rng)
            z[-self.n_strengths :] *= 0.3
            there = self._forward(z)
            mu = np.einsum("ic,ijc->jc", np.exp(there.log_eta), np.exp(there.x))
            short = (wanted - np.log(mu)).mean(axis=1, keepdims=True)
            self._offset = self._offset + (self._weight @ short).astype(self.dtype)


class _Forward(NamedTuple):
    """On the way from z to x."""

    strengths: Array
    log_eta: Array
    shrink: Array  # (1 + tau omega)^-1/2
    scale: Array
    own: Array  # y before the rows give way
    bend: tuple[Array, Array, Array]
    stretched: Array
    x: Array


def _total(cells: Array) -> Array:
    """Sum over all cells, (C,): a column in its own precision, the columns in double."""
    return cells.sum(axis=1).sum(axis=0, dtype=float)


def _summed(by: Array, cells: Array) -> Array:
    """sum_ij by_ikj cells_ijc, (S, C); small products, which BLAS does in the caller's thread."""
    return np.matmul(by, cells).sum(axis=0, dtype=float)


def _hinges(
    problem: Problem, columns: ColumnGaussians, eta: Vector, log_eta_variance: Vector
) -> Hinges:
    """Every cell's map, given its column's cavity and what its row leaves for it."""
    counts = problem.counts.confusion.toarray().T.astype(float)
    cavity = 1 / np.maximum(columns.sd**-2 - columns.precision, 1e-9 * columns.precision)
    level = np.repeat(eta[:, None], len(eta), axis=1)
    mean, variance = level * columns.rate, level**2 * columns.variance
    wanted = problem.target - (mean.sum(axis=0) - mean)
    noise = np.maximum(problem.target, 1) + variance.sum(axis=0) - variance
    noise += log_eta_variance @ mean**2
    known = problem.column_sizes[:, None] > 0
    tilt = np.where(known, cavity * (counts - columns.rate), 0)
    return fit_hinges(counts, columns.mean - tilt, cavity, level, wanted, noise)
