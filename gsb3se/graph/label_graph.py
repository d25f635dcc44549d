"""LabelGraph: which labels are alike, and the Laplacian that ties them together."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from gsb3se.graph.edge_weights import (
    LEAST_TIE,
    LEAST_WEIGHT,
    as_points,
    typical_length,
    weights_of,
)
from gsb3se.graph.laplacian import (
    GraphMatrix,
    IdentityPlusOnes,
    Spectrum,
    exchangeable_weights,
    laplacian_of,
    spectrum_of,
)
from gsb3se.graph.neighbours import (
    Edges,
    components,
    edge_lengths,
    nearest_neighbour_edges,
    shortest_bridges,
)
from gsb3se.graph.taxonomy import Parents, read_taxonomy
from gsb3se.support.errors import as_whole_number, some_of
from gsb3se.support.files import check_present, compressed, load_arrays, save_arrays, whole
from gsb3se.support.labels import Label, as_labels, same_names
from gsb3se.support.named_axes import column_names, in_order_of, row_names

_NEGLIGIBLE_WEIGHT = 1e-8  # of a given edge; a lighter one is none


@dataclass(frozen=True, eq=False, repr=False)
class LabelGraph:
    """A connected, weighted, undirected graph over K labels.

    Build one with :meth:`knn`, :meth:`from_weights`, :meth:`from_class_means`,
    :meth:`from_taxonomy`, :meth:`from_names` or :meth:`exchangeable`.

    Attributes:
        weights: (K, K) similarities W, a sparse array without self-loops; for the exchangeable
            graph a product with all weights 1/K.
        labels: the K names, if they are known.
        bridges: pairs of indices whose edge was added to connect the graph.

    >>> path = LabelGraph.from_weights([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    >>> path.laplacian.toarray().tolist()
    [[1.0, -1.0, 0.0], [-1.0, 2.0, -1.0], [0.0, -1.0, 1.0]]
    >>> round(path.algebraic_connectivity, 12)
    1.0
    """

    weights: GraphMatrix
    labels: tuple[Label, ...] | None = None
    bridges: tuple[tuple[int, int], ...] = ()

    # Builders

    @classmethod
    def knn(
        cls,
        embeddings: ArrayLike,
        k: int = 8,
        *,
        labels: Iterable[Label] | None = None,
        normalise: bool = True,
    ) -> LabelGraph:
        """Tie each label to the k whose embeddings are nearest.

        Args:
            embeddings: (K, d), one row a label; a DataFrame's index names them.
            k: neighbours of a label; at most K - 1 are taken.
            labels: the K names, by default those of such an index.
            normalise: scale the rows to unit length first.

        Edges are symmetric by union and weigh W = exp(-d^2 / sigma^2), sigma the median length of
        an edge, but never less than 0.001. Separate parts are joined by the shortest edges that
        connect them, listed in :attr:`bridges`. Work O(K^2 d), memory O(K d).
        """
        labels = row_names(embeddings) if labels is None else tuple(labels)
        if labels is not None:
            embeddings = in_order_of(as_labels(labels), embeddings, "the embeddings")
        points = as_points(embeddings, normalise)
        k = as_whole_number(k, "k", least=1)
        edges = nearest_neighbour_edges(points, min(k, len(points) - 1))
        bridges = shortest_bridges(points, edges)
        return cls._from_lengths(
            len(points),
            edges,
            edge_lengths(points, edges),
            bridges,
            edge_lengths(points, bridges),
            labels,
        )

    @classmethod
    def from_weights(cls, weights: ArrayLike, labels: Iterable[Label] | None = None) -> LabelGraph:
        """Take a symmetric (K, K) matrix of similarities in [0, 1].

        The diagonal is ignored, and a weight below 1e-8 counts as no edge: across a lighter one
        the Laplacian is singular to the digits that a float has.
        """
        labels = column_names(weights) if labels is None else tuple(labels)
        if labels is not None:
            weights = in_order_of(as_labels(labels), weights, "the weights", axes=(0, 1))
        given: Any = weights if sparse.issparse(weights) else np.asarray(weights)
        if given.ndim != 2 or given.shape[0] != given.shape[1] or given.shape[0] < 2:
            raise ValueError(f"weights must be square, at least 2 x 2; got shape {given.shape}")
        if given.dtype.kind not in "fiub":
            raise ValueError(f"weights must be real numbers; got values of type {given.dtype}")
        matrix = sparse.csr_array(given, dtype=float, copy=True)
        matrix.sum_duplicates()
        matrix.setdiag(0.0)
        if not np.isfinite(matrix.data).all():
            raise ValueError("weights must be finite; found NaN or infinity")
        if matrix.nnz and (matrix.data.min() < 0 or matrix.data.max() > 1):
            raise ValueError(
                f"weights must lie in [0, 1]; found {matrix.data.min():.6g} to "
                f"{matrix.data.max():.6g}: divide them by the largest"
            )
        gap = abs(matrix - matrix.T)
        if gap.nnz and gap.max() > 1e-8:
            raise ValueError(
                f"weights must be symmetric; W and its transpose differ by up to {gap.max():.3g}: "
                "pass for instance np.maximum(W, W.T)"
            )
        matrix.data[matrix.data < _NEGLIGIBLE_WEIGHT] = 0.0
        return cls._checked((matrix + matrix.T) / 2, labels)

    @classmethod
    def from_class_means(
        cls, features: ArrayLike, y: ArrayLike, k: int = 8, labels: Iterable[Label] | None = None
    ) -> LabelGraph:
        """k nearest neighbours between the classes' mean features, in plain Euclidean distance.

        Args:
            features: (n, d) features, for instance of a network's last hidden layer.
            y: (n,) labels of the rows.
            k: neighbours of a label.
            labels: the classes in order; by default the distinct values of y, sorted.
        """
        from gsb3se.graph.embeddings import class_means

        means, names = class_means(features, y, labels)
        return cls.knn(means, k, labels=names, normalise=False)

    @classmethod
    def from_taxonomy(
        cls, parents: Parents, k: int = 8, labels: Iterable[Label] | None = None
    ) -> LabelGraph:
        """Tie the labels of a tree to their nearest relatives; see :mod:`gsb3se.graph.taxonomy`.

        Args:
            parents: a child -> parent mapping or pairs; a list of parents' indices with -1 at the
                root; or a list that names the group of each label.
            k: a label is tied to all labels under the highest ancestor with at most k others, but
                to its nearest relatives in any case.
            labels: which nodes are labels, in order; by default those that are nobody's parent.

        Lengths are heights of common ancestors; weights and bridges as in :meth:`knn`. Every label
        is also tied to a few from the wider families it belongs to, by edges that weigh at least
        0.1.

        >>> LabelGraph.from_taxonomy(["pet", "pet", "farm", "farm"], k=1).n_edges
        6
        """
        tree = read_taxonomy(parents, labels)
        k, n = as_whole_number(k, "k", least=1), len(tree.labels)
        near, lengths = tree.edges(k)
        ties, tie_lengths = tree.ties(k, near)
        bridges, bridge_lengths = tree.bridges(components(np.concatenate([near, ties]), n)[1])
        scale = typical_length(lengths)
        weights = [
            weights_of(lengths, scale, LEAST_WEIGHT),
            weights_of(tie_lengths, scale, LEAST_TIE),
            weights_of(bridge_lengths, scale, LEAST_TIE),
        ]
        edges = np.concatenate([near, ties, bridges])
        return cls._from_edges(n, edges, np.concatenate(weights), bridges, tree.labels)

    @classmethod
    def from_names(
        cls,
        names: Iterable[str],
        encoder: str | Callable[[list[str]], ArrayLike] = "clip",
        k: int = 8,
        **options: Any,
    ) -> LabelGraph:
        """k nearest neighbours between embeddings of the class names.

        Args:
            names: the K class names.
            encoder: "clip" for open_clip's text encoder, or any callable from a list of names to a
                (K, d) array, for instance a sentence-transformers model's ``encode``.
            k: neighbours of a label.
            options: of :func:`gsb3se.graph.embeddings.clip_text`, such as model and weights.
        """
        from gsb3se.graph.embeddings import embed_names

        names = list(names)
        if len(names) < 2 or not all(isinstance(name, str) for name in names):
            raise ValueError(f"names must be at least 2 strings; got {some_of(names)}")
        return cls.knn(embed_names(names, encoder, **options), k, labels=names)

    @classmethod
    def exchangeable(cls, n_classes: int, labels: Iterable[Label] | None = None) -> LabelGraph:
        """No similarity known: L = I - 11'/K, the complete graph with weights 1/K.

        (The paper's L = 0 would be an improper prior without any smoothing.)

        >>> LabelGraph.exchangeable(1000).algebraic_connectivity
        1.0
        """
        n_classes = as_whole_number(n_classes, "n_classes", least=2)
        names = None if labels is None else as_labels(labels, n_classes)
        return cls(exchangeable_weights(n_classes), names)

    @classmethod
    def _from_lengths(
        cls,
        n: int,
        edges: Edges,
        lengths: NDArray[np.float64],
        bridges: Edges,
        bridge_lengths: NDArray[np.float64],
        labels: Iterable[Label] | None,
    ) -> LabelGraph:
        """W = exp(-d^2 / sigma^2), sigma the median of the positive edge lengths."""
        every = np.concatenate([lengths, bridge_lengths])
        weights = weights_of(every, typical_length(lengths), LEAST_WEIGHT)
        return cls._from_edges(n, np.concatenate([edges, bridges]), weights, bridges, labels)

    @classmethod
    def _from_edges(
        cls,
        n: int,
        edges: Edges,
        weights: NDArray[np.float64],
        bridges: Edges,
        labels: Iterable[Label] | None,
    ) -> LabelGraph:
        upper = sparse.coo_array((weights, (edges[:, 0], edges[:, 1])), shape=(n, n))
        return cls._checked(upper + upper.T, labels, bridges)

    @classmethod
    def _checked(
        cls, weights: sparse.sparray, labels: Iterable[Label] | None, bridges: ArrayLike = ()
    ) -> LabelGraph:
        """Canonical form of valid weights; the graph must be connected."""
        matrix = sparse.csr_array(weights)
        matrix.sum_duplicates()
        matrix.eliminate_zeros()
        for part in (matrix.data, matrix.indices, matrix.indptr):
            part.flags.writeable = False
        n = matrix.shape[0]
        names = None if labels is None else as_labels(labels, n)
        n_parts, part = components(np.column_stack(matrix.nonzero()), n)
        if n_parts > 1:
            smallest = np.flatnonzero(part == np.bincount(part).argmin()).tolist()
            lonely = smallest if names is None else [names[i] for i in smallest]
            raise ValueError(
                f"the label graph must be connected and falls into {n_parts} parts; one of them is "
                f"{some_of(lonely)}: add an edge of small weight between the parts"
            )
        return cls(matrix, names, tuple((int(i), int(j)) for i, j in np.asarray(bridges)))

    # What it knows

    @property
    def n_classes(self) -> int:
        """K."""
        return self.weights.shape[0]

    @property
    def is_exchangeable(self) -> bool:
        """Whether this is the graph that stands for no known similarity."""
        return isinstance(self.weights, IdentityPlusOnes)

    @property
    def sparse_weights(self) -> sparse.csr_array | None:
        """W as a sparse array; None for the exchangeable graph, whose labels are all alike."""
        return None if isinstance(self.weights, IdentityPlusOnes) else self.weights

    @property
    def n_edges(self) -> int:
        """Undirected edges."""
        if isinstance(self.weights, IdentityPlusOnes):
            return self.n_classes * (self.n_classes - 1) // 2
        return self.weights.nnz // 2

    @cached_property
    def laplacian(self) -> GraphMatrix:
        """L = D - W, (K, K): sparse, or a product for the exchangeable graph. ``L @ x`` works."""
        return laplacian_of(self.weights)

    @property
    def algebraic_connectivity(self) -> float:
        """lambda_2(L), the smallest non-zero eigenvalue of the Laplacian."""
        return self._spectrum.smallest

    @property
    def log_pseudo_determinant(self) -> float:
        """Sum of the logs of the non-zero eigenvalues of L."""
        return self._spectrum.log_pseudo_determinant

    def sample_fields(self, n: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """(K, n) independent draws from N(0, L^+), each summing to zero."""
        return self._spectrum.sample_fields(n, rng)

    @cached_property
    def _spectrum(self) -> Spectrum:
        return spectrum_of(self.weights, self.laplacian)

    def reordered(self, labels: Iterable[Label]) -> LabelGraph:
        """The same graph with its labels in another order.

        The labels 1 and '1' count as the same; the new graph has the labels as passed here.
        """
        names = as_labels(labels, self.n_classes)
        places = None if self.labels is None else same_names(names, self.labels)
        if places is None:
            raise ValueError("the graph can only be reordered to the labels it has")
        order = np.array(places)
        if isinstance(self.weights, IdentityPlusOnes):
            return LabelGraph(self.weights, names)
        place = np.argsort(order)
        bridges = tuple((int(place[i]), int(place[j])) for i, j in self.bridges)
        return LabelGraph(self.weights[order][:, order], names, bridges)

    def aligned(self, labels: Iterable[Label]) -> LabelGraph:
        """The graph in the order of the labels where it names the same ones; else as it is."""
        names = tuple(labels)
        if self.labels is not None and same_names(names, self.labels) is not None:
            return self.reordered(names)
        return self

    def __repr__(self) -> str:
        if self.is_exchangeable:
            return f"LabelGraph({self.n_classes} labels, exchangeable)"
        joined = f", {len(self.bridges)} of them to join its parts" if self.bridges else ""
        return f"LabelGraph({self.n_classes} labels, {self.n_edges} edges{joined})"

    # Files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save to one NPZ file."""
        save_arrays(path, "LabelGraph", **self.to_arrays())

    def to_arrays(self) -> dict[str, object]:
        """The graph as plain arrays."""
        arrays: dict[str, object] = {
            "n_classes": self.n_classes,
            "exchangeable": self.is_exchangeable,
            "bridges": np.array(self.bridges, dtype=np.int64).reshape(-1, 2),
        }
        if self.labels is not None:
            arrays["labels"] = self.labels
        if isinstance(self.weights, sparse.csr_array):
            arrays |= {name: getattr(self.weights, name) for name in ("data", "indices", "indptr")}
        return arrays

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> LabelGraph:
        """Load what :meth:`save` wrote."""
        arrays = load_arrays(
            path,
            "LabelGraph",
            *("n_classes", "exchangeable", "bridges"),
            optional=("labels", "data", "indices", "indptr"),
        )
        with whole(path):
            return cls.from_arrays(arrays, path)

    @classmethod
    def from_arrays(cls, arrays: dict[str, Any], path: str | os.PathLike[str]) -> LabelGraph:
        """What :meth:`to_arrays` gave; ``path`` is where errors say it is from."""
        kinds = {"n_classes": "iu", "exchangeable": "b", "bridges": "iu"}
        if wrong := [name for name, kind in kinds.items() if arrays[name].dtype.kind not in kind]:
            raise ValueError(f"{path} is damaged: {some_of(wrong)} is of another type")
        n = int(arrays["n_classes"])
        labels = arrays["labels"].tolist() if "labels" in arrays else None
        if arrays["exchangeable"]:
            return cls.exchangeable(n, labels)
        check_present(path, arrays, "data", "indices", "indptr")
        loaded = cls.from_weights(compressed(sparse.csr_array, arrays, n), labels)
        bridges = tuple((int(i), int(j)) for i, j in arrays["bridges"].tolist())
        if not all(0 <= i < n and 0 <= j < n for i, j in bridges):
            raise ValueError(f"{path} is damaged: a bridge names a label beyond the {n} it has")
        return replace(loaded, bridges=bridges)
