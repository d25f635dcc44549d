import numpy as np
import pytest

import gsb3se as gs
from gsb3se.model.problem import Problem


def test_problem_checks_counts_and_graph_against_each_other():
    counts = gs.ShiftCounts(np.eye(3, dtype=int), [1, 1, 1], labels=["a", "b", "c"])
    with pytest.raises(ValueError, match="3 classes and the graph 4"):
        Problem(counts, gs.LabelGraph.exchangeable(4))
    shuffled = gs.LabelGraph.exchangeable(3, labels=["b", "a", "c"])
    with pytest.raises(ValueError, match="reordered"):
        Problem(counts, shuffled)
    assert Problem(counts, shuffled.reordered(["a", "b", "c"])).n_classes == 3
    unnamed = gs.ShiftCounts(np.eye(3, dtype=int), [1, 1, 1])
    assert Problem(unnamed, shuffled).graph is shuffled
    assert Problem(counts).graph.is_exchangeable


@pytest.mark.parametrize("value", [0, -1.0, np.nan, np.inf, "1", None, True])
def test_prior_rejects_what_is_not_positive(value):
    with pytest.raises(ValueError, match="a_q must be a number from"):
        gs.Prior(a_q=value)


def test_integer_labels_in_another_order_are_not_taken_for_positions():
    counts = gs.ShiftCounts(np.eye(3, dtype=int), [1, 1, 1])
    with pytest.raises(ValueError, match="another order"):
        Problem(counts, gs.LabelGraph.exchangeable(3, labels=[2, 1, 0]))


def test_numpy_numbers_are_numbers_to_a_prior():
    assert gs.Prior(a_q=np.float32(2), b_q=np.int64(3)) == gs.Prior(2.0, 3.0)


def test_other_things_are_not_taken_for_counts_graph_or_prior():
    counts = gs.ShiftCounts(np.eye(2, dtype=int), [1, 1])
    with pytest.raises(TypeError, match="counts must be ShiftCounts; got int"):
        Problem(5)
    with pytest.raises(TypeError, match="graph must be a LabelGraph; got int"):
        Problem(counts, 5)
    with pytest.raises(TypeError, match=r"prior must be .* got 5"):
        Problem(counts, prior=5)


def test_labels_that_are_numbers_in_text_are_gone_by_their_names():
    counts = gs.ShiftCounts(np.eye(3, dtype=int), [1, 1, 1], labels=[0, 1, 2])
    weights = np.array([[0, 0.5, 0], [0.5, 0, 1], [0, 1, 0]])
    text = gs.LabelGraph.from_weights(weights, labels=["2", "0", "1"])
    with pytest.raises(ValueError, match="another order"):
        Problem(counts, text)
    assert Problem(counts, text.reordered(counts.labels)).graph.weights[0, 1] == 1
    with pytest.raises(ValueError, match="differ"):
        Problem(counts, gs.LabelGraph.from_weights(weights, labels=["7", "8", "9"]))


@pytest.mark.parametrize("names", [("02", "00", "01"), (" 2", "0", "1"), ("+2", "+0", "+1")])
def test_numbers_in_another_notation_are_no_positions(names):
    counts = gs.ShiftCounts(np.eye(3, dtype=int), [1, 2, 3])
    graph = gs.LabelGraph.from_weights(np.ones((3, 3)), labels=names)
    with pytest.raises(ValueError, match="the labels of counts and graph differ"):
        gs.Problem(counts, graph)
