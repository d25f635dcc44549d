"""The prior mean of the confusion columns: mu_i = sum_k w_k A_k e_i with learned weights w.

The paper has no such mean. The anchored prior has two patterns A_k: the identity, weighed by alpha
(a classifier is mostly right), and the label graph's W, weighed by beta (it is most often wrong
among similar labels). Adding a constant to mu_i does not change the prior.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gsb3se.graph import LabelGraph
from gsb3se.graph.laplacian import SparsePlusConstant, WeightColumns, laplacian_times_weights
from gsb3se.support.simplex import Matrix, Vector

NAMES = ("alpha", "beta")  # of the weights


@dataclass(frozen=True, eq=False)
class ColumnMean:
    """The patterns of a graph and the prior of their weights.

    Attributes:
        graph: whose similarities the second pattern holds.
        sd: of the weights' normal prior; None for the paper's columns without a mean.
    """

    graph: LabelGraph
    sd: float | None

    @property
    def n_weights(self) -> int:
        """How many weights are learned: 2 or 0."""
        return 0 if self.sd is None else len(NAMES)

    def pull(self, weight: float) -> float:
        """Minus the derivative of the log prior density by a weight; 0 where none is learned."""
        return 0.0 if self.sd is None else weight / self.sd**2

    @cached_property
    def similarity(self) -> SparsePlusConstant:
        """W, the pattern of beta."""
        return SparsePlusConstant.of(self.graph.weights)

    @cached_property
    def forces(self) -> tuple[SparsePlusConstant, SparsePlusConstant]:
        """L A_k for both patterns: L and L W."""
        laplacian = self.graph.laplacian
        by_beta = laplacian_times_weights(laplacian, self.graph.weights)
        return SparsePlusConstant.of(laplacian), by_beta

    def patterns(self) -> Matrix:
        """(n_weights, K, K) the A_k, dense; column i of each belongs to true class i."""
        n = self.graph.n_classes
        if self.sd is None:
            return np.empty((0, n, n))
        return np.stack([np.eye(n), self.graph.weights.toarray()])

    def columns(
        self, alpha: float, beta: float, columns: NDArray[np.int64], dtype: type = np.float64
    ) -> Matrix:
        """(K, B) means of a block of columns, up to levels."""
        return self._weights.scaled(beta, columns, alpha, dtype)

    def along(self, columns: NDArray[np.int64], image: Matrix) -> Vector:
        """sum_i (A_k e_i)'x_i for a block of columns x (K, B) that sum to zero, (2,)."""
        own = float(image[columns, np.arange(len(columns))].sum(dtype=float))
        return np.array([own, self._weights.dot(columns, image)])

    def gram(self, degrees: Vector) -> Matrix:
        """(3, K) e_i'L e_i, e_i'L W_i and W_i'L W_i of every column, given the diagonal of L."""
        return self._weights.gram(degrees)

    @cached_property
    def _weights(self) -> WeightColumns:
        return WeightColumns(self.graph.weights, self.graph.laplacian)
