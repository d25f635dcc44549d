import tracemalloc

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import sparse

from gsb3se import ShiftCounts
from gsb3se.support.files import save_arrays

square = st.integers(2, 6).flatmap(
    lambda k: st.tuples(
        st.lists(st.lists(st.integers(0, 9), min_size=k, max_size=k), min_size=k, max_size=k),
        st.lists(st.integers(0, 9), min_size=k, max_size=k).filter(any),
    )
)


@given(square)
def test_dense_and_every_sparse_form_mean_the_same(case):
    confusion, target = np.array(case[0]), case[1]
    dense = ShiftCounts(confusion, target)
    forms = (sparse.csr_array, sparse.coo_array, sparse.csc_matrix, sparse.dok_array,
             sparse.lil_array, sparse.dia_array)  # fmt: skip
    for form in forms:
        assert ShiftCounts(form(confusion), target) == dense
    assert ShiftCounts(confusion.astype(float), np.array(target, float)) == dense
    np.testing.assert_array_equal(dense.confusion.toarray(), confusion)
    np.testing.assert_array_equal(dense.validation_sizes, confusion.sum(axis=0))
    assert dense.n_validation == confusion.sum()
    assert dense.n_target == sum(target)


@given(square, square)
def test_addition_adds_counts(one, other):
    assume(len(one[1]) == len(other[1]))
    total = ShiftCounts(*one) + ShiftCounts(*other)
    np.testing.assert_array_equal(total.confusion.toarray(), np.add(one[0], other[0]))
    np.testing.assert_array_equal(total.target, np.add(one[1], other[1]))


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("abcd")), min_size=1, max_size=50),
    st.lists(st.sampled_from("abcd"), min_size=1, max_size=50),
)
def test_predictions_are_counted_one_by_one(rows, target):
    truth, predicted = zip(*rows, strict=True)
    counts = ShiftCounts.from_predictions(truth, predicted, target, labels="abcd")
    for j, said in enumerate("abcd"):
        assert counts.target[j] == target.count(said)
        for i, true in enumerate("abcd"):
            assert counts.confusion[j, i] == rows.count((true, said))


@pytest.mark.parametrize(
    ("labels", "values"),
    [
        (("a", "b", "c"), np.array(["c", "a"])),
        (("a", "b", "c"), np.array(["c", "a"], dtype=object)),
        ((0, 1, 2), np.array([2, 0])),
        ((7, -3, 20), np.array([20, 7], dtype=np.int32)),
        ((7, -3, 20), np.array([20.0, 7.0])),
        ((7, -3, 20), [20, 7]),
    ],
)
def test_labels_keep_their_order_whatever_the_type(labels, values):
    counts = ShiftCounts.from_predictions(values, values, values, labels=labels)
    assert counts.labels == labels
    assert counts.target.tolist() == [1, 0, 1]


def test_without_labels_the_distinct_values_sorted_are_the_classes():
    counts = ShiftCounts.from_predictions([10, 9], [10, 2], [9, 9])
    assert counts.labels == (2, 9, 10)
    assert ShiftCounts.from_predictions(["b"], ["a"], ["b"]).labels == ("a", "b")


def test_empty_classes_are_allowed_and_listed():
    counts = ShiftCounts([[5, 0, 0], [1, 0, 0], [0, 0, 0]], [3, 0, 0], labels=["x", "y", "z"])
    assert counts.without_validation == ("y", "z")
    assert counts.never_predicted == ("z",)
    assert counts.with_target([0, 0, 4]).never_predicted == ()
    np.testing.assert_allclose(counts.confusion_rates.toarray()[:, 0], [5 / 6, 1 / 6, 0])
    assert counts.confusion_rates.toarray()[:, 1:].sum() == 0


@pytest.mark.parametrize(
    ("confusion", "target", "labels", "message"),
    [
        ([[1, -2], [0, 1]], [1, 1], None, "must not be negative; found -2"),
        ([[1, 0.5], [0, 1]], [1, 1], None, "whole numbers; found 0.5"),
        ([[1, np.nan], [0, 1]], [1, 1], None, "must be finite; found nan"),
        ([[1, 0], [0, 1]], [1, np.inf], None, "target counts must be finite; found inf"),
        ([[1, 0], [0, 1]], [1, -1], None, "target counts must not be negative"),
        ([[1, 0], [0, 1]], [1, 1e19], None, "must not exceed"),
        ([[1, 0], [0, 1]], ["a", "b"], None, "target counts must be numbers"),
        ([[1, 0, 0], [0, 1, 0]], [1, 1], None, r"square.*got shape \(2, 3\)"),
        ([1, 2], [1, 1], None, r"got shape \(2,\)"),
        ([[1, 0], [0, 1]], [1, 1, 1], None, r"hold 2 counts.*got shape \(3,\)"),
        ([[3]], [1], None, "at least 2 classes; got 1"),
        ([[1, 0], [0, 1]], [0, 0], None, "at least one target prediction"),
        ([[1, 0], [0, 1]], [1, 1], ["a", "a"], "more than once: 'a'"),
        ([[1, 0], [0, 1]], [1, 1], ["a"], "expected 2 labels, one a class; got 1"),
        ([[1, 0], [0, 1]], [1, 1], ["a", 1], "all strings or all integers"),
        ([[1, 0], [0, 1]], [1, 1], [0.5, 1.5], "a string or an integer; got 0.5"),
        ([[1, 0], [0, 1]], [1, 1], [True, False], "got True"),
    ],
)
def test_bad_counts_are_named(confusion, target, labels, message):
    with pytest.raises(ValueError, match=message):
        ShiftCounts(confusion, target, labels)
    if np.ndim(confusion) == 2:
        with pytest.raises(ValueError, match=message):
            ShiftCounts(sparse.csr_array(np.array(confusion)), target, labels)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["a", "b"], ["a"], ["b"]), "one length.*got 2 and 1"),
        ((["a"], ["b"], []), "at least one target prediction"),
        ((["a"], ["zebra"], ["b"], ["a", "b"]), "y_pred holds 'zebra', unknown among the 2 labels"),
        (([0], [1], [5, 6], [0, 1]), "target_pred holds 5, 6, unknown"),
        (([0], [1], [-1], [0, 1]), "target_pred holds -1, unknown"),
        (([3], [9], [4], [3, 9]), "target_pred holds 4, unknown"),
        (([0.5], [1.0], [1.0], [0, 1]), "y_true holds 0.5, unknown"),
        (([np.nan], [1.0], [1.0], [0, 1]), "y_true has missing values, the first in row 0"),
        ((["a"], ["b"], [1]), "all strings or all integers"),
        (([True], [False], [True], [0, 1]), "got true and false"),
        (
            (np.array([2**64 - 3], np.uint64), [0], [0], [-3, 0]),
            "64 bits at most; got 18446744073709551613",
        ),
        (([1e19], [0], [0], [0, 1]), r"y_true holds 1e\+19, unknown"),
        (([0], [1], [1], {0, 1}), "labels must be given in order, as a list; got set"),
        (([0], [1], [1], 5), "labels must be given in order, as a list; got int"),
        (([0], [1], [1], [2**63, 1]), "must fit into 64 bits"),
        ((np.ma.array([0, 1], mask=[0, 1]), [0, 1], [1]), "y_true must not have masked values"),
        (([[0, 1]], [[0, 1]], [0]), "y_true must be one-dimensional"),
        (([0], [0], [0]), "at least 2 classes; got 1"),
    ],
)
def test_bad_predictions_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        ShiftCounts.from_predictions(*arguments)


def test_only_counts_over_the_same_labels_add_up():
    one = ShiftCounts([[1, 0], [0, 1]], [1, 1], ["a", "b"])
    other = ShiftCounts([[1, 0], [0, 1]], [1, 1], ["b", "a"])
    with pytest.raises(ValueError, match="same labels in the same order"):
        one + other
    with pytest.raises(TypeError):
        one + 1


def test_counts_do_not_change_with_what_they_were_made_of():
    confusion, target = np.eye(2, dtype=np.int64), np.ones(2, dtype=np.int64)
    counts = ShiftCounts(confusion, target)
    confusion[0, 0] = target[0] = 99
    assert counts == ShiftCounts(np.eye(2), np.ones(2))
    with pytest.raises(ValueError, match="read-only"):
        counts.target[0] = 5
    with pytest.raises(ValueError, match="read-only"):
        counts.confusion.data[0] = 5


@pytest.mark.parametrize("labels", [None, ["käse", "日本"], [5, -2]])
def test_save_and_load(tmp_path, labels):
    counts = ShiftCounts([[3, 0], [1, 0]], [4, 5], labels)
    counts.save(tmp_path / "counts")
    assert ShiftCounts.load(tmp_path / "counts") == counts
    assert [path.name for path in tmp_path.iterdir()] == ["counts"]


def test_another_target_keeps_the_validation_counts():
    counts = ShiftCounts([[3, 0], [1, 2]], [4, 5], ["a", "b"])
    other = counts.with_target([1, 0])
    assert other.target.tolist() == [1, 0]
    assert (other.confusion != counts.confusion).nnz == 0


def test_ten_thousand_classes_from_many_predictions_stay_small():
    rng = np.random.default_rng(0)
    truth, predicted, target = rng.integers(10_000, size=(3, 300_000))
    tracemalloc.start()
    counts = ShiftCounts.from_predictions(truth, predicted, target, labels=range(10_000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert counts.n_validation == counts.n_target == 300_000
    assert peak < 300e6  # a dense 10,000 x 10,000 array would be 800e6


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int16])
def test_duplicate_entries_of_a_narrow_type_do_not_wrap(dtype):
    places = np.zeros(300, int)
    confusion = sparse.coo_array((np.ones(300, dtype), (places, places)), shape=(2, 2))
    assert ShiftCounts(confusion, [1, 1]).n_validation == 300


def test_large_integer_labels_are_told_apart():
    labels = [2**53, 2**53 + 1, 2**62]
    counts = ShiftCounts.from_predictions(*[np.array([2**53 + 1])] * 3, labels=labels)
    assert counts.target.tolist() == [0, 1, 0]


def test_a_list_of_counts_can_be_summed():
    counts = ShiftCounts([[3, 0], [1, 2]], [4, 5])
    assert sum([counts, counts, counts]).n_target == 27


@pytest.mark.parametrize(
    "change",
    [
        {"indices": [0, 7, 1]},
        {"indices": [0, -1, 1]},
        {"indptr": [0, 500_000_000, 3]},
        {"indptr": [0, 3]},
    ],
)
def test_a_file_with_indices_out_of_range_is_damaged(tmp_path, change):
    parts = {"data": [1, 2, 3], "indices": [0, 1, 1], "indptr": [0, 2, 3]}
    rest = {"target": [1, 1], "labels": [0, 1]}
    save_arrays(tmp_path / "c.npz", "ShiftCounts", **(parts | rest | change))
    with pytest.raises(ValueError, match="damaged"):
        ShiftCounts.load(tmp_path / "c.npz")


@pytest.mark.parametrize("form", [np.array, sparse.csr_array, np.ndarray.tolist])
def test_a_confusion_matrix_of_either_orientation(form):
    rows = np.array([[9, 1], [2, 8]])  # as scikit-learn counts: true class by predicted one
    counts = ShiftCounts.from_confusion(form(rows), [30, 70], ["a", "b"], truth="rows")
    assert counts == ShiftCounts(rows.T, [30, 70], ["a", "b"])
    assert ShiftCounts.from_confusion(form(rows.T), [30, 70], ["a", "b"], truth="columns") == counts
    with pytest.raises(TypeError, match="truth"):
        ShiftCounts.from_confusion(rows, [30, 70])
    with pytest.raises(ValueError, match="scikit-learn"):
        ShiftCounts.from_confusion(rows, [30, 70], truth="row")
    with pytest.raises(ValueError, match=r"predicted where the truth was.*from_confusion"):
        ShiftCounts([[1, 2, 3], [4, 5, 6]], [1, 1])


def test_sums_that_would_wrap_around_are_refused():
    huge = 2**52
    with pytest.raises(ValueError, match=r"must not exceed 2\^53 in all"):
        ShiftCounts([[huge, huge], [huge, huge]], [1, 1])
    with pytest.raises(ValueError, match=r"target counts must not exceed 2\^53 in all"):
        ShiftCounts([[1, 0], [0, 1]], np.full(2, 2**62))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["cat", "dog"], ["cat", "cat"], ["CAT", "DOG"]), "'cat', 'dog' against 'CAT', 'DOG'"),
        (([1, 2], [1, 1], ["1", "2"]), "all strings or all integers"),
        (([1, 2], [2, 1], [5, 6]), "no class in common"),
        ((["a", "b"], ["A", "B"], ["A"]), "the true labels and the predictions of the same rows"),
        ((["a", float("nan")], ["a", "b"], ["a"]), "y_true has missing values, the first in row 1"),
        ((["a", None], ["a", "b"], ["a"]), "y_true has missing values, the first in row 1"),
        ((["a", "b"], ["a", 1], ["a"]), "y_pred must be all strings or all integers"),
    ],
)
def test_labels_written_in_two_ways_are_no_new_classes(arguments, message):
    with pytest.raises(ValueError, match=message):
        ShiftCounts.from_predictions(*arguments)


def test_categories_that_occur_nowhere_are_classes():
    kind = pd.CategoricalDtype(["low", "mid", "high"])
    columns = [pd.Series(values, dtype=kind) for values in (["low"], ["high"], ["low", "low"])]
    assert ShiftCounts.from_predictions(*columns).labels == ("low", "mid", "high")
    declared = pd.Series(["low"], dtype=kind)
    counts = ShiftCounts.from_predictions(declared, ["low"], ["low", "new"])
    assert counts.labels == ("high", "low", "mid", "new")


def test_series_and_frames_are_gone_by_their_names():
    frame = pd.DataFrame([[9, 2], [1, 8]], index=["a", "b"], columns=["a", "b"])
    target = pd.Series([70, 30], index=["b", "a"])
    counts = ShiftCounts(frame, target)
    assert counts == ShiftCounts([[9, 2], [1, 8]], [30, 70], ["a", "b"])
    assert ShiftCounts(frame.loc[["b", "a"]], target) == counts
    with pytest.raises(ValueError, match="the index of the target counts"):
        ShiftCounts(frame, pd.Series([70, 30], index=["b", "c"]))
    y = pd.Series(["a", "b", "a"])
    with pytest.raises(ValueError, match="different indexes"):
        ShiftCounts.from_predictions(y, y.iloc[::-1], ["a"])
    assert ShiftCounts.from_predictions(y, y.copy(), ["a"]).n_validation == 3


# Names beside values


def test_a_target_by_name_is_put_in_order():
    pandas = pytest.importorskip("pandas")
    counts = ShiftCounts(9 * np.eye(3, dtype=int), [1, 1, 1], ["a", "b", "c"])
    named = pandas.Series([30, 20, 10], index=["c", "b", "a"])
    assert counts.with_target(named).target.tolist() == [10, 20, 30]
    with pytest.raises(ValueError, match="must name the same 3 classes"):
        counts.with_target(named.rename({"a": "x"}))


def test_whole_numbers_of_an_index_are_names_where_labels_are_numbers():
    pandas = pytest.importorskip("pandas")
    seen = pandas.Series([0, 1, 1, 2, 2, 2]).value_counts().sort_index()
    square = 9 * np.eye(3, dtype=int)
    assert ShiftCounts(square, seen, [2, 1, 0]).target.tolist() == [3, 2, 1]
    assert ShiftCounts(square, seen, ["a", "b", "c"]).target.tolist() == [1, 2, 3]
    nullable = pandas.Series([1, 2, 3], dtype="Int64")
    assert ShiftCounts(square, nullable).target.tolist() == [1, 2, 3]


def test_masked_counts_are_refused():
    masked = np.ma.masked_equal([[3, 1], [1, 3]], 1)
    with pytest.raises(ValueError, match="the confusion counts must not have masked values"):
        ShiftCounts(masked, [1, 2])


def test_one_label_in_two_spellings_is_told_however_few_there_are():
    with pytest.raises(ValueError, match=r"no class in common: 'CAT', 'DOG' against 'cat'"):
        ShiftCounts.from_predictions(["CAT", "DOG"], ["cat", "cat"], ["cat"])
    always_wrong = ShiftCounts.from_predictions(["a", "b"], ["c", "c"], ["c"])
    assert always_wrong.labels == ("a", "b", "c")


@pytest.mark.parametrize("label", ["a" + chr(0), chr(0xD800)])
def test_labels_that_no_file_can_hold_are_refused(label):
    with pytest.raises(ValueError, match="UTF-8"):
        ShiftCounts([[1, 0], [0, 1]], [1, 1], [label, "b"])
