"""Helmert's orthonormal basis of the sum-zero space, for what the tests compute densely."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def sum_zero_basis(n_classes: int) -> NDArray[np.float64]:
    """The basis, (K, K-1); column k has k equal entries, then one that balances them."""
    basis = np.zeros((n_classes, n_classes - 1))
    for k in range(1, n_classes):
        basis[:k, k - 1], basis[k, k - 1] = 1.0, -k
    return basis / np.linalg.norm(basis, axis=0)
