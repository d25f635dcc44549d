import warnings

import numpy as np
import pytest

import gsb3se as gs
from gsb3se import Diagnostics, ShiftCounts, Status, diagnostics
from gsb3se.diagnostics import Finding, identifiability, rank_uniformity


def test_every_status_names_cause_and_remedy():
    for status in Status:
        assert status.text
        assert status.is_ok or any(
            word in status.text for word in ("raise", "use", "collect", "merge")
        )


def test_the_gravest_finding_names_the_result_and_each_remedy_is_told_once():
    found = Diagnostics.of(
        [
            Finding(Status.NOT_IDENTIFIED, "first"),
            Finding(Status.DIVERGENT, "second"),
            Finding(Status.NOT_IDENTIFIED, "third"),
        ],
        {"a": 1},
    )
    assert found.status is Status.DIVERGENT
    assert found.message.index("second") < found.message.index("first")
    assert found.message.count(Status.NOT_IDENTIFIED.text) == 1
    assert "third" in found.message


def test_a_good_classifier_is_identified():
    found = identifiability(ShiftCounts([[45, 5], [5, 45]], [70, 30]))
    assert found.findings == ()
    assert found.smallest_singular_value == pytest.approx(0.8)
    assert found.condition_number == pytest.approx(1.25)


@pytest.mark.parametrize(
    ("confusion", "target", "expected"),
    [
        ([[9, 0, 0], [1, 8, 0], [0, 2, 0]], [50, 50, 3], "no validation row of 2"),
        ([[900, 500, 500], [100, 300, 300], [0, 200, 200]], [50, 50, 3], "hardly tell 1, 2 apart"),
        (
            [[9, 0, 1], [1, 9, 0], [0, 1, 9]],
            [1, 0, 0],
            "fewer target predictions (1) than classes (3)",
        ),
        (np.zeros((3, 3), int), [5, 5, 5], "no validation row of 0, 1, 2"),
        (np.eye(3, dtype=int), [50, 50, 30], "hardly tell 0, 1, 2 apart"),
        ([[50, 50, 50], [0, 0, 0], [0, 0, 0]], [50, 0, 0], "hardly tell 0, 1, 2 apart"),
    ],
)
def test_what_cannot_be_learned_is_said(confusion, target, expected):
    found = identifiability(ShiftCounts(confusion, target))
    assert any(expected in finding.sentence for finding in found.findings)
    assert {finding.status for finding in found.findings} == {Status.NOT_IDENTIFIED}


def test_a_class_never_predicted_makes_the_matrix_singular():
    counts = ShiftCounts([[9, 1, 4], [1, 9, 6], [0, 0, 0]], [50, 50, 0], labels=["a", "b", "c"])
    found = identifiability(counts)
    assert found.never_predicted == ("c",)
    assert found.smallest_singular_value < 1e-12
    assert found.condition_number == np.inf
    assert found.findings


def test_many_classes_go_by_the_sparse_path_to_the_same_answer(monkeypatch):
    rng = np.random.default_rng(0)
    confusion = rng.poisson(0.2, (60, 60)) + np.diag(rng.integers(3, 40, 60))
    confusion[:, 17] = confusion[:, 4]
    confusion *= 100
    counts = ShiftCounts(confusion, np.full(60, 20))
    for alike in (True, False):
        if not alike:
            confusion[17, 17] += 3000
            counts = ShiftCounts(confusion, np.full(60, 20))
        dense = identifiability(counts)
        monkeypatch.setattr(diagnostics, "_DENSE_SINGULAR_VALUES", 10)
        sparse = identifiability(counts)
        monkeypatch.undo()
        assert sparse.smallest_singular_value == pytest.approx(
            dense.smallest_singular_value, rel=1e-3, abs=1e-6
        )
        assert sparse.weakest == dense.weakest
        assert sparse.noise == pytest.approx(dense.noise, rel=1e-3)


def test_even_ranks_pass_and_uneven_ones_do_not():
    rng = np.random.default_rng(0)
    p = [rank_uniformity(rng.integers(100, size=200), 99, seed=i) for i in range(60)]
    assert 0.0 < np.mean(np.array(p) < 0.05) < 0.2
    assert rank_uniformity(rng.integers(85, size=200), 99) < 0.05
    assert rank_uniformity(rng.integers(20, 80, size=200), 99) < 0.01
    assert rank_uniformity(rng.binomial(99, rng.beta(1.5, 1, 200)), 99) < 0.05
    with pytest.raises(ValueError, match="from 0 to 99"):
        rank_uniformity([100], 99)


@pytest.mark.parametrize("rows", [10**3, 10**6, 5 * 10**9, 10**12])
def test_large_counts_of_classes_that_cannot_be_told_apart_are_not_identified(rows):
    counts = ShiftCounts([[rows, rows], [rows, rows]], [70, 30])
    assert identifiability(counts).findings[0].status.value == "not identified"


@pytest.mark.parametrize("backend", ["hmc", "amortized", "newton"])
def test_sensitivities_of_other_backends_are_told_or_refused(backend):
    counts = ShiftCounts([[30, 2, 1], [2, 30, 3], [1, 1, 30]], [60, 30, 10])
    chosen = gs.HMC(chains=1, warmup=200, draws=200) if backend == "hmc" else backend
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gs.GSB3SEWarning)
        post = gs.estimate(counts, backend=chosen)
        structured = gs.estimate(counts)
    if backend != "hmc":
        with pytest.raises(ValueError, match="infer it anew with backend='structured'"):
            gs.diagnostics.graph_sensitivity(post)
        with pytest.raises(ValueError, match="infer it anew with backend='structured'"):
            gs.diagnostics.effective_information(post)
        return
    ours, theirs = map(gs.diagnostics.effective_information, (post, structured))
    np.testing.assert_allclose(ours.information, theirs.information, rtol=0.3, atol=1)
    assert np.isfinite(gs.diagnostics.graph_sensitivity(post).change).all()
