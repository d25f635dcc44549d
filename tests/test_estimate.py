"""The front door: names, statuses, and the hard cases every backend must survive."""

from itertools import product

import numpy as np
import pytest

import gsb3se as gs
from gsb3se.estimate import BACKENDS, as_backend
from gsb3se_amortized import Amortized

SMALL = {
    "hmc": gs.HMC(chains=2, warmup=200, draws=200, progress=False),
    "newton": gs.NewtonCG(),
    "laplace": gs.Laplace(),
    "structured": gs.Structured(),
    "variational": gs.Variational(draws=200, layers=1, max_steps=200, progress=False),
    "amortized": Amortized(),
}

GOOD = np.array([[90, 5, 5], [5, 90, 5], [5, 5, 90]])
PRIORS = {"paper": gs.Prior(), "anchored": gs.Prior.anchored()}
HARD = {
    "a class without validation rows": (GOOD * [1, 1, 0], [300, 200, 100]),
    "a singular confusion matrix": (GOOD[:, [0, 1, 1]], [300, 200, 100]),
    "one target prediction": (GOOD, [1, 0, 0]),
    "no validation rows at all": (GOOD * 0, [300, 200, 100]),
    "two classes": ([[9, 1], [1, 9]], [3, 0]),
    "a class never predicted": (GOOD * [[1], [1], [0]], [300, 200, 0]),
}


def hard_cases():
    """Each case by each backend and prior; the default prior where a backend takes seconds."""
    for case, (name, prior), backend in product(HARD, PRIORS.items(), BACKENDS):
        slow = name == "paper" and backend in ("hmc", "variational")
        yield pytest.param(
            backend,
            prior,
            case,
            id=f"{case}-{name}-{backend}",
            marks=[pytest.mark.slow] if slow else [],
        )


@pytest.mark.parametrize(("backend", "prior", "case"), hard_cases())
def test_hard_cases_are_finite_wide_and_told(backend, prior, case):
    counts = gs.ShiftCounts(*HARD[case])
    posterior = SMALL[backend].infer(gs.Problem(counts, None, prior), np.random.default_rng(0))
    low, high = posterior.interval(0.9)
    assert np.isfinite([posterior.mean, posterior.sd, low, high]).all()
    np.testing.assert_allclose(posterior.mean.sum(), 1.0)
    assert (high - low).max() > 0.05
    if case != "two classes":
        told = (posterior.diagnostics.message, *posterior.diagnostics.flags.values())
        assert "identified" in told[0] or len(told) > 1
        assert (high - low).max() > 0.1
    assert posterior.predictive(20, 5).sum() == 100


def test_the_uncertain_class_is_the_one_without_validation_rows():
    even = gs.ShiftCounts(GOOD, [200, 200, 200])
    without = gs.ShiftCounts(GOOD * [1, 1, 0], [200, 200, 200])
    problems = (gs.Problem(counts) for counts in (even, without))
    known, unknown = (gs.NewtonCG().infer(each, np.random.default_rng(0)) for each in problems)
    assert unknown.sd[2] > 1.5 * known.sd[2]


def test_a_name_or_an_object_is_a_backend():
    assert as_backend("newton") == gs.NewtonCG()
    assert as_backend("hmc") == gs.HMC()
    with pytest.raises(ValueError, match="unknown backend 'nuts': expected one of 'hmc'"):
        as_backend("nuts")
    for wrong in (gs.HMC, 3, None):
        with pytest.raises(TypeError, match=r"such as gs\.HMC"):
            as_backend(wrong)


def test_a_status_that_is_not_ok_warns_or_raises():
    alike = gs.ShiftCounts([[30, 30], [20, 20]], [60, 40], labels=["cat", "dog"])
    with pytest.warns(gs.GSB3SEWarning, match="do not tell the classes apart") as caught:
        posterior = gs.estimate(alike, backend="newton")
    assert caught[0].filename == __file__
    assert posterior.diagnostics.status is gs.Status.NOT_IDENTIFIED
    with pytest.raises(gs.InferenceError, match="do not tell") as raised:
        gs.estimate(alike, backend="newton", strict=True)
    np.testing.assert_array_equal(raised.value.posterior.mean, posterior.mean)


def test_the_result_knows_labels_and_target_and_repeats_itself():
    counts = gs.ShiftCounts([[45, 5], [5, 45]], [700, 300], labels=["cat", "dog"])
    first = gs.estimate(counts, backend="newton", seed=1, strict=True)
    again = gs.estimate(counts, backend="newton", seed=1, strict=True)
    assert first.labels == ("cat", "dog")
    assert first.n_target == 1000
    np.testing.assert_array_equal(first.mean, again.mean)


def test_wrong_inputs_are_named():
    with pytest.raises(TypeError, match="counts must be ShiftCounts"):
        gs.estimate([[1, 2], [3, 4]])
    counts = gs.ShiftCounts([[45, 5], [5, 45]], [700, 300])
    with pytest.raises(ValueError, match="2 classes and the graph 3"):
        gs.estimate(counts, gs.LabelGraph.exchangeable(3))
