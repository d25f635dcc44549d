"""Problem: counts, label graph and prior, with what every evaluation of the model needs of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from numpy.typing import ArrayLike
from scipy.special import gammaln

from gsb3se.graph import LabelGraph
from gsb3se.model.counts import ShiftCounts
from gsb3se.model.prior import Prior
from gsb3se.model.source_problem import SourceProblem
from gsb3se.support.simplex import Vector

_OF_TARGET = ("target", "log_multinomial_coefficients")  # what another target changes


@dataclass(frozen=True, eq=False)
class Problem(SourceProblem):
    """A source and one target, checked against each other once.

    Args:
        counts: the data.
        graph: the label graph; None for the exchangeable one.
        prior: the hyper-priors, or their name, "anchored" or "paper"; None is anchored.
    """

    counts: ShiftCounts

    def __init__(
        self,
        counts: ShiftCounts,
        graph: LabelGraph | None = None,
        prior: Prior | str | None = None,
    ) -> None:
        if not isinstance(counts, ShiftCounts):
            raise TypeError(f"counts must be ShiftCounts; got {type(counts).__name__}")
        super().__init__(counts, graph, prior)

    @classmethod
    def of(cls, source: SourceProblem, target: ArrayLike) -> Problem:
        """The problem of a source and the (K,) counts of a target.

        What was computed of the source goes along, so that many targets cost little.

        >>> problem = Problem(ShiftCounts([[9, 2], [1, 8]], [30, 70]))
        >>> Problem.of(problem, [60, 40]).target.tolist()
        [60.0, 40.0]
        """
        problem = object.__new__(cls)
        problem.__dict__.update(source.__dict__)
        for name in _OF_TARGET:
            problem.__dict__.pop(name, None)
        object.__setattr__(problem, "counts", source.counts.with_target(target))
        return problem

    @cached_property
    def target(self) -> Vector:
        """Target counts as floats."""
        return self.counts.target.astype(float)

    @cached_property
    def log_multinomial_coefficients(self) -> float:
        """Log of the multinomial coefficients of all columns and of the target."""
        factorials = gammaln(self.column_sizes + 1).sum() - gammaln(self.cells.values + 1).sum()
        return float(factorials + gammaln(self.target.sum() + 1) - gammaln(self.target + 1).sum())
