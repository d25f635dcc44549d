"""Nearest neighbours of points in blocks, and the shortest edges that join separate parts.

Distances between all pairs are computed a block of rows at a time: O(K^2 d) work, O(K) memory.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components

Edges = NDArray[np.int64]  # (n, 2), each undirected edge once, smaller end first

_BLOCK_BYTES = 1 << 25


def nearest_neighbour_edges(points: NDArray[np.float64], k: int) -> Edges:
    """Edges between each point and its k nearest others, symmetric by union. (K, d) -> (n, 2)."""
    n = len(points)
    pairs = []
    for start, squared in _squared_distances(points):
        nearest = np.argpartition(squared, k - 1, axis=1)[:, :k]
        pairs.append(
            np.column_stack([np.repeat(np.arange(start, start + len(nearest)), k), nearest.ravel()])
        )
    return unique_edges(np.concatenate(pairs), n)


def shortest_bridges(points: NDArray[np.float64], edges: Edges) -> Edges:
    """The edges that join the parts of a graph into one at the least total length.

    Boruvka's rounds: every part picks its shortest edge to another part, all at once, so the number
    of parts at least halves each round.
    """
    n = len(points)
    bridges = np.empty((0, 2), dtype=np.int64)
    while True:
        n_parts, part = components(np.concatenate([edges, bridges]), n)
        if n_parts == 1:
            return bridges
        nearest = np.empty(n, dtype=np.int64)
        length = np.empty(n)
        for start, squared in _squared_distances(points):
            rows = slice(start, start + len(squared))
            squared[part[rows, None] == part[None, :]] = np.inf
            nearest[rows] = squared.argmin(axis=1)
            length[rows] = squared.min(axis=1)
        farthest_first = np.argsort(-length, kind="stable")
        end = np.empty(n_parts, dtype=np.int64)
        end[part[farthest_first]] = farthest_first  # the last write, the shortest, stays
        candidates = np.column_stack([end, nearest[end]])
        shortest_first = candidates[np.argsort(length[end], kind="stable")]
        bridges = np.concatenate([bridges, _without_cycles(shortest_first, part)])


def edge_lengths(points: NDArray[np.float64], edges: Edges) -> NDArray[np.float64]:
    """Euclidean length of each edge, from differences, so that short ones keep their digits."""
    lengths = np.empty(len(edges))
    step = max(1, _BLOCK_BYTES // (8 * points.shape[1]))
    for start in range(0, len(edges), step):
        ends = edges[start : start + step]
        lengths[start : start + step] = np.linalg.norm(
            points[ends[:, 0]] - points[ends[:, 1]], axis=1
        )
    return lengths


def components(edges: Edges, n: int) -> tuple[int, NDArray[np.int32]]:
    """Number of connected parts of n nodes, and the part of each node."""
    ones = np.ones(len(edges))
    adjacency = sparse.coo_array((ones, (edges[:, 0], edges[:, 1])), shape=(n, n))
    return connected_components(adjacency, directed=False)


def unique_edges(pairs: NDArray[np.int64], n: int) -> Edges:
    """Each undirected edge of a list of pairs once, smaller end first, in order."""
    low, high = pairs.min(axis=1), pairs.max(axis=1)
    codes = np.unique(low * n + high)
    return np.column_stack(np.divmod(codes, n))


def _squared_distances(points: NDArray[np.float64]) -> Iterator[tuple[int, NDArray[np.float64]]]:
    """Blocks of rows of the matrix of squared distances, infinite from a point to itself."""
    norms = np.einsum("ij,ij->i", points, points)
    step = max(1, _BLOCK_BYTES // (8 * len(points)))
    for start in range(0, len(points), step):
        rows = slice(start, start + step)
        squared = points[rows] @ points.T
        squared *= -2.0
        squared += norms
        squared += norms[rows, None]
        squared[np.arange(len(squared)), np.arange(start, start + len(squared))] = np.inf
        yield start, squared


def _without_cycles(candidates: Edges, part: NDArray[np.int32]) -> Edges:
    """The candidates that join parts not joined by an earlier one; ties could close a circle."""
    leader = np.arange(part.max() + 1)
    kept = []
    for ends in candidates:
        one, other = leader[part[ends]]
        if one != other:
            leader[leader == other] = one
            kept.append(np.sort(ends))
    return np.array(kept)
