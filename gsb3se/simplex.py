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


def sum_zero_basis(n_classes: int) -> Matrix:
    """Helmert's orthonormal basis of H, (K, K-1) dense.

    >>> B = sum_zero_basis(3)
    >>> bool(np.allclose(B.T @ B, np.eye(2)) and np.allclose(B.sum(axis=0), 0))
    True
    """
    return from_sum_zero(np.eye(n_classes - 1))


def from_sum_zero(z: ArrayLike) -> NDArray[np.float64]:
    """B z for the Helmert basis B, along axis 0, in O(K) a column and without storing B.

    Args:
        z: coordinates, (K-1,) or (K-1, n).

    Returns:
        A point of H, (K,) or (K, n).

    Column k = 1..K-1 of B is s_k (1, ..., 1, -k, 0, ..., 0) with k ones and s_k = 1/sqrt(k(k+1)).
    """
    z = np.asarray(z, dtype=float)
    k, scaled = _helmert_scaled(z, len(z))
    x = np.zeros((len(z) + 1, *z.shape[1:]))
    x[:-1] = np.cumsum(scaled[::-1], axis=0)[::-1]
    x[1:] -= k * scaled
    return x


def to_sum_zero(x: ArrayLike) -> NDArray[np.float64]:
    """B' x for the Helmert basis B, along axis 0: the inverse of :func:`from_sum_zero` on H.

    >>> to_sum_zero(from_sum_zero([1.0, -2.0])).round(12).tolist()
    [1.0, -2.0]
    """
    x = np.asarray(x, dtype=float)
    k, differences = _helmert_scaled(np.zeros_like(x[1:]), len(x) - 1)
    np.cumsum(x[:-1], axis=0, out=differences)
    differences -= k * x[1:]
    return _helmert_scaled(differences, len(x) - 1)[1]


def _helmert_scaled(z: NDArray[np.float64], n: int) -> tuple[NDArray[np.float64], ...]:
    """k = 1..n shaped to broadcast against z, and z_k / sqrt(k (k + 1))."""
    k = np.arange(1.0, n + 1).reshape((n,) + (1,) * (z.ndim - 1))
    return k, z / np.sqrt(k * (k + 1))


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
