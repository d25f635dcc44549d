"""From embeddings to points, and from the lengths of edges to their weights."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gsb3se.support.errors import some_of

LEAST_WEIGHT = 1e-3  # of a built edge; across a lighter one the prior is all but improper
LEAST_TIE = 0.1  # of an edge that ties groups of a tree together


def typical_length(lengths: NDArray[np.float64]) -> float:
    """The median of the positive lengths."""
    positive = lengths[lengths > 0]
    return float(np.median(positive)) if len(positive) else 1.0


def weights_of(lengths: NDArray[np.float64], scale: float, least: float) -> NDArray[np.float64]:
    """W = exp(-d^2 / scale^2) of edges of length d, but never less than ``least``."""
    return np.maximum(np.exp(-((lengths / scale) ** 2)), least)


def as_points(embeddings: ArrayLike, normalise: bool) -> NDArray[np.float64]:
    """Checked points, moved and scaled so that differences keep their digits.

    Neither changes the graph: lengths count only in units of their median.
    """
    given = np.asarray(embeddings)
    if given.ndim != 2 or len(given) < 2 or given.shape[1] < 1:
        raise ValueError(f"embeddings must be (K, d) with at least 2 rows; got shape {given.shape}")
    if given.dtype.kind not in "fiub":
        raise ValueError(f"embeddings must be real numbers; got values of type {given.dtype}")
    points = given.astype(float)
    broken = np.flatnonzero(~np.isfinite(points).all(axis=1))
    if len(broken):
        raise ValueError(f"embeddings must be finite; rows {some_of(broken.tolist())} are not")
    if normalise:
        largest = np.abs(points).max(axis=1, keepdims=True)
        if (largest == 0).any():
            empty = np.flatnonzero(largest[:, 0] == 0).tolist()
            raise ValueError(f"embeddings must not be zero; rows {some_of(empty)} are")
        points /= largest
        points /= np.linalg.norm(points, axis=1, keepdims=True)
    points /= np.abs(points).max() or 1.0
    points -= points.mean(axis=0)
    points /= np.abs(points).max() or 1.0
    return points
