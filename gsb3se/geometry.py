"""Information geometry of the target prior for a fixed confusion matrix.

The open simplex with the Fisher-Rao metric g_q(v, w) = sum_i v_i w_i / q_i on tangent vectors that
sum to zero; m-coordinates q, e-coordinates theta = log q - mean(log q). The objective is

    F(q) = n' KL(r_hat || C q) + tau_q / 2 theta' L theta.

Some of the paper's claims about F are wrong. This module implements the corrected statements:

- F is a sum of an m-convex and an e-convex term, which is in general convex in neither sense and
  not along Fisher-Rao geodesics; :func:`riemannian_hessian` can be negative.
- The Laplacian's part of the natural gradient is tau_q L theta, without a factor q; with the factor
  the flow leaves the simplex.
- The likelihood's curvature is not diag(r) - rr' but, per target row in theta, J' diag(1/r) J with
  J = C (diag q - qq').
- No exponential rate and no Pythagorean identity follows; along the flow F decreases at the rate
  |grad F|_g^2, and that is all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import rel_entr

from gsb3se.graph import LabelGraph
from gsb3se.model.mixture_proportions import Proportions, mixture_proportions
from gsb3se.support.simplex import Matrix, Vector, as_distribution, centred_log, softmax

# The manifold


def inner(q: ArrayLike, v: ArrayLike, w: ArrayLike) -> float:
    """The Fisher-Rao product g_q(v, w) = sum_i v_i w_i / q_i.

    >>> inner([0.5, 0.5], [1.0, -1.0], [1.0, -1.0])
    4.0
    """
    return float(np.sum(np.asarray(v) * np.asarray(w) / np.asarray(q)))


def distance(p: ArrayLike, q: ArrayLike) -> float:
    """Fisher-Rao geodesic distance, 2 arccos(sum_i sqrt(p_i q_i)).

    Computed by the half-angle form, which keeps its digits for near points.

    >>> round(distance([1.0, 0.0], [0.0, 1.0]) / np.pi, 12)
    1.0
    """
    p = as_distribution(p, "p")
    q = as_distribution(q, "q", len(p))
    chord = np.linalg.norm(np.sqrt(p) - np.sqrt(q))
    return float(4.0 * np.arcsin(np.minimum(1.0, chord / 2.0)))


def geodesic(q: ArrayLike, v: ArrayLike, t: float) -> Vector:
    """The Fisher-Rao geodesic from q with initial velocity v, at time t.

    In the coordinates 2 sqrt(q) the simplex is part of a sphere of radius 2 and a geodesic is a
    great circle; it reaches the boundary after finite time.
    """
    root = np.sqrt(np.asarray(q, float))
    velocity = np.asarray(v, float) / (2.0 * root)
    speed = np.linalg.norm(velocity)
    if speed == 0:
        return root**2
    return (root * np.cos(speed * t) + velocity / speed * np.sin(speed * t)) ** 2


def to_e_coordinates(q: ArrayLike) -> Vector:
    """theta = log q - mean(log q); equal to the gradient of sum_i q_i log q_i up to a constant."""
    return centred_log(q)


def from_e_coordinates(theta: ArrayLike) -> Vector:
    """q = softmax(theta), the gradient of the log-sum-exp potential."""
    return softmax(theta)


def e_geodesic(p: ArrayLike, q: ArrayLike, t: float) -> Vector:
    """The exponential geodesic: straight in theta."""
    return softmax((1 - t) * centred_log(p) + t * centred_log(q))


def m_geodesic(p: ArrayLike, q: ArrayLike, t: float) -> Vector:
    """The mixture geodesic: straight in q."""
    return (1 - t) * np.asarray(p, float) + t * np.asarray(q, float)


# The objective on it


@dataclass(frozen=True, eq=False)
class Objective:
    """F(q) = n' KL(r_hat || C q) + tau_q / 2 theta' L theta for a fixed confusion matrix.

    Args:
        confusion: (K, K) C, columns on the simplex.
        target: (K,) target counts; n' is their sum and r_hat their frequencies.
        graph: the label graph.
        tau_q: strength of the Laplacian; 0 drops it.

    Derivatives are Euclidean, in q.
    """

    confusion: Matrix
    target: Vector
    graph: LabelGraph
    tau_q: float

    def __post_init__(self) -> None:
        confusion = np.asarray(self.confusion, dtype=float)
        target = np.asarray(self.target, dtype=float)
        if confusion.shape != (self.graph.n_classes,) * 2 or target.shape != confusion.shape[:1]:
            raise ValueError(
                f"confusion must be (K, K) and target (K,) for the graph's K = "
                f"{self.graph.n_classes}; got {confusion.shape} and {target.shape}"
            )
        if not ((confusion >= 0).all() and abs(confusion.sum(axis=0) - 1).max() <= 1e-6):
            raise ValueError("the columns of confusion must be non-negative and sum to 1")
        if not (0 < target.sum() < np.inf and (target >= 0).all() and 0 <= self.tau_q < np.inf):
            raise ValueError("target counts must be non-negative with a positive sum, tau_q >= 0")
        object.__setattr__(self, "confusion", confusion)
        object.__setattr__(self, "target", target)

    def value(self, q: ArrayLike) -> float:
        """F(q)."""
        q, n_target = np.asarray(q, float), self.target.sum()
        divergence = rel_entr(self.target / n_target, self.confusion @ q).sum()
        if self.tau_q == 0:  # then q may lie on the boundary
            return float(n_target * divergence)
        theta = centred_log(q)
        roughness = theta @ (self.graph.laplacian @ theta)
        return float(n_target * divergence + self.tau_q / 2 * roughness)

    def gradient(self, q: ArrayLike) -> Vector:
        """dF/dq_i = -(C' target / r)_i + tau_q (L theta)_i / q_i."""
        q = np.asarray(q, float)
        if self.tau_q == 0:
            return -self.responsibility(q)
        force = self.graph.laplacian @ centred_log(q)
        return -self.responsibility(q) + self.tau_q * force / q

    def responsibility(self, q: ArrayLike) -> Vector:
        """C'(target / r); n' in every entry where the likelihood is at rest inside the simplex."""
        r = self.confusion @ np.asarray(q, float)
        seen = self.target > 0  # an unseen class says nothing, even where r underflows
        return self.confusion[seen].T @ (self.target[seen] / r[seen])

    def hessian_product(self, q: ArrayLike, v: ArrayLike) -> Vector:
        """(d2F/dq2) v."""
        q, v = np.asarray(q, float), np.asarray(v, float)
        seen = self.target > 0
        confusion, r = self.confusion[seen], self.confusion[seen] @ q
        likelihood = confusion.T @ (self.target[seen] / r**2 * (confusion @ v))
        force = self.graph.laplacian @ centred_log(q)
        spread = self.graph.laplacian @ (v / q)
        return likelihood + self.tau_q * (spread / q - force * v / q**2)


def natural_gradient(objective: Objective, q: ArrayLike) -> Vector:
    """grad F = q * (dF - q.dF) = n' q * C'(1 - r_hat / r) + tau_q L theta, summing to zero.

    It equals the plain gradient of F in theta. (The paper multiplies L theta by q.)
    """
    q = np.asarray(q, float)
    pull = q * (objective.target.sum() - objective.responsibility(q))
    return pull + objective.tau_q * (objective.graph.laplacian @ centred_log(q))


def riemannian_hessian(objective: Objective, q: ArrayLike, v: ArrayLike, w: ArrayLike) -> float:
    """The Fisher-Rao Hessian of F on tangent vectors v, w; along a geodesic, F'' = Hess(v, v).

    Hess(v, w) = v'(d2F) w + sum_i dF_i v_i w_i / (2 q_i) - g(v, w) / 2 sum_i dF_i q_i.
    The paper bounds it below by a positive constant; it has no such bound and can be negative.
    """
    q, v, w = (np.asarray(x, float) for x in (q, v, w))
    slope = objective.gradient(q)
    christoffel = np.sum(slope * v * w / q) - inner(q, v, w) * (slope @ q)
    return float(v @ objective.hessian_product(q, w) + christoffel / 2)


@dataclass(frozen=True, eq=False)
class Flow:
    """The path of a gradient flow.

    Attributes:
        times: (T,) moments.
        q: (T, K) points on the simplex.
        values: (T,) F along the path, never rising but for the solver's tolerance.
    """

    times: Vector
    q: Matrix
    values: Vector


def replicator_laplacian_flow(
    objective: Objective, start: ArrayLike, times: ArrayLike, tolerance: float = 1e-8
) -> Flow:
    """dq_j/dt = n' q_j ((C'(r_hat / r))_j - 1) - tau_q (L theta)_j: steepest descent of F.

    Integrated in theta, so that every point lies on the simplex exactly; with tau_q > 0 it stays
    inside. One Euler step of 1/n' with tau_q = 0 is one step of EM on hard predictions.

    Args:
        objective: F.
        start: (K,) interior point.
        times: (T,) increasing moments, the first one that of ``start``.
        tolerance: relative and absolute tolerance of the solver, in theta.

    Raises:
        ValueError: ``start`` lies on the boundary.
        RuntimeError: the solver gave up; its reason is in the message.
    """
    from scipy.integrate import solve_ivp

    q = as_distribution(start, "start", objective.graph.n_classes)
    if (q == 0).any():
        raise ValueError("start must be an interior point, all classes positive")
    times = np.asarray(times, dtype=float)
    if times.ndim != 1 or len(times) < 2 or not (np.diff(times) > 0).all():
        raise ValueError("times must hold at least two moments, each later than the one before")

    def velocity(_: float, theta: Vector) -> Vector:
        """d log q / dt, centred; written so that an entry of q may underflow where tau_q is 0."""
        point = softmax(theta)
        relative = objective.responsibility(point) - objective.target.sum()
        if objective.tau_q > 0:
            relative -= objective.tau_q * (objective.graph.laplacian @ theta) / point
        return relative - relative.mean()

    solution = solve_ivp(
        velocity,
        (times[0], times[-1]),
        centred_log(q),
        method="LSODA",
        t_eval=times,
        rtol=tolerance,
        atol=tolerance,
    )
    if not solution.success:
        raise RuntimeError(f"the flow stopped early: {solution.message}; try a shorter time span")
    path = softmax(solution.y, axis=0).T
    return Flow(times, path, np.array([objective.value(point) for point in path]))


def m_projection(target_frequencies: ArrayLike, confusion: ArrayLike) -> Proportions:
    """The q whose C q is nearest to the histogram: argmin of KL(r_hat || C q) over the simplex.

    If C is invertible and C^-1 r_hat lies on the simplex, C q = r_hat and the projection moves
    nothing; otherwise q is on the boundary. The same as MLLS on hard predictions.
    """
    confusion = np.asarray(confusion, float)
    if confusion.ndim != 2 or not (confusion >= 0).all():
        raise ValueError(f"confusion must be a non-negative matrix; got shape {confusion.shape}")
    r_hat = as_distribution(target_frequencies, "target_frequencies", len(confusion))
    return mixture_proportions(confusion, r_hat)
