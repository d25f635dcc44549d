"""What is said of the confusion columns: their laws, and the parameters all of them share."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from gsb3se.support.simplex import Matrix, Vector


class ColumnParameters(NamedTuple):
    """tau_C and the weights of the columns' mean."""

    tau: float
    alpha: float = 0.0
    beta: float = 0.0

    @classmethod
    def of(cls, vector: Vector) -> ColumnParameters:
        """From (log tau_C, alpha, beta)."""
        return cls(float(np.exp(vector[0])), float(vector[1]), float(vector[2]))

    @property
    def vector(self) -> Vector:
        """(log tau_C, alpha, beta)."""
        return np.array([np.log(self.tau), self.alpha, self.beta])


@dataclass(frozen=True)
class ColumnReport:
    """How the fit of the columns went.

    Attributes:
        parameters: where it ended.
        sweeps: of the slowest block of columns; not_converged: columns that still moved then.
        updates: of the parameters; settled: whether these rest.
    """

    parameters: ColumnParameters
    sweeps: int
    not_converged: int
    updates: int
    settled: bool

    def figures(self) -> dict[str, float]:
        """Everything by name, for people."""
        return {
            "tau_C": self.parameters.tau,
            "alpha": self.parameters.alpha,
            "beta": self.parameters.beta,
            "column_sweeps": self.sweeps,
            "columns_not_converged": self.not_converged,
            "strength_updates": self.updates,
            "strengths_converged": self.settled,
        }


@dataclass(frozen=True, eq=False)
class ColumnLaws:
    """The law of every column: Gamma cells of these means and variances, divided by their sum.

    Attributes:
        rate: (K, K) lambda; a column sums to its size.
        variance: (K, K).
        sizes: (K,) n_i; for a class without rows the concentration of the Dirichlet that has the
            mean and the total variance of its prior.
        parameters: the strength and the weights they belong to.
    """

    rate: Matrix
    variance: Matrix
    sizes: Vector
    parameters: ColumnParameters

    @property
    def mean(self) -> Matrix:
        """(K, K) E[C] given the validation counts alone."""
        return self.rate / self.rate.sum(axis=0)

    def astype(self, dtype: type) -> ColumnLaws:
        """The same in another precision; this object itself if it has it already."""
        if self.rate.dtype == dtype:
            return self
        return replace(self, rate=self.rate.astype(dtype), variance=self.variance.astype(dtype))


@dataclass
class ColumnSums:
    """What an update of the parameters needs, summed over columns with m their means.

    Attributes:
        energy: (m - mu)'L(m - mu); trace: tr(tau L V).
        along: (2,) (A_k e_i)'L m_i; gram: (2, 2) of A_k e_i under L, for both patterns A_k.
        dimensions: of all columns on the sum-zero space.
        most_sweeps: of any column; not_converged: how many still moved.
    """

    energy: float = 0.0
    trace: float = 0.0
    along: Vector = field(default_factory=lambda: np.zeros(2))
    gram: Matrix = field(default_factory=lambda: np.zeros((2, 2)))
    dimensions: int = 0
    most_sweeps: int = 0
    not_converged: int = 0

    def __iadd__(self, other: ColumnSums) -> ColumnSums:
        for name in ("energy", "trace", "along", "gram", "dimensions", "not_converged"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.most_sweeps = max(self.most_sweeps, other.most_sweeps)
        return self


class ColumnOutput(NamedTuple):
    """Arrays that a propagation fills, (K, K) each: the cells' rates and variances; if wanted, also
    the Gaussian of every column: its mean, and what its sites add to tau_C L.
    """

    rate: Matrix
    variance: Matrix
    mean: Matrix | None = None
    precision: Matrix | None = None

    @classmethod
    def laws(cls, n: int, dtype: type) -> ColumnOutput:
        """Room for rates and variances."""
        return cls(np.empty((n, n), dtype=dtype), np.empty((n, n), dtype=dtype))

    @classmethod
    def gaussians(cls, n: int, dtype: type) -> ColumnOutput:
        """Room for all four."""
        return cls(*(np.empty((n, n), dtype=dtype) for _ in range(4)))
