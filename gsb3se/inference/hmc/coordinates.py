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

from gsb3se.model.problem import Problem
from gsb3se.model.starting_values import (
    column_mean_weights,
    interior_shares,
    smoothed_rates,
)
from gsb3se.support.simplex import Matrix, Vector

TARGET_LEVEL = 4.0  # Gamma shape of theta's total: small, for a stiff total is a curved ridge
_LOW_FREQUENCY = 0.3  # modes below it are stretched; the mean frequency is 1
_MOST_MODES = 32
_REFERENCE_PULL = 1.0  # tau_q d at which the classes are decorrelated
_LEAST_PRECISION = 0.02  # of a direction, in units of its classes' own


class ShareScaling(NamedTuple):
    """What theta is scaled by: hinges and information, (K,) each, and the rotation, (K, K)."""

    hinge: Vector
    information: Vector
    rotation: Matrix


class ColumnScaling(NamedTuple):
    """What the columns are scaled by.

    Attributes:
        degrees: (K,) the diagonal of L.
        levels: (K,) m_i, n_i or 1 for a class without validation rows.
        modes: (K, r) low modes; frequencies: (r,).
        cut, volume: (K,) of the empty cells of each column.
        weights: alpha and beta to start from, (2,).
    """

    degrees: Vector
    levels: Vector
    modes: Matrix
    frequencies: Vector
    cut: Vector
    volume: Vector
    weights: Vector


def share_scaling(problem: Problem) -> ShareScaling:
    """Hinges, information and correlations of theta at smoothed confusion rates; O(K^3) once."""
    n_target, n = problem.target.sum(), problem.n_classes
    laplacian = problem.graph.laplacian.toarray()
    degrees = np.diag(laplacian)
    confusion = smoothed_rates(problem)
    likely = interior_shares(problem, confusion)
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
    return ShareScaling(np.log(TARGET_LEVEL * q), information, rotation)


def column_scaling(problem: Problem) -> ColumnScaling:
    """Degrees, modes, and what the empty cells of each column look like; O(K^3) once."""
    laplacian = problem.graph.laplacian.toarray()
    degrees = np.diag(laplacian).copy()
    frequencies, modes = np.linalg.eigh(laplacian / np.sqrt(np.outer(degrees, degrees)))
    kept = int(np.clip((frequencies < _LOW_FREQUENCY).sum(), 1, _MOST_MODES))
    empty = np.ones((problem.n_classes, problem.n_classes))
    empty.reshape(-1)[problem.cells.positions] = 0.0
    return ColumnScaling(
        degrees,
        np.maximum(problem.column_sizes, 1.0),
        modes[:, :kept],
        np.maximum(frequencies[:kept], 0.0),
        np.einsum("ji,ji->i", empty, laplacian @ empty),
        np.maximum(degrees @ empty, degrees.min()),
        column_mean_weights(problem),
    )
