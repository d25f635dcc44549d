import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import minimize
from sum_zero import sum_zero_basis

from gsb3se.support.simplex import (
    as_distribution,
    centred_log,
    project_to_simplex,
    softmax,
)

vectors = st.integers(2, 15).flatmap(lambda k: arrays(float, k, elements=st.floats(-30, 30)))


@given(vectors)
def test_softmax_and_centred_log_are_inverse(x):
    np.testing.assert_allclose(centred_log(softmax(x)), x - x.mean(), atol=1e-9)


def test_softmax_of_huge_numbers():
    assert softmax([1e5, 0.0, -1e5]).tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("n", [2, 3, 10, 57])
def test_basis_is_orthonormal_and_spans_the_sum_zero_space(n):
    basis = sum_zero_basis(n)
    np.testing.assert_allclose(basis.T @ basis, np.eye(n - 1), atol=1e-12)
    np.testing.assert_allclose(basis @ basis.T, np.eye(n) - 1 / n, atol=1e-12)


@given(vectors)
def test_projection_is_the_nearest_point_of_the_simplex(v):
    """By its optimality condition: v - p has its largest, equal entries on the support of p."""
    p = project_to_simplex(v)
    assert (p >= 0).all()
    assert p.sum() == pytest.approx(1)
    rest = v - p
    assert (rest <= rest[p > 0].min() + 1e-9).all()
    np.testing.assert_allclose(rest[p > 1e-9], rest.max(), atol=1e-9)


def test_projection_against_a_general_optimiser():
    v = np.random.default_rng(1).standard_normal(5)
    found = minimize(
        lambda p: ((p - v) ** 2).sum(),
        np.full(5, 0.2),
        bounds=[(0, 1)] * 5,
        constraints={"type": "eq", "fun": lambda p: p.sum() - 1},
    )
    np.testing.assert_allclose(project_to_simplex(v), found.x, atol=1e-6)


@pytest.mark.parametrize(
    ("p", "message"),
    [
        ([0.5, 0.6], "sums to 1.1"),
        ([1.5, -0.5], "non-negative; its smallest entry is -0.5"),
        ([np.nan, 1.0], "finite"),
        ([[0.5, 0.5]], "got shape"),
        ([0.2, 0.3, 0.5], "2 probabilities"),
    ],
)
def test_what_is_no_distribution_is_named(p, message):
    with pytest.raises(ValueError, match=message):
        as_distribution(p, "p", 2)


def test_projection_of_huge_numbers():
    assert project_to_simplex([1e17, 0.0]).tolist() == [1.0, 0.0]
    np.testing.assert_allclose(project_to_simplex([1e9 + 0.25, 1e9]), [0.625, 0.375], atol=1e-6)
