import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit

import gsb3se as gs
from gsb3se import Diagnostics, Posterior, Status
from gsb3se.posterior.families import LogisticNormal
from gsb3se.support.errors import MissingExtra

LABELS = ("cat", "dog", "eel")


@pytest.fixture
def drawn():
    """Draws of three shares by four chains, their r, and what a sampler says about them."""
    rng = np.random.default_rng(0)
    q = rng.dirichlet([5, 3, 2], (4, 250))
    confusion = np.array([[0.8, 0.1, 0.3], [0.1, 0.8, 0.3], [0.1, 0.1, 0.4]])
    return Posterior.from_draws(
        q,
        q @ confusion.T,
        others={"tau_q": rng.gamma(2, size=(4, 250)), "diverging": np.zeros((4, 250), bool)},
        labels=LABELS,
        diagnostics=Diagnostics(Status.TOO_FEW_DRAWS, "few", {"ess": [1.0, 2.0], "n": 3}),
        backend="hmc",
        confusion_mean=confusion,
        n_target=500,
    )


@pytest.fixture
def gaussian():
    rng = np.random.default_rng(1)
    factor = 0.3 * rng.standard_normal((3, 4))
    return Posterior(
        LogisticNormal(np.array([0.5, 0.0, -0.5]), factor, np.log([0.5, 0.3, 0.2]), factor / 2),
        LABELS,
        Diagnostics.of([], {}),
        backend="newton",
    )


def test_summaries_of_draws(drawn):
    flat = drawn.form.q.reshape(-1, 3)
    np.testing.assert_allclose(drawn.mean, flat.mean(axis=0))
    np.testing.assert_allclose(drawn.sd, flat.std(axis=0, ddof=1))
    low, high = drawn.interval(0.8)
    np.testing.assert_allclose([low, high], np.quantile(flat, [0.1, 0.9], axis=0))
    assert drawn.quantile(0.5).shape == (3,)
    assert drawn.quantile([0.1, 0.5, 0.9]).shape == (3, 3)
    np.testing.assert_allclose(drawn.mean.sum(), 1.0)


def test_summaries_of_a_gaussian_match_quadrature():
    """K = 2: q_1 = expit(theta_1 - theta_2), one dimension."""
    mean, sd = 0.7, 1.3  # of theta_1 - theta_2
    covariance = sd**2 / 4 * np.array([[1.0, -1.0], [-1.0, 1.0]])
    post = Posterior.gaussian([mean / 2, -mean / 2], covariance)
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    share = expit(mean + sd * nodes)
    weights = weights / weights.sum()
    expected = weights @ share
    assert post.mean[0] == pytest.approx(expected, abs=2e-3)
    assert post.sd[0] == pytest.approx(np.sqrt(weights @ (share - expected) ** 2), rel=0.03)
    np.testing.assert_allclose(post.quantile(0.95)[0], expit(mean + sd * 1.6449), atol=0.02)


def test_draws_of_a_gaussian_have_its_moments(gaussian):
    sample = np.log(gaussian.sample(40_000, seed=3))
    centred = sample - sample.mean(axis=1, keepdims=True)
    projection = np.eye(3) - 1 / 3
    factor = projection @ gaussian.form.factor
    np.testing.assert_allclose(np.cov(centred.T), factor @ factor.T, atol=0.01)


def test_sampling_is_seeded_and_takes_no_draw_twice(drawn, gaussian):
    for post in (drawn, gaussian):
        np.testing.assert_array_equal(post.sample(20, seed=5), post.sample(20, seed=5))
        assert not np.array_equal(post.sample(20, seed=5), post.sample(20, seed=6))
        np.testing.assert_allclose(post.sample(20).sum(axis=1), 1.0)
    assert len(np.unique(drawn.sample(1000), axis=0)) == 1000
    assert drawn.sample(3000).shape == (3000, 3)


def test_predictive_counts_have_the_moments_of_the_mixture(drawn):
    counts = drawn.predictive(200, 20_000, seed=0)
    assert (counts.sum(axis=1) == 200).all()
    r = drawn.form.r.reshape(-1, 3)
    np.testing.assert_allclose(counts.mean(axis=0), 200 * r.mean(axis=0), rtol=0.01)
    variance = 200 * (r * (1 - r)).mean(axis=0) + 200**2 * r.var(axis=0)
    np.testing.assert_allclose(counts.var(axis=0), variance, rtol=0.05)
    silent = Posterior.from_draws(drawn.form.q)
    with pytest.raises(ValueError, match="holds no draws of the predicted shares"):
        silent.predictive(10, 10)


def test_importance_weights(drawn):
    source = np.array([0.5, 0.25, 0.25])
    weights = drawn.importance_weights(source, level=0.8)
    np.testing.assert_allclose(weights.mean, drawn.mean / source)
    np.testing.assert_allclose(weights.sd, drawn.sd / source)
    np.testing.assert_allclose([weights.low, weights.high], np.array(drawn.interval(0.8)) / source)
    with pytest.raises(ValueError, match="source_prior is 0 for 'eel'"):
        drawn.importance_weights([0.5, 0.5, 0.0])
    with pytest.raises(ValueError, match="a vector of 3 probabilities"):
        drawn.importance_weights([0.5, 0.5])


def test_nobody_can_change_a_posterior(drawn):
    given = np.array([[0.25, 0.75]])
    post = Posterior.from_draws(given)
    given[:] = 0.5
    assert post.mean.tolist() == [0.25, 0.75]
    for array in (post.mean, post.sd, post.form.q, drawn.confusion_mean):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 9


@pytest.mark.parametrize("kind", ["drawn", "gaussian"])
def test_save_and_load(kind, request, tmp_path):
    post = request.getfixturevalue(kind)
    post.save(tmp_path / "post.npz")
    loaded = Posterior.load(tmp_path / "post.npz")
    assert (loaded.labels, loaded.backend, loaded.n_target) == (
        post.labels,
        post.backend,
        post.n_target,
    )
    assert loaded.diagnostics == post.diagnostics
    np.testing.assert_array_equal(loaded.mean, post.mean)
    np.testing.assert_array_equal(loaded.interval(), post.interval())
    np.testing.assert_array_equal(loaded.predictive(9, 4), post.predictive(9, 4))
    if kind == "drawn":
        np.testing.assert_array_equal(loaded.confusion_mean, post.confusion_mean)
        np.testing.assert_array_equal(loaded.form.others["tau_q"], post.form.others["tau_q"])


def test_a_saved_posterior_loads_without_its_backend(drawn, tmp_path):
    drawn.save(tmp_path / "post.npz")
    program = (
        "import sys; sys.modules.update(jax=None, numpyro=None, arviz=None, pandas=None); "
        f"import gsb3se; print(gsb3se.Posterior.load({str(tmp_path / 'post.npz')!r}).mean.sum())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert float(done.stdout) == pytest.approx(1.0), done.stderr


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"form": "none"}, "unknown form 'none'"),
        ({"q": np.ones((2, 3))[:, :1]}, "damaged"),
        ({"q": np.full((4, 250, 3), 2.0)}, "sum to one"),
        ({"r": np.full((4, 250, 2), 0.5)}, "shape of q"),
        ({"draws_tau_q": np.ones(7)}, "draws of tau_q must be"),
        ({"confusion_mean": np.ones(3)}, "confusion_mean must be"),
        ({"confusion_mean": "none"}, "matrix of shares"),
        ({"confusion_mean": -np.eye(3)}, "matrix of shares"),
        ({"confusion_mean": 5 * np.eye(3)}, "sum to one"),
        ({"labels": ["a", "b"]}, "expected 3 labels"),
        ({"about": json.dumps({"status": "ok"})}, "damaged"),
        ({"about": "{"}, "damaged"),
        ({"kind": "ShiftCounts"}, "holds no Posterior"),
        ({"version": 99}, "upgrade"),
    ],
)
def test_a_damaged_file_says_so(drawn, tmp_path, change, message):
    drawn.save(tmp_path / "post.npz")
    with np.load(tmp_path / "post.npz") as archive:
        arrays = dict(archive)
    np.savez(tmp_path / "bad.npz", **(arrays | change))
    with pytest.raises(ValueError, match=message):
        Posterior.load(tmp_path / "bad.npz")


def test_to_frame_and_summary(drawn):
    frame = drawn.to_frame(0.8)
    assert list(frame.columns) == ["class", "mean", "sd", "low", "high"]
    assert frame["class"].tolist() == list(LABELS)
    np.testing.assert_allclose(frame["low"], drawn.interval(0.8)[0])
    text = drawn.summary(0.8)
    assert "80 % intervals; status: too few draws" in text
    assert text.splitlines()[1] == "few"
    many = Posterior.from_draws(np.random.default_rng(0).dirichlet(np.ones(40), 50))
    assert "15 classes with smaller shares" in many.summary()
    assert repr(drawn) == "Posterior(3 classes, draws by hmc, status 'too few draws')"


def test_a_frame_without_pandas_names_the_command(drawn, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtra, match=r"\[batch\]"):
        drawn.to_frame()


@pytest.mark.parametrize("kind", ["drawn", "gaussian"])
def test_to_arviz(kind, request):
    post = request.getfixturevalue(kind)
    data = post.to_arviz()
    q = data["posterior"]["q"]
    assert q.dims == ("chain", "draw", "class")
    assert q.coords["class"].values.tolist() == list(LABELS)
    np.testing.assert_allclose(q.mean(("chain", "draw")), post.mean, atol=0.01)
    if kind == "drawn":
        assert data["posterior"]["tau_q"].shape == (4, 250)
        assert data["sample_stats"]["diverging"].shape == (4, 250)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Posterior.from_draws([0.2, 0.8]), r"\(draws, K\)"),
        (lambda: Posterior.from_draws([[0.2, 0.9]]), "sum to one"),
        (lambda: Posterior.from_draws([[np.nan, 1.0]]), "finite"),
        (lambda: Posterior.from_draws([[0.5, 0.5]], [[1.0, 0.0], [0.0, 1.0]]), "shape of q"),
        (lambda: Posterior.from_draws([[0.5, 0.5]], labels=["a"]), "expected 2 labels"),
        (lambda: Posterior.from_draws(np.zeros((0, 4, 3))), r"\(draws, K\)"),
        (lambda: Posterior.from_draws([[0.5, 0.5]], others={"tau_q": [1, 2]}), "draws of tau_q"),
        (lambda: Posterior.from_draws([[0.5, 0.5]], confusion_mean=np.eye(3)), r"be \(2, 2\)"),
        (lambda: Posterior.gaussian([0.0, np.nan], np.eye(2)), "mean must be finite"),
        (lambda: Posterior.gaussian([0.0], [[1.0]]), "at least 2"),
        (lambda: Posterior.gaussian([0.0, 0.0], np.eye(3)), r"covariance \(K, K\)"),
        (lambda: Posterior.gaussian([0.0, 0.0], -np.eye(2)), "positive semi-definite"),
    ],
)
def test_bad_makings_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_bad_questions_are_refused(drawn):
    for question, message in [
        (lambda: drawn.quantile(1.2), "between 0 and 1"),
        (lambda: drawn.quantile([[0.5]]), "between 0 and 1"),
        (lambda: drawn.interval("90"), "level must lie between 0 and 1"),
        (lambda: drawn.interval(90), "level must lie between 0 and 1"),
        (lambda: drawn.sample(0), "n must be a whole number"),
        (lambda: drawn.predictive(0, 5), "n_target must be"),
    ]:
        with pytest.raises(ValueError, match=message):
            question()


@given(st.integers(2, 8), st.integers(0, 10_000), st.floats(0.05, 0.95))
def test_intervals_are_nested_and_ordered(n_classes, seed, level):
    rng = np.random.default_rng(seed)
    post = Posterior.from_draws(rng.dirichlet(np.ones(n_classes), 50))
    low, high = post.interval(level)
    wider_low, wider_high = post.interval((1 + level) / 2)
    assert (wider_low <= low).all()
    assert (low <= high).all()
    assert (high <= wider_high).all()


@pytest.mark.parametrize("p", [0, 1, 0.5, 0.123, [0.05, 0.95], [0, 0.31, 1]])
@pytest.mark.parametrize("n", [1, 2, 7, 100])
def test_quantiles_are_numpys(p, n):
    draws = np.random.default_rng(n).dirichlet(np.ones(3), n)
    expected = np.quantile(draws, p, axis=0)
    np.testing.assert_allclose(Posterior.from_draws(draws).quantile(p), expected, atol=1e-15)


def test_the_problem_is_saved_with_its_posterior(tmp_path):
    counts = gs.ShiftCounts([[9, 2, 0], [1, 8, 1], [0, 0, 5]], [30, 70, 9], LABELS)
    for graph in (None, gs.LabelGraph.from_weights([[0, 1, 0], [1, 0, 0.5], [0, 0.5, 0]], LABELS)):
        for prior in (gs.Prior(), gs.Prior.anchored(a_q=2.0)):
            made = gs.estimate(counts, graph, prior=prior)
            made.save(tmp_path / "post.npz")
            problem = Posterior.load(tmp_path / "post.npz").problem
            assert problem.counts == counts and problem.prior == prior
            difference = problem.graph.laplacian.toarray() - made.problem.graph.laplacian.toarray()
            assert np.abs(difference).max() < 1e-15
            assert problem.graph.is_exchangeable == (graph is None)


def test_labels_that_are_not_those_of_its_counts_are_refused(tmp_path):
    counts = gs.ShiftCounts(9 * np.eye(3, dtype=int), [3, 2, 1], ["a", "b", "c"])
    gs.estimate(counts, backend="newton").save(tmp_path / "post.npz")
    with np.load(tmp_path / "post.npz") as archive:
        arrays = dict(archive)
    np.savez(tmp_path / "bad.npz", **(arrays | {"labels": ["c", "b", "a"]}))
    with pytest.raises(ValueError, match="its labels are not those of its counts"):
        gs.Posterior.load(tmp_path / "bad.npz")
