"""The structured Fisher inverse with diagonal columns: what Newton's inner solve is tuned by.

Each column's block n_i G_i + tau_C L is replaced by diag(n_i c_i + tau_C d) - n_i c_i c_i', with d
the diagonal of L, which Sherman and Morrison invert. The rest of the elimination is that of
gsb3se.inference.gaussian.hessian_blocks: O(K^3) in a few matrix products to set up, O(K^2) to
apply.
"""

from __future__ import annotations

import numpy as np

from gsb3se.model.density import Latents, Strengths
from gsb3se.model.problem import Problem
from gsb3se.support.linear_algebra import sum_zero_inverse
from gsb3se.support.simplex import Vector


class FisherPreconditioner:
    """An approximate inverse of the negative Hessian at a point, positive definite."""

    def __init__(self, problem: Problem, latents: Latents, tau: Strengths) -> None:
        n = problem.n_classes
        laplacian = problem.graph.laplacian.toarray()
        degrees = np.diag(laplacian)
        self._q, self._confusion = q, confusion = latents.q, latents.confusion
        sizes = problem.column_sizes
        prior = tau.C * degrees[:, None]
        self._cell = sizes * confusion + prior
        self._ratio = confusion / self._cell
        self._gain = sizes / (confusion * prior / self._cell).sum(axis=0)
        squared = confusion * self._ratio
        means = squared.sum(axis=0)
        centred = squared - confusion * means
        cross = (squared * q**2) @ confusion.T
        S = np.diag(squared @ q**2) - cross - cross.T + (confusion * (means * q**2)) @ confusion.T
        S += (centred * (self._gain * q**2)) @ centred.T
        r = confusion @ q
        root = np.sqrt(problem.target.sum() / np.maximum(r, np.finfo(float).tiny))
        inside = np.eye(n) + root[:, None] * S * root
        self._W = root[:, None] * np.linalg.solve(inside, np.diag(root))
        self._jacobian = confusion * q - np.outer(r, q)
        precision = tau.q * laplacian + self._jacobian.T @ self._W @ self._jacobian
        self._theta = sum_zero_inverse(precision, level=np.trace(precision) / n)
        self._weights = (1.0, 1.0)
        sd = problem.column_mean.sd
        if sd is not None:
            weights = problem.graph.weights.toarray()
            by_alpha, by_beta = np.trace(laplacian), (weights * (laplacian @ weights)).sum()
            self._weights = (1 / (tau.C * by_alpha + sd**-2), 1 / (tau.C * by_beta + sd**-2))

    def solve(self, gradient: Latents) -> Latents:
        """The approximate inverse times a gradient."""
        columns = self._solve_columns(gradient.phi)
        moved = self._along_r(columns)
        theta = self._theta @ (gradient.theta - self._jacobian.T @ (self._W @ moved))
        t = self._W @ (moved + self._jacobian @ theta)
        back = self._confusion * (t[:, None] - self._confusion.T @ t)
        phi = columns - self._q * self._solve_columns(back)
        return Latents(
            theta, phi, gradient.alpha * self._weights[0], gradient.beta * self._weights[1]
        )

    def _along_r(self, columns: np.ndarray) -> Vector:
        """sum_i q_i G_i columns_i."""
        weighted = self._confusion * columns
        return weighted @ self._q - self._confusion @ (self._q * weighted.sum(axis=0))

    def _solve_columns(self, columns: np.ndarray) -> np.ndarray:
        centred = columns - columns.mean(axis=0)
        solved = centred / self._cell
        solved += self._ratio * (self._gain * (self._ratio * centred).sum(axis=0))
        solved -= solved.mean(axis=0)
        return solved
