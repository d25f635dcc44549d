"""Coordinates in which the posterior is nearly round, whatever the two strengths are.

**Levels.** Column i gets a free level: x_i = phi_i + a_i 1. The total Lambda_i = sum_j exp(x_ji) is
given a Gamma(m_i, 1) law of its own, which changes nothing about c_i = softmax(x_i). With m_i = n_i
the validation counts become independent Poisson counts of means exp(x_ji), whose curvature is
diagonal: about n_ji. theta gets a free level in the same way.

**Hinges.** The prior adds tau_C d_j to that curvature, with d the diagonal of L. So

    x_ji = [n_ji log n_ji + tau_C d_j (mu_ji + level_i)] / (n_ji + tau_C d_j) + f(y_ji)

with f of slope 1 / sqrt(n_ji + tau_C d_j) gives y unit scale cell by cell: cells with counts stay
in place when tau_C changes, empty ones follow it. A cell that may be empty has a wall above, where
it would have been counted, and wide room below: there f has slope 1 at most above the hinge.
theta_i likewise, with information in place of n_ji, and its classes decorrelated by a rotation.

**Modes.** What is left are smooth fields over the empty cells, to which the prior gives far more
room. They are stretched along the low modes psi_k (frequencies omega_k) of the normalised Laplacian
d^-1/2 L d^-1/2:

    y_i = z_i + sum_k psi_k (s_ik - 1) psi_k'z_i,   s_ik = (omega_k + leak_i)^-1/2,

where leak_i = (cut_i + 1 / tau_C) / volume_i is how fast the cells with counts hold a field on the
empty ones: the weight of edges between them, over the degrees of the empty ones.

Every choice here sets the pace of a sampler alone; none moves its target.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gsb3se.graph import IdentityPlusOnes
from gsb3se.problem import Problem
from gsb3se.simplex import Matrix, Vector

TARGET_LEVEL = 4.0  # Gamma shape of theta's total: small, for a stiff total is a curved ridge
_EM_STEPS = 100
_PSEUDO_COUNT = 0.5  # spread over each column before its rates are taken
_LOW_FREQUENCY = 0.3  # modes below it are stretched; the mean frequency is 1
_MOST_MODES = 32
_REFERENCE_PULL = 1.0  # tau_q d at which the classes are decorrelated
_LEAST_PRECISION = 0.02  # of a direction, in units of its classes' own
_LARGEST_ANCHOR = 8.0  # of the anchor weights to start from


class TargetFrame(NamedTuple):
    """The frame of theta: hinges and information, (K,) each, and the rotation, (K, K)."""

    hinge: Vector
    information: Vector
    rotation: Matrix


class ColumnFrame(NamedTuple):
    """The frame of the columns.

    Attributes:
        degrees: (K,) the diagonal of L.
        levels: (K,) m_i, n_i or 1 for a class without validation rows.
        modes: (K, r) low modes; frequencies: (r,).
        cut, volume: (K,) of the empty cells of each column.
        anchor: alpha and beta to start from, (2,).
    """

    degrees: Vector
    levels: Vector
    modes: Matrix
    frequencies: Vector
    cut: Vector
    volume: Vector
    anchor: Vector


def target_frame(problem: Problem) -> TargetFrame:
    """Hinges, information and correlations of theta at smoothed confusion rates; O(K^3) once."""
    n_target, n = problem.target.sum(), problem.n_classes
    laplacian = problem.graph.laplacian.toarray()
    degrees = np.diag(laplacian)
    confusion = smoothed_rates(problem)
    likely = likely_prior(problem, confusion)
    r = confusion @ likely
    spread = likely**2 / (problem.column_sizes + 1)
    noise = np.diag(r / n_target + confusion @ spread) - (confusion * spread) @ confusion.T
    seen = confusion.T @ np.linalg.solve(noise, confusion)  # information about q
    sd = np.sqrt(np.diag(np.linalg.inv(seen + np.eye(n) * n)))
    upper = np.maximum(likely, sd)
    information = (likely / sd) ** 2
    q = upper / upper.sum()
    tau = _REFERENCE_PULL / degrees.mean()
    wide = 1 / np.sqrt(information + tau * degrees)
    slope = (wide + np.minimum(wide, 1.0)) / 2
    jacobian = np.diag(q) - np.outer(q, q)
    precision = jacobian @ seen @ jacobian + tau * laplacian + TARGET_LEVEL * np.outer(q, q)
    values, vectors = np.linalg.eigh(slope[:, None] * precision * slope)
    rotation = (vectors / np.sqrt(np.maximum(values, _LEAST_PRECISION))) @ vectors.T
    return TargetFrame(np.log(TARGET_LEVEL * q), information, rotation)


def column_frame(problem: Problem) -> ColumnFrame:
    """Degrees, modes, and what the empty cells of each column look like; O(K^3) once."""
    laplacian = problem.graph.laplacian.toarray()
    degrees = np.diag(laplacian).copy()
    frequencies, modes = np.linalg.eigh(laplacian / np.sqrt(np.outer(degrees, degrees)))
    kept = int(np.clip((frequencies < _LOW_FREQUENCY).sum(), 1, _MOST_MODES))
    empty = np.ones((problem.n_classes, problem.n_classes))
    empty.reshape(-1)[problem.cells.positions] = 0.0
    return ColumnFrame(
        degrees,
        np.maximum(problem.column_sizes, 1.0),
        modes[:, :kept],
        np.maximum(frequencies[:kept], 0.0),
        np.einsum("ji,ji->i", empty, laplacian @ empty),
        np.maximum(degrees @ empty, degrees.min()),
        likely_anchor(problem),
    )


def smoothed_rates(problem: Problem) -> Matrix:
    """Confusion rates with half a pseudo-count spread over each column, (K, K)."""
    n = problem.n_classes
    rates = np.full((n, n), _PSEUDO_COUNT / n)
    problem.cells.add_to(rates)
    return rates / rates.sum(axis=0)


def likely_prior(problem: Problem, confusion: Matrix) -> Vector:
    """A few steps of EM on the target counts from the uniform q; every entry stays positive."""
    share = problem.target / problem.target.sum()
    q = np.full(problem.n_classes, 1 / problem.n_classes)
    for _ in range(_EM_STEPS):
        q = q * (confusion.T @ (share / (confusion @ q)))
    q += 1 / (problem.target.sum() + problem.n_classes) / problem.n_classes
    return q / q.sum()


def likely_anchor(problem: Problem) -> Vector:
    """alpha and beta from the pooled rates of right, similar and other predictions."""
    n, weights = problem.n_classes, problem.graph.weights
    if not problem.prior.is_anchored:
        return np.zeros(2)
    counts = problem.counts.confusion
    total = max(counts.sum(), 1)
    right = float(counts.diagonal().sum())
    if isinstance(weights, IdentityPlusOnes):
        similar, pairs, closeness = 0.0, 0.0, 1.0
    else:
        near = weights.multiply(counts)
        closeness = weights.sum() / weights.nnz
        similar, pairs = float((near > 0).multiply(counts).sum()), float(weights.nnz)
    other = (total - right - similar + 0.5) / max(n * (n - 1) - pairs, 1.0)
    alpha = np.log((right + 0.5) / n / other)
    beta = np.log((similar + 0.5) / pairs / other) / closeness if pairs else 0.0
    return np.clip([alpha, beta], -_LARGEST_ANCHOR, _LARGEST_ANCHOR)
