"""Linear systems of the label graph: marginal variances and solves for many columns at once.

A column's Gaussian has precision tau L + diag(pi). Read tau L as a network of conductances and pi
as each node's conductance to ground: then 1 / Var(x_j) is pi_j plus the conductance to ground that
node j sees through its edges. *Belief propagation* computes it edge by edge,

    c_{k->j} = g s / (g + s),   g = tau w_jk,   s = pi_k + sum_{l != j} c_{l->k},

exactly on a tree, in a few rounds of O(edges) on any graph, and never subtracts. On a graph with
loops it sees too much conductance, most where little is grounded; the ratio to the exact answer of
a few of the columns, node by node, takes most of that away. The exchangeable graph is a star with a
hidden centre, hence a tree: exact, in O(K).
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from scipy import sparse

from gsb3se.graph import LabelGraph
from gsb3se.support.limits import DENSE_COLUMNS, SINGLE_PRECISION_INVERSES
from gsb3se.support.simplex import Matrix, Vector

_FIRST_ROUNDS = 5
_REFERENCE_ROUNDS = 40
_LEAST_GROUND = 1e-9  # of a label's degree: below it a column would float


class GraphSolver(Protocol):
    """What the columns need of a graph. Arrays of columns are (K, B)."""

    degrees: Vector

    def start(self, tau: float, precision: Matrix) -> object:
        """Whatever :meth:`conductance` goes on from."""
        ...

    def conductance(self, tau: float, precision: Matrix, messages: object) -> tuple[Matrix, object]:
        """What each node sees through its edges, (K, B), and the messages to go on from."""
        ...

    def apply(self, tau: float, x: Matrix) -> Matrix:
        """tau L x."""
        ...

    def solve(self, tau: float, precision: Matrix, right: Matrix) -> Matrix:
        """(tau L + diag(precision))^-1 right, well enough for an outer iteration to go on."""
        ...

    def tune(self, tau: float, precision: Matrix) -> None:
        """Take the precisions of some columns, (K, B), for the correction of loops."""
        ...


def graph_solver(graph: LabelGraph, dtype: type = np.float64, exact: bool = False) -> GraphSolver:
    """The solver that suits the graph; ``exact``: the slow one without approximation."""
    if graph.is_exchangeable:
        return StarSolver(graph)
    if exact or graph.n_classes <= DENSE_COLUMNS:
        return DenseSolver(graph)
    return LoopySolver(graph, dtype)


class StarSolver:
    """The exchangeable graph, L = I - 11'/K: a star of conductances tau with a hidden centre."""

    def __init__(self, graph: LabelGraph) -> None:
        self._laplacian = graph.laplacian
        self.degrees = self._laplacian.diagonal()

    def start(self, tau: float, precision: Matrix) -> None:
        """Nothing: one round is exact."""

    def conductance(self, tau: float, precision: Matrix, messages: object) -> tuple[Matrix, None]:
        """From a leaf to the centre, and from there through all other leaves to ground."""
        leaf = tau * precision / (tau + precision)
        others = leaf.sum(axis=0, dtype=float).astype(leaf.dtype) - leaf
        np.maximum(others, np.finfo(leaf.dtype).tiny, out=others)
        return tau * others / (tau + others), None

    def apply(self, tau: float, x: Matrix) -> Matrix:
        product = self._laplacian @ x
        product *= tau
        return product

    def solve(self, tau: float, precision: Matrix, right: Matrix) -> Matrix:
        """Exactly, by eliminating the leaves: the centre's potential is the one unknown."""
        own = 1 / (precision + tau)
        scaled = right * own
        centre = scaled.sum(axis=0, dtype=float) / (precision * own).sum(axis=0, dtype=float)
        return scaled + (tau * centre).astype(own.dtype) * own

    def tune(self, tau: float, precision: Matrix) -> None:
        """A star has no loops."""


class DenseSolver:
    """A small graph: every column's matrix is inverted."""

    def __init__(self, graph: LabelGraph) -> None:
        self._laplacian = graph.laplacian.toarray()
        self.degrees = np.diag(self._laplacian).copy()

    def start(self, tau: float, precision: Matrix) -> None:
        """Nothing to go on from."""

    def conductance(self, tau: float, precision: Matrix, messages: object) -> tuple[Matrix, None]:
        variance = np.einsum("bjj->jb", np.linalg.inv(self._matrices(tau, precision)))
        return np.maximum(1 / variance - precision, 1e-12 * precision), None

    def _matrices(self, tau: float, precision: Matrix) -> np.ndarray:
        matrices = np.repeat(tau * self._laplacian[None], precision.shape[1], axis=0)
        diagonal = np.arange(len(precision))
        # Strengths far from any that the counts allow can lose a column's level altogether.
        grounded = np.maximum(precision, _LEAST_GROUND * tau * self.degrees[:, None])
        matrices[:, diagonal, diagonal] += grounded.T
        return matrices

    def apply(self, tau: float, x: Matrix) -> Matrix:
        return tau * (self._laplacian @ x)

    def solve(self, tau: float, precision: Matrix, right: Matrix) -> Matrix:
        return np.linalg.solve(self._matrices(tau, precision), right.T[..., None])[..., 0].T

    def tune(self, tau: float, precision: Matrix) -> None:
        """Exact as it is."""


class LoopySolver:
    """A sparse graph: belief propagation and conjugate gradients, O(edges) a column."""

    _forcing, _most_steps = 0.05, 12  # of the conjugate gradients

    def __init__(self, graph: LabelGraph, dtype: type = np.float64) -> None:
        weights = sparse.csr_array(graph.weights)
        weights.sort_indices()
        n, start = weights.shape[0], weights.indptr
        ends = np.repeat(np.arange(n), np.diff(start))  # messages k -> j stand in row j
        self._origins = weights.indices
        self._weights = weights.data.astype(dtype)[:, None]
        back = np.lexsort((ends, self._origins))
        self._back = np.empty(len(back), dtype=np.int64)
        self._back[back] = np.arange(len(back))
        ones: np.ndarray = np.ones(len(ends), dtype=dtype)
        self._arrivals = sparse.csr_array((ones, np.arange(len(ends)), start), shape=(n, len(ends)))
        self._laplacian = sparse.csr_array(graph.laplacian).astype(dtype)
        self.degrees = self._laplacian.diagonal().astype(float)
        self._correction = np.ones((n, 1), dtype=dtype)

    def start(self, tau: float, precision: Matrix) -> Matrix:
        messages = np.repeat(tau * self._weights, precision.shape[1], axis=1)
        for _ in range(_FIRST_ROUNDS - 1):
            messages = self._round(tau, precision, messages)
        return messages

    def conductance(self, tau: float, precision: Matrix, messages: object) -> tuple[Matrix, Matrix]:
        assert isinstance(messages, np.ndarray)
        sent = self._round(tau, precision, messages)
        return (self._arrivals @ sent) * self._correction, sent

    def _round(self, tau: float, precision: Matrix, messages: Matrix) -> Matrix:
        total = self._arrivals @ messages
        total += precision
        grounded = total[self._origins]
        grounded -= messages[self._back]
        edge = tau * self._weights
        sent = grounded * edge
        grounded += edge
        sent /= grounded
        return sent

    def apply(self, tau: float, x: Matrix) -> Matrix:
        product = self._laplacian @ x
        product *= tau
        return product

    def solve(self, tau: float, precision: Matrix, right: Matrix) -> Matrix:
        """Conjugate gradients on all columns at once, preconditioned by the diagonal."""
        inverse = 1 / (precision + (tau * self.degrees[:, None]).astype(precision.dtype))
        x = np.zeros_like(right)
        residual = right.copy()
        scaled = residual * inverse
        step = scaled.copy()
        norm = first = np.einsum("jb,jb->b", residual, scaled)
        tiny = np.finfo(right.dtype).tiny
        for _ in range(self._most_steps):
            image = self.apply(tau, step)
            image += precision * step
            length = norm / np.maximum(np.einsum("jb,jb->b", step, image), tiny)
            x += length * step
            image *= length
            residual -= image
            np.multiply(residual, inverse, out=scaled)
            previous, norm = norm, np.einsum("jb,jb->b", residual, scaled)
            if (norm <= self._forcing**2 * first).all():
                break
            step *= norm / np.maximum(previous, tiny)
            step += scaled
        return x

    def tune(self, tau: float, precision: Matrix) -> None:
        """Exact over propagated conductance, on average over the columns; O(K^3) for each."""
        dtype = np.float32 if len(precision) > SINGLE_PRECISION_INVERSES else np.float64
        laplacian = (tau * self._laplacian.astype(dtype)).toarray()
        exact = np.empty(precision.shape)
        for k, column in enumerate(precision.T):
            matrix = laplacian.copy()
            matrix.reshape(-1)[:: len(matrix) + 1] += column.astype(dtype)
            exact[:, k] = 1 / np.diag(np.linalg.inv(matrix)) - column
        precision = precision.astype(self._weights.dtype)
        messages = np.repeat(tau * self._weights, precision.shape[1], axis=1)
        for _ in range(_REFERENCE_ROUNDS):
            messages = self._round(tau, precision, messages)
        ratio = np.clip(exact / (self._arrivals @ messages), 0.2, 1.0)
        self._correction = ratio.mean(axis=1, keepdims=True).astype(self._weights.dtype)
