"""Whose the answer is: the split of the posterior's spread, and what is said of it."""

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sum_zero import sum_zero_basis

import gsb3se as gs
from gsb3se import ShiftCounts, Status
from gsb3se.posterior.identifiability import TargetInformation, identified, strength


def random_target(seed: int, n: int = 5, n_target: float = 80.0) -> TargetInformation:
    rng = np.random.default_rng(seed)
    weights = np.triu(rng.uniform(0.05, 1, (n, n)), 1)
    graph = gs.LabelGraph.from_weights(weights + weights.T)
    confusion = rng.dirichlet(np.ones(n), n).T
    sizes = rng.integers(1, 40, n).astype(float)
    return TargetInformation(
        rng.dirichlet(np.ones(n)), confusion, sizes, n_target, rng.gamma(2.0), graph.laplacian
    )


def on_sum_zero(matrix: np.ndarray) -> np.ndarray:
    """Its inverse on the sum-zero space."""
    basis = sum_zero_basis(len(matrix))
    return basis @ np.linalg.inv(basis.T @ matrix @ basis) @ basis.T


@pytest.mark.parametrize("seed", range(5))
def test_the_information_is_that_of_the_delta_method(seed):
    target = random_target(seed)
    q, confusion = target.q, target.confusion
    r = confusion @ q
    noise = (np.diag(r) - np.outer(r, r)) / target.n_target
    for share, column, size in zip(q, confusion.T, target.sizes, strict=True):
        noise += share**2 * (np.diag(column) - np.outer(column, column)) / (size + 1)
    slope = confusion @ (np.diag(q) - np.outer(q, q))
    expected = slope.T @ on_sum_zero(noise) @ slope
    np.testing.assert_allclose(target.information(), expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("seed", range(5))
def test_covariance_and_split_are_those_of_dense_inverses(seed):
    target = random_target(seed)
    laplacian, information = target.laplacian.toarray(), target.information()
    covariance = on_sum_zero(target.tau * laplacian + information)
    np.testing.assert_allclose(target.covariance(information), covariance, atol=1e-10)
    slope = (np.diag(target.q) - np.outer(target.q, target.q)) @ covariance
    of_prior = np.diag(slope @ (target.tau * laplacian) @ slope.T)
    of_counts = np.diag(slope @ information @ slope.T)
    split = target.split()
    np.testing.assert_allclose(split.variance, of_prior + of_counts, rtol=1e-8)
    np.testing.assert_allclose(split.of_prior, of_prior / (of_prior + of_counts), rtol=1e-7)


@given(st.integers(0, 10**6), st.integers(2, 9))
def test_the_share_lies_between_nothing_and_all_and_falls_with_more_data(seed, n):
    target = random_target(seed, n)
    shares = [
        target._replace(n_target=m * 50.0, sizes=m * target.sizes).split().prior_share
        for m in (1e-9, 1, 1e12)
    ]
    assert 1 + 1e-9 >= shares[0] > 0.99
    assert shares[0] >= shares[1] - 1e-9
    assert shares[2] < 0.01 and shares[1] > shares[2]


def test_it_agrees_with_the_spread_of_draws():
    counts = ShiftCounts(np.diag([800, 900, 700, 600]) + 50, [3000, 2000, 600, 4400])
    post = gs.estimate(counts)
    split = TargetInformation(
        post.mean,
        post.confusion_mean,
        counts.validation_sizes.astype(float),
        10_000.0,
        strength(post),
        post.problem.graph.laplacian,
    ).split()
    np.testing.assert_allclose(np.sqrt(split.variance), post.sd, rtol=0.2)


def test_single_precision_has_digits_enough(monkeypatch):
    rng = np.random.default_rng(0)
    columns = np.column_stack([rng.multinomial(20, c) for c in rng.dirichlet(np.ones(40) / 9, 40)])
    counts = ShiftCounts(columns + 20 * np.eye(40, dtype=int), rng.multinomial(5000, [1 / 40] * 40))
    post = gs.Structured(refine=False).infer(gs.Problem(counts), rng)
    monkeypatch.setattr("gsb3se.posterior.identifiability.SINGLE_PRECISION_INFORMATION", 10)
    again = identified(post)
    for name in ("prior_share", "spread"):
        ours, theirs = (each.diagnostics.figures[name] for each in (again, post))
        assert ours == pytest.approx(theirs, rel=1e-3)


def quietly(counts: ShiftCounts, **options) -> gs.Posterior:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gs.GSB3SEWarning)
        return gs.estimate(counts, **options)


@pytest.mark.parametrize("backend", ["structured", "newton"])
@pytest.mark.parametrize(
    ("confusion", "target", "status", "told"),
    [
        ([[45, 5], [5, 45]], [70, 30], Status.OK, "ok"),
        ([[9, 0, 1], [1, 9, 0], [0, 1, 9]], [1, 0, 0], Status.NOT_IDENTIFIED,
         "1 target predictions are few for 3 classes (collect more target predictions)"),
        (np.zeros((3, 3), int), [5, 5, 5], Status.NOT_IDENTIFIED, "no validation row of 0, 1, 2"),
        ([[900, 500, 500], [100, 300, 300], [0, 200, 200]], [500, 300, 30],
         Status.PARTLY_IDENTIFIED, "hardly tell 1, 2 apart: their sum is better known than each"),
        ([[900, 5, 5], [100, 500, 500], [0, 450, 450]], [300, 350, 350], Status.NOT_IDENTIFIED,
         "hardly tell 1, 2 apart: their sum is better known than each (merge them)"),
        ([[50, 50], [0, 0]], [50, 50], Status.NOT_IDENTIFIED,
         "50 % of the target's predictions are of classes that no validation row was predicted"),
        ([[900, 900, 900], [900, 900, 900], [200, 200, 200]], [400, 500, 100],
         Status.NOT_IDENTIFIED, "more rows would not change that (merge classes"),
        ([[50, 50, 50], [0, 0, 0], [0, 0, 0]], [50, 0, 0], Status.NOT_IDENTIFIED,
         "do not tell the classes apart"),
    ],
)  # fmt: skip
def test_what_the_counts_leave_open_is_said_with_what_would_help(
    confusion, target, status, told, backend
):
    found = quietly(ShiftCounts(confusion, target), backend=backend).diagnostics
    assert status in {finding.status for finding in found.findings} or found.status is status
    assert told in found.message


@pytest.mark.parametrize("rows", [10**3, 10**6, 5 * 10**9, 10**12])
def test_large_counts_of_classes_that_cannot_be_told_apart_are_not_identified(rows):
    counts = ShiftCounts([[rows, rows], [rows, rows]], [70, 30])
    assert quietly(counts, backend="newton").diagnostics.status is Status.NOT_IDENTIFIED
    assert quietly(counts).diagnostics.status is Status.NOT_IDENTIFIED


@pytest.mark.parametrize(("n", "accuracy"), [(10, 0.7), (60, 0.75), (60, 0.99)])
def test_few_labels_of_a_good_classifier_are_identified_and_those_of_a_bad_one_are_not(n, accuracy):
    rng = np.random.default_rng(n)
    for right, expected in ((accuracy, False), (1.5 / n, True)):
        rates = np.full((n, n), (1 - right) / (n - 1))
        np.fill_diagonal(rates, right)
        confusion = np.column_stack([rng.multinomial(10, column) for column in rates.T])
        target = rng.multinomial(20 * n, rates @ rng.dirichlet(np.ones(n)))
        found = quietly(ShiftCounts(confusion, target), backend=gs.Structured(refine=False))
        statuses = {finding.status for finding in found.diagnostics.findings}
        assert (Status.NOT_IDENTIFIED in statuses) is expected


def test_one_unseen_class_of_many_is_flagged_and_spoils_nothing():
    rng = np.random.default_rng(0)
    n = 200
    confusion = np.column_stack([rng.multinomial(30, c) for c in np.eye(n) * 0.8 + 0.2 / n])
    confusion[:, 7] = 0
    post = gs.estimate(ShiftCounts(confusion, np.full(n, 25)))
    assert post.diagnostics.status is Status.OK
    assert "no validation rows" in post.diagnostics.flags[7]
    half = confusion.copy()
    half[:, ::2] = 0
    found = quietly(ShiftCounts(half, np.full(n, 25)), prior="paper").diagnostics
    assert {finding.status for finding in found.findings} & {
        Status.PARTLY_IDENTIFIED, Status.NOT_IDENTIFIED,
    }  # fmt: skip


def test_flags_tell_classes_apart_and_are_saved(tmp_path):
    counts = ShiftCounts(
        [[90, 2, 2, 0], [5, 50, 50, 0], [5, 48, 48, 0], [0, 0, 0, 0]],
        [500, 300, 300, 0],
        labels=["a", "b", "c", "d"],
    )
    post = quietly(counts)
    flags = post.diagnostics.flags
    assert "cannot be told from 'c'" in flags["b"] and "cannot be told from 'b'" in flags["c"]
    assert {"no validation rows", "never predicted"} <= set(flags["d"])
    assert "a" not in flags
    post.save(tmp_path / "post.npz")
    again = gs.Posterior.load(tmp_path / "post.npz").diagnostics
    assert again.flags == flags and again.findings == post.diagnostics.findings


def test_the_sum_of_a_single_class_or_of_all_is_never_told():
    rng = np.random.default_rng(0)
    for _ in range(25):
        n = int(rng.integers(2, 6))
        confusion = rng.integers(0, 8, (n, n)) * (rng.uniform(size=(n, n)) < 0.6)
        target = rng.integers(0, 200, n)
        target[0] += 1
        message = quietly(ShiftCounts(confusion, target), backend="newton").diagnostics.message
        for part in message.split("; "):
            if "their sum" in part:
                names = part.split("hardly tell ")[1].split(" apart")[0].split(", ")
                assert 2 <= len(names) < n


def test_a_graph_that_nearly_falls_apart_is_told():
    confusion, target = 40 * np.eye(20, dtype=int) + 2, np.full(20, 40)
    apart = np.zeros((20, 20))
    apart[:10, :10] = apart[10:, 10:] = 0.5
    np.fill_diagonal(apart, 0)
    for bridge, loose in ((0.001, True), (0.3, False)):
        apart[9, 10] = apart[10, 9] = bridge
        graph = gs.LabelGraph.from_weights(apart)
        found = quietly(ShiftCounts(confusion, target), graph=graph).diagnostics
        assert (found.status is Status.LOOSE_GRAPH) is loose
    for ordinal in (5, 30):
        line = np.diag(np.ones(ordinal - 1), 1)
        graph = gs.LabelGraph.from_weights(line + line.T)
        counts = ShiftCounts(40 * np.eye(ordinal, dtype=int) + 1, np.full(ordinal, 40))
        assert quietly(counts, graph=graph).diagnostics.status is Status.OK


def test_many_windows_warn_once():
    counts = ShiftCounts([[30, 30], [20, 20]], [60, 40])
    with pytest.warns(gs.GSB3SEWarning) as caught:
        gs.estimate(counts, targets=[[5, 5]] * 20, backend="newton")
    assert len(caught) == 1
    assert "of 20 posteriors 20 not identified; the first of them, number 0:" in str(caught[0])
    assert caught[0].filename == __file__


@pytest.mark.parametrize("backend", ["newton", "laplace", "structured", "amortized"])
def test_a_classifier_that_says_one_thing_only_is_useless_whatever_the_mode(backend):
    confusion = np.zeros((5, 5), dtype=int)
    confusion[0] = 50
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gs.GSB3SEWarning)
        post = gs.estimate(gs.ShiftCounts(confusion, [100_000, 0, 0, 0, 0]), backend=backend)
    assert "every validation row was predicted as 0" in post.diagnostics.message
    assert any(found.status is gs.Status.NOT_IDENTIFIED for found in post.diagnostics.findings)
