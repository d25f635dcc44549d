"""The hierarchy against automatic differentiation, quadrature and limiting cases."""

import tracemalloc

import hierarchy
import numpy as np
import pytest
from collapsed import (
    GaussNewton,
    collapsed_hessian_product,
    log_collapsed,
    log_collapsed_and_gradient,
)
from hierarchy import flat, x64
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import direction_like, problems, random_problem
from scipy.integrate import quad
from scipy.stats import gamma

import gsb3se as gs
from gsb3se.model import density as model
from gsb3se.model.density import Curvature, Latents, Strengths
from gsb3se.model.problem import Problem
from gsb3se.support.errors import NoSolution


def oracle(problem, point, tau, density=hierarchy.log_joint):
    """Value, gradient and tau-gradient of a density by automatic differentiation."""
    with x64():
        value, (by_latents, by_tau) = hierarchy.value_and_gradient(
            density, flat(point), np.array([tau.q, tau.C]), hierarchy.dense(problem)
        )
        return float(value), np.asarray(by_latents), np.asarray(by_tau)


def oracle_product(problem, point, tau, direction, density=hierarchy.log_joint):
    with x64():
        data = hierarchy.dense(problem)
        taus = np.array([tau.q, tau.C])
        return np.asarray(
            hierarchy.negative_hessian_product(density, flat(point), taus, data, flat(direction))
        )


def relative(found, expected):
    return np.abs(found - expected).max() / max(1.0, np.abs(expected).max())


@given(problems)
def test_log_joint_and_gradient_are_those_of_automatic_differentiation(case):
    problem, point, tau = case
    value, gradient, slope = model.log_joint_and_gradient(problem, point, tau)
    expected, by_latents, by_tau = oracle(problem, point, tau)
    assert relative(value, expected) < 1e-10
    assert relative(flat(gradient), by_latents) < 1e-8
    assert relative(np.array([slope.q, slope.C]), by_tau) < 1e-8
    assert model.log_joint(problem, point, tau) == pytest.approx(value, rel=1e-14)


@given(problems, st.integers(0, 1000))
def test_exact_hessian_product_is_that_of_automatic_differentiation(case, seed):
    problem, point, tau = case
    direction = direction_like(point, seed)
    found = flat(Curvature(problem, point, tau, "exact").product(direction))
    assert relative(found, oracle_product(problem, point, tau, direction)) < 1e-8


@settings(max_examples=10)  # a check of what other tests check by
@given(problems, st.integers(0, 1000))
def test_collapsed_gradient_and_hessian_are_those_of_automatic_differentiation(case, seed):
    problem, point, tau = case
    direction = direction_like(point, seed)
    value, gradient = log_collapsed_and_gradient(problem, point)
    product = collapsed_hessian_product(problem, point, direction)
    density = hierarchy.log_collapsed
    assert relative(flat(gradient), oracle(problem, point, tau, density)[1]) < 1e-8
    assert relative(product, oracle_product(problem, point, tau, direction, density)) < 1e-8
    assert log_collapsed(problem, point) == pytest.approx(value, rel=1e-14)


@pytest.mark.parametrize("anchored", [False, True])
@pytest.mark.parametrize("n_classes", [2, 4])
def test_collapsed_density_is_the_joint_integrated_over_both_strengths(n_classes, anchored):
    problem, point, _ = random_problem(n_classes, 3, anchored)
    whole = log_collapsed(problem, point)

    def integrate(which):
        """One strength integrated numerically; the other factor is free of it."""

        def log_density(tau):
            pair = Strengths(tau, 1.0) if which == "q" else Strengths(1.0, tau)
            return model.log_joint(problem, point, pair)

        conditional = model.tau_conditionals(problem, point)
        shape, rate = getattr(conditional.shape, which), getattr(conditional.rate, which)
        top = log_density(shape / rate)
        ends = gamma(shape, scale=1 / rate).ppf([1e-13, 1 - 1e-13])
        area = quad(
            lambda t: np.exp(log_density(t) - top), *ends, epsabs=0, epsrel=1e-11, limit=200
        )
        return top + np.log(area[0])

    at_one = model.log_joint(problem, point, Strengths(1.0, 1.0))
    assert integrate("q") + integrate("C") - at_one == pytest.approx(whole, abs=1e-8)


@given(problems)
def test_tau_conditional_is_the_joint_as_a_function_of_tau(case):
    problem, point, _ = case
    conditional = model.tau_conditionals(problem, point)
    for which in ("q", "C"):
        law = gamma(getattr(conditional.shape, which), scale=1 / getattr(conditional.rate, which))
        low, high = law.ppf([0.2, 0.8])
        pairs = [{"q": 1.0, "C": 1.0, which: t} for t in (low, high)]
        values = [model.log_joint(problem, point, Strengths(**pair)) for pair in pairs]
        assert values[1] - values[0] == pytest.approx(law.logpdf(high) - law.logpdf(low), abs=1e-7)


@given(problems, st.integers(0, 1000))
def test_fisher_and_gauss_newton_products_are_symmetric_and_not_negative(case, seed):
    problem, point, tau = case
    one, other = direction_like(point, seed), direction_like(point, seed + 1)
    for curvature in (
        Curvature(problem, point, tau, "fisher"),
        GaussNewton(problem, point, tau),
    ):
        forth = flat(one) @ flat(curvature.product(other))
        back = flat(other) @ flat(curvature.product(one))
        assert forth == pytest.approx(back, rel=1e-9, abs=1e-9)
        assert flat(one) @ flat(curvature.product(one)) >= 0


@pytest.mark.parametrize("anchored", [False, True])
def test_fisher_is_the_expectation_of_the_exact_hessian(anchored):
    """The exact Hessian is affine in both sets of counts, so their means stand for the average."""
    problem, point, tau = random_problem(4, 5, anchored, n_target=1000)
    rng = np.random.default_rng(0)
    direction = direction_like(point, 1)
    sizes = problem.counts.validation_sizes
    r = point.confusion @ point.q
    products = []
    for _ in range(4000):
        columns = rng.multinomial(sizes, point.confusion.T).T
        counts = gs.ShiftCounts(columns, rng.multinomial(1000, r))
        drawn = Problem(counts, problem.graph, problem.prior)
        products.append(flat(Curvature(drawn, point, tau, "exact").product(direction)))
    expected = flat(Curvature(problem, point, tau, "fisher").product(direction))
    error = np.std(products, axis=0) / np.sqrt(len(products))
    assert (np.abs(np.mean(products, axis=0) - expected) < 5 * error + 1e-8).all()


def test_exact_hessian_can_be_negative_where_the_paper_says_it_cannot():
    graph = gs.LabelGraph.from_weights([[0, 1], [1, 0]])
    problem = Problem(gs.ShiftCounts(np.zeros((2, 2), int), [90, 10]), graph)
    confusion = np.array([[0.9, 0.2], [0.1, 0.8]])
    point = Latents(np.array([-1.0, 1.0]), np.log(confusion))
    step = Latents(np.array([1.0, -1.0]) / np.sqrt(2), np.zeros((2, 2)))
    curvature = Curvature(problem, point, Strengths(1.0, 1e-9), "exact").product(step)
    assert step.theta @ curvature.theta == pytest.approx(-19.7, abs=0.05)


@given(problems, st.floats(-50, 50))
def test_column_means_are_invisible(case, level):
    problem, point, tau = case
    moved = Latents(point.theta + level, point.phi + level, point.alpha, point.beta)
    value, gradient, _ = model.log_joint_and_gradient(problem, moved, tau)
    assert value == pytest.approx(model.log_joint(problem, point, tau), rel=1e-9, abs=1e-8)
    assert np.abs(gradient.phi.sum(axis=0)).max() < 1e-6 * max(1, np.abs(gradient.phi).max())
    assert abs(gradient.theta.sum()) < 1e-6 * max(1, np.abs(gradient.theta).max())


@given(problems, st.integers(0, 1000))
def test_relabelling_changes_nothing(case, seed):
    problem, point, tau = case
    if problem.graph.is_exchangeable:
        graph = problem.graph
        order = np.random.default_rng(seed).permutation(problem.n_classes)
    else:
        order = np.random.default_rng(seed).permutation(problem.n_classes)
        graph = gs.LabelGraph.from_weights(problem.graph.weights.toarray()[np.ix_(order, order)])
    counts = gs.ShiftCounts(
        problem.counts.confusion.toarray()[np.ix_(order, order)], problem.counts.target[order]
    )
    moved = Latents(point.theta[order], point.phi[np.ix_(order, order)], point.alpha, point.beta)
    value, gradient, _ = model.log_joint_and_gradient(
        Problem(counts, graph, problem.prior), moved, tau
    )
    original = model.log_joint_and_gradient(problem, point, tau)
    assert value == pytest.approx(original[0], rel=1e-10, abs=1e-9)
    assert relative(gradient.phi, original[1].phi[np.ix_(order, order)]) < 1e-9


@pytest.mark.parametrize("kind", ["knn", "exchangeable"])
def test_anchored_with_zero_alpha_and_beta_is_the_paper(kind):
    problem, point, tau = random_problem(6, 11, anchored=False, kind=kind)
    prior = problem.prior
    anchored = Problem(
        problem.counts,
        problem.graph,
        gs.Prior.anchored(prior.a_q, prior.b_q, prior.a_C, prior.b_C, 5.0),
    )
    constant = 2 * np.log(5.0 * np.sqrt(2 * np.pi))
    paper = model.log_joint(problem, point, tau)
    assert model.log_joint(anchored, point, tau) + constant == pytest.approx(paper, rel=1e-12)


def test_extreme_points_stay_finite_and_right():
    """Log-odds of thousands: exp overflows, r underflows; the values are those of logsumexp."""
    problem, point, tau = random_problem(5, 2, anchored=False, kind="dense")
    for scale in (300.0, 3000.0):
        wild = Latents(scale * point.theta, scale * point.phi)
        value, gradient, _ = model.log_joint_and_gradient(problem, wild, tau)
        expected, slope, _ = oracle(problem, wild, tau)
        assert value == pytest.approx(expected, rel=1e-12)
        assert relative(flat(gradient), slope) < 1e-8


def test_a_hessian_that_would_overflow_says_so():
    counts = gs.ShiftCounts(np.eye(3, dtype=int), [0, 0, 5])
    phi = np.zeros((3, 3))
    phi[2] = -5000.0
    with pytest.raises(NoSolution, match="nearer to the data"):
        Curvature(Problem(counts), Latents(np.zeros(3), phi), Strengths(1.0, 1.0))


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("kind", ["knn", "exchangeable"])
def test_memory_order_of_phi_does_not_matter(order, kind):
    problem, point, tau = random_problem(7, 4, anchored=True, kind=kind)
    laid = Latents(point.theta, np.array(point.phi, order=order), point.alpha, point.beta)
    expected = model.log_joint_and_gradient(problem, point, tau)
    found = model.log_joint_and_gradient(problem, laid, tau)
    assert found[0] == pytest.approx(expected[0])
    np.testing.assert_allclose(found[1].phi, expected[1].phi, atol=1e-10)
    np.testing.assert_allclose(
        Curvature(problem, laid, tau).product(laid).phi,
        Curvature(problem, point, tau).product(point).phi,
        atol=1e-9,
    )


@pytest.mark.parametrize("anchored", [False, True])
def test_two_threads_evaluate_what_one_does(anchored, monkeypatch):
    problem, point, tau = random_problem(12, 8, anchored)
    alone = model.log_joint_and_gradient(problem, point, tau)
    collapsed = log_collapsed_and_gradient(problem, point)
    monkeypatch.setattr(model, "EVALUATED_SIDE_BY_SIDE", 2)
    beside = model.log_joint_and_gradient(problem, point, tau)
    assert beside[0] == alone[0]
    np.testing.assert_array_equal(flat(beside[1]), flat(alone[1]))
    np.testing.assert_array_equal(
        flat(log_collapsed_and_gradient(problem, point)[1]), flat(collapsed[1])
    )


def test_evaluations_do_not_disturb_each_other():
    """Scratch memory is reused; results and inputs must not change with later calls."""
    problem, point, tau = random_problem(9, 6, anchored=True)
    before = point.phi.copy()
    first = model.log_joint_and_gradient(problem, point, tau)
    kept = first[1].phi.copy()
    model.log_joint_and_gradient(problem, direction_like(point, 3), tau)
    np.testing.assert_array_equal(first[1].phi, kept)
    np.testing.assert_array_equal(point.phi, before)


@pytest.mark.parametrize("prior", [gs.Prior(), gs.Prior.anchored()])
def test_a_thousand_classes_hold_a_few_square_arrays(prior):
    n = 1000
    rng = np.random.default_rng(0)
    graph = gs.LabelGraph.knn(rng.standard_normal((n, 16)))
    simulated = gs.simulate(graph, prior, 3, 2000, seed=0)
    problem, point = Problem(simulated.counts, graph, prior), simulated.latents
    tau = Strengths(1.0, 1.0)
    model.log_joint(problem, point, tau)
    tracemalloc.start()
    value, gradient, _ = model.log_joint_and_gradient(problem, point, tau)
    Curvature(problem, point, tau).product(gradient)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert np.isfinite(value)
    assert peak < 8 * 8 * n * n


def test_unknown_hessian_kind_is_named():
    problem, point, tau = random_problem(3, 0, False)
    with pytest.raises(ValueError, match="'newton'"):
        Curvature(problem, point, tau, "newton")


def test_latents_of_another_size_are_named():
    problem, point, tau = random_problem(3, 0, False)
    wrong = Latents(point.theta[:2], point.phi)
    message = r"theta must be \(3,\) and phi \(3, 3\).*got \(2,\) and \(3, 3\)"
    with pytest.raises(ValueError, match=message):
        model.log_likelihood(problem, wrong.theta, wrong.phi)
    with pytest.raises(ValueError, match=message):
        model.log_joint_and_gradient(problem, wrong, tau)
    with pytest.raises(ValueError, match=message):
        Curvature(problem, wrong, tau)
    with pytest.raises(ValueError, match=message):
        Curvature(problem, point, tau).product(wrong)


@pytest.mark.parametrize(
    ("theta", "phi"),
    [
        ([0.0, 0.0], [[-590.0, 0.0], [-760.0, -600.0]]),
        ([-300.0, 300.0], [[-250.0, 250.0], [250.0, -250.0]]),
        ([0.0, 0.0], [[590.0, 0.0], [500.0, 900.0]]),
        ([0.0, 0.0], [[180.0, 180.0], [-180.0, -181.0]]),
    ],
)
def test_hard_corners_of_the_range_of_floats(theta, phi):
    problem = Problem(gs.ShiftCounts([[3, 1], [0, 2]], [0, 1]))
    point, tau = Latents(np.array(theta), np.array(phi)), Strengths(1.0, 1.0)
    value, gradient, _ = model.log_joint_and_gradient(problem, point, tau)
    expected, slope, _ = oracle(problem, point, tau)
    assert value == pytest.approx(expected, rel=1e-12)
    assert relative(flat(gradient), slope) < 1e-10
    centred = Latents(point.theta, point.phi - point.phi.mean(axis=0))
    likelihoods = [model.log_likelihood(problem, x.theta, x.phi) for x in (point, centred)]
    assert likelihoods[0] == pytest.approx(likelihoods[1], rel=1e-12)


@pytest.mark.parametrize("exponent", [50, 90, 120, 200])
def test_hessian_products_are_right_or_refused(exponent):
    problem = Problem(gs.ShiftCounts([[3, 1], [0, 2]], [0, 1]))
    phi = np.log([[1.0, 1.0], [10.0**-exponent, 2 * 10.0**-exponent]])
    point, tau = Latents(np.array([0.3, -0.3]), phi), Strengths(1.0, 1.0)
    direction = direction_like(point, 0)
    if exponent < 100:
        found = flat(Curvature(problem, point, tau).product(direction))
        assert relative(found, oracle_product(problem, point, tau, direction)) < 1e-8
    else:
        with pytest.raises(NoSolution):
            Curvature(problem, point, tau)


@pytest.mark.parametrize("tau", [Strengths(0.0, 1.0), Strengths(1.0, -1.0), Strengths(np.nan, 1.0)])
def test_strengths_must_be_positive(tau):
    problem, point, _ = random_problem(3, 0, False)
    with pytest.raises(ValueError, match="tau must be positive"):
        model.log_joint(problem, point, tau)
