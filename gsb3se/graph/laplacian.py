"""Laplacians: products, spectra and random fields, for sparse graphs and the exchangeable one.

This is the one place that knows that the matrices of the exchangeable graph, L = I - 11'/K and
W = (11' - I)/K, are a multiple of the identity plus a matrix of rank one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from gsb3se.support.limits import DENSE_EIGENVALUES
from gsb3se.support.simplex import Matrix, Vector

_FIELD_BLOCK_BYTES = 1 << 26


@dataclass(frozen=True)
class IdentityPlusOnes:
    """The matrix a I + b 11', as a product, never stored."""

    size: int
    identity: float
    ones: float

    @property
    def shape(self) -> tuple[int, int]:
        return self.size, self.size

    def __matmul__(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        product = self.identity * x
        product += self.ones * x.sum(axis=0, dtype=float)  # in single precision it would drift
        return product

    def diagonal(self) -> Vector:
        return np.full(self.size, self.identity + self.ones)

    def toarray(self) -> Matrix:
        """The dense matrix, for looking at small ones."""
        return self.identity * np.eye(self.size) + self.ones


GraphMatrix: TypeAlias = sparse.csr_array | IdentityPlusOnes


def exchangeable_weights(n_classes: int) -> IdentityPlusOnes:
    """W of the exchangeable graph: 1/K between any two labels."""
    return IdentityPlusOnes(n_classes, -1.0 / n_classes, 1.0 / n_classes)


def laplacian_of(weights: GraphMatrix) -> GraphMatrix:
    """L = D - W."""
    if isinstance(weights, IdentityPlusOnes):
        return IdentityPlusOnes(weights.size, 1.0, -1.0 / weights.size)
    degrees = np.asarray(weights.sum(axis=1))
    return sparse.csr_array(sparse.diags_array(degrees) - weights)


@dataclass(frozen=True, eq=False)
class SparsePlusConstant:
    """A sparse K x K matrix plus a constant, that meets dense ones entry by entry.

    Attributes:
        positions, values: the sparse entries, row-major.
        constant: added to every entry.
    """

    positions: NDArray[np.int64]
    values: Vector
    constant: float = 0.0

    @classmethod
    def of(cls, matrix: sparse.sparray | IdentityPlusOnes) -> SparsePlusConstant:
        """From a sparse matrix or from a I + b 11'."""
        n = matrix.shape[0]
        if isinstance(matrix, IdentityPlusOnes):
            return cls(np.arange(n) * (n + 1), np.full(n, matrix.identity), matrix.ones)
        ordered = sparse.csr_array(matrix)
        ordered.sort_indices()
        rows = np.repeat(np.arange(n, dtype=np.int64), np.diff(ordered.indptr))
        return cls(rows * n + ordered.indices, ordered.data.astype(float))

    def add_to(self, array: Matrix, scale: float = 1.0) -> None:
        """array += scale * self, in place; the array must be C-contiguous."""
        array.reshape(-1)[self.positions] += scale * self.values
        if self.constant:
            array += scale * self.constant

    def dot(self, array: Matrix) -> float:
        """Sum over all entries of self * array."""
        whole = self.constant * array.sum() if self.constant else 0.0
        return float(np.einsum("i,i->", self.values, array.take(self.positions)) + whole)


# What the columns' prior mean needs of W; a level, a constant added to a column, never matters


def laplacian_times_weights(laplacian: GraphMatrix, weights: GraphMatrix) -> SparsePlusConstant:
    """L W, entry by entry."""
    if isinstance(weights, IdentityPlusOnes):
        n = weights.size
        return SparsePlusConstant.of(IdentityPlusOnes(n, -1 / n, 1 / n**2))
    return SparsePlusConstant.of(laplacian @ weights)


class WeightColumns:
    """The columns of W, up to a level each, for columns that are worked on a block at a time."""

    def __init__(self, weights: GraphMatrix, laplacian: GraphMatrix) -> None:
        self._n = weights.shape[0]
        self._columns: Any = None
        if not isinstance(weights, IdentityPlusOnes):
            self._columns = weights.tocsc()
        self._laplacian: Any = laplacian

    def scaled(self, scale: float, columns: NDArray[np.int64], own: float, dtype: Any) -> Matrix:
        """scale W[:, columns] + own e_i, (K, B) up to levels."""
        here = np.arange(len(columns))
        if self._columns is None:
            block: Matrix = np.zeros((self._n, len(columns)), dtype=dtype)
            block[columns, here] = own - scale / self._n
            return block
        block = (scale * self._columns[:, columns].toarray()).astype(dtype)
        block[columns, here] += own
        return block

    def dot(self, columns: NDArray[np.int64], image: Matrix) -> float:
        """sum_i W[:, i]'x_i over a block of columns x (K, B), each of which sums to zero."""
        if self._columns is None:
            own = float(image[columns, np.arange(len(columns))].sum(dtype=float))
            return -own / self._n
        return float(self._columns[:, columns].multiply(image).sum())

    def gram(self, degrees: Vector) -> Matrix:
        """(3, K) e_i'L e_i, e_i'L W_i and W_i'L W_i."""
        if self._columns is None:
            return np.array([degrees, -degrees / self._n, degrees / self._n**2])
        image = self._laplacian @ self._columns
        squares = np.asarray(self._columns.multiply(image).sum(axis=0)).ravel()
        return np.array([degrees, image.diagonal(), squares])


# Spectra and random fields


class Spectrum(Protocol):
    """What is asked of the eigenvalues of L."""

    @property
    def smallest(self) -> float:
        """lambda_2, the smallest non-zero eigenvalue."""
        ...

    @property
    def log_pseudo_determinant(self) -> float:
        """Sum of the logs of the non-zero eigenvalues."""
        ...

    def sample_fields(self, n: int, rng: np.random.Generator) -> Matrix:
        """(K, n) independent draws from N(0, L^+), each summing to zero."""
        ...


def spectrum_of(weights: GraphMatrix, laplacian: GraphMatrix) -> Spectrum:
    """The spectrum of a graph's Laplacian."""
    if isinstance(weights, IdentityPlusOnes):
        return ExchangeableSpectrum(weights.size)
    assert not isinstance(laplacian, IdentityPlusOnes)
    return SparseSpectrum(weights, laplacian)


@dataclass(frozen=True)
class ExchangeableSpectrum:
    """All non-zero eigenvalues are one."""

    size: int
    smallest: float = 1.0
    log_pseudo_determinant: float = 0.0

    def sample_fields(self, n: int, rng: np.random.Generator) -> Matrix:
        """Centred white noise."""
        white = rng.standard_normal((self.size, n))
        return white - white.mean(axis=0)


class SparseSpectrum:
    """By sparse factors; dense only for a small graph's smallest eigenvalue."""

    def __init__(self, weights: sparse.csr_array, laplacian: sparse.csr_array) -> None:
        self._weights, self._laplacian, self._n = weights, laplacian, weights.shape[0]

    @cached_property
    def smallest(self) -> float:
        """lambda_2; the largest eigenvalue of L^+ beyond some hundred labels."""
        if self._n <= DENSE_EIGENVALUES:
            return float(np.linalg.eigvalsh(self._laplacian.toarray())[1])
        from scipy.sparse.linalg import LinearOperator, eigsh

        # The start vector is fixed, so that the answer is too.
        inverse = LinearOperator(self._weights.shape, matvec=self._pseudo_solve, dtype=float)
        start = np.random.default_rng(0).standard_normal(self._n)
        largest = eigsh(inverse, k=1, which="LA", v0=start, return_eigenvectors=False)
        return float(1.0 / largest[0])

    @cached_property
    def log_pseudo_determinant(self) -> float:
        """By Kirchhoff's theorem that of K times L without its last row and column."""
        pivots = np.abs(self._grounded_factor.U.diagonal())
        return float(np.log(self._n) + np.log(pivots).sum())

    def sample_fields(self, n: int, rng: np.random.Generator) -> Matrix:
        """With the weighted incidence matrix A (L = A'A) and white noise z, x = L^+ A'z.

        Its covariance is L^+ L L^+ = L^+. A block of columns at a time.
        """
        upper = sparse.triu(self._weights, k=1).tocoo()
        root = np.sqrt(upper.data)
        edge = np.arange(len(root))
        incidence = sparse.csr_array(
            (
                np.concatenate([root, -root]),
                (np.concatenate(upper.coords), np.concatenate([edge, edge])),
            ),
            shape=(self._n, len(root)),
        )
        fields = np.empty((self._n, n))
        step = max(1, _FIELD_BLOCK_BYTES // (8 * len(root)))
        for start in range(0, n, step):
            noise = rng.standard_normal((len(root), min(step, n - start)))
            fields[:, start : start + step] = self._pseudo_solve(incidence @ noise)
        return fields

    def _pseudo_solve(self, b: NDArray[np.float64]) -> NDArray[np.float64]:
        """L^+ b, (K,) or (K, n): solve with the last entry held at zero, then centre."""
        x = np.zeros(b.shape)
        x[:-1] = self._grounded_factor.solve((b - b.mean(axis=0))[:-1])
        return x - x.mean(axis=0)

    @cached_property
    def _grounded_factor(self) -> Any:
        """Sparse LU of L without its last row and column, which is positive definite."""
        from scipy.sparse.linalg import splu

        return splu(
            sparse.csc_array(self._laplacian)[:-1, :-1],
            permc_spec="MMD_AT_PLUS_A",
            diag_pivot_thresh=0.0,
            options={"SymmetricMode": True},
        )
