import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gsb3se.model.adaptation import correct, importance_weights

simplex = st.integers(2, 6).flatmap(
    lambda k: st.integers(0, 10**6).map(
        lambda seed: np.random.default_rng(seed).dirichlet(np.ones(k), 3)
    )
)


@given(simplex)
def test_correction_is_bayes_rule_with_another_prior(rows):
    """Build joint probabilities p(x, y) and compare with conditioning them directly."""
    likelihood, p, q = rows[0], rows[1], rows[2]
    source = likelihood * p / (likelihood * p).sum()
    target = likelihood * q / (likelihood * q).sum()
    np.testing.assert_allclose(correct([source], p, q)[0], target, rtol=1e-9)


@given(simplex)
def test_correcting_back_returns_the_original(rows):
    there = correct(rows[:1], rows[1], rows[2])
    np.testing.assert_allclose(correct(there, rows[2], rows[1]), rows[:1], rtol=1e-7)
    np.testing.assert_allclose(correct(rows[:1], rows[1], rows[1]), rows[:1])


@given(simplex)
def test_weights_average_to_one_over_the_source(rows):
    assert importance_weights(rows[0], rows[1]) @ rows[1] == pytest.approx(1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[2.0, 3.0]], [0.5, 0.5], [0.5, 0.5]), "sum to 1; one sums to 5"),
        (([[1.5, -0.5]], [0.5, 0.5], [0.5, 0.5]), "non-negative"),
        (([[0.6, 0.45]], [0.5, 0.5], [0.5, 0.5]), "one sums to 1.05"),
        (([0.5, 0.5], [0.5, 0.5], [0.5, 0.5]), r"got shape \(2,\)"),
        (([[0.5, 0.5]], [0.2, 0.3, 0.5], [0.2, 0.3, 0.5]), "2 columns and the priors 3"),
        (([[0.5, 0.5]], [1.0, 0.0], [0.5, 0.5]), "classes 1 have source_prior 0"),
        (([[1.0, 0.0]], [0.5, 0.5], [0.0, 1.0]), "rows 0 of probs are certain"),
    ],
)
def test_bad_input_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        correct(*arguments)


def test_a_class_absent_from_both_priors_has_weight_zero():
    assert importance_weights([1.0, 0.0], [1.0, 0.0]).tolist() == [1.0, 0.0]
