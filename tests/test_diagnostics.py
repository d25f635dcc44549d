import warnings

import numpy as np
import pytest

import gsb3se as gs
from gsb3se import Diagnostics, Status
from gsb3se.diagnostics import Finding, rank_uniformity


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


def test_even_ranks_pass_and_uneven_ones_do_not():
    rng = np.random.default_rng(0)
    p = [rank_uniformity(rng.integers(100, size=200), 99, seed=i) for i in range(60)]
    assert 0.0 < np.mean(np.array(p) < 0.05) < 0.2
    assert rank_uniformity(rng.integers(85, size=200), 99) < 0.05
    assert rank_uniformity(rng.integers(20, 80, size=200), 99) < 0.01
    assert rank_uniformity(rng.binomial(99, rng.beta(1.5, 1, 200)), 99) < 0.05
    with pytest.raises(ValueError, match="from 0 to 99"):
        rank_uniformity([100], 99)


@pytest.mark.parametrize(
    "backend", [pytest.param("hmc", marks=pytest.mark.slow), "amortized", "newton"]
)
def test_sensitivities_of_all_backends_are_alike(backend):
    counts = gs.ShiftCounts([[30, 2, 1], [2, 30, 3], [1, 1, 30]], [60, 30, 10])
    chosen = gs.HMC(chains=1, warmup=200, draws=200) if backend == "hmc" else backend
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gs.GSB3SEWarning)
        post = gs.estimate(counts, backend=chosen)
        structured = gs.estimate(counts)
    ours, theirs = map(gs.diagnostics.effective_information, (post, structured))
    np.testing.assert_allclose(ours.information, theirs.information, rtol=0.3, atol=1.5)
    assert np.isfinite(gs.diagnostics.graph_sensitivity(post).change).all()


def test_a_posterior_that_does_not_know_its_problem_has_no_sensitivities():
    post = gs.Posterior.from_draws([[0.2, 0.8], [0.4, 0.6]])
    for asked in (gs.diagnostics.graph_sensitivity, gs.diagnostics.effective_information):
        with pytest.raises(ValueError, match="infer it anew with backend='structured'"):
            asked(post)
