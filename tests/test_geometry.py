import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import solve_ivp

from gsb3se import LabelGraph, ShiftCounts, baselines, geometry
from gsb3se.geometry import Objective


def random_case(n_classes, seed, tau_q=0.7, n_target=100.0):
    rng = np.random.default_rng(seed)
    weights = rng.uniform(0.1, 1, (n_classes, n_classes))
    graph = LabelGraph.from_weights((weights + weights.T) / 2)
    confusion = 0.5 * np.eye(n_classes) + 0.5 * rng.dirichlet(np.ones(n_classes), n_classes).T
    target = n_target * rng.dirichlet(np.ones(n_classes))
    q = rng.dirichlet(np.full(n_classes, 3.0))
    v = rng.standard_normal(n_classes) * q
    return Objective(confusion, target, graph, tau_q), q, v - v.sum() * q


cases = st.builds(random_case, n_classes=st.integers(2, 7), seed=st.integers(0, 10**6))


def derivative(f, x, h=1e-5):
    """Central difference of fourth order."""
    return (8 * (f(x + h) - f(x - h)) - f(x + 2 * h) + f(x - 2 * h)) / (12 * h)


@given(cases)
def test_euclidean_derivatives_by_finite_differences(case):
    objective, q, v = case
    v = v / np.abs(v / q).max()
    slope = derivative(lambda t: objective.value(q + t * v), 0.0)
    assert objective.gradient(q) @ v == pytest.approx(slope, rel=1e-6, abs=1e-6)
    curve = derivative(lambda t: objective.gradient(q + t * v) @ v, 0.0)
    assert v @ objective.hessian_product(q, v) == pytest.approx(curve, rel=1e-6, abs=1e-6)


@given(cases)
def test_natural_gradient_represents_the_differential_and_equals_the_gradient_in_theta(case):
    objective, q, v = case
    natural = geometry.natural_gradient(objective, q)
    assert abs(natural.sum()) < 1e-9 * max(1, np.abs(natural).max())
    assert geometry.inner(q, natural, v) == pytest.approx(
        objective.gradient(q) @ v, rel=1e-9, abs=1e-9
    )
    dF = objective.gradient(q)
    np.testing.assert_allclose(natural, q * (dF - q @ dF), rtol=1e-8, atol=1e-8)
    theta = geometry.to_e_coordinates(q)
    step = np.zeros_like(q)
    step[0] = 1.0
    by_theta = derivative(
        lambda t: objective.value(geometry.from_e_coordinates(theta + t * step)), 0.0
    )
    assert natural[0] == pytest.approx(by_theta, rel=1e-5, abs=1e-5)


@given(cases)
def test_riemannian_hessian_is_the_second_derivative_along_a_geodesic(case):
    objective, q, v = case
    v = v / np.sqrt(geometry.inner(q, v, v))

    def along(t):
        return objective.value(geometry.geodesic(q, v, t))

    h = 1e-3 * np.sqrt(q.min())
    second = (-along(2 * h) + 16 * along(h) - 30 * along(0.0) + 16 * along(-h) - along(-2 * h)) / (
        12 * h * h
    )
    hessian = geometry.riemannian_hessian(objective, q, v, v)
    assert hessian == pytest.approx(second, rel=2e-3, abs=2e-2 * max(1, abs(second)) ** 0.5)


def test_geodesic_convexity_fails_where_the_paper_claims_it():
    graph = LabelGraph.from_weights([[0, 1], [1, 0]])
    objective = Objective(np.array([[0.6, 0.4], [0.4, 0.6]]), np.array([90.0, 10.0]), graph, 0.5)
    q, v = np.array([0.2, 0.8]), np.array([1.0, -1.0])
    ratio = geometry.riemannian_hessian(objective, q, v, v) / geometry.inner(q, v, v)
    assert ratio == pytest.approx(-3.60, abs=0.01)


@given(cases)
def test_geodesics_keep_their_speed_and_measure_distance(case):
    _, q, v = case
    v = v / np.sqrt(geometry.inner(q, v, v))
    t = 0.5 * np.sqrt(q.min())
    end = geometry.geodesic(q, v, t)
    assert end.sum() == pytest.approx(1)
    assert geometry.distance(q, end) == pytest.approx(t, rel=1e-9)
    velocity = derivative(lambda s: geometry.geodesic(q, v, s), t)
    assert geometry.inner(end, velocity, velocity) == pytest.approx(1, rel=1e-6)
    np.testing.assert_allclose(geometry.geodesic(q, 0 * v, t), q)


def test_distance_is_a_metric_and_keeps_digits_for_near_points():
    rng = np.random.default_rng(0)
    for p, q, r in rng.dirichlet(np.ones(4), (50, 3)):
        d = geometry.distance
        assert d(p, q) == pytest.approx(2 * np.arccos(np.sqrt(p * q).sum()))
        assert d(p, q) <= d(p, r) + d(r, q) + 1e-12
        assert d(p, p) == 0
    p = np.array([0.5, 0.5])
    step = np.array([1e-9, -1e-9])
    assert geometry.distance(p, p + step) == pytest.approx(2e-9, rel=1e-6)


def test_e_and_m_geodesics_are_straight_in_their_coordinates():
    p, q = np.array([0.2, 0.3, 0.5]), np.array([0.6, 0.3, 0.1])
    middle = geometry.e_geodesic(p, q, 0.5)
    ends = geometry.to_e_coordinates(p) + geometry.to_e_coordinates(q)
    np.testing.assert_allclose(geometry.to_e_coordinates(middle), ends / 2)
    np.testing.assert_allclose(geometry.m_geodesic(p, q, 0.25), 0.75 * p + 0.25 * q)


@given(cases)
def test_the_flow_descends_stays_on_the_simplex_and_ends_at_rest(case):
    objective, q, _ = case
    flow = geometry.replicator_laplacian_flow(objective, q, np.linspace(0, 20, 15))
    np.testing.assert_allclose(flow.q.sum(axis=1), 1)
    assert (flow.q > 0).all()
    assert (np.diff(flow.values) <= 1e-5 * np.abs(flow.values[:-1]) + 1e-6).all()
    assert np.abs(geometry.natural_gradient(objective, flow.q[-1])).max() < 1e-2


def test_the_flow_is_that_of_its_equation_in_q():
    """The same equation integrated in q; and the paper's version leaves the simplex."""
    objective, q, _ = random_case(4, 3)
    times = np.linspace(0, 0.05, 6)
    flow = geometry.replicator_laplacian_flow(objective, q, times, tolerance=1e-10)
    plain = solve_ivp(
        lambda _, x: -geometry.natural_gradient(objective, x), (0, 0.05), q,
        t_eval=times, rtol=1e-10, atol=1e-12,
    )  # fmt: skip
    np.testing.assert_allclose(flow.q, plain.y.T, atol=1e-7)
    wrong = q * (
        objective.target.sum()
        - objective.confusion.T @ (objective.target / (objective.confusion @ q))
        + objective.tau_q * (objective.graph.laplacian @ geometry.to_e_coordinates(q))
    )
    assert abs(wrong.sum()) > 1e-3


def test_an_euler_step_without_laplacian_is_a_step_of_em():
    objective, q, _ = random_case(5, 1, tau_q=0.0)
    n_target = objective.target.sum()
    step = q - geometry.natural_gradient(objective, q) / n_target
    frequencies = objective.target / n_target
    em = q * (objective.confusion.T @ (frequencies / (objective.confusion @ q)))
    np.testing.assert_allclose(step, em, atol=1e-14)


def test_m_projection_is_exact_inside_and_mlls_in_general():
    confusion = np.array([[0.8, 0.3], [0.2, 0.7]])
    inside = geometry.m_projection([0.5, 0.5], confusion)
    np.testing.assert_allclose(confusion @ inside.q, [0.5, 0.5], atol=1e-7)
    outside = geometry.m_projection([0.95, 0.05], confusion)
    np.testing.assert_allclose(outside.q, [1, 0], atol=1e-9)
    counts = ShiftCounts([[8, 3], [2, 7]], [60, 40])
    projected = geometry.m_projection([0.6, 0.4], counts.confusion_rates.toarray())
    np.testing.assert_allclose(projected.q, baselines.mlls(counts), atol=1e-9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"confusion": np.eye(3)}, r"got \(3, 3\) and \(2,\)"),
        ({"confusion": np.full((2, 2), 0.4)}, "sum to 1"),
        ({"target": np.array([-1.0, 2.0])}, "non-negative"),
        ({"tau_q": -1.0}, "tau_q >= 0"),
        ({"tau_q": np.nan}, "tau_q >= 0"),
        ({"confusion": np.full((2, 2), np.nan)}, "sum to 1"),
        ({"target": np.array([np.nan, 2.0])}, "non-negative"),
    ],
)
def test_bad_objectives_are_named(change, message):
    given = {
        "confusion": np.eye(2),
        "target": np.ones(2),
        "graph": LabelGraph.exchangeable(2),
        "tau_q": 1.0,
    }
    with pytest.raises(ValueError, match=message):
        Objective(**(given | change))


def test_without_laplacian_the_flow_may_run_into_the_boundary():
    confusion = np.array([[0.8, 0.3], [0.2, 0.7]])
    objective = Objective(confusion, np.array([95.0, 5.0]), LabelGraph.exchangeable(2), 0.0)
    flow = geometry.replicator_laplacian_flow(objective, [0.5, 0.5], [0.0, 1.0, 1e4])
    np.testing.assert_allclose(flow.q[-1], [1.0, 0.0], atol=1e-12)
    assert np.isfinite(flow.values).all()


def test_a_class_that_cannot_be_predicted_and_was_not_says_nothing():
    graph = LabelGraph.exchangeable(2)
    objective = Objective(np.array([[1.0, 1.0], [0.0, 0.0]]), np.array([5.0, 0.0]), graph, 1.0)
    np.testing.assert_allclose(objective.gradient([0.5, 0.5]), [-5.0, -5.0])
    np.testing.assert_allclose(geometry.natural_gradient(objective, [0.5, 0.5]), 0.0, atol=1e-12)
    assert np.isfinite(objective.hessian_product([0.4, 0.6], [1.0, -1.0])).all()


@pytest.mark.parametrize("times", [[0.0], [], [1.0, 0.0], [0.0, 2.0, 1.0], 3.0, [[0.0, 1.0]]])
def test_times_that_do_not_advance_are_refused(times):
    objective, q, _ = random_case(3, 0)
    with pytest.raises(ValueError, match="times must hold at least two moments"):
        geometry.replicator_laplacian_flow(objective, q, times)


def test_a_flow_from_the_boundary_is_refused():
    objective, _, _ = random_case(2, 0)
    with pytest.raises(ValueError, match="interior"):
        geometry.replicator_laplacian_flow(objective, [1.0, 0.0], [0, 1])


@pytest.mark.parametrize("q", [[0.5], [5.0, 5.0], [-0.5, 1.5]])
def test_distance_is_between_distributions(q):
    with pytest.raises(ValueError, match="q must"):
        geometry.distance([0.5, 0.5], q)
