"""Factors of symmetric matrices that are positive but for rounding."""

from __future__ import annotations

import numpy as np
from scipy.linalg import LinAlgError, cholesky

from gsb3se.simplex import Matrix

_FILLED = tuple(10.0**k for k in range(-10, 2))  # shares of the diagonal that may be added to it


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
