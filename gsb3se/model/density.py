"""The density of the hierarchy: log joint, gradient, Hessian products.

    tau_q ~ Gamma(a_q, b_q)           theta | tau_q ~ N(0, (tau_q L)^+)       q = softmax(theta)
    tau_C ~ Gamma(a_C, b_C)           phi_i | tau_C ~ N(mu_i, (tau_C L)^+)    c_i = softmax(phi_i)
    validation counts of class i ~ Multinomial(n_i, c_i)
    target counts ~ Multinomial(n', r),  r = C q

with mu_i = 0 (the paper) or mu_i = alpha e_i + beta W[:, i], alpha and beta ~ N(0, anchor_sd^2).
Densities are with respect to Lebesgue measure on the sum-zero space, and to d tau.

The columns of phi need not be centred: softmax and L ignore a constant added to a column. Work is
O(K^2 + K nnz(L)); nothing larger than a few K x K arrays is held.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gsb3se.model.problem import Problem
from gsb3se.support.errors import NoSolution
from gsb3se.support.limits import EVALUATED_SIDE_BY_SIDE
from gsb3se.support.simplex import Matrix, Vector, softmax

HessianKind = Literal["exact", "fisher"]

_TINY = 1e-100  # below it, a probability is handled by its logarithm; its square still is a float
_BLOCK_BYTES = 1 << 19  # rows combined at a time, to stay in cache


@dataclass(frozen=True, eq=False)
class Latents:
    """The latent variables other than tau_q and tau_C; also a gradient or a direction of them.

    Attributes:
        theta: (K,) target log-priors.
        phi: (K, K); column i holds the log-odds of confusion column i.
        alpha, beta: weights of the columns' mean; 0 in the paper's hierarchy.
    """

    theta: Vector
    phi: Matrix
    alpha: float = 0.0
    beta: float = 0.0

    @property
    def q(self) -> Vector:
        """(K,) target prior softmax(theta)."""
        return softmax(self.theta)

    @property
    def confusion(self) -> Matrix:
        """(K, K) confusion matrix; columns sum to one."""
        return softmax(self.phi)


@dataclass(frozen=True)
class Strengths:
    """tau_q and tau_C, or a derivative with respect to them."""

    q: float
    C: float


@dataclass(frozen=True)
class GammaPair:
    """Gamma(shape, rate) conditionals of tau_q and tau_C given the latents."""

    shape: Strengths
    rate: Strengths

    @property
    def mean(self) -> Strengths:
        """E[tau] = shape / rate."""
        return Strengths(self.shape.q / self.rate.q, self.shape.C / self.rate.C)


# Densities


def log_likelihood(problem: Problem, theta: Vector, phi: Matrix) -> float:
    """Log probability of all counts given theta and phi, multinomial coefficients included."""
    with problem.scratch() as memory:
        likelihood = _Forward.at(problem, Latents(theta, phi), memory).log_likelihood
    return problem.log_multinomial_coefficients + likelihood


def log_joint(problem: Problem, latents: Latents, tau: Strengths) -> float:
    """log p(counts, theta, phi, alpha, beta, tau_q, tau_C), all constants included.

    Add log tau_q + log tau_C for the density in log tau.

    >>> from gsb3se import ShiftCounts
    >>> problem = Problem(ShiftCounts([[9, 2], [1, 8]], [30, 70]), prior="paper")
    >>> round(log_joint(problem, Latents(np.zeros(2), np.zeros((2, 2))), Strengths(1.0, 1.0)), 6)
    -23.183134
    """
    with problem.scratch() as memory:
        return _joint_value(problem, *_evaluate(problem, latents, memory), tau)


def log_joint_and_gradient(
    problem: Problem, latents: Latents, tau: Strengths
) -> tuple[float, Latents, Strengths]:
    """The log joint, its gradient over the latents, and its derivative by tau_q and tau_C.

    d theta = q (w - n') - tau_q L theta;
    d phi_i = n^S_i - n_i c_i + q_i c_i (nu - w_i) - tau_C L (phi_i - mu_i),
    with nu = target / r and w = C' nu.
    """
    prior, (shape_q, shape_C) = problem.prior, problem.tau_shapes
    with problem.scratch() as memory:
        forward, energy = _evaluate(problem, latents, memory)
        value = _joint_value(problem, forward, energy, tau)
        gradient = _gradient(problem, forward, energy, latents, tau)
    slope = Strengths(
        (shape_q - 1) / tau.q - prior.b_q - energy.theta / 2,
        (shape_C - 1) / tau.C - prior.b_C - energy.phi / 2,
    )
    return value, gradient, slope


def tau_conditionals(problem: Problem, latents: Latents) -> GammaPair:
    """tau_q and tau_C given everything else: Gamma(a + dimensions / 2, b + quadratic form / 2)."""
    return _Energy(problem, latents).tau_conditionals()


class Curvature:
    """The negative Hessian of the log joint over the latents at one point, as a product.

    Args:
        problem, latents: where.
        tau: the fixed strengths.
        kind: "exact", or "fisher" (positive semi-definite, the expectation of the exact one).

    A product costs about three of the sparse products ``L @ phi``.
    """

    def __init__(
        self,
        problem: Problem,
        latents: Latents,
        tau: Strengths,
        kind: HessianKind = "exact",
    ) -> None:
        if kind not in ("exact", "fisher"):
            raise ValueError(f"kind must be 'exact' or 'fisher'; got {kind!r}")
        _check_shapes(problem, latents)
        self._problem = problem
        self._q = latents.q
        self._confusion = np.ascontiguousarray(latents.confusion)
        self._r = _times(self._confusion, self._q)
        if (self._r[problem.target > 0] < _TINY).any():
            raise NoSolution(
                "the Hessian overflows here: a class that was predicted on the target has a "
                "probability below 1e-100; start nearer to the data"
            )
        n_target = problem.target.sum()
        nu = np.divide(problem.target, self._r, where=self._r > 0, out=np.zeros_like(self._r))
        observed = n_target if kind == "fisher" else nu
        self._weight = np.divide(observed, self._r, where=self._r > 0, out=np.zeros_like(nu))
        # What the exact Hessian has beyond J' D J vanishes with these three.
        exact = float(kind == "exact")
        self._nu = exact * nu
        self._w = _times(self._confusion.T, self._nu)
        self._pull = self._q * (self._w - exact * n_target)
        self._tau = tau

    def product(self, direction: Latents) -> Latents:
        """(-Hessian) times a direction.

        With V the columns of the direction, A = V - E_c[V], dr the change of r and y = D dr,
        column i is tau_C L V_i + c_i * [A_i (n_i - q_i (nu - w_i)) + q_i (y - E_c[y])
        - q_i (v_i - q.v)(nu - w_i) + q_i dw_i], where dw_i = U_i.V_i, U_i = c_i (nu - w_i).
        """
        problem, tau, q, confusion = self._problem, self._tau, self._q, self._confusion
        _check_shapes(problem, direction)
        v, columns = direction.theta, direction.phi
        moved = q * (v - q @ v)
        with problem.scratch() as memory:
            weighted = np.multiply(confusion, columns, out=memory)
            means = weighted.sum(axis=0)
            dw = _times(weighted.T, self._nu) - self._w * means
            dr = _times(confusion, moved - q * means) + _times(weighted, q)
        y = self._weight * dr
        back = _times(confusion.T, y)
        prior_term = _Energy(problem, direction)

        pull = self._pull
        theta = q * (back - self._r @ y) + tau.q * prior_term.laplacian_theta
        theta -= pull * v - q * (pull @ v) - pull * (q @ v)
        theta -= q * (dw - q @ dw)

        alpha, beta = (tau.C * slope for slope in prior_term.weight_slopes)
        alpha += problem.column_mean.pull(direction.alpha)
        beta += problem.column_mean.pull(direction.beta)

        ones = np.ones_like(q)
        slope = (
            np.column_stack([ones, self._nu]),
            np.stack([problem.column_sizes + q * self._w, -q]),
        )
        level = (
            np.column_stack([y, self._nu, ones]),
            np.stack([q, -moved, q * (dw - back) + moved * self._w]),
        )
        phi = prior_term.laplacian_phi
        for rows, part, outer in _row_blocks(problem.n_classes):
            np.subtract(columns[rows], means, out=part)
            part *= _outer(slope[0][rows], slope[1], outer)
            part += _outer(level[0][rows], level[1], outer)
            part *= confusion[rows]
            phi[rows] *= tau.C
            phi[rows] += part
        return Latents(theta, phi, float(alpha), float(beta))


# Their parts


class _Energy:
    """The quadratic forms of the priors and their derivatives.

    theta = theta'L theta, phi = sum_i (phi_i - mu_i)'L(phi_i - mu_i); ``laplacian_*`` are L theta
    and L (phi - mu).
    """

    def __init__(self, problem: Problem, latents: Latents) -> None:
        _check_shapes(problem, latents)
        self._problem = problem
        laplacian = problem.graph.laplacian
        self.laplacian_theta: Vector = laplacian @ latents.theta
        self.theta = float(latents.theta @ self.laplacian_theta)
        phi = np.ascontiguousarray(latents.phi)
        self.laplacian_phi: Matrix = laplacian @ phi
        self.of_weights = 0.0
        self.weight_slopes = 0.0, 0.0  # derivatives of half the phi form by alpha and beta
        mean = problem.column_mean
        if mean.sd is not None:
            self.of_weights = (latents.alpha**2 + latents.beta**2) / (2 * mean.sd**2)
            for force, weight in zip(mean.forces, (latents.alpha, latents.beta), strict=True):
                force.add_to(self.laplacian_phi, -weight)
            by_alpha = float(self.laplacian_phi.trace())
            self.weight_slopes = -by_alpha, -mean.similarity.dot(self.laplacian_phi)
        self.phi = _inner(phi, self.laplacian_phi)
        self.phi += latents.alpha * self.weight_slopes[0] + latents.beta * self.weight_slopes[1]

    def tau_conditionals(self) -> GammaPair:
        prior = self._problem.prior
        return GammaPair(
            Strengths(*self._problem.tau_shapes),
            Strengths(prior.b_q + self.theta / 2, prior.b_C + self.phi / 2),
        )


@dataclass
class _Forward:
    """One evaluation of the likelihood; rows whose r underflows go by their logarithms.

    With s_i = sum_j exp(phi_ji), the confusion matrix is never normalised: r = exp(phi) (q / s).
    """

    q: Vector
    exp_phi: Matrix
    totals: Vector  # s, of exp_phi
    nu: Vector  # target / r, zero in the tiny rows
    tiny_rows: NDArray[np.int64]  # rows with target counts whose r underflows
    tiny_expected: Matrix  # target_j q_i C_ji / r_j in those rows
    log_likelihood: float

    @classmethod
    def at(cls, problem: Problem, latents: Latents, memory: Matrix) -> _Forward:
        """Evaluate at the latents; exp(phi) is written into ``memory``."""
        _check_shapes(problem, latents)
        theta, phi, q = latents.theta, latents.phi, latents.q
        with np.errstate(over="ignore"):
            exp_phi = np.exp(phi, out=memory)
            totals = exp_phi.sum(axis=0)
        log_totals = np.log(totals, where=totals > 0, out=np.full_like(totals, -np.inf))
        if not ((log_totals > -10) & (log_totals < 200)).all():  # digits or range would be lost
            shift = phi.max(axis=0)
            exp_phi = np.exp(np.subtract(phi, shift, out=memory), out=memory)
            totals = exp_phi.sum(axis=0)
            log_totals = np.log(totals) + shift
        r = _times(exp_phi, q / totals)

        seen = problem.target > 0
        tiny = np.flatnonzero(seen & (r < _TINY))
        log_r = np.log(r, where=r >= _TINY, out=np.zeros_like(r))
        expected = np.empty((0, problem.n_classes))
        if len(tiny):
            log_q = theta - theta.max() - np.log(np.exp(theta - theta.max()).sum())
            log_parts = phi[tiny] - log_totals + log_q
            log_r[tiny] = np.logaddexp.reduce(log_parts, axis=1)
            expected = problem.target[tiny, None] * np.exp(log_parts - log_r[tiny, None])
        value = problem.cells.dot(phi) - problem.column_sizes @ log_totals
        value += problem.target @ log_r
        nu = np.divide(problem.target, r, where=seen & (r >= _TINY), out=np.zeros_like(r))
        return cls(q, exp_phi, totals, nu, tiny, expected, float(value))


def _evaluate(problem: Problem, latents: Latents, memory: Matrix) -> tuple[_Forward, _Energy]:
    """The likelihood's half and the priors' half, side by side once they outweigh a thread."""
    if problem.n_classes < EVALUATED_SIDE_BY_SIDE:
        return _Forward.at(problem, latents, memory), _Energy(problem, latents)
    with ThreadPoolExecutor(1) as beside:
        energy = beside.submit(_Energy, problem, latents)
        return _Forward.at(problem, latents, memory), energy.result()


def _check_shapes(problem: Problem, latents: Latents) -> None:
    n = problem.n_classes
    if np.shape(latents.theta) != (n,) or np.shape(latents.phi) != (n, n):
        raise ValueError(
            f"theta must be ({n},) and phi ({n}, {n}) for this problem; got "
            f"{np.shape(latents.theta)} and {np.shape(latents.phi)}"
        )


def _joint_value(problem: Problem, forward: _Forward, energy: _Energy, tau: Strengths) -> float:
    if not (0 < tau.q < np.inf and 0 < tau.C < np.inf):
        raise ValueError(f"tau must be positive and finite; got {tau}")
    prior, (shape_q, shape_C) = problem.prior, problem.tau_shapes
    return float(
        problem.log_multinomial_coefficients
        + problem.log_normalisers
        + forward.log_likelihood
        + (shape_q - 1) * np.log(tau.q)
        + (shape_C - 1) * np.log(tau.C)
        - tau.q * (prior.b_q + energy.theta / 2)
        - tau.C * (prior.b_C + energy.phi / 2)
        - energy.of_weights
    )


def _gradient(
    problem: Problem, forward: _Forward, energy: _Energy, latents: Latents, tau: Strengths
) -> Latents:
    """Gradient of log likelihood plus log prior; takes over energy's L (phi - mu).

    With T_ji = target_j q_i C_ji / r_j, the target predictions j expected to come from class i,
    d theta = sum_j T_j - n' q and d phi_i = n^S_i + T_i - (n_i + sum_j T_ji) c_i, less the priors.
    """
    share = forward.q / forward.totals
    from_class = share * _times(forward.exp_phi.T, forward.nu) + forward.tiny_expected.sum(axis=0)
    theta = from_class - problem.target.sum() * forward.q - tau.q * energy.laplacian_theta

    slope_alpha, slope_beta = (-tau.C * slope for slope in energy.weight_slopes)
    slope_alpha -= problem.column_mean.pull(latents.alpha)
    slope_beta -= problem.column_mean.pull(latents.beta)
    pull = (problem.column_sizes + from_class) / forward.totals
    phi = energy.laplacian_phi
    left = np.column_stack([forward.nu, np.ones_like(pull)])
    right = np.stack([share, -pull])
    for rows, part, _ in _row_blocks(problem.n_classes):
        _outer(left[rows], right, part)
        part *= forward.exp_phi[rows]
        phi[rows] *= -tau.C
        phi[rows] += part
    phi[forward.tiny_rows] += forward.tiny_expected
    problem.cells.add_to(phi)
    return Latents(theta, phi, slope_alpha, slope_beta)


# Products of K x K arrays. Not by BLAS: its threads wait for each other, which on a busy machine
# takes many times longer than these products, all of them bound by memory.


def _times(matrix: Matrix, vector: Vector) -> Vector:
    return np.einsum("ji,i->j", matrix, vector)


def _inner(one: Matrix, other: Matrix) -> float:
    return float(np.einsum("ji,ji->", one, other))


def _outer(left: Matrix, right: Matrix, out: Matrix) -> Matrix:
    """left @ right for a few inner dimensions."""
    return np.einsum("jk,ki->ji", left, right, out=out)


def _row_blocks(n_classes: int) -> Iterator[tuple[slice, Matrix, Matrix]]:
    """Blocks of rows that stay in cache while several passes work on them, with two work arrays."""
    step = min(n_classes, max(1, _BLOCK_BYTES // (8 * n_classes)))
    work = np.empty((2, step, n_classes))
    for start in range(0, n_classes, step):
        rows = slice(start, min(start + step, n_classes))
        yield rows, *work[:, : rows.stop - start]
