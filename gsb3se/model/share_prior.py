"""The prior of the target's log shares: theta | tau_q ~ N(0, (tau_q L)^+), tau_q ~ Gamma(a, b).

Whatever is inferred about theta meets its prior here: its value and gradient, with tau_q given or
integrated out, its precision, and the law of tau_q given theta. Another prior of theta, such as a
random walk over windows, is another class with these methods.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gsb3se.support.simplex import Vector

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class SharePrior:
    """The Laplacian Gaussian with its Gamma strength.

    Points theta are (K, C), C of them side by side.

    Attributes:
        laplacian: L, anything with ``@``.
        shape: a_q + (K - 1) / 2, of the law of tau_q given theta.
        rate: b_q.

    >>> prior = SharePrior(np.array([[0.5, -0.5], [-0.5, 0.5]]), shape=1.5, rate=1.0)
    >>> prior.roughness(np.array([[1.0], [-1.0]])).tolist()
    [2.0]
    """

    laplacian: Any
    shape: float
    rate: float

    def roughness(self, theta: Array) -> Vector:
        """theta'L theta, (C,)."""
        return np.einsum("ic,ic->c", theta, self.laplacian @ theta, dtype=float)

    def collapsed(self, theta: Array) -> tuple[Vector, Array]:
        """The log density up to a constant with tau_q integrated out, (C,), and its gradient.

        The gradient is that for a given tau_q at E[tau_q | theta], in the precision of theta.
        """
        force = (self.laplacian @ theta).astype(theta.dtype, copy=False)
        rate = self.rate + np.einsum("ic,ic->c", theta, force, dtype=float) / 2
        force *= -(self.shape / rate).astype(theta.dtype)
        return -self.shape * np.log(rate), force

    def strength_given(self, roughness: Any) -> Any:
        """E[tau_q] given theta'L theta, or given its expectation."""
        return self.shape / (self.rate + roughness / 2)

    def draw_strength(self, theta: Array, rng: np.random.Generator) -> Vector:
        """tau_q given each of C points, (C,)."""
        rate = self.rate + self.roughness(theta) / 2
        return rng.gamma(self.shape, size=theta.shape[1]) / rate
