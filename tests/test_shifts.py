import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta, kstest

from gsb3se import LabelGraph, shifts


@pytest.mark.parametrize("base", ["ones", "ramp"])
@pytest.mark.parametrize("alpha", [0.05, 1.0, 10.0])
def test_dirichlet_draws_have_beta_marginals(base, alpha):
    shape = alpha * (np.ones(4) if base == "ones" else np.arange(1, 5))
    draws = np.array([shifts.dirichlet(4, alpha, seed, base) for seed in range(1500)])
    for i in range(4):
        law = beta(shape[i], shape.sum() - shape[i])
        # Where the law is all but certain of 0 or 1, digits end before it does.
        inside = (draws[:, i] > 1e-12) & (draws[:, i] < 1 - 1e-12)
        assert abs(inside.mean() - (law.cdf(1 - 1e-12) - law.cdf(1e-12))) < 0.06
        low, high = law.cdf([1e-12, 1 - 1e-12])
        uniform = (law.cdf(draws[inside, i]) - low) / (high - low)
        assert kstest(uniform, "uniform").pvalue > 1e-4


def test_dirichlet_survives_a_tiny_alpha():
    q = shifts.dirichlet(10, 1e-6, seed=0)
    assert np.isfinite(q).all()
    assert q.sum() == pytest.approx(1)


def test_power_law_and_its_shuffle():
    q = shifts.power_law(5, 1.1)
    np.testing.assert_allclose(q[0] / q[1], 2**1.1)
    shuffled = shifts.power_law(5, 1.1, seed=3)
    np.testing.assert_allclose(np.sort(shuffled), np.sort(q))
    assert not np.array_equal(shuffled, q)


def test_knock_out_and_tweak_one():
    np.testing.assert_allclose(
        shifts.knock_out([0.25] * 4, [0, 1], 0.5), [1 / 6, 1 / 6, 1 / 3, 1 / 3]
    )
    np.testing.assert_allclose(shifts.tweak_one(4, 2, 0.7), [0.1, 0.1, 0.7, 0.1])


def test_graph_smooth_draws_the_prior_of_the_hierarchy():
    graph = LabelGraph.from_weights([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    logs = np.array([np.log(shifts.graph_smooth(graph, 4.0, seed)) for seed in range(4000)])
    fields = logs - logs.mean(axis=1, keepdims=True)
    expected = np.linalg.pinv(graph.laplacian.toarray()) / 4
    np.testing.assert_allclose(np.cov(fields.T), expected, atol=0.012)


@given(st.integers(0, 1000), st.booleans())
def test_drawn_targets_have_the_realised_proportions(seed, replace):
    rng = np.random.default_rng(seed)
    pool = rng.choice(list("abc"), 400)
    q = rng.dirichlet([5, 5, 5])
    drawn = shifts.draw_target(pool, q, 60, seed, replace=replace)
    assert len(drawn.indices) == 60
    found = [(pool[drawn.indices] == name).mean() for name in "abc"]
    np.testing.assert_allclose(drawn.realised, found)
    if not replace:
        assert len(set(drawn.indices.tolist())) == 60


def test_drawn_targets_follow_q_on_average_and_repeat_with_their_seed():
    pool = np.repeat([0, 1, 2], 500)
    q = np.array([0.6, 0.3, 0.1])
    mean = np.mean([shifts.draw_target(pool, q, 200, s).realised for s in range(300)], axis=0)
    np.testing.assert_allclose(mean, q, atol=0.01)
    one, other = (shifts.draw_target(pool, q, 200, 7).indices for _ in range(2))
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: shifts.draw_target([0, 1], [0.5, 0.5], 50, 0), "too few rows of 0, 1 to draw 50"),
        (
            lambda: shifts.draw_target([0, 0], [0.5, 0.5], 9, 0, labels=[0, 1], replace=True),
            "too few",
        ),
        (lambda: shifts.draw_target([0, 1], [0.5, 0.6], 1, 0), "sums to 1.1"),
        (
            lambda: shifts.draw_target([0, 1], [0.5, 0.5], 0, 0),
            "n must be a whole number of at least 1; got 0",
        ),
        (lambda: shifts.draw_target([0, 7], [0.5, 0.5], 1, 0, labels=[0, 1]), "holds 7, unknown"),
        (lambda: shifts.dirichlet(3, 0.0, 0), "alpha must be positive and finite"),
        (lambda: shifts.dirichlet(3, 1.0, 0, base="twos"), "'twos'"),
        (
            lambda: shifts.draw_target([0, 1], [0.5, 0.5], 1.5, 0),
            "whole number of at least 1; got 1.5",
        ),
        (lambda: shifts.dirichlet(1, 1.0, 0), "n_classes must be a whole number of at least 2"),
        (lambda: shifts.power_law(3, np.nan), "exponent must be finite"),
        (lambda: shifts.tweak_one(3, 5, 0.1), r"index must be a whole number in 0..2; got 5"),
        (lambda: shifts.tweak_one(3, 0, 1.1), r"mass must lie in \[0, 1\]"),
        (lambda: shifts.knock_out([0.5, 0.5], [0, 1]), "leave at least one class"),
        (
            lambda: shifts.graph_smooth(LabelGraph.exchangeable(3), -1.0, 0),
            "tau_q must be positive",
        ),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_with_replacement_rows_repeat_and_the_order_is_random():
    pool = np.repeat([0, 1], 30)
    drawn = shifts.draw_target(pool, [0.5, 0.5], 200, 0, replace=True)
    assert len(set(drawn.indices.tolist())) < 60
    labels = pool[shifts.draw_target(pool, [0.5, 0.5], 40, 0).indices]
    assert (np.diff(labels) != 0).sum() > 5
