"""Problem: counts, label graph and prior, with what every evaluation of the model needs of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.special import gammaln

from gsb3se.counts import ShiftCounts
from gsb3se.errors import some_of
from gsb3se.graph import IdentityPlusOnes, LabelGraph
from gsb3se.labels import Label, same_names
from gsb3se.prior import Prior
from gsb3se.simplex import Matrix, Vector

_LOG_2PI = float(np.log(2 * np.pi))


@dataclass(frozen=True, eq=False)
class Pattern:
    """A sparse K x K matrix plus a constant, that meets dense ones entry by entry.

    Attributes:
        positions, values: the sparse entries, row-major.
        constant: added to every entry.
    """

    positions: NDArray[np.int64]
    values: Vector
    constant: float = 0.0

    @classmethod
    def of(cls, matrix: sparse.sparray | IdentityPlusOnes) -> Pattern:
        """The pattern of a sparse matrix or of a I + b 11'."""
        n = matrix.shape[0]
        if isinstance(matrix, IdentityPlusOnes):
            return cls(np.arange(n) * (n + 1), np.full(n, matrix.identity), matrix.ones)
        ordered = sparse.csr_array(matrix)
        ordered.sort_indices()
        rows = np.repeat(np.arange(n, dtype=np.int64), np.diff(ordered.indptr))
        return cls(rows * n + ordered.indices, ordered.data.astype(float))

    def add_to(self, array: Matrix, scale: float = 1.0) -> None:
        """array += scale * pattern, in place; the array must be C-contiguous."""
        array.reshape(-1)[self.positions] += scale * self.values
        if self.constant:
            array += scale * self.constant

    def dot(self, array: Matrix) -> float:
        """Sum over all entries of pattern * array."""
        whole = self.constant * array.sum() if self.constant else 0.0
        return float(np.einsum("i,i->", self.values, array.take(self.positions)) + whole)


@dataclass(frozen=True, eq=False)
class Problem:
    """Counts, graph and prior, checked against each other once.

    Args:
        counts: the data.
        graph: the label graph; None for the exchangeable one.
        prior: the hyper-priors, or their name, "anchored" or "paper"; None is anchored.
    """

    counts: ShiftCounts
    graph: LabelGraph
    prior: Prior

    def __init__(
        self,
        counts: ShiftCounts,
        graph: LabelGraph | None = None,
        prior: Prior | str | None = None,
    ) -> None:
        if not isinstance(counts, ShiftCounts):
            raise TypeError(f"counts must be ShiftCounts; got {type(counts).__name__}")
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
    def cells(self) -> Pattern:
        """The confusion counts."""
        return Pattern.of(self.counts.confusion)

    @cached_property
    def column_sizes(self) -> Vector:
        """n_i as floats."""
        return self.counts.validation_sizes.astype(float)

    @cached_property
    def target(self) -> Vector:
        """Target counts as floats."""
        return self.counts.target.astype(float)

    @cached_property
    def anchor(self) -> Pattern:
        """W, what beta multiplies in the columns' mean."""
        return Pattern.of(self.graph.weights)

    @cached_property
    def anchor_forces(self) -> tuple[Pattern, Pattern]:
        """L and L W: L times the patterns that alpha and beta multiply."""
        n, laplacian, weights = self.n_classes, self.graph.laplacian, self.graph.weights
        if isinstance(weights, IdentityPlusOnes):
            return Pattern.of(laplacian), Pattern.of(IdentityPlusOnes(n, -1 / n, 1 / n**2))
        return Pattern.of(laplacian), Pattern.of(laplacian @ weights)

    @cached_property
    def log_multinomial_coefficients(self) -> float:
        """Log of the multinomial coefficients of all columns and of the target."""
        factorials = gammaln(self.column_sizes + 1).sum() - gammaln(self.cells.values + 1).sum()
        return float(factorials + gammaln(self.target.sum() + 1) - gammaln(self.target + 1).sum())

    @cached_property
    def log_normalisers(self) -> float:
        """Constants of the two Laplacian Gaussians, the Gammas and the anchor's normals."""
        n, prior = self.n_classes, self.prior
        fields = 0.5 * (n + 1) * (self.graph.log_pseudo_determinant - (n - 1) * _LOG_2PI)
        gammas = sum(
            a * np.log(b) - gammaln(a) for a, b in ((prior.a_q, prior.b_q), (prior.a_C, prior.b_C))
        )
        anchor = 0.0 if prior.anchor_sd is None else -2 * np.log(prior.anchor_sd) - _LOG_2PI
        return float(fields + gammas + anchor)

    @cached_property
    def tau_shapes(self) -> tuple[float, float]:
        """Shapes of the conditionals of tau_q and tau_C: a + half the number of dimensions."""
        n = self.n_classes
        return self.prior.a_q + 0.5 * (n - 1), self.prior.a_C + 0.5 * n * (n - 1)

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

    Counts over 0..K-1 may be meant as positions, and go with a graph of any names but numbers.
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
