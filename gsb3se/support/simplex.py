"""The probability simplex and the sum-zero space of centred log-probabilities.

H = {x : sum(x) = 0} is where theta and every column phi_i live; softmax maps it one-to-one onto the
open simplex.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]


def softmax(x: ArrayLike, axis: int = 0) -> NDArray[np.float64]:
    """exp(x) / sum(exp(x)) along ``axis``, safe for any finite x; single precision stays single.

    >>> softmax([0.0, 0.0]).tolist()
    [0.5, 0.5]
    """
    x = np.asarray(x)
    if x.dtype != np.float32:
        x = x.astype(float, copy=False)
    shifted = np.exp(x - x.max(axis=axis, keepdims=True))
    shifted /= shifted.sum(axis=axis, keepdims=True)
    return shifted


def centred_log(q: ArrayLike) -> Vector:
    """theta = log q - mean(log q): the inverse of softmax on H.

    >>> float(centred_log([0.25, 0.25, 0.5]).sum().round(12))
    0.0
    """
    log_q = np.log(np.asarray(q, dtype=float))
    return log_q - log_q.mean()


def project_to_simplex(v: ArrayLike) -> Vector:
    """The Euclidean projection of v onto the simplex.

    The answer is max(v - level, 0) with the level that makes it sum to one; the level follows from
    the sorted values.

    >>> project_to_simplex([1.2, 0.1, -0.3]).round(12).tolist()
    [1.0, 0.0, 0.0]
    """
    below = np.asarray(v, dtype=float) - np.max(v)  # the same projection, with all digits
    descending = np.sort(below)[::-1]
    levels = (np.cumsum(descending) - 1.0) / np.arange(1, len(below) + 1)
    support = np.flatnonzero(descending > levels)[-1]
    projected = np.maximum(below - levels[support], 0.0)
    return projected / projected.sum()


def as_distribution(p: ArrayLike, name: str, n_classes: int | None = None) -> Vector:
    """Check that p is a distribution over the classes and return it, normalised to rounding.

    Raises:
        ValueError: p is not a vector of non-negative numbers that sum to one.
    """
    p = np.asarray(p, dtype=float)
    if p.ndim != 1 or (n_classes is not None and len(p) != n_classes):
        expected = "a vector" if n_classes is None else f"a vector of {n_classes} probabilities"
        raise ValueError(f"{name} must be {expected}, one entry a class; got shape {p.shape}")
    if not np.isfinite(p).all() or (p < 0).any():
        raise ValueError(f"{name} must be finite and non-negative; its smallest entry is {p.min()}")
    if abs(p.sum() - 1.0) > 1e-6:
        raise ValueError(f"{name} must sum to 1; it sums to {p.sum():.6g}: divide it by its sum")
    return p / p.sum()


def as_probabilities(probs: ArrayLike) -> Matrix:
    """Check that probs are (n, K) with rows on the simplex."""
    probs = np.asarray(probs, dtype=float)
    if probs.ndim != 2 or len(probs) == 0:
        raise ValueError(f"probs must be (n, K), a row a case; got shape {probs.shape}")
    if not np.isfinite(probs).all() or (probs < 0).any():
        raise ValueError("probs must be finite and non-negative")
    totals = probs.sum(axis=1)
    if (abs(totals - 1) > 1e-3).any():
        worst = totals[np.argmax(abs(totals - 1))]
        raise ValueError(
            f"each row of probs must sum to 1; one sums to {worst:.6g}: apply softmax to logits"
        )
    return probs / totals[:, None]
