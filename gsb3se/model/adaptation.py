"""What to do with an estimated target prior: correct probabilities, weigh source rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from gsb3se.support.errors import some_of
from gsb3se.support.named_axes import column_names, in_order_of, row_names
from gsb3se.support.simplex import Matrix, Vector, as_distribution, as_probabilities


def importance_weights(target_prior: ArrayLike, source_prior: ArrayLike) -> Vector:
    """w_i = q_i / p_i, the weight of a source row of class i in the target population.

    Args:
        target_prior: (K,) q.
        source_prior: (K,) p.

    Raises:
        ValueError: a class is possible in the target and impossible in the source.

    >>> importance_weights([0.8, 0.2], [0.5, 0.5]).tolist()
    [1.6, 0.4]
    """
    if (names := row_names(source_prior)) is not None:
        target_prior = in_order_of(names, target_prior, "target_prior")
    p = as_distribution(source_prior, "source_prior")
    q = as_distribution(target_prior, "target_prior", len(p))
    unseen = np.flatnonzero((p == 0) & (q > 0))
    if len(unseen):
        raise ValueError(
            f"classes {some_of(unseen.tolist())} have source_prior 0 and a positive target_prior: "
            "no source row can stand for them"
        )
    return np.divide(q, p, where=p > 0, out=np.zeros_like(q))


def correct(probs: ArrayLike, source_prior: ArrayLike, target_prior: ArrayLike) -> Matrix:
    """Saerens' correction: P_target(y | x) proportional to P_source(y | x) q_y / p_y.

    Args:
        probs: (n, K) calibrated class probabilities under the source prior.
        source_prior: (K,) p, the prior under which ``probs`` are right.
        target_prior: (K,) q.

    Returns:
        (n, K) probabilities under the target prior.

    >>> correct([[0.5, 0.5]], [0.5, 0.5], [0.8, 0.2]).tolist()
    [[0.8, 0.2]]
    """
    if (names := column_names(probs)) is not None:
        source_prior = in_order_of(names, source_prior, "source_prior")
        target_prior = in_order_of(names, target_prior, "target_prior")
    probs = as_probabilities(probs)
    weights = importance_weights(target_prior, source_prior)
    if probs.shape[1] != len(weights):
        raise ValueError(
            f"probs have {probs.shape[1]} columns and the priors {len(weights)} entries"
        )
    corrected = probs * weights
    totals = corrected.sum(axis=1, keepdims=True)
    if (totals == 0).any():
        rows = np.flatnonzero(totals[:, 0] == 0).tolist()
        raise ValueError(
            f"rows {some_of(rows)} of probs are certain of classes that target_prior rules out: "
            "give those classes a small positive target_prior"
        )
    return corrected / totals
