"""The whole posterior, cells and strengths included, in coordinates where it is nearly N(0, I).

The state is (log eta, x, s): levels eta_i = n' q_i / Lambda_i, columns x_i with free levels and
Lambda_i = sum_j exp(x_ji), and s = (log tau_C, alpha, beta), the last two if anchored. With tau_q
integrated out its log density is

    sum_ji [n_ji x_ji - e^{x_ji}] + sum_j [n'_j log mu_j - mu_j],   mu_j = sum_i eta_i e^{x_ji}
    - tau_C / 2 sum_i (x_i - mu_i)'L(x_i - mu_i) + K (K-1) / 2 log tau_C + log p(s)
    - (a_q + (K-1) / 2) log(b_q + theta'L theta / 2),   theta = log eta + log Lambda:

exact, for the Poisson counts with free totals are the multinomial ones of the hierarchy.

The D = K + K^2 + S coordinates z = (z_eta, z_x, z_s) come from what the structured backend knows.
Each cell is a hinge (:mod:`gsb3se.inference.structured.exact.hinges`) of a y that is nearly
N(0, 1); a column's y have the correlations of its Gaussian, (tau_C L + diag(pi_i))^-1, in whose
modes tau_C is a scale,

    U'diag(pi)U = I,  U'LU = diag(omega):  x ~ U diag(1 + tau_C omega)^-1/2 z;

a row's y shift together to match the target's count; levels depend on the strengths, and cells on
both. O(K^3) a point, as K products of K x K; arrays of cells are (true i, predicted j, C).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gsb3se.inference.structured.exact.coordinates import PosteriorCoordinates
from gsb3se.inference.structured.exact.hinges import Array
from gsb3se.model.problem import Problem
from gsb3se.model.share_prior import SharePrior
from gsb3se.support.simplex import Matrix

_RECENTRINGS, _RECENTRING_POINTS = 6, 64


class ExactPoint(NamedTuple):
    """Log density (C,), force (D, C), theta (K, C), and strengths (S, C) at C points."""

    value: Array
    force: Array
    theta: Array
    strengths: Array


class ExactDensity:
    """The exact log density and its force for many points at once.

    Args:
        problem: counts, graph and prior.
        coordinates: where levels, cells and strengths are.
        dtype: single or double precision.
    """

    def __init__(self, problem: Problem, coordinates: PosteriorCoordinates, dtype: type) -> None:
        self.n_classes, self.dtype = problem.n_classes, dtype
        self.n_strengths = len(coordinates.strengths)
        self._shape_C, self._b_C = problem.tau_shapes[1], problem.prior.b_C
        self._column_mean = problem.column_mean
        self._take_problem(problem)
        self._take_coordinates(coordinates)
        self._recentre(coordinates.answers.weight)

    def _typed(self, array: Array) -> Array:
        return np.ascontiguousarray(array, dtype=self.dtype)

    def _take_problem(self, problem: Problem) -> None:
        """Counts, Laplacian and the columns' mean in the precision of the chains."""
        typed = self._typed
        self._laplacian = typed(problem.graph.laplacian.toarray())
        self._share_prior = SharePrior(
            self._laplacian, problem.share_prior.shape, problem.share_prior.rate
        )
        counts = problem.counts.confusion.toarray().T.astype(float)
        self._counts, self._target = typed(counts)[..., None], typed(problem.target)[:, None]
        self._missing = typed(problem.column_sizes == 0)[
            :, None
        ]  # there Lambda has a Gamma(1, 1) law
        patterns = self._column_mean.patterns().transpose(2, 1, 0)  # (true, predicted, weight)
        self._patterns = typed(patterns)
        self._patterns_back = typed(patterns.transpose(0, 2, 1))

    def _take_coordinates(self, coordinates: PosteriorCoordinates) -> None:
        typed, shapes, answers = self._typed, coordinates.shapes, coordinates.answers
        self._hinges = shapes.hinges.astype(self.dtype)
        self._base = typed(shapes.hinges.centre + shapes.pivot)[..., None]
        self._pivot = typed(shapes.pivot)[..., None]
        self._by_place, self._by_spread = typed(shapes.by_place), typed(shapes.by_spread)
        self._place_back = typed(shapes.by_place.transpose(0, 2, 1))
        self._spread_back = typed(shapes.by_spread.transpose(0, 2, 1))
        self._omega, self._modes = typed(shapes.omega)[..., None], typed(shapes.modes)
        self._back = typed(shapes.modes.transpose(0, 2, 1))
        self._tied, self._load = typed(shapes.tied), typed(answers.load)
        self._give = typed(answers.give)
        self._level_answer = typed(answers.weight @ answers.share.T)
        self._strength_answer = typed(answers.weight @ answers.by_strength)
        self._offset = typed(np.zeros((self.n_classes, 1)))
        self._centre, self._spread = typed(coordinates.centre)[:, None], typed(coordinates.spread)
        self._follow, self._axes = typed(coordinates.follow), typed(coordinates.axes)
        self._strengths = typed(coordinates.strengths)[:, None]

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

    def at(self, z: Array, valued: bool = True) -> ExactPoint:
        """Force and, if ``valued``, value at (D, C) coordinates."""
        there = self._forward(z)
        state = self._state(there)
        value = np.zeros(z.shape[1])
        if valued:
            value += self._value(there, state)
        return ExactPoint(value, self._force(z, there, state), state.theta, there.strengths)

    def _state(self, there: _MappedPoints) -> _State:
        """What value and force share."""
        rate = np.exp(there.x)
        totals, eta = rate.sum(axis=1), np.exp(there.log_eta)
        mu = np.einsum("ic,ijc->jc", eta, rate)
        theta = there.log_eta + np.log(totals)
        apart = there.x
        if self._column_mean.n_weights:
            apart = there.x - np.matmul(self._patterns, there.strengths[1:])
        smooth = np.matmul(self._laplacian, apart)
        strain = self._b_C + _total(apart * smooth) / 2
        log_prior, pull = self._share_prior.collapsed(theta)
        return _State(rate, totals, eta, mu, theta, smooth, strain, log_prior, pull)

    def _value(self, there: _MappedPoints, state: _State) -> Array:
        """The log density, the volume of the coordinates included, (C,)."""
        tau = np.exp(there.strengths[0].astype(float))
        value = _total(self._counts * there.x)
        value += (self._target * np.log(state.mu) - state.mu).sum(axis=0, dtype=float)
        value += (self._missing * np.log(state.totals) - state.totals).sum(axis=0, dtype=float)
        value += self._shape_C * np.log(tau) - tau * state.strain + state.log_prior
        value += _total(np.log(there.bend[1])) + _total(np.log(there.shrink))
        if self._column_mean.sd is not None:
            weights = there.strengths[1:].astype(float)
            value -= (weights**2).sum(axis=0) / (2 * self._column_mean.sd**2)
        return value

    def _force(self, z: Array, there: _MappedPoints, state: _State) -> Array:
        """The gradient, (D, C), step by step back along the map; reuses the state's arrays."""
        strengths, bend, smooth = there.strengths, there.bend, state.smooth
        tau, weights = np.exp(strengths[0].astype(float)), strengths[1:].astype(float)
        by_strength = np.zeros((self.n_strengths, len(tau)))
        by_strength[0] = self._shape_C - tau * state.strain
        if self._column_mean.sd is not None:
            by_strength[1:] = tau * _summed(self._patterns_back, smooth)
            by_strength[1:] -= weights / self._column_mean.sd**2

        excess = self._target / state.mu - 1
        by_level = state.eta * np.einsum("ijc,jc->ic", state.rate, excess) + state.pull
        force = state.eta[:, None] * excess
        force += ((self._missing + state.pull) / state.totals - 1)[:, None]
        force *= state.rate
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
        return slopes

    def predicted(self, z: Array) -> tuple[Array, Matrix]:
        """Shares r of predictions at C points, (K, C), and the mean of C over them, (K, K)."""
        there = self._forward(z)
        rate = np.exp(there.x)
        mu = np.einsum("ic,ijc->jc", np.exp(there.log_eta), rate)
        rate /= rate.sum(axis=1)[:, None]
        return mu / mu.sum(axis=0), rate.mean(axis=2, dtype=float).T

    def _forward(self, z: Array) -> _MappedPoints:
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
        return _MappedPoints(
            strengths, self._centre + apart, shrink, scale, own, bend, stretched, x
        )

    def _recentre(self, weight: Matrix) -> None:
        """Move the rows' offsets to where their predictions meet the target on average."""
        rng = np.random.default_rng(0)
        log_target = np.log(np.maximum(self._target, 0.5))
        for _ in range(_RECENTRINGS):
            z = self._draw(_RECENTRING_POINTS, rng)
            z[-self.n_strengths :] *= 0.3
            with np.errstate(all="ignore"):  # points may be wild; chains there are rejected
                there = self._forward(z)
                mu = np.einsum("ic,ijc->jc", np.exp(there.log_eta), np.exp(there.x))
                short = (log_target - np.log(mu)).mean(axis=1, keepdims=True)
                moved = (weight @ short).astype(self.dtype)
            if not np.isfinite(moved).all():
                break
            self._offset = self._offset + moved


class _MappedPoints(NamedTuple):
    """On the way from z to x."""

    strengths: Array
    log_eta: Array
    shrink: Array  # (1 + tau omega)^-1/2
    scale: Array
    own: Array  # y before the rows give way
    bend: tuple[Array, Array, Array]
    stretched: Array
    x: Array


class _State(NamedTuple):
    """Rates and their sums at C points, and what the priors say there."""

    rate: Array
    totals: Array
    eta: Array
    mu: Array
    theta: Array
    smooth: Array  # L (x - mu)
    strain: Array  # rate of the conditional of tau_C
    log_prior: Array
    pull: Array  # of the prior of theta on theta


def _total(cells: Array) -> Array:
    """Sum over all cells, (C,): a column in its own precision, the columns in double."""
    return cells.sum(axis=1).sum(axis=0, dtype=float)


def _summed(by: Array, cells: Array) -> Array:
    """sum_ij by_ikj cells_ijc, (S, C); small products, which BLAS does in the caller's thread."""
    return np.matmul(by, cells).sum(axis=0, dtype=float)
