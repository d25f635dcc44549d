"""What several backends share: Laplacians, the priors' pieces, inverses, roots, the integrator."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import random_graph
from scipy.integrate import quad
from scipy.linalg import LinAlgError
from scipy.stats import gamma
from sum_zero import sum_zero_basis

import gsb3se as gs
from gsb3se.graph.laplacian import (
    SparsePlusConstant,
    WeightColumns,
    exchangeable_weights,
    laplacian_of,
    laplacian_times_weights,
)
from gsb3se.inference.hamiltonian import Steps, accepted_chains, kinetic_energy, trajectory
from gsb3se.model.column_mean import ColumnMean
from gsb3se.model.share_prior import SharePrior
from gsb3se.support.linear_algebra import (
    covariance_root,
    filled_cholesky,
    indefinite_sum_zero_inverse,
    sum_zero_inverse,
    triangular_covariance_root,
)

GRAPHS = st.builds(
    lambda kind, n, seed: random_graph(n, kind, np.random.default_rng(seed)),
    st.sampled_from(["knn", "dense", "exchangeable"]),
    st.integers(2, 9),
    st.integers(0, 1000),
)


def centred(columns):
    return columns - columns.mean(axis=0)


# Laplacians and the columns' mean


def test_the_exchangeable_matrices_are_those_of_the_complete_graph():
    weights = exchangeable_weights(7)
    dense = gs.LabelGraph.from_weights((np.ones((7, 7)) - np.eye(7)) / 7)
    np.testing.assert_allclose(weights.toarray() + np.eye(7) / 7, np.ones((7, 7)) / 7)
    np.testing.assert_allclose(laplacian_of(weights).toarray(), dense.laplacian.toarray())
    np.testing.assert_allclose(weights.diagonal(), 0, atol=1e-15)


@given(GRAPHS, st.integers(0, 1000))
def test_products_entry_by_entry_are_those_of_dense_matrices(graph, seed):
    rng, n = np.random.default_rng(seed), graph.n_classes
    weights, laplacian = graph.weights.toarray(), graph.laplacian.toarray()
    array = rng.standard_normal((n, n))
    product = laplacian_times_weights(graph.laplacian, graph.weights)
    for pattern, dense in (
        (SparsePlusConstant.of(graph.weights), weights),
        (product, laplacian @ weights),
    ):
        assert pattern.dot(array) == pytest.approx((dense * array).sum(), abs=1e-9)
        total = array.copy()
        pattern.add_to(total, 0.5)
        np.testing.assert_allclose(total, array + 0.5 * dense, atol=1e-12)


@given(GRAPHS, st.integers(0, 1000))
def test_columns_of_the_weights_are_right_up_to_their_level(graph, seed):
    rng, n = np.random.default_rng(seed), graph.n_classes
    weights, laplacian = graph.weights.toarray(), graph.laplacian.toarray()
    columns = rng.permutation(n)[: max(1, n // 2)]
    of_graph = WeightColumns(graph.weights, graph.laplacian)
    block = of_graph.scaled(1.7, columns, 0.6, np.float64)
    expected = 1.7 * weights[:, columns] + 0.6 * np.eye(n)[:, columns]
    np.testing.assert_allclose(centred(block), centred(expected), atol=1e-12)
    image = centred(rng.standard_normal((n, len(columns))))
    assert of_graph.dot(columns, image) == pytest.approx((weights[:, columns] * image).sum())
    own, mixed, both = of_graph.gram(laplacian.diagonal())
    np.testing.assert_allclose(own, np.diag(laplacian))
    np.testing.assert_allclose(mixed, np.diag(laplacian @ weights), atol=1e-12)
    np.testing.assert_allclose(both, np.diag(weights @ laplacian @ weights), atol=1e-12)


@given(GRAPHS)
def test_the_patterns_of_the_columns_mean_agree_with_one_another(graph):
    mean, n = ColumnMean(graph, 5.0), graph.n_classes
    own, similar = mean.patterns()
    every = np.arange(n)
    np.testing.assert_allclose(
        centred(mean.columns(2.0, 0.3, every)), centred(2.0 * own + 0.3 * similar), atol=1e-12
    )
    image = graph.laplacian @ np.random.default_rng(0).standard_normal((n, n))
    along = [(pattern * image).sum() for pattern in (own, similar)]
    np.testing.assert_allclose(mean.along(every, image), along, atol=1e-10)
    for force, pattern in zip(mean.forces, (own, similar), strict=True):
        total = np.zeros((n, n))
        force.add_to(total)
        np.testing.assert_allclose(total, graph.laplacian.toarray() @ pattern, atol=1e-12)


def test_the_papers_columns_have_no_mean():
    mean = ColumnMean(gs.LabelGraph.exchangeable(3), None)
    assert mean.n_weights == 0 and mean.patterns().shape == (0, 3, 3)
    assert mean.pull(4.0) == 0.0 and ColumnMean(mean.graph, 2.0).pull(4.0) == 1.0


# The prior of the shares


@given(GRAPHS, st.integers(0, 1000))
def test_the_collapsed_share_prior_has_its_gradient(graph, seed):
    rng, n = np.random.default_rng(seed), graph.n_classes
    prior = SharePrior(graph.laplacian, shape=1.3 + (n - 1) / 2, rate=0.7)
    theta, step = rng.standard_normal((2, n, 3))
    _, gradient = prior.collapsed(theta)
    rise = prior.collapsed(theta + 1e-5 * step)[0] - prior.collapsed(theta - 1e-5 * step)[0]
    np.testing.assert_allclose((gradient * step).sum(axis=0), rise / 2e-5, rtol=1e-5, atol=1e-7)


def test_the_collapsed_share_prior_is_the_prior_integrated_over_its_strength():
    graph = random_graph(4, "dense", np.random.default_rng(0))
    a, b, n = 1.5, 0.8, 4
    prior = SharePrior(graph.laplacian, a + (n - 1) / 2, b)
    theta = np.random.default_rng(1).standard_normal((n, 2))

    def integrated(roughness):
        return quad(
            lambda t: (
                t ** ((n - 1) / 2) * np.exp(-t * roughness / 2) * gamma(a, scale=1 / b).pdf(t)
            ),
            0,
            60,
        )[0]

    expected = np.log([integrated(value) for value in prior.roughness(theta)])
    np.testing.assert_allclose(np.diff(prior.collapsed(theta)[0]), np.diff(expected), atol=1e-6)


def test_strengths_given_shares_have_the_mean_that_is_said():
    graph = gs.LabelGraph.exchangeable(5)
    prior = SharePrior(graph.laplacian, 3.0, 0.5)
    theta = np.repeat(np.random.default_rng(0).standard_normal((5, 1)), 40_000, axis=1)
    drawn = prior.draw_strength(theta, np.random.default_rng(1))
    assert drawn.mean() == pytest.approx(prior.strength_given(prior.roughness(theta))[0], rel=0.02)


# Inverses and roots


@given(GRAPHS, st.floats(0.01, 100))
def test_an_inverse_on_the_sum_zero_space_is_that_in_its_basis(graph, level):
    n = graph.n_classes
    laplacian, basis = graph.laplacian.toarray(), sum_zero_basis(n)
    expected = basis @ np.linalg.inv(basis.T @ laplacian @ basis) @ basis.T
    scale = np.abs(expected).max()
    np.testing.assert_allclose(sum_zero_inverse(laplacian, level), expected, atol=1e-7 * scale)
    found = indefinite_sum_zero_inverse(laplacian, n)
    np.testing.assert_allclose(found.inverse, expected, atol=1e-7 * scale)
    assert found.log_determinant == pytest.approx(graph.log_pseudo_determinant, abs=1e-6)
    assert found.negative == 0
    opposite = indefinite_sum_zero_inverse(-laplacian, n)
    np.testing.assert_allclose(opposite.inverse, -expected, atol=1e-7 * scale)
    assert opposite.negative >= n - 1


def test_a_singular_matrix_has_no_inverse():
    with pytest.raises(LinAlgError):
        indefinite_sum_zero_inverse(np.diag([1.0, -1.0, 0.0]) * 0, 3)


@pytest.mark.parametrize("root", [covariance_root, triangular_covariance_root])
def test_roots_of_covariances(root):
    half = np.random.default_rng(0).standard_normal((6, 3))
    covariance = half @ half.T
    factor = root(covariance)
    np.testing.assert_allclose(factor @ factor.T, covariance, atol=1e-6)


def test_what_is_no_covariance_is_refused_where_it_matters():
    with pytest.raises(ValueError, match="smallest eigenvalue is -1"):
        covariance_root(np.diag([1.0, -1.0]), strict=True)
    assert covariance_root(np.diag([1.0, -1.0])).min() == 0


def test_a_nearly_singular_matrix_is_filled_as_little_as_it_takes():
    matrix = np.array([[1.0, 1.0], [1.0, 1.0 - 1e-12]])
    factor = filled_cholesky(matrix)
    np.testing.assert_allclose(factor @ factor.T, matrix, atol=1e-9)


# The integrator


def oscillator(scales):
    """Force of N(0, diag(scales^2)) at places (D, C)."""
    return lambda place, last: -place / scales[:, None] ** 2


def test_a_trajectory_can_be_reversed_and_nearly_keeps_its_energy():
    rng = np.random.default_rng(0)
    scales = np.array([0.9, 1.0, 1.2])
    place, momentum = rng.standard_normal((2, 3, 5))
    force_at = oscillator(scales)
    steps = Steps(angle=np.full(5, 0.15), kicks=12)
    end, speed = trajectory(place, force_at(place, False), momentum, steps, force_at)
    back, _ = trajectory(end, force_at(end, False), -speed, steps, force_at)
    np.testing.assert_allclose(back, place, atol=1e-12)

    def energy(place, momentum):
        return (place**2 / scales[:, None] ** 2).sum(axis=0) / 2 + kinetic_energy(momentum)

    np.testing.assert_allclose(energy(end, speed), energy(place, momentum), rtol=0.02)


def test_fixed_coordinates_stay():
    rng = np.random.default_rng(1)
    place, momentum = rng.standard_normal((2, 4, 3))
    force_at = oscillator(np.full(4, 2.0))
    steps = Steps(angle=np.full(3, 0.3), kicks=5, n_fixed=2)
    end, _ = trajectory(place, force_at(place, False), momentum, steps, force_at)
    np.testing.assert_array_equal(end[:2], place[:2])
    assert (end[2:] != place[2:]).all()


def test_chains_whose_density_is_no_number_are_rejected():
    change = np.array([0.0, -5.0, np.nan, np.inf, -np.inf])
    assert accepted_chains(change, np.full(5, -1.0)).tolist() == [True, False, False, True, False]
