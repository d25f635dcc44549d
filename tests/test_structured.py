"""The default backend: against exact posteriors, on many windows, at many classes."""

from dataclasses import replace

import numpy as np
import pytest
from exact import three_classes, two_classes
from problems import PRIORS_THE_PAPERS_SLOW

import gsb3se as gs
from gsb3se.inference.structured.backend import Structured
from gsb3se.inference.structured.share_mode import checked_cholesky
from gsb3se.support.errors import NoSolution


@pytest.mark.parametrize("make", [two_classes, three_classes], ids=["K=2", "K=3"])
def test_matches_the_exact_posterior(make):
    problem, mean, sd, predicted, _ = make()
    posterior = Structured(draws=6000).infer(problem, np.random.default_rng(0))
    assert (np.abs(posterior.mean - mean) < 0.12 * sd).all()
    np.testing.assert_allclose(posterior.sd, sd, rtol=0.12)
    np.testing.assert_allclose(posterior.form.r.mean(axis=(0, 1)), predicted, atol=0.01)
    assert posterior.diagnostics.figures["accepted"] > 0.6


def good_classifier(n, labels, n_target, seed, graph=None):
    rng = np.random.default_rng(seed)
    graph = graph or gs.LabelGraph.knn(rng.standard_normal((n, 8)), k=min(5, n - 1))
    confusion = 0.85 * np.eye(n) + 0.15 * rng.dirichlet(np.full(n, 0.5), n).T
    q = rng.dirichlet(np.ones(n))
    columns = np.column_stack([rng.multinomial(labels, column) for column in confusion.T])
    return gs.ShiftCounts(columns, rng.multinomial(n_target, confusion @ q)), graph, q


@pytest.mark.parametrize("prior", PRIORS_THE_PAPERS_SLOW)
def test_finds_the_truth_of_a_good_classifier_and_agrees_with_hmc(prior):
    counts, graph, q = good_classifier(12, 60, 3000, seed=4)
    ours = gs.estimate(counts, graph, prior=prior, seed=1)
    hmc = gs.HMC(chains=2, warmup=400, draws=800, progress=False)
    exact = hmc.infer(gs.Problem(counts, graph, prior), np.random.default_rng(0))
    gap = np.abs(ours.mean - exact.mean) / exact.sd
    assert np.median(gap) < 0.12
    assert gap.max() < 0.35
    np.testing.assert_allclose(ours.sd, exact.sd, rtol=0.2)
    low, high = ours.interval(0.99)
    assert ((low < q) & (q < high)).mean() > 0.8
    np.testing.assert_allclose(ours.confusion_mean, exact.confusion_mean, atol=0.03)
    sides = [np.log(post.form.others["tau_C"]) for post in (ours, exact)]
    assert abs(sides[0].mean() - sides[1].mean()) < 0.5 * sides[1].std() + 0.05


def test_windows_share_the_source_and_a_seed_repeats():
    counts, graph, _ = good_classifier(6, 40, 500, seed=0)
    other = counts.target[::-1].copy()
    windows = gs.estimate(counts, graph, targets=[counts.target, other], seed=3)
    again = gs.estimate(counts, graph, targets=[counts.target, other], seed=3)
    single = gs.estimate(counts, graph, seed=3)
    np.testing.assert_array_equal(windows[0].form.q, single.form.q)
    np.testing.assert_array_equal(windows[1].form.q, again[1].form.q)
    assert windows[1].n_target == 500
    seconds = [post.diagnostics.figures["source_seconds"] for post in windows]
    assert seconds[0] == seconds[1]  # prepared once
    source = gs.Structured().prepare(counts.confusion, graph, labels=counts.labels)
    np.testing.assert_allclose(source.infer(other, seed=5).mean, windows[1].mean, atol=0.02)
    with pytest.raises(ValueError, match="target"):
        source.infer([1, 2, 3])


def test_other_backends_take_windows_too():
    counts, graph, _ = good_classifier(4, 40, 300, seed=0)
    first, second = gs.estimate(
        counts, graph, targets=[counts.target, [300, 0, 0, 0]], backend="newton"
    )
    assert second.mean[0] > first.mean[0]


def test_the_exchangeable_graph_is_the_complete_one():
    """The star's closed form against exact inverses of the same Laplacian."""
    n = 8
    counts, _, _ = good_classifier(n, 30, 800, seed=2)
    weights = (np.ones((n, n)) - np.eye(n)) / n
    posts = [
        gs.Structured(draws=4000).infer(gs.Problem(counts, graph), np.random.default_rng(0))
        for graph in (gs.LabelGraph.exchangeable(n), gs.LabelGraph.from_weights(weights))
    ]
    np.testing.assert_allclose(posts[0].mean, posts[1].mean, atol=0.1 * posts[0].sd.max())
    taus = [post.diagnostics.figures["tau_C"] for post in posts]
    assert taus[0] == pytest.approx(taus[1], rel=0.03)


def test_three_hundred_classes_with_some_unseen():
    counts, graph, q = good_classifier(300, 10, 5000, seed=1)
    confusion = counts.confusion.toarray()
    confusion[:, :3] = 0
    counts = gs.ShiftCounts(confusion, counts.target)
    posterior = gs.estimate(counts, graph)
    assert posterior.diagnostics.status.is_ok  # three of three hundred do not spoil the rest
    for label in range(3):
        assert "no validation rows" in posterior.diagnostics.flags[label]
    low, high = posterior.interval(0.9)
    assert ((low <= q) & (q <= high)).mean() > 0.8
    figures = posterior.diagnostics.figures
    assert figures["columns_not_converged"] == 0
    assert figures["column_sum_error"] < 1e-4


def test_large_counts_keep_their_digits():
    confusion = np.array([[90_000, 5_000], [10_000, 95_000]])
    counts = gs.ShiftCounts(confusion, [70_000_000, 30_000_000])
    posterior = gs.estimate(counts)
    expected = gs.baselines.bbse(counts)
    np.testing.assert_allclose(posterior.mean, expected, atol=0.005)
    assert posterior.sd.max() < 0.01


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match="draws must be"):
        gs.Structured(draws=3)
    with pytest.raises(ValueError, match="refine must be"):
        gs.Structured(refine="often")
    with pytest.raises(ValueError, match="tolerance"):
        gs.Laplace(tolerance=0)


def test_progress_is_shown_when_asked_for(capsys):
    counts, graph, _ = good_classifier(5, 20, 100, seed=0)
    gs.Structured(progress=True).infer(gs.Problem(counts, graph), np.random.default_rng(0))
    assert "5 columns" in capsys.readouterr().err


@pytest.mark.parametrize("make", [two_classes, three_classes], ids=["K=2", "K=3"])
def test_laplace_is_near_the_exact_posterior(make):
    problem, mean, sd, predicted, _ = make()
    posterior = gs.Laplace().infer(problem, np.random.default_rng(0))
    assert (np.abs(posterior.mean - mean) < 0.35 * sd).all()
    np.testing.assert_allclose(posterior.sd, sd, rtol=0.2)
    np.testing.assert_allclose(posterior.form.r.mean(axis=(0, 1)), predicted, atol=0.02)
    assert sum(posterior.diagnostics.figures["grid_weights"]) == pytest.approx(1)


def test_sensitivities_are_those_of_the_quadratic_model():
    """Against solving the penalised problem anew with a changed graph."""
    counts, graph, _ = good_classifier(7, 50, 900, seed=5)
    posterior = gs.estimate(counts, graph)
    found = gs.diagnostics.effective_information(posterior)
    tau = posterior.diagnostics.figures["tau_q"]
    log_q = np.log(posterior.mean)
    theta, laplacian = log_q - log_q.mean(), graph.laplacian.toarray()
    pseudo = np.linalg.pinv(found.information + tau * laplacian)
    assert np.diag(pseudo).max() <= found.variance_bound * (1 + 1e-9)
    assert ((found.shrinkage >= 0) & (found.shrinkage <= 1)).all()
    np.testing.assert_allclose(found.information.sum(axis=0), 0, atol=1e-8)

    # The centre at which the penalised quadratic has its minimum at theta.
    information = found.information
    pulled = information @ theta + tau * laplacian @ theta

    def solved(changed):
        moved = np.linalg.pinv(information + tau * changed) @ pulled
        share = np.exp(moved)
        return share / share.sum()

    sensitivity = gs.diagnostics.graph_sensitivity(posterior)
    edge = int(sensitivity.strongest.argmax())
    i, j = sensitivity.edges[edge]
    step = np.zeros((7, 7))
    step[[i, j], [i, j]], step[[i, j], [j, i]] = 1, -1
    step *= 1e-4 * -laplacian[i, j]
    expected = (solved(laplacian + step) - solved(laplacian - step)) / 2e-4
    np.testing.assert_allclose(sensitivity.change[edge], expected, rtol=1e-4, atol=1e-9)
    assert sensitivity.without_graph.sum() == pytest.approx(1)


def test_a_loaded_posterior_tells_as_much_and_a_bare_one_says_that_it_cannot(tmp_path):
    counts, graph, _ = good_classifier(4, 30, 200, seed=0)
    made = gs.estimate(counts, graph)
    made.save(tmp_path / "post.npz")
    loaded = gs.Posterior.load(tmp_path / "post.npz")
    assert loaded.mean.sum() == pytest.approx(1)
    told, expected = (gs.diagnostics.graph_sensitivity(post).change for post in (loaded, made))
    np.testing.assert_allclose(told, expected, atol=1e-12)
    with pytest.raises(ValueError, match="infer it anew"):
        gs.diagnostics.graph_sensitivity(replace(loaded, problem=None))


ALIKE = {  # digits whose mean images are
    0: {5: 0.28, 6: 0.27, 8: 0.37, 9: 0.45},
    1: {2: 0.37, 4: 0.37, 5: 0.33, 6: 0.29, 7: 0.33, 8: 0.6},
    2: {3: 0.41, 5: 0.28, 8: 0.41},
    3: {5: 0.34, 8: 0.47, 9: 0.57},
    4: {6: 0.33, 7: 0.28, 8: 0.29},
    5: {7: 0.32, 8: 0.49, 9: 0.42},
    6: {8: 0.35},
    7: {8: 0.45},
    8: {9: 0.53},
}


def alike_digits():
    weights = np.zeros((10, 10))
    for i, neighbours in ALIKE.items():
        for j, weight in neighbours.items():
            weights[i, j] = weights[j, i] = weight
    return gs.LabelGraph.from_weights(weights)


@pytest.mark.parametrize("prior", [gs.Prior(), gs.Prior.anchored()], ids=["paper", "anchored"])
def test_a_classifier_that_says_one_class_only(prior):
    """Nothing is known of the shares, and some strengths on the way leave a column no level."""
    confusion = np.zeros((10, 10), dtype=int)
    confusion[8] = 20
    counts = gs.ShiftCounts(confusion, [0] * 8 + [300, 0])
    with pytest.warns(gs.GSB3SEWarning):
        post = gs.estimate(counts, alike_digits(), prior=prior, backend=gs.Structured(refine=False))
    assert np.isfinite(post.sd).all() and post.mean.sum() == pytest.approx(1)
    low, high = post.interval(0.9)
    assert (high - low > 0.1).all()


@pytest.mark.parametrize("prior", PRIORS_THE_PAPERS_SLOW)
def test_a_classifier_that_says_two_classes_only(prior):
    """Its strengths are hardly known, and laws far out on their axes must stay possible ones."""
    confusion = np.zeros((10, 10), dtype=int)
    confusion[0] = [38, 0, 14, 9, 26, 16, 30, 21, 16, 19]
    confusion[1] = [2, 40, 26, 30, 14, 22, 10, 19, 24, 19]
    confusion[5, 5], confusion[9, [3, 9]] = 2, [1, 2]
    counts = gs.ShiftCounts(confusion, [178, 202, 0, 0, 0, 0, 0, 0, 0, 20])
    for graph in (alike_digits(), None):
        with pytest.warns(gs.GSB3SEWarning, match="not identified"):
            post = gs.estimate(counts, graph, prior=prior)
        assert np.isfinite(post.sd).all() and post.mean.sum() == pytest.approx(1)
        exact = gs.Structured(refine=True).prepared(post.problem).infer(counts.target)
        assert np.abs(post.mean - exact.mean).max() < 0.25


@pytest.mark.parametrize("prior", [gs.Prior(), gs.Prior.anchored()], ids=["paper", "anchored"])
@pytest.mark.parametrize("target", [[0, 1], [1, 0], [10**6, 0], [500, 500]])
def test_a_source_of_one_predicted_class_ends_in_a_wide_posterior(prior, target):
    counts = gs.ShiftCounts([[1000, 1000], [0, 0]], target)
    with pytest.warns(gs.GSB3SEWarning, match="not identified"):
        post = gs.estimate(counts, prior=prior)
    low, high = post.interval(0.9)
    assert np.isfinite(post.mean).all() and (low <= high).all()
    if min(target) == 0:  # else either class may be what was never predicted before
        assert (high - low > 0.5).all()


@pytest.mark.parametrize("seed", range(12))
def test_whatever_class_a_source_always_predicts_the_end_is_finite(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 8))
    confusion = np.zeros((n, n), dtype=int)
    confusion[rng.integers(n)] = rng.integers(0, 10 ** rng.integers(1, 5), n)
    target = rng.multinomial(10 ** rng.integers(0, 6), rng.dirichlet(np.full(n, 0.3)))
    counts = gs.ShiftCounts(confusion, target)
    prior = (gs.Prior(), gs.Prior.anchored())[seed % 2]
    with pytest.warns(gs.GSB3SEWarning, match="not identified"):
        post = gs.estimate(counts, prior=prior)
    assert np.isfinite(post.mean).all() and post.mean.sum() == pytest.approx(1)
    low, high = post.interval(0.9)
    assert (low <= high).all() and (post.sd > 0).all()


def test_a_curvature_without_numbers_is_an_error_and_no_endless_loop():
    with pytest.raises(NoSolution, match="use backend='hmc'"):
        checked_cholesky(np.full((2, 2), np.nan))
    indefinite = np.diag([1.0, -1.0])
    assert np.isfinite(checked_cholesky(indefinite)).all()
