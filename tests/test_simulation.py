import numpy as np
import pytest
from problems import random_graph
from scipy.stats import chi2, gamma, kstest

import gsb3se as gs
from gsb3se.model import density as model
from gsb3se.model.problem import Problem


def test_simulated_fields_follow_their_law():
    """tau * theta'L theta is chi-squared with K - 1 degrees of freedom, columns likewise."""
    rng = np.random.default_rng(0)
    for kind in ("knn", "exchangeable"):
        graph = random_graph(6, kind, rng)
        forms_q, forms_c, taus = [], [], []
        for seed in range(400):
            drawn = gs.simulate(graph, gs.Prior.anchored(2, 3, 1.5, 0.5), 2, 5, seed)
            problem = Problem(drawn.counts, graph, gs.Prior.anchored(2, 3, 1.5, 0.5))
            rate = model.tau_conditionals(problem, drawn.latents).rate
            forms_q.append(2 * (rate.q - 3) * drawn.tau.q)
            forms_c.append(2 * (rate.C - 0.5) * drawn.tau.C)
            taus.append(drawn.tau.q)
        assert kstest(forms_q, chi2(5).cdf).pvalue > 1e-3
        assert kstest(forms_c, chi2(30).cdf).pvalue > 1e-3
        assert kstest(taus, gamma(2, scale=1 / 3).cdf).pvalue > 1e-3


def test_simulated_counts_follow_the_parameters():
    graph = gs.LabelGraph.exchangeable(4)
    drawn = gs.simulate(graph, gs.Prior(), 200_000, 400_000, seed=3)
    rates = drawn.counts.confusion_rates.toarray()
    np.testing.assert_allclose(rates, drawn.confusion, atol=0.01)
    r = drawn.confusion @ drawn.q
    np.testing.assert_allclose(drawn.counts.target / 400_000, r, atol=0.01)


def test_simulation_repeats_with_its_seed_and_takes_sizes_a_class():
    graph = gs.LabelGraph.exchangeable(3, labels=["a", "b", "c"])
    one, other = (gs.simulate(graph, gs.Prior(), [0, 5, 9], 20, seed=1) for _ in range(2))
    assert one.counts == other.counts
    assert one.counts.validation_sizes.tolist() == [0, 5, 9]
    assert one.counts.labels == ("a", "b", "c")


@pytest.mark.parametrize("n_source", [-1, 2.5, [1, 2], [1, 2, -3], "5"])
def test_bad_validation_sizes_are_named(n_source):
    with pytest.raises(ValueError, match="n_source must be a whole number"):
        gs.simulate(gs.LabelGraph.exchangeable(3), gs.Prior(), n_source, 5, seed=0)


@pytest.mark.parametrize("n_target", [0, -3, 5.5])
def test_bad_target_sizes_are_named(n_target):
    with pytest.raises(ValueError, match="n_target must be a whole number of at least 1"):
        gs.simulate(gs.LabelGraph.exchangeable(3), gs.Prior(), 5, n_target, seed=0)


def test_a_prior_too_weak_to_draw_from_is_named():
    with pytest.raises(ValueError, match="take larger shapes"):
        gs.simulate(gs.LabelGraph.exchangeable(3), gs.Prior(a_q=1e-4, a_C=1e-4), 5, 5, seed=0)


@pytest.mark.parametrize("prior", [gs.Prior(), gs.Prior.anchored()])
def test_simulated_latents_are_centred(prior):
    drawn = gs.simulate(random_graph(5, "knn", np.random.default_rng(0)), prior, 5, 5, seed=0)
    np.testing.assert_allclose(drawn.latents.phi.sum(axis=0), 0, atol=1e-9)
    assert drawn.latents.theta.sum() == pytest.approx(0, abs=1e-9)
