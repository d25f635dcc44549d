import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from gsb3se import GSB3SEWarning, ShiftCounts, baselines
from gsb3se.model.mixture_proportions import mixture_proportions


def random_counts(n_classes, seed, n_source=30, n_target=500, quality=0.6):
    rng = np.random.default_rng(seed)
    noise = rng.dirichlet(np.full(n_classes, 0.5), n_classes).T
    confusion = quality * np.eye(n_classes) + (1 - quality) * noise
    q = rng.dirichlet(np.full(n_classes, 0.7))
    columns = rng.multinomial(n_source, confusion.T).T
    return ShiftCounts(columns, rng.multinomial(n_target, confusion @ q)), q


cases = st.builds(random_counts, n_classes=st.integers(2, 12), seed=st.integers(0, 10**6))
ignore_notes = pytest.mark.filterwarnings("ignore::gsb3se.support.errors.GSB3SEWarning")


@ignore_notes
@given(cases)
def test_every_baseline_is_on_the_simplex_and_relabels_with_the_classes(case):
    counts, _ = case
    order = np.random.default_rng(0).permutation(counts.n_classes)
    confusion = counts.confusion.toarray()[np.ix_(order, order)]
    shuffled = ShiftCounts(confusion, counts.target[order])
    for method in (baselines.bbse, baselines.rlls, baselines.mlls):
        q = method(counts)
        assert (q >= 0).all()
        assert q.sum() == pytest.approx(1)
        if method is not baselines.mlls:
            np.testing.assert_allclose(method(shuffled), q[order], atol=1e-5)


@pytest.mark.parametrize("method", [baselines.bbse, baselines.rlls, baselines.mlls])
def test_baselines_recover_q_from_many_rows(method):
    counts, q = random_counts(6, 1, n_source=10**6, n_target=10**7)
    np.testing.assert_allclose(method(counts), q, atol=5e-3)


def test_raw_bbse_solves_the_linear_system_and_projection_follows():
    counts, _ = random_counts(5, 3, n_source=8, n_target=40)
    raw = baselines.bbse(counts, project=False)
    np.testing.assert_allclose(counts.confusion_rates @ raw, counts.target / 40, atol=1e-10)
    assert raw.min() < 0
    assert raw.sum() == pytest.approx(1)


def test_singular_rates_give_the_least_norm_solution_and_a_note():
    counts = ShiftCounts([[5, 5, 0], [5, 5, 0], [0, 0, 9]], [10, 10, 20])
    with pytest.warns(GSB3SEWarning, match="singular"):
        q = baselines.bbse(counts)
    np.testing.assert_allclose(q, [0.25, 0.25, 0.5], atol=1e-9)


def test_near_singular_directions_are_cut_off_not_amplified():
    """Two columns that differ by rounding: their difference must not get a huge coefficient."""
    counts = ShiftCounts([[30, 10, 0], [70, 90, 0], [0, 0, 0]], [40, 50, 10])
    twin = ShiftCounts(
        [[300, 300, 0], [700, 700, 1], [0, 0, 999]], [300, 600, 100], labels=["a", "b", "c"]
    )
    for case in (counts, twin):
        with pytest.warns(GSB3SEWarning):
            raw = baselines.bbse(case, project=False)
        assert np.abs(raw).max() < 5


def test_classes_without_validation_rows_are_named_and_get_nothing():
    counts = ShiftCounts([[5, 0, 0], [0, 5, 0], [0, 0, 0]], [3, 5, 2], labels=["a", "b", "c"])
    for method in (baselines.bbse, baselines.rlls, baselines.mlls):
        with pytest.warns(GSB3SEWarning) as notes:
            q = method(counts)
        assert any("without validation rows" in str(note.message) for note in notes)
        assert q[2] == pytest.approx(0, abs=1e-9)
        assert q[:2].sum() == pytest.approx(1)


def test_target_predictions_impossible_under_the_rates_are_told():
    counts = ShiftCounts([[9, 1, 3], [1, 9, 3], [0, 0, 0]], [30, 20, 50], labels=["a", "b", "c"])
    for method in (baselines.bbse, baselines.rlls, baselines.mlls):
        with pytest.warns(GSB3SEWarning) as notes:
            method(counts)
        assert any("50 target predictions of 'c', never" in str(note.message) for note in notes)
    only = ShiftCounts([[9, 1, 3], [1, 9, 3], [0, 0, 0]], [0, 0, 50])
    with pytest.warns(GSB3SEWarning), pytest.raises(ValueError, match="also occurs on validation"):
        baselines.mlls(only)


def test_no_validation_rows_at_all_is_an_error():
    counts = ShiftCounts(np.zeros((2, 2), int), [1, 1])
    for method in (baselines.bbse, baselines.rlls, baselines.mlls):
        with pytest.raises(ValueError, match="needs validation rows"):
            method(counts)


# Mixture proportions: MLLS and EM


def log_likelihood(components, weights, q):
    seen = weights > 0
    return weights[seen] @ np.log(components[seen] @ q)


@given(st.integers(2, 8), st.integers(0, 10**6))
def test_proportions_are_optimal_within_their_gap(n_classes, seed):
    """No point of a fine random sample, and no vertex direction, beats the stated gap."""
    rng = np.random.default_rng(seed)
    components = rng.gamma(0.5, size=(20, n_classes)) + 1e-9
    weights = rng.dirichlet(np.ones(20))
    found = mixture_proportions(components, weights)
    assert found.converged
    assert found.gap <= 1e-12
    assert found.q.sum() == pytest.approx(1)
    reached = log_likelihood(components, weights, found.q)
    for other in rng.dirichlet(np.full(n_classes, 0.5), 300):
        assert log_likelihood(components, weights, other) <= reached + found.gap + 1e-12
        near = 0.999 * found.q + 0.001 * other
        assert log_likelihood(components, weights, near) <= reached + found.gap + 1e-12


def test_mlls_against_a_general_optimiser():
    counts, _ = random_counts(4, 7, n_source=10, n_target=60)
    rates, target = counts.confusion_rates.toarray(), counts.target / counts.n_target
    found = minimize(
        lambda q: -log_likelihood(rates, target, np.maximum(q, 1e-12)),
        np.full(4, 0.25),
        bounds=[(1e-10, 1)] * 4,
        constraints={"type": "eq", "fun": lambda q: q.sum() - 1},
        options={"ftol": 1e-14, "maxiter": 500},
    )
    np.testing.assert_allclose(baselines.mlls(counts), found.x, atol=1e-4)


def test_em_is_the_fixed_point_of_saerens_iteration():
    rng = np.random.default_rng(0)
    probs = rng.dirichlet([0.4, 0.6, 0.3, 0.5], 800)
    p = np.array([0.4, 0.3, 0.2, 0.1])
    q = p.copy()
    for _ in range(5000):
        posterior = probs * q / p
        q = (posterior / posterior.sum(axis=1, keepdims=True)).mean(axis=0)
    np.testing.assert_allclose(baselines.em(probs, p), q, atol=1e-7)


def test_an_unreached_gap_is_told():
    rng = np.random.default_rng(0)
    with pytest.warns(GSB3SEWarning, match="EM stopped at an optimality gap"):
        baselines.em(rng.dirichlet(np.ones(3), 50), np.full(3, 1 / 3), tolerance=-1.0)


def test_rows_that_nothing_explains_are_an_error():
    with pytest.raises(ValueError, match="no proportions explain"):
        mixture_proportions(np.array([[1.0, 1.0], [0.0, 0.0]]), np.array([0.5, 0.5]))


def test_em_names_bad_input():
    with pytest.raises(
        ValueError, match="source_prior must be positive; drop the columns of classes 1"
    ):
        baselines.em([[0.5, 0.5]], [1.0, 0.0])
    with pytest.raises(ValueError, match="apply softmax"):
        baselines.em([[3.0, 1.0]], [0.5, 0.5])


# RLLS


def rlls_objective(counts, x, rho):
    m = counts.n_validation
    joint = counts.confusion.toarray() / m
    shift = counts.target / counts.n_target - joint.sum(axis=1)
    return np.linalg.norm(joint @ x - shift) + rho * np.linalg.norm(x)


@given(cases, st.sampled_from([0.001, 0.01, 0.1, 1.0]))
def test_rlls_weights_beat_every_feasible_neighbour(case, scale):
    counts, _ = case
    m, n = counts.n_validation, counts.n_classes
    log_term = np.log(2 * n / 0.05)
    rho = scale * 3 * (2 * log_term / (3 * m) + np.sqrt(2 * log_term / m))
    x = baselines.rlls_weights(counts, scale) - 1
    assert (x >= -1 - 1e-9).all()
    reached = rlls_objective(counts, x, rho)
    rng = np.random.default_rng(0)
    for size in (1e-6, 1e-4, 1e-2, 1.0):
        for _ in range(30):
            other = np.maximum(x + size * rng.standard_normal(n), -1)
            assert rlls_objective(counts, other, rho) >= reached - 1e-9


@pytest.mark.parametrize("fraction", [0.2, 0.9, 0.9999, 1.0001])
def test_rlls_near_the_point_where_no_shift_is_worth_its_norm(fraction):
    counts, _ = random_counts(6, 5)
    m = counts.n_validation
    joint = counts.confusion.toarray() / m
    shift = counts.target / counts.n_target - joint.sum(axis=1)
    log_term = np.log(2 * 6 / 0.05)
    unit = 3 * (2 * log_term / (3 * m) + np.sqrt(2 * log_term / m))
    rho = fraction * np.linalg.norm(joint.T @ shift) / np.linalg.norm(shift)
    x = baselines.rlls_weights(counts, rho / unit) - 1
    assert (np.linalg.norm(x) > 0) == (fraction < 1)
    reached = rlls_objective(counts, x, rho)
    rng = np.random.default_rng(0)
    for size in 10.0 ** np.arange(-7, 1):
        for _ in range(50):
            other = np.maximum(x + size * rng.standard_normal(6), -1)
            assert rlls_objective(counts, other, rho) >= reached - 1e-12


def test_rlls_ends_at_its_limits():
    counts, _ = random_counts(4, 0, n_source=200, n_target=5000)
    free = baselines.rlls_weights(counts, scale=0.0)
    prior = counts.validation_sizes / counts.n_validation
    np.testing.assert_allclose(free * prior, baselines.bbse(counts, project=False), atol=1e-6)
    np.testing.assert_allclose(baselines.rlls_weights(counts, scale=1e4), 1.0)
    unshifted = ShiftCounts([[8, 2], [2, 8]], [10, 10])
    np.testing.assert_allclose(baselines.rlls_weights(unshifted), 1.0)
    with pytest.raises(ValueError, match="scale >= 0"):
        baselines.rlls_weights(counts, scale=-1.0)


# Calibration


def classifier(seed, scale=2.0, bias=(0.5, -0.5, 0.0), n=4000):
    """Logits whose calibrated form is softmax(scale * logits + bias)."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, 3))
    z = np.asarray(scale) * logits + np.asarray(bias)
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    y = (p.cumsum(axis=1) < rng.uniform(size=(n, 1))).sum(axis=1)
    return logits, np.minimum(y, 2)


@pytest.mark.parametrize(
    ("method", "scale", "bias"),
    [
        ("temperature", 2.0, (0, 0, 0)),
        ("bcts", 2.0, (0.5, -0.5, 0)),
        ("vector", (1, 2, 3), (0.5, -0.5, 0)),
    ],
)
def test_calibration_recovers_what_was_planted(method, scale, bias):
    logits, y = classifier(0, scale, bias, n=60_000)
    found = baselines.calibrate(logits, y, method)
    np.testing.assert_allclose(found.scale, scale, atol=0.08)
    centred = np.broadcast_to(found.bias, 3) - np.mean(found.bias)
    np.testing.assert_allclose(centred, np.array(bias) - np.mean(bias), atol=0.05)


@pytest.mark.parametrize("method", ["temperature", "bcts", "vector"])
def test_calibration_is_at_a_stationary_point_of_the_log_loss(method):
    logits, y = classifier(1)
    fit = baselines.calibrate(logits, y, method)
    truth = np.eye(3)[y]
    residual = fit(logits) - truth
    assert abs((residual * logits).sum()) / len(y) < 1e-5
    if method != "temperature":
        np.testing.assert_allclose(residual.mean(axis=0), 0, atol=1e-5)
    if method == "vector":
        np.testing.assert_allclose((residual * logits).mean(axis=0), 0, atol=1e-5)


def test_calibration_stays_finite_where_the_likelihood_has_no_maximum():
    logits = np.array([[5.0, 0, 0], [0, 5, 0], [4, 1, 0], [1, 6, 0]])
    for method in ("temperature", "bcts", "vector"):
        fit = baselines.calibrate(logits, np.array([0, 1, 0, 1]), method)
        assert np.isfinite(fit(logits)).all()


@pytest.mark.parametrize(
    ("logits", "y", "method", "message"),
    [
        (np.ones((3, 2)), [0, 1, 0], "platt", "method must be one of 'temperature'"),
        (np.ones((3, 2)), [0, 1], "bcts", "y must hold 3 labels"),
        (np.ones((3, 2)), [0, 1, 2], "bcts", r"class indices 0\.\.1"),
        (np.ones((3, 2)), ["a", "b", "a"], "bcts", "class indices"),
        ([[np.inf, 1], [0, 1]], [0, 1], "bcts", "finite"),
        (np.ones(3), [0, 1, 0], "bcts", r"got shape \(3,\)"),
    ],
)
def test_calibration_names_bad_input(logits, y, method, message):
    with pytest.raises(ValueError, match=message):
        baselines.calibrate(logits, y, method)


def test_the_ridge_bounds_what_the_rows_do_not():
    """Without it the bias of a class without rows would run to minus infinity."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(200, 3))
    fit = baselines.calibrate(logits, rng.integers(2, size=200), "bcts")
    spread = np.ptp(fit.bias)
    assert 5 < spread < 40


@pytest.mark.parametrize("method", ["bcts", "vector"])
def test_where_the_logits_are_centred_does_not_matter(method):
    logits, y = classifier(3)
    plain = baselines.calibrate(logits, y, method)(logits)
    moved = logits + np.array([1000.0, -500.0, 70.0])
    np.testing.assert_allclose(baselines.calibrate(moved, y, method)(moved), plain, atol=1e-4)


@pytest.mark.parametrize(
    "logits", [np.ones(3), np.ones((2, 3, 3)), [[np.nan, 0, 0]], np.ones((2, 4))]
)
def test_a_calibrator_names_bad_logits(logits):
    fit = baselines.calibrate(*classifier(0, n=50), "vector")
    with pytest.raises(ValueError, match="logits"):
        fit(logits)


@pytest.mark.filterwarnings("error")
def test_rlls_of_an_unshifted_target_is_silent():
    counts = ShiftCounts([[2, 10], [1, 2]], [12, 3])
    np.testing.assert_allclose(baselines.rlls_weights(counts), 1.0)


@pytest.mark.parametrize("scale", [np.nan, np.inf])
def test_rlls_names_a_bad_scale(scale):
    with pytest.raises(ValueError, match="expected scale >= 0"):
        baselines.rlls(random_counts(3, 0)[0], scale)
