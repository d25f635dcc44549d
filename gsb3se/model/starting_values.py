"""Rough values that solvers start from; none of them moves what is solved for."""

from __future__ import annotations

import numpy as np

from gsb3se.model.problem import Problem
from gsb3se.model.source_problem import SourceProblem
from gsb3se.support.simplex import Matrix, Vector

_PSEUDO_COUNT = 0.5  # spread over each column before its rates are taken
_EM_STEPS = 100
_PATIENT_EM_STEPS, _EM_TOLERANCE = 200, 1e-4
_PSEUDO_SHARE = 0.1  # of the target counts, that pseudo-counts are
_LARGEST_WEIGHT = 8.0  # of alpha and beta


def smoothed_rates(source: SourceProblem) -> Matrix:
    """Confusion rates with half a pseudo-count spread over each column, (K, K)."""
    n = source.n_classes
    rates = np.full((n, n), _PSEUDO_COUNT / n)
    source.cells.add_to(rates)
    return rates / rates.sum(axis=0)


def em_step(q: Vector, confusion: Matrix, share: Vector) -> Vector:
    """One step of expectation maximisation from q, given the target's (K,) shares of predictions.

    A prediction that no class is expected to give leaves q as it is.
    """
    least = np.finfo(confusion.dtype).tiny
    return q * (confusion.T @ (share / np.maximum(confusion @ q, least)))


def interior_shares(problem: Problem, confusion: Matrix) -> Vector:
    """Some steps of EM from the uniform q, mixed with a little of it: every entry is positive."""
    share = problem.target / problem.target.sum()
    q = np.full(problem.n_classes, 1 / problem.n_classes)
    for _ in range(_EM_STEPS):
        q = em_step(q, confusion, share)
    q += 1 / (problem.target.sum() + problem.n_classes) / problem.n_classes
    return q / q.sum()


def shares_with_pseudo_counts(confusion: Matrix, target: Vector) -> Vector:
    """q after EM from the uniform q, with a few pseudo-counts per class added to the target's.

    With many classes, maximum likelihood gives most of them a share of zero. A mode search that
    starts from such rough shares does not move away from them.
    """
    share = (target / target.sum()).astype(confusion.dtype)
    n = len(target)
    q = np.full(n, 1 / n, dtype=confusion.dtype)
    for _ in range(_PATIENT_EM_STEPS):
        before = q
        q = em_step(q, confusion, share) + _PSEUDO_SHARE / n
        q /= q.sum()
        if np.abs(q - before).sum() < _EM_TOLERANCE:
            break
    return q.astype(float)


def column_mean_weights(source: SourceProblem) -> Vector:
    """alpha and beta from the pooled rates of right, similar and other predictions."""
    n, weights = source.n_classes, source.graph.sparse_weights
    if not source.column_mean.n_weights:
        return np.zeros(2)
    counts = source.counts.confusion
    total = max(counts.sum(), 1)
    right = float(counts.diagonal().sum())
    similar, pairs, closeness = 0.0, 0.0, 1.0
    if weights is not None:
        near = weights.multiply(counts)
        closeness = weights.sum() / weights.nnz
        similar, pairs = float((near > 0).multiply(counts).sum()), float(weights.nnz)
    other = (total - right - similar + 0.5) / max(n * (n - 1) - pairs, 1.0)
    alpha = np.log((right + 0.5) / n / other)
    beta = np.log((similar + 0.5) / pairs / other) / closeness if pairs else 0.0
    return np.clip([alpha, beta], -_LARGEST_WEIGHT, _LARGEST_WEIGHT)
