"""Factors, roots and inverses of symmetric matrices that are positive but for rounding."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve, cholesky

from gsb3se.support.simplex import Matrix

_FILLED = tuple(10.0**k for k in range(-10, 2))  # shares of the diagonal that may be added to it
_CLEARLY_NEGATIVE = 1e-8  # an eigenvalue, as a share of the largest
_SINGULAR = 1e-14  # an eigenvalue, as a share of the largest, that counts as zero


def filled_cholesky(matrix: Matrix) -> Matrix:
    """The lower factor of a symmetric matrix, with as much added to its diagonal as it takes.

    >>> filled_cholesky(np.array([[4.0, 0.0], [0.0, 9.0]])).tolist()
    [[2.0, 0.0], [0.0, 3.0]]
    """
    for extra in (0.0, *_FILLED):
        try:
            filled = matrix + extra * np.diag(np.diag(matrix)) if extra else matrix
            return cholesky(filled, lower=True, check_finite=False)
        except LinAlgError:
            continue
    return np.diag(np.sqrt(np.maximum(np.diag(matrix), np.finfo(matrix.dtype).tiny)))


def covariance_root(covariance: Matrix, strict: bool = False) -> Matrix:
    """F with F F' = covariance, by eigenvalues; rounding below zero is cut off.

    Args:
        covariance: (K, K), positive semi-definite but for rounding.
        strict: raise ValueError for a matrix that no rounding explains.

    >>> covariance_root(np.array([[4.0, 0.0], [0.0, 9.0]])).round(12).tolist()
    [[2.0, 0.0], [0.0, 3.0]]
    """
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
    negative = values[0] < -_CLEARLY_NEGATIVE * max(values[-1], 0.0)
    if strict and (negative or not np.isfinite(values).all()):
        raise ValueError(
            f"a covariance must be finite and positive semi-definite; its smallest eigenvalue is "
            f"{values[0]:.3g}"
        )
    return vectors * np.sqrt(np.maximum(values, 0.0))


def triangular_covariance_root(covariance: Matrix) -> Matrix:
    """As :func:`covariance_root`, by the cheaper Cholesky factor where there is one."""
    try:
        return cholesky(covariance, lower=True, check_finite=False)
    except LinAlgError:
        return covariance_root(covariance)


def sum_zero_inverse(
    matrix: Matrix, level: float, invert: Callable[[Matrix], Matrix] | None = None
) -> Matrix:
    """The inverse on the sum-zero space of a symmetric matrix that maps 1 to 0.

    A curvature ``level`` along 1 makes the matrix regular and is taken off its inverse again.

    Args:
        matrix: (K, K).
        level: any positive number; one of the size of the eigenvalues keeps the most digits.
        invert: how to invert the regular matrix; None for numpy's inverse.

    >>> sum_zero_inverse(np.array([[1.0, -1.0], [-1.0, 1.0]]), level=1.0).round(12).tolist()
    [[0.25, -0.25], [-0.25, 0.25]]
    """
    n = len(matrix)
    regular = matrix + level / n
    inverse = np.linalg.inv(regular) if invert is None else invert(regular)
    return np.asarray(inverse) - 1 / (level * n)


class SumZeroInverse(NamedTuple):
    """An inverse on the sum-zero space.

    Attributes:
        inverse: (K, K), symmetric.
        log_determinant: log |det| there; negative: how many eigenvalues are below zero.
    """

    inverse: Matrix
    log_determinant: float
    negative: int


def indefinite_sum_zero_inverse(matrix: Matrix, n: int) -> SumZeroInverse:
    """As :func:`sum_zero_inverse` for a matrix that may have negative eigenvalues.

    The first n entries sum to zero, others are free; the null vector is (1, 0).

    Raises:
        LinAlgError: it is singular on that space.
    """
    level = max(abs(np.trace(matrix[:n, :n])) / n, np.finfo(float).tiny)
    filled = matrix.copy()
    filled[:n, :n] += level / n
    try:
        factor = cho_factor(filled, lower=True, check_finite=False)
        inverse = cho_solve(factor, np.eye(len(matrix)), check_finite=False)
        log_det, negative = 2 * np.log(np.diag(factor[0])).sum(), 0
    except LinAlgError:
        values, vectors = np.linalg.eigh(filled)
        if np.abs(values).min() <= _SINGULAR * np.abs(values).max():
            raise LinAlgError("singular on the sum-zero space") from None
        inverse = (vectors / values) @ vectors.T
        log_det, negative = np.log(np.abs(values)).sum(), int((values < 0).sum())
    inverse[:n, :n] -= 1 / (level * n)
    symmetric = (inverse + inverse.T) / 2
    return SumZeroInverse(symmetric, float(log_det - np.log(level)), negative)
