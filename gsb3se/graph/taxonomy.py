"""A tree over the labels, and the label graph that it implies.

Two labels are as far apart as the height of their lowest common ancestor above the deepest label
below it: siblings at 1, cousins at 2. A label's neighbours are all labels under the highest of its
ancestors that holds at most k others, or its nearest relatives if they are more than k. A few more
edges tie it to labels drawn at random from the wider families it belongs to: groups that hang
together by a single light edge would drift apart as if they had nothing in common.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gsb3se.graph.neighbours import Edges, unique_edges
from gsb3se.support.errors import some_of
from gsb3se.support.labels import Label, as_labels

Node = Hashable
Parents = Mapping[Node, Node] | Sequence[Node] | Iterable[tuple[Node, Node]]

_MOST_EDGES = 5_000_000
_TIES = 4  # of a label, beyond its neighbours
_ROOT = object()  # stands above all roots, so that a forest is a tree


@dataclass(frozen=True, eq=False)
class Taxonomy:
    """For each node above a label: the labels below it (as indices) and its height."""

    labels: tuple[Label, ...]
    ancestors: tuple[tuple[Node, ...], ...]  # of each label, from the nearest up
    members: dict[Node, NDArray[np.int64]]
    height: dict[Node, int]

    def edges(self, k: int) -> tuple[Edges, NDArray[np.float64]]:
        """Neighbour edges (n, 2) and their lengths (n,)."""
        n = len(self.labels)
        groups = {self._neighbourhood(label, k) for label in range(n)}
        if sum(len(self.members[group]) ** 2 for group in groups) // 2 > _MOST_EDGES:
            largest = max(len(self.members[group]) for group in groups)
            raise ValueError(
                f"a group of this taxonomy holds {largest} labels, too many to tie each to each: "
                f"use LabelGraph.exchangeable({n})"
            )
        pairs = [
            np.column_stack([np.full(len(near), label), near])
            for label in range(n)
            for near in [self.members[self._neighbourhood(label, k)]]
        ]
        both = np.concatenate(pairs)
        edges = unique_edges(both[both[:, 0] != both[:, 1]], n)
        return edges, self._lengths(edges)

    def ties(self, k: int, near: Edges) -> tuple[Edges, NDArray[np.float64]]:
        """Edges from each label to a few others beyond its neighbours, and their lengths.

        Args:
            near: the edges that are there already.

        They are spread evenly over the families between its neighbourhood and the whole tree, and
        drawn at random: the same ones at every call.
        """
        rng = np.random.default_rng(0)
        pairs = []
        for label, chain in enumerate(self.ancestors):
            inner = self.members[self._neighbourhood(label, k)]
            rings = []  # labels of each wider family that the one before does not hold
            for node in chain:
                if len(self.members[node]) > len(inner):
                    rings.append(np.setdiff1d(self.members[node], inner, assume_unique=True))
                    inner = self.members[node]
            for place in np.linspace(len(rings) - 1, 0, _TIES).round().astype(int) if rings else []:
                pairs.append((label, rng.choice(rings[place])))
        n = len(self.labels)
        edges = unique_edges(np.array(pairs, dtype=np.int64).reshape(-1, 2), n)
        edges = edges[~np.isin(edges @ [n, 1], near @ [n, 1])]
        return edges, self._lengths(edges)

    def bridges(self, part: NDArray[np.int32]) -> tuple[Edges, NDArray[np.float64]]:
        """Shortest edges that join the parts of a graph: low ancestors first."""
        leader = part.copy()
        found = []
        for node in sorted(self.members, key=lambda node: self.height[node]):
            below = self.members[node]
            for label in below[1:]:
                if leader[label] != leader[below[0]]:
                    leader[leader == leader[label]] = leader[below[0]]
                    found.append((below[0], label))
        edges = np.array(found, dtype=np.int64).reshape(-1, 2)
        return edges, self._lengths(edges)

    def _neighbourhood(self, label: int, k: int) -> Node:
        """The ancestor whose members are this label's neighbours."""
        chosen = None
        for node in self.ancestors[label]:
            size = len(self.members[node]) - 1
            if chosen is not None and size > k:
                break
            if size > 0:
                chosen = node
        return chosen

    def _lengths(self, edges: Edges) -> NDArray[np.float64]:
        lengths = np.empty(len(edges))
        for row, (one, other) in enumerate(edges):
            above = set(self.ancestors[one])
            lowest = next(node for node in self.ancestors[other] if node in above)
            lengths[row] = self.height[lowest]
        return lengths


def read_taxonomy(parents: Parents, labels: Iterable[Label] | None = None) -> Taxonomy:
    """Read a taxonomy from a parent list, a child-to-parent mapping or (child, parent) pairs.

    Args:
        parents: one of
            - a mapping, or an iterable of pairs, child -> parent;
            - a list with -1 or None at each root: ``parents[n]`` is the parent's index of node n;
            - a list without a root: ``parents[i]`` names the group of label i.
        labels: which nodes are the labels, in their order; by default the nodes that are nobody's
            parent. For a list of groups: the names of its entries.
    """
    pairs, are_groups = _pairs(parents)
    if are_groups and labels is not None:
        names = as_labels(labels, len(pairs))
        pairs = [(name, group) for name, (_, group) in zip(names, pairs, strict=True)]
        labels = None
    parent, nodes = _parent_of_each(pairs)
    for node in nodes:
        _chain(node, parent)  # a circle has no leaf, and would not be met below
    if labels is None:
        inner = set(parent.values())
        names = as_labels(node for node in nodes if node not in inner)
    else:
        names = as_labels(labels)
        known = set(nodes)
        strangers = [name for name in names if name not in known]
        if strangers:
            raise ValueError(f"the taxonomy does not hold the labels {some_of(strangers)}")
    if len(names) < 2:
        raise ValueError(f"a taxonomy needs at least 2 labels; got {len(names)}")
    ancestors = tuple(_chain(name, parent) for name in names)
    members: dict[Node, list[int]] = {}
    height: dict[Node, int] = {}
    for index, chain in enumerate(ancestors):
        for steps, node in enumerate(chain):
            members.setdefault(node, []).append(index)
            height[node] = max(height.get(node, 0), steps)
    return Taxonomy(
        names, ancestors, {node: np.array(below) for node, below in members.items()}, height
    )


def _pairs(parents: Parents) -> tuple[list[tuple[Any, Any]], bool]:
    """Pairs (child, parent), and whether they came as a list of groups."""
    if isinstance(parents, Mapping):
        return list(parents.items()), False
    entries = [_as_node(entry) for entry in parents]
    if entries and all(isinstance(entry, tuple) for entry in entries):
        if any(len(entry) != 2 for entry in entries):
            raise ValueError("expected pairs (child, parent)")
        return entries, False
    if any(_is_root_mark(entry) for entry in entries):
        for entry in entries:
            if not _is_root_mark(entry) and entry not in range(len(entries)):
                raise ValueError(
                    f"a parent list with a root (-1 or None) holds indices of its own "
                    f"{len(entries)} entries; got {entry!r}"
                )
        return list(enumerate(entries)), False
    return [(index, ("group", entry)) for index, entry in enumerate(entries)], True


def _as_node(entry: Any) -> Any:
    """Lists as tuples, whole floats as integers; other floats name nothing."""
    if isinstance(entry, list):
        return tuple(entry)
    if isinstance(entry, float | np.floating):
        if not float(entry).is_integer():
            raise ValueError(f"a node is named by a string or an integer; got {entry}")
        return int(entry)
    return entry


def _parent_of_each(pairs: list[tuple[Any, Any]]) -> tuple[dict[Node, Node], list[Node]]:
    """Child -> parent, and all nodes in the order they were named."""
    parent: dict[Node, Node] = {}
    for child, above in pairs:
        if not isinstance(child, Hashable) or not isinstance(above, Hashable):
            raise ValueError(f"a node is named by a string or an integer; got {child!r}: {above!r}")
        above = _ROOT if _is_root_mark(above) else above
        if child in parent and parent[child] != above:
            raise ValueError(
                f"{child!r} has two parents, {parent[child]!r} and {above!r}: expected a tree"
            )
        parent[child] = above
    nodes = list(parent) + [
        above for above in dict.fromkeys(parent.values()) if above not in parent
    ]
    return parent, [node for node in nodes if node is not _ROOT]


def _is_root_mark(entry: object) -> bool:
    return entry is None or (isinstance(entry, int | np.integer) and entry == -1)


def _chain(name: Node, parent: dict[Node, Node]) -> tuple[Node, ...]:
    """A label itself, its parent, and so on to the root."""
    chain = [name]
    seen = {name}
    while chain[-1] is not _ROOT:
        above = parent.get(chain[-1], _ROOT)
        if above in seen:
            raise ValueError(f"the taxonomy has a circle through {above!r}: expected a tree")
        chain.append(above)
        seen.add(above)
    return tuple(chain)
