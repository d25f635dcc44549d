"""Maximum-likelihood mixture proportions, to a stated optimality gap.

Given components A (n x K) and row weights h, maximise f(q) = sum_j h_j log (A q)_j over the
simplex. MLLS on hard predictions (A = C~) and the fixed point of Saerens' EM (A = probs / source
prior) are both this problem.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gsb3se.support.simplex import Matrix, Vector


@dataclass(frozen=True, eq=False)
class Proportions:
    """Proportions and how near to the best they are.

    Attributes:
        q: (K,) on the simplex.
        gap: upper bound on max f - f(q), in nats an observation.
        converged: whether the gap is below the tolerance.
    """

    q: Vector
    gap: float
    converged: bool


def mixture_proportions(
    components: Matrix, weights: Vector, tolerance: float = 1e-12, max_steps: int = 200
) -> Proportions:
    """Maximise sum_j h_j log (A q)_j by a primal-dual interior point method.

    Args:
        components: (n, K) non-negative A; every row with weight has a positive entry.
        weights: (n,) h, summing to one.
        tolerance: gap at which to stop.
        max_steps: Newton steps at most.

    The scale of q is free if f is replaced by f(q) - sum(q), whose maximum over q >= 0 lies on the
    simplex. With slope s = A'(h / A q), z = 1 - s >= 0 are the multipliers, and the gap of a q on
    the simplex is at most max(s) - 1, for f is concave. O(n K^2) a step.
    """
    from scipy.linalg import LinAlgError, cho_factor, cho_solve

    n_classes = components.shape[1]
    rows = weights > 0
    components, weights = components[rows], weights[rows] / weights[rows].sum()
    if (components.max(axis=1) <= 0).any():
        raise ValueError("no proportions explain a weighted row whose components are all zero")
    q = np.full(n_classes, 1.0 / n_classes)
    z = np.ones(n_classes)
    best = Proportions(q, np.inf, False)
    for _ in range(max_steps):
        mixed = components @ q
        slope = components.T @ (weights / mixed)
        candidate = _accept(components, weights, q, tolerance)
        best = min(best, candidate, key=lambda found: found.gap)
        if best.converged:
            return best
        barrier = 0.1 * (q @ z) / n_classes
        scaled = components * (np.sqrt(weights) / mixed)[:, None]
        hessian = scaled.T @ scaled
        hessian[np.diag_indices(n_classes)] += z / q
        try:
            step = cho_solve(cho_factor(hessian), slope - 1.0 + barrier / q)
        except LinAlgError:  # as near to the boundary as floating point goes
            return best
        z_step = barrier / q - z - z / q * step
        length = min(_step_to_boundary(q, step), _step_to_boundary(z, z_step))
        q = q + length * step
        z = z + length * z_step
    return best


def _accept(components: Matrix, weights: Vector, q: Vector, tolerance: float) -> Proportions:
    """q on the simplex, its negligible entries set to zero if that does not hurt, with its gap."""
    on_simplex = q / q.sum()
    for floor in (1e-10, 0.0):
        trimmed = np.where(on_simplex < floor, 0.0, on_simplex)
        trimmed /= trimmed.sum()
        mixed = components @ trimmed
        if (mixed > 0).all():
            gap = float((components.T @ (weights / mixed)).max() - 1.0)
            if gap <= tolerance or floor == 0.0:
                break
    return Proportions(trimmed, max(gap, 0.0), gap <= tolerance)


def _step_to_boundary(x: Vector, step: Vector) -> float:
    """The longest step, at most 1, that keeps x safely positive."""
    shrinking = step < 0
    if not shrinking.any():
        return 1.0
    return min(1.0, 0.99 * float(np.min(-x[shrinking] / step[shrinking])))
