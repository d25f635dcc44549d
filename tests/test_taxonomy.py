import itertools

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gsb3se import LabelGraph
from gsb3se.graph.taxonomy import read_taxonomy

ANIMALS = {
    "cat": "feline", "lion": "feline", "dog": "canine", "wolf": "canine", "fox": "canine",
    "trout": "fish", "feline": "mammal", "canine": "mammal", "mammal": "animal", "fish": "animal",
}  # fmt: skip


def linked(graph):
    rows, columns = graph.weights.nonzero()
    return {
        frozenset((graph.labels[i], graph.labels[j])) for i, j in zip(rows, columns, strict=True)
    }


def test_siblings_are_tied_closest():
    graph = LabelGraph.from_taxonomy(ANIMALS, k=2)
    assert graph.labels == ("cat", "lion", "dog", "wolf", "fox", "trout")
    siblings = {"cat lion", "dog wolf", "dog fox", "wolf fox"}
    near = {frozenset(pair.split()) for pair in siblings}
    assert near <= linked(graph)
    # trout has no sibling: its nearest relatives are all labels under "animal"
    assert {frozenset(("trout", name)) for name in ("cat", "lion", "dog", "wolf", "fox")} <= linked(
        graph
    )
    cat, lion, dog = (graph.labels.index(name) for name in ("cat", "lion", "dog"))
    assert graph.weights[cat, lion] > graph.weights[cat, dog]


def test_nearer_relatives_weigh_more():
    graph = LabelGraph.from_taxonomy(ANIMALS, k=10)
    weight = {name: graph.weights[0, i] for i, name in enumerate(graph.labels)}
    assert weight["lion"] > weight["dog"] > weight["trout"]
    assert weight["dog"] == weight["wolf"]


@pytest.mark.parametrize(
    "parents",
    [
        [-1, 0, 0, 1, 1, 2, 2],
        [None, 0, 0, 1, 1, 2, 2],
        np.array([-1.0, 0, 0, 1, 1, 2, 2]),
        {3: 1, 4: 1, 5: 2, 6: 2, 1: 0, 2: 0},
        [(3, 1), (4, 1), (5, 2), (6, 2), (1, 0), (2, 0)],
    ],
    ids=["-1", "None", "floats", "mapping", "pairs"],
)
def test_every_form_of_a_tree_gives_the_same_graph(parents):
    graph = LabelGraph.from_taxonomy(parents, k=1)
    assert graph.labels == (3, 4, 5, 6)
    assert {frozenset((3, 4)), frozenset((5, 6))} <= linked(graph)
    assert graph.weights[0, 1] > graph.weights[0, 2:].max()


def test_a_list_of_groups_makes_one_label_an_entry():
    graph = LabelGraph.from_taxonomy([7, 9, 7, 9, 7], k=2)
    assert graph.labels == (0, 1, 2, 3, 4)
    groups = {frozenset(pair) for pair in [(0, 2), (0, 4), (2, 4), (1, 3)]}
    assert groups <= linked(graph)
    assert len(linked(graph)) > len(groups)


def test_labels_choose_and_order_the_nodes():
    graph = LabelGraph.from_taxonomy(ANIMALS, k=2, labels=["wolf", "mammal", "dog"])
    assert graph.labels == ("wolf", "mammal", "dog")
    with pytest.raises(ValueError, match="does not hold the labels 'unicorn'"):
        LabelGraph.from_taxonomy(ANIMALS, labels=["dog", "unicorn"])


@given(st.lists(st.integers(0, 10**6), min_size=4, max_size=40), st.integers(1, 6))
def test_random_trees_give_connected_graphs_with_ultrametric_lengths(choices, k):
    parents = [-1] + [choice % (index + 1) for index, choice in enumerate(choices)]
    assume(len(set(range(len(parents))) - set(parents)) > 1)  # leaves
    tree = read_taxonomy(parents)
    graph = LabelGraph.from_taxonomy(parents, k)
    assert graph.algebraic_connectivity > 0
    n = len(tree.labels)
    pairs = np.array(list(itertools.combinations(range(n), 2)))
    length = np.zeros((n, n))
    length[tuple(pairs.T)] = length[tuple(pairs[:, ::-1].T)] = tree._lengths(pairs)
    for a, b, c in itertools.combinations(range(min(n, 12)), 3):
        sides = sorted([length[a, b], length[a, c], length[b, c]])
        assert sides[1] == sides[2]


@pytest.mark.parametrize(
    ("parents", "message"),
    [
        ({"a": "b", "b": "a", "c": "b"}, "a circle"),
        ([("a", "x"), ("a", "y"), ("b", "x")], "'a' has two parents"),
        ([-1, 5, 0], "indices of its own 3 entries; got 5"),
        ([-1, 0], "at least 2 labels"),
        ([-1, 0.5, 0], "string or an integer; got 0.5"),
        ([np.nan, 0, 0], "string or an integer; got nan"),
        ([("a", "x", 1), ("b", "x", 1)], "expected pairs"),
        ({"a": ["x"], "c": "x"}, "string or an integer"),
    ],
)
def test_what_is_no_tree_is_named(parents, message):
    labels = ["a", "c"] if isinstance(parents, dict) else None
    with pytest.raises(ValueError, match=message):
        LabelGraph.from_taxonomy(parents, labels=labels)


def test_a_group_too_large_to_tie_each_to_each_says_what_to_use(monkeypatch):
    monkeypatch.setattr("gsb3se.graph.taxonomy._MOST_EDGES", 10)
    with pytest.raises(ValueError, match=r"exchangeable\(20\)"):
        LabelGraph.from_taxonomy(["all"] * 20)


def test_groups_can_carry_names():
    graph = LabelGraph.from_taxonomy(["pet", "farm", "pet"], labels=["cat", "cow", "dog"], k=1)
    assert graph.labels == ("cat", "cow", "dog")
    assert frozenset(("cat", "dog")) in linked(graph)
    with pytest.raises(ValueError, match="expected 3 labels"):
        LabelGraph.from_taxonomy(["pet", "farm", "pet"], labels=["cat"])


def test_bridges_join_the_nearest_relatives_first():
    """Two pairs under one ancestor, a third pair apart: one short bridge and one long."""
    tree = {"a1": "a", "a2": "a", "b1": "b", "b2": "b", "c1": "c", "c2": "c"}
    tree |= {"a": "ab", "b": "ab", "ab": "root", "c": "root"}
    bridges, lengths = read_taxonomy(tree).bridges(np.array([0, 0, 1, 1, 2, 2]))
    assert bridges.tolist() == [[0, 2], [0, 4]]
    assert lengths.tolist() == [2, 3]


def test_groups_of_a_tree_hang_together():
    """Twenty groups of five: every label is tied to others, and no group by a thread."""
    groups = np.repeat(np.arange(20), 5)
    graph = LabelGraph.from_taxonomy(groups.tolist(), k=8)
    outside = graph.weights.toarray() * (groups[:, None] != groups)
    assert (outside.sum(axis=1) >= 0.4).all()
    assert graph.algebraic_connectivity > 0.2
    assert graph.n_edges < 20 * 10 + 4 * 100 + 1
    again = LabelGraph.from_taxonomy(groups.tolist(), k=8)
    assert (graph.weights != again.weights).nnz == 0


def test_a_deep_tree_has_no_more_ties_than_a_flat_one():
    parents = [-1, *(node // 2 for node in range(127))]  # a binary tree of 64 leaves
    graph = LabelGraph.from_taxonomy(parents, k=1)
    assert graph.n_edges <= 32 + 4 * 64
    assert graph.algebraic_connectivity > 0.1
