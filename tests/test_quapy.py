"""The baselines against QuaPy's, where it has the same method."""

import numpy as np
import pytest

from gsb3se import ShiftCounts, baselines

cvxpy = pytest.importorskip("cvxpy")
aggregative = pytest.importorskip("quapy.method.aggregative")
functional = pytest.importorskip("quapy.functional")


def predictions(seed, n_classes=6, n_source=400, n_target=1500):
    """Soft scores, labels and hard predictions of an imperfect classifier."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(n_classes, size=n_source)
    target_truth = rng.choice(n_classes, n_target, p=rng.dirichlet(np.ones(n_classes)))

    def scores(y):
        logits = rng.normal(size=(len(y), n_classes)) + 1.5 * np.eye(n_classes)[y]
        probs = np.exp(logits)
        return probs / probs.sum(axis=1, keepdims=True)

    return truth, scores(truth), scores(target_truth)


@pytest.fixture(params=range(4))
def case(request):
    truth, source, target = predictions(request.param)
    predicted, target_predicted = source.argmax(axis=1), target.argmax(axis=1)
    counts = ShiftCounts.from_predictions(truth, predicted, target_predicted, labels=range(6))
    return counts, truth, source, target


def test_bbse_is_quapys_adjusted_count_by_exact_inversion(case):
    counts, truth, source, _ = case
    rates = aggregative.ACC.getPteCondEstim(range(6), truth, source.argmax(axis=1))
    observed = counts.target / counts.n_target
    raw = aggregative.ACC.solve_adjustment(
        rates, observed, solver="exact-raise", method="inversion"
    )
    np.testing.assert_allclose(baselines.bbse(counts, project=False), raw, atol=1e-6)
    projected = functional.normalize_prevalence(raw, method="mapsimplex")
    np.testing.assert_allclose(baselines.bbse(counts), projected, atol=1e-6)


def test_bbse_is_quapys_bbse_by_weights(case):
    counts, truth, source, _ = case
    joint = aggregative.BBSEhard.getConfusionJointProb(range(6), truth, source.argmax(axis=1))
    weights = aggregative.BBSEhard.solve_importance_weights(
        joint, counts.target / counts.n_target, solver="exact-raise"
    )
    prior = counts.validation_sizes / counts.n_validation
    np.testing.assert_allclose(baselines.bbse(counts, project=False), weights * prior, atol=1e-6)


@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
def test_rlls_is_quapys(case, monkeypatch):
    counts, truth, source, target = case
    # QuaPy's solver stops near 1e-4; the same problem by an interior point method goes further.
    solve = cvxpy.Problem.solve
    monkeypatch.setattr(
        cvxpy.Problem,
        "solve",
        lambda self, **_: solve(
            self, solver=cvxpy.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11
        ),
    )
    from quapy.method import _helper as helper

    joint = helper._rlls_joint_distribution(source, truth, np.arange(6), mode="hard")
    observed, before = (helper._rlls_predicted_marginal(x, mode="hard") for x in (target, source))
    rho = helper._rlls_compute_3deltaC(6, len(truth), 0.05)
    for scale in (0.001, 0.01, 0.1):
        weights = helper._rlls_compute_weights(joint, observed, before, scale * rho)
        np.testing.assert_allclose(baselines.rlls_weights(counts, scale), weights, atol=1e-6)


def test_em_is_quapys(case, monkeypatch):
    _, truth, _, target = case
    monkeypatch.setattr(aggregative.EMQ, "MAX_ITER", 100_000)
    prior = np.bincount(truth, minlength=6) / len(truth)
    q, _ = aggregative.EMQ.EM(prior, target, epsilon=1e-12)
    np.testing.assert_allclose(baselines.em(target, prior), q, atol=1e-6)
