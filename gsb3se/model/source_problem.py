"""SourceProblem: validation counts, label graph and prior, without any target."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import gammaln

from gsb3se.graph import LabelGraph
from gsb3se.graph.laplacian import SparsePlusConstant
from gsb3se.model.column_mean import ColumnMean
from gsb3se.model.counts import ConfusionCounts
from gsb3se.model.prior import Prior
from gsb3se.model.share_prior import SharePrior
from gsb3se.support.errors import some_of
from gsb3se.support.labels import Label, same_names
from gsb3se.support.simplex import Matrix, Vector

_LOG_2PI = float(np.log(2 * np.pi))


@dataclass(frozen=True, eq=False)
class SourceProblem:
    """What is known before any target is looked at, its parts checked against each other once.

    Args:
        counts: the validation counts.
        graph: the label graph; None for the exchangeable one.
        prior: the hyper-priors, or their name, "anchored" or "paper"; None is anchored.
    """

    counts: ConfusionCounts
    graph: LabelGraph
    prior: Prior

    def __init__(
        self,
        counts: ConfusionCounts,
        graph: LabelGraph | None = None,
        prior: Prior | str | None = None,
    ) -> None:
        graph = LabelGraph.exchangeable(counts.n_classes) if graph is None else graph
        prior = Prior.of(prior)
        if not isinstance(graph, LabelGraph):
            raise TypeError(f"graph must be a LabelGraph; got {type(graph).__name__}")
        if graph.n_classes != counts.n_classes:
            raise ValueError(
                f"the counts have {counts.n_classes} classes and the graph {graph.n_classes}: "
                "build both over the same labels"
            )
        _check_same_labels(counts.labels, graph.labels)
        object.__setattr__(self, "counts", counts)
        object.__setattr__(self, "graph", graph)
        object.__setattr__(self, "prior", prior)

    @property
    def n_classes(self) -> int:
        """K."""
        return self.counts.n_classes

    @cached_property
    def cells(self) -> SparsePlusConstant:
        """The confusion counts."""
        return SparsePlusConstant.of(self.counts.confusion)

    @cached_property
    def column_sizes(self) -> Vector:
        """n_i as floats."""
        return self.counts.validation_sizes.astype(float)

    @cached_property
    def column_mean(self) -> ColumnMean:
        """The prior mean of the columns."""
        return ColumnMean(self.graph, self.prior.anchor_sd)

    @cached_property
    def share_prior(self) -> SharePrior:
        """The prior of theta."""
        return SharePrior(self.graph.laplacian, self.tau_shapes[0], self.prior.b_q)

    @cached_property
    def tau_shapes(self) -> tuple[float, float]:
        """Shapes of the conditionals of tau_q and tau_C: a + half the number of dimensions."""
        n = self.n_classes
        return self.prior.a_q + 0.5 * (n - 1), self.prior.a_C + 0.5 * n * (n - 1)

    @cached_property
    def log_normalisers(self) -> float:
        """Constants of the two Laplacian Gaussians, the Gammas and the weights' normals."""
        n, prior = self.n_classes, self.prior
        fields = 0.5 * (n + 1) * (self.graph.log_pseudo_determinant - (n - 1) * _LOG_2PI)
        gammas = sum(
            a * np.log(b) - gammaln(a) for a, b in ((prior.a_q, prior.b_q), (prior.a_C, prior.b_C))
        )
        anchor = 0.0 if prior.anchor_sd is None else -2 * np.log(prior.anchor_sd) - _LOG_2PI
        return float(fields + gammas + anchor)

    @contextmanager
    def scratch(self) -> Iterator[Matrix]:
        """A K x K array to work in, kept for the next evaluation.

        At K = 1,000 the system takes as long to hand out fresh memory as the arithmetic takes.
        """
        array = self._spare.pop() if self._spare else np.empty((self.n_classes, self.n_classes))
        try:
            yield array
        finally:
            self._spare.append(array)

    @cached_property
    def _spare(self) -> list[Matrix]:
        return []  # pop and append are atomic, so that threads may share a problem


def _spells_number(name: str) -> bool:
    """Whether a name is a number in any notation, such as '02'."""
    try:
        float(name)
    except ValueError:
        return False
    return True


def _check_same_labels(counted: tuple[Label, ...], of_graph: tuple[Label, ...] | None) -> None:
    """Raise ValueError unless both name the same classes in the same order.

    The labels 0..K-1 of counts may be positions; they match a graph whose names are not numbers.
    """
    if of_graph is None or of_graph == counted:
        return
    places = same_names(counted, of_graph)
    positional = counted == tuple(range(len(counted)))
    numbered = all(isinstance(name, int) or _spells_number(name) for name in of_graph)
    if places == list(range(len(counted))) or (places is None and positional and not numbered):
        return
    differ = "stand in another order" if places is not None else "differ"
    raise ValueError(
        f"the labels of counts and graph {differ}: {some_of(counted, most=3)} and "
        f"{some_of(of_graph, most=3)}. Use graph.reordered(counts.labels), or build both over the "
        "same labels"
    )
