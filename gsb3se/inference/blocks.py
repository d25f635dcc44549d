"""The block structure of the posterior's curvature, and the Gaussian it makes.

The negative Hessian over (theta, phi_1 .. phi_K) ties the columns to theta and to each other only
through r = C q. So each column is eliminated by a K x K factorisation of its own block

    A_i = n_i G_i + tau_C L   (exact: - q_i [diag U_i - c_i U_i' - U_i c_i']),

and what is left is a K x K problem for theta (with the anchor's alpha and beta, two more). With
D the curvature of the target's log likelihood in r, J = dr/dtheta, J_i = q_i G_i = dr/dphi_i:

    S = sum_i J_i A_i^- J_i,  W = (D^-1 + S)^-1,  precision = prior + (J + N)'W(J + N) - R

over the top t = (theta, alpha, beta), where column i is tied to t directly by K_i (through U_i and
through the anchored mean), N = sum_i J_i A_i^- K_i and R = sum_i K_i'A_i^- K_i. Inverses are those
on the sum-zero space. O(K^4) time in K factorisations, O(K^2) memory: one column at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.linalg import cho_factor, cho_solve, eigh

from gsb3se.errors import NoSolution
from gsb3se.model import Latents, Strengths
from gsb3se.problem import Problem
from gsb3se.simplex import Matrix

BlockKind = Literal["exact", "fisher"]

_REMEDY = "use backend='structured'"
_SINGULAR = 1e-14  # of the largest eigenvalue: a smaller one is none


class NotPositiveDefinite(NoSolution):
    """The curvature has a direction along which the log density rises."""


@dataclass(frozen=True, eq=False)
class GaussianBlocks:
    """The Gaussian at a point.

    Attributes:
        theta_covariance: (K, K) of theta, columns and anchor integrated out.
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
        top, own = symmetric_root(self.top_covariance), symmetric_root(self.r_residual)
        n = len(self.theta_covariance)
        theta = np.hstack([top[:n], np.zeros((n, own.shape[1]))])
        return theta, np.hstack([self.r_response @ top, own])


def gaussian_blocks(
    problem: Problem, latents: Latents, tau: Strengths, kind: BlockKind = "exact"
) -> GaussianBlocks:
    """Eliminate the columns one by one.

    Raises:
        NotPositiveDefinite: the exact curvature is none of a maximum.
    """
    n, anchored = problem.n_classes, problem.prior.is_anchored
    laplacian = problem.graph.laplacian.toarray()
    weights = problem.graph.weights.toarray() if anchored else np.empty((n, 0))
    q, confusion = latents.q, latents.confusion
    r = confusion @ q
    n_target = problem.target.sum()
    nu = problem.target / r
    exact = kind == "exact"
    w = confusion.T @ nu
    ties = confusion * (nu[:, None] - w) if exact else np.zeros((n, n))  # U_i
    curvature = problem.target / r**2 if exact else n_target / r  # D
    covariances = np.diag(q) - np.outer(q, q)  # G_q

    n_top, n_anchor = n + 2 * anchored, 2 * anchored
    S, through = np.zeros((n, n)), np.zeros((n, n))
    by_tie, tie_relief = np.zeros((n, n)), np.zeros(n)  # through U_i, in theta's direction i
    by_anchor, tie_anchor = np.zeros((n, n_anchor)), np.zeros((n, n_anchor))
    anchor_relief, gap_form = np.zeros((n_anchor, n_anchor)), np.zeros((n_anchor, n_anchor))
    gap_through = np.zeros((n, n_anchor))
    form_C = log_determinant = 0.0
    falling = 0  # directions in which the columns' blocks alone curve upwards
    for i in range(n):
        c, u = confusion[:, i], ties[:, i]
        block = tau.C * laplacian - problem.column_sizes[i] * np.outer(c, c)
        block.reshape(-1)[:: n + 1] += problem.column_sizes[i] * c - q[i] * u
        if exact:
            block += q[i] * (np.outer(c, u) + np.outer(u, c))
        inverse, log_det, negative = _inverse_on_sum_zero(block, n)
        log_determinant += log_det
        falling += negative
        moved = q[i] * (c[:, None] * inverse - np.outer(c, c @ inverse))  # J_i A_i^-
        S += q[i] * (moved * c - np.outer(moved @ c, c))
        smooth = problem.graph.laplacian @ inverse
        form_C += smooth.trace()
        rough = moved @ smooth  # J_i A_i^- L A_i^-
        through += q[i] * (rough * c - np.outer(rough @ c, c))
        by_tie[:, i], tie_relief[i] = moved @ u, u @ inverse @ u
        if anchored:
            means = np.column_stack([np.arange(n) == i, weights[:, i]]).astype(float)
            pull = tau.C * (laplacian @ means)
            followed = inverse @ pull
            by_anchor += moved @ pull
            tie_anchor[i] = u @ followed
            anchor_relief += pull.T @ followed
            gap = laplacian @ (followed - means)
            gap_form += (followed - means).T @ gap
            gap_through += moved @ gap

    tied = np.hstack([by_tie @ covariances, by_anchor])  # N
    relief = np.zeros((n_top, n_top))  # R
    relief[:n, :n] = (covariances * tie_relief) @ covariances
    relief[:n, n:] = covariances @ tie_anchor
    relief[n:, :n] = relief[:n, n:].T
    relief[n:, n:] = anchor_relief
    jacobian = np.zeros((n, n_top))
    jacobian[:, :n] = confusion * q - np.outer(r, q)
    prior = np.zeros((n_top, n_top))
    prior[:n, :n] = tau.q * laplacian
    if exact:
        pull_q = q * (w - n_target)
        prior[:n, :n] -= np.diag(pull_q) - np.outer(q, pull_q) - np.outer(pull_q, q)
    if anchored:
        flat = [np.eye(n).ravel(), weights.ravel()]
        images = [laplacian.ravel(), (laplacian @ weights).ravel()]
        prior[n:, n:] = tau.C * np.array([[a @ b for b in images] for a in flat])
        prior[n:, n:] += np.eye(2) / problem.prior.anchor_sd**2  # type: ignore[operator]

    root = np.sqrt(curvature)
    inside = np.eye(n) + root[:, None] * S * root
    W = root[:, None] * np.linalg.solve(inside, np.diag(root))
    reach = jacobian + tied
    precision = prior + reach.T @ W @ reach - relief
    top, log_det, negative = _inverse_on_sum_zero(precision, n)
    inner = np.linalg.eigvalsh(inside)
    # The number of negative directions of the whole, by the inertia of its Schur complements: the
    # target may hold a column that its own block does not.
    if falling - int((inner < 0).sum()) + negative > 0:
        raise NotPositiveDefinite(f"the curvature is indefinite: {_REMEDY}")
    log_determinant += log_det + np.log(np.abs(inner)).sum()
    sigma = top[:n, :n]
    pulled = W @ reach
    form_C -= float(np.einsum("jk,jk->", W, through))
    spread = pulled.T @ through @ pulled
    if anchored:
        cross = pulled.T @ gap_through
        spread[:, n:] -= cross
        spread[n:] -= cross.T
        spread[n:, n:] += gap_form
    form_C += float(np.einsum("jk,jk->", top, spread))
    values = eigh(sigma, eigvals_only=True)
    return GaussianBlocks(
        sigma,
        reach - S @ pulled,
        S - S @ W @ S,
        top,
        float(np.einsum("jk,jk->", laplacian, sigma)),
        form_C,
        float(1 / values[-1]),
        float(log_determinant),
    )


def _inverse_on_sum_zero(matrix: Matrix, n: int) -> tuple[Matrix, float, int]:
    """Inverse, log |determinant| and number of negative eigenvalues on the sum-zero space.

    The first n entries sum to zero, others are free. The null vector (1, 0) is filled in with a
    curvature of the size of the rest.
    """
    level = max(abs(np.trace(matrix[:n, :n])) / n, np.finfo(float).tiny)
    filled = matrix.copy()
    filled[:n, :n] += level / n
    try:
        factor = cho_factor(filled, lower=True, check_finite=False)
        inverse = cho_solve(factor, np.eye(len(matrix)), check_finite=False)
        log_det, negative = 2 * np.log(np.diag(factor[0])).sum(), 0
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(filled)
        if np.abs(values).min() <= _SINGULAR * np.abs(values).max():
            raise NotPositiveDefinite(f"the curvature is singular: {_REMEDY}") from None
        inverse = (vectors / values) @ vectors.T
        log_det, negative = np.log(np.abs(values)).sum(), int((values < 0).sum())
    inverse[:n, :n] -= 1 / (level * n)
    return (inverse + inverse.T) / 2, float(log_det - np.log(level)), negative


def symmetric_root(covariance: Matrix) -> Matrix:
    """F with F F' = covariance, which is positive but for rounding."""
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
    return vectors * np.sqrt(np.maximum(values, 0.0))
