"""The block structure of the posterior's Hessian, and the Gaussian it makes.

The negative Hessian over (theta, phi_1 .. phi_K) ties the columns to theta and to each other only
through r = C q. So each column is eliminated by a K x K factorisation of its own block

    A_i = n_i G_i + tau_C L - q_i [diag U_i - c_i U_i' - U_i c_i'],

with U_i = c_i (nu - w_i), nu = target / r and w = C' nu (the Fisher information has no U_i),
and what is left is a K x K problem for theta (with alpha and beta, two more). With
D the curvature of the target's log likelihood in r, J = dr/dtheta, J_i = q_i G_i = dr/dphi_i:

    S = sum_i J_i A_i^- J_i,  W = (D^-1 + S)^-1,  precision = prior + (J + N)'W(J + N) - R

over the top t = (theta, alpha, beta), where column i is tied to t directly by K_i (through U_i and
through the columns' mean), N = sum_i J_i A_i^- K_i and R = sum_i K_i'A_i^- K_i. Inverses are those
on the sum-zero space. O(K^4) time in K factorisations, O(K^2) memory: one column at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from scipy.linalg import LinAlgError, eigh

from gsb3se.model.density import Latents, Strengths
from gsb3se.model.problem import Problem
from gsb3se.support.errors import NoSolution
from gsb3se.support.linear_algebra import (
    SumZeroInverse,
    covariance_root,
    indefinite_sum_zero_inverse,
)
from gsb3se.support.simplex import Matrix, Vector

BlockKind = Literal["exact", "fisher"]

_REMEDY = "use backend='structured'"


class NotPositiveDefinite(NoSolution):
    """The Hessian is indefinite: the point is not a maximum of the log density."""


@dataclass(frozen=True, eq=False)
class GaussianBlocks:
    """The Gaussian at a point.

    Attributes:
        theta_covariance: (K, K) of theta, columns, alpha and beta integrated out.
        r_response: (K, K + a) the change of r with the top, columns following at their mean.
        r_residual: (K, K) covariance of r that is left then.
        top_covariance: (K + a, K + a) of (theta, alpha, beta); a is 2 if anchored, else 0.
        form_q, form_C: expected excess of the two quadratic forms over their value at the point;
            exact for kind "fisher".
        smallest_curvature: smallest eigenvalue of the precision of theta on the sum-zero space.
        log_determinant: of the whole precision on the sum-zero spaces.
    """

    theta_covariance: Matrix
    r_response: Matrix
    r_residual: Matrix
    top_covariance: Matrix
    form_q: float
    form_C: float
    smallest_curvature: float
    log_determinant: float

    def draw_factors(self) -> tuple[Matrix, Matrix]:
        """F and F_r with (d theta, d r) = (F z, F_r z), z white: (K, 2 K + a) each."""
        top, own = covariance_root(self.top_covariance), covariance_root(self.r_residual)
        n = len(self.theta_covariance)
        theta = np.hstack([top[:n], np.zeros((n, own.shape[1]))])
        return theta, np.hstack([self.r_response @ top, own])


class _Place(NamedTuple):
    """A point, and the derivatives of the target's log likelihood there.

    Attributes:
        q, r: (K,) shares and predicted shares; confusion: (K, K).
        ties: (K, K) columns U_i, that tie column i to theta_i; zero for the Fisher information.
        curvature: (K,) D; pull: (K,) q (w - n'), zero for the Fisher information.
    """

    q: Vector
    r: Vector
    confusion: Matrix
    ties: Matrix
    curvature: Vector
    pull: Vector

    @classmethod
    def of(cls, problem: Problem, latents: Latents, kind: BlockKind) -> _Place:
        n, q, confusion = problem.n_classes, latents.q, latents.confusion
        r = confusion @ q
        n_target = problem.target.sum()
        if kind == "fisher":
            nothing = np.zeros((n, n))
            return cls(q, r, confusion, nothing, n_target / r, np.zeros(n))
        nu = problem.target / r
        w = confusion.T @ nu
        ties = confusion * (nu[:, None] - w)
        return cls(q, r, confusion, ties, problem.target / r**2, q * (w - n_target))


class _Eliminated:
    """Sums over the eliminated columns; K is the number of classes, a that of the weights.

    Attributes:
        S, through: (K, K) sum of J_i A_i^- J_i and of J_i A_i^- L A_i^- J_i.
        by_tie: (K, K) J_i A_i^- U_i; tie_relief: (K,) U_i'A_i^- U_i.
        by_weight: (K, a) sum of J_i A_i^- pull_i; tie_weight: (K, a) U_i'A_i^- pull_i;
            weight_relief: (a, a) sum of pull_i'A_i^- pull_i, where pull_i = tau_C L [A_k e_i]_k.
        gap_form, gap_through: (a, a) and (K, a), of how far columns stay behind their mean when
            the weights move.
        form_C, log_determinant: of the blocks; n_negative: number of their negative eigenvalues.
    """

    def __init__(self, problem: Problem, tau: Strengths, place: _Place) -> None:
        n, a = problem.n_classes, problem.column_mean.n_weights
        self._laplacian, self._tau = problem.graph.laplacian.toarray(), tau.C
        self._sparse, self._sizes = problem.graph.laplacian, problem.column_sizes
        self._patterns = problem.column_mean.patterns()
        self.S, self.through = np.zeros((n, n)), np.zeros((n, n))
        self.by_tie, self.tie_relief = np.zeros((n, n)), np.zeros(n)
        self.by_weight, self.tie_weight = np.zeros((n, a)), np.zeros((n, a))
        self.weight_relief, self.gap_form = np.zeros((a, a)), np.zeros((a, a))
        self.gap_through = np.zeros((n, a))
        self.form_C = self.log_determinant = 0.0
        self.n_negative = 0
        for i in range(n):
            self._eliminate(i, place)

    def _eliminate(self, i: int, place: _Place) -> None:
        n, q = len(place.q), place.q
        c, u = place.confusion[:, i], place.ties[:, i]
        block = self._tau * self._laplacian - self._sizes[i] * np.outer(c, c)
        block.reshape(-1)[:: n + 1] += self._sizes[i] * c - q[i] * u
        block += q[i] * (np.outer(c, u) + np.outer(u, c))
        inverse, log_det, negative = _inverse(block, n)
        self.log_determinant += log_det
        self.n_negative += negative
        moved = q[i] * (c[:, None] * inverse - np.outer(c, c @ inverse))  # J_i A_i^-
        self.S += q[i] * (moved * c - np.outer(moved @ c, c))
        smooth = self._sparse @ inverse
        self.form_C += smooth.trace()
        rough = moved @ smooth  # J_i A_i^- L A_i^-
        self.through += q[i] * (rough * c - np.outer(rough @ c, c))
        self.by_tie[:, i], self.tie_relief[i] = moved @ u, u @ inverse @ u
        if not len(self._patterns):
            return
        means = np.ascontiguousarray(self._patterns[:, :, i].T)
        pull = self._tau * (self._laplacian @ means)
        followed = inverse @ pull
        self.by_weight += moved @ pull
        self.tie_weight[i] = u @ followed
        self.weight_relief += pull.T @ followed
        gap = self._laplacian @ (followed - means)
        self.gap_form += (followed - means).T @ gap
        self.gap_through += moved @ gap

    def tied(self, covariances: Matrix) -> Matrix:
        """N: how r moves with the top because columns follow it, (K, K + a)."""
        return np.hstack([self.by_tie @ covariances, self.by_weight])

    def relief(self, covariances: Matrix) -> Matrix:
        """R: what the columns' following takes off the top's precision, (K + a, K + a)."""
        n = len(covariances)
        n_top = n + self.by_weight.shape[1]
        relief = np.zeros((n_top, n_top))
        relief[:n, :n] = (covariances * self.tie_relief) @ covariances
        relief[:n, n:] = covariances @ self.tie_weight
        relief[n:, :n] = relief[:n, n:].T
        relief[n:, n:] = self.weight_relief
        return relief

    def form(self, W: Matrix, pulled: Matrix, top: Matrix) -> float:
        """Expected excess of the columns' quadratic form over its value at the point."""
        n = len(W)
        value = self.form_C - float(np.einsum("jk,jk->", W, self.through))
        spread = pulled.T @ self.through @ pulled
        if len(self._patterns):
            cross = pulled.T @ self.gap_through
            spread[:, n:] -= cross
            spread[n:] -= cross.T
            spread[n:, n:] += self.gap_form
        return value + float(np.einsum("jk,jk->", top, spread))


def gaussian_blocks(
    problem: Problem, latents: Latents, tau: Strengths, kind: BlockKind = "exact"
) -> GaussianBlocks:
    """Eliminate the columns one by one, then solve for the top.

    Raises:
        NotPositiveDefinite: the exact Hessian is indefinite.
    """
    n = problem.n_classes
    place = _Place.of(problem, latents, kind)
    columns = _Eliminated(problem, tau, place)
    covariances = np.diag(place.q) - np.outer(place.q, place.q)  # G_q
    root = np.sqrt(place.curvature)
    inside = np.eye(n) + root[:, None] * columns.S * root
    W = root[:, None] * np.linalg.solve(inside, np.diag(root))
    reach = columns.tied(covariances)
    reach[:, :n] += place.confusion * place.q - np.outer(place.r, place.q)
    precision = _prior_precision(problem, tau, place)
    precision = precision + reach.T @ W @ reach - columns.relief(covariances)
    top, log_det, negative = _inverse(precision, n)
    inner = np.linalg.eigvalsh(inside)
    # The number of negative eigenvalues of the whole, by the inertia of its Schur complements: the
    # whole can be positive definite where a column's own block is not, thanks to the target.
    if columns.n_negative - int((inner < 0).sum()) + negative > 0:
        raise NotPositiveDefinite(f"the Hessian is indefinite: {_REMEDY}")
    log_determinant = columns.log_determinant
    log_determinant += log_det + np.log(np.abs(inner)).sum()
    sigma, pulled = top[:n, :n], W @ reach
    return GaussianBlocks(
        theta_covariance=sigma,
        r_response=reach - columns.S @ pulled,
        r_residual=columns.S - columns.S @ W @ columns.S,
        top_covariance=top,
        form_q=float(np.einsum("jk,jk->", problem.graph.laplacian.toarray(), sigma)),
        form_C=columns.form(W, pulled, top),
        smallest_curvature=float(1 / eigh(sigma, eigvals_only=True)[-1]),
        log_determinant=float(log_determinant),
    )


def _prior_precision(problem: Problem, tau: Strengths, place: _Place) -> Matrix:
    """What the priors and the likelihood's own second derivative by theta say of the top."""
    n, laplacian = problem.n_classes, problem.graph.laplacian.toarray()
    patterns, sd = problem.column_mean.patterns(), problem.column_mean.sd
    n_top = n + len(patterns)
    prior = np.zeros((n_top, n_top))
    prior[:n, :n] = tau.q * laplacian
    prior[:n, :n] -= (
        np.diag(place.pull) - np.outer(place.q, place.pull) - np.outer(place.pull, place.q)
    )
    if sd is not None:
        images = [(laplacian @ pattern).ravel() for pattern in patterns]
        flat = [pattern.ravel() for pattern in patterns]
        prior[n:, n:] = tau.C * np.array([[a @ b for b in images] for a in flat])
        prior[n:, n:] += np.eye(len(patterns)) / sd**2
    return prior


def _inverse(matrix: Matrix, n: int) -> SumZeroInverse:
    try:
        return indefinite_sum_zero_inverse(matrix, n)
    except LinAlgError:
        raise NotPositiveDefinite(f"the Hessian is singular: {_REMEDY}") from None
