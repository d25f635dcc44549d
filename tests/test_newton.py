import numpy as np
import pytest
from problems import random_graph, random_problem

import gsb3se as gs
from gsb3se.inference.gaussian import NewtonCG
from gsb3se.inference.gaussian.hessian_blocks import NotPositiveDefinite, gaussian_blocks
from gsb3se.inference.gaussian.mode_search import (
    InnerSettings,
    LinearSystem,
    SearchSettings,
    Work,
    cold_start,
    conjugate_gradients,
    find_mode,
)
from gsb3se.inference.gaussian.preconditioner import FisherPreconditioner
from gsb3se.inference.gaussian.strength_search import escape, marginal_tau
from gsb3se.model.density import (
    Curvature,
    Latents,
    Strengths,
    log_joint_and_gradient,
    tau_conditionals,
)
from gsb3se.model.problem import Problem


def as_vector(latents, anchored):
    parts = [latents.theta, latents.phi.T.ravel()]  # column after column
    return np.concatenate([*parts, [latents.alpha, latents.beta] if anchored else []])


def as_latents(vector, n):
    anchor = vector[n + n * n :]
    phi = vector[n : n + n * n].reshape(n, n).T.copy()
    return Latents(vector[:n], phi, *(map(float, anchor) if len(anchor) else (0.0, 0.0)))


def as_matrix(product, n, anchored):
    """A product over latents as a dense matrix."""
    size = n + n * n + 2 * anchored
    columns = [as_vector(product(as_latents(e, n)), anchored) for e in np.eye(size)]
    return np.column_stack(columns)


def projection(n, anchored):
    """Onto the sum-zero spaces of theta and every column."""
    centre = np.kron(np.eye(n + 1), np.eye(n) - 1 / n)
    whole = np.eye(len(centre) + 2 * anchored)
    whole[: len(centre), : len(centre)] = centre
    return whole


def simulated(seed):
    """A random problem of 3 to 100 classes, 2 to 200 labels a class, either prior."""
    rng = np.random.default_rng([seed, 11])
    n, labels, target = (
        int(np.exp(rng.uniform(*np.log(ends)))) for ends in ((3, 100), (2, 200), (50, 10_000))
    )
    graph = gs.LabelGraph.knn(rng.standard_normal((n, 8)), k=min(6, n - 1))
    prior = gs.Prior.anchored() if seed % 2 else gs.Prior()
    return Problem(gs.simulate(graph, prior, labels, target, rng).counts, graph, prior)


# The Gaussian by blocks


@pytest.mark.parametrize("kind", ["exact", "fisher"])
@pytest.mark.parametrize("anchored", [False, True])
@pytest.mark.parametrize("graph", ["knn", "exchangeable"])
def test_block_elimination_is_the_dense_inverse(kind, anchored, graph):
    n = 5
    problem, _, tau = random_problem(n, 3, anchored, graph, n_source=40)
    latents = find_mode(problem, tau, cold_start(problem)).latents
    blocks = gaussian_blocks(problem, latents, tau, kind)

    hessian = as_matrix(Curvature(problem, latents, tau, kind).product, n, anchored)
    onto = projection(n, anchored)
    covariance = np.linalg.pinv(onto @ hessian @ onto, rcond=1e-11)
    np.testing.assert_allclose(blocks.theta_covariance, covariance[:n, :n], atol=1e-12)
    log_determinant = np.log(np.linalg.eigvalsh(onto @ hessian @ onto)[n + 1 :]).sum()
    assert blocks.log_determinant == pytest.approx(log_determinant)

    q, confusion = latents.q, latents.confusion
    to_r = np.zeros((n, len(hessian)))
    to_r[:, :n] = confusion * q - np.outer(confusion @ q, q)
    for i, c in enumerate(confusion.T):
        to_r[:, n + i * n : n + (i + 1) * n] = q[i] * (np.diag(c) - np.outer(c, c))
    factor, r_factor = blocks.draw_factors()
    np.testing.assert_allclose(factor @ factor.T, covariance[:n, :n], atol=1e-12)
    np.testing.assert_allclose(r_factor @ r_factor.T, to_r @ covariance @ to_r.T, atol=1e-14)
    np.testing.assert_allclose(factor @ r_factor.T, covariance[:n] @ to_r.T, atol=1e-13)

    laplacian = problem.graph.laplacian.toarray()
    form_q = np.trace(laplacian @ covariance[:n, :n])
    assert blocks.form_q == pytest.approx(form_q)
    if kind == "fisher":
        to_fields = np.zeros((n * n, len(hessian)))
        to_fields[:, n : n + n * n] = np.eye(n * n)
        if anchored:
            weights = problem.graph.weights.toarray()
            to_fields[:, -2:] = -np.column_stack([np.eye(n).ravel(), weights.T.ravel()])
        fields = to_fields @ covariance @ to_fields.T
        assert blocks.form_C == pytest.approx(np.trace(np.kron(np.eye(n), laplacian) @ fields))


def test_without_priors_the_covariance_is_that_of_bbse_by_the_delta_method():
    """tau -> 0: Cov(q) = C^-1 [(diag r - rr') / n' + sum q_i^2 G_i / n_i] C^-T."""
    confusion = np.array([[800, 100, 50], [150, 850, 100], [50, 50, 850]])
    counts = gs.ShiftCounts(confusion, [5200, 3000, 1800])
    problem, tau = Problem(counts), Strengths(1e-7, 1e-7)
    latents = find_mode(problem, tau, cold_start(problem)).latents
    q, C = latents.q, latents.confusion
    np.testing.assert_allclose(q, gs.baselines.bbse(counts), atol=1e-5)
    r = C @ q
    noise = (np.diag(r) - np.outer(r, r)) / counts.n_target
    for i, c in enumerate(C.T):
        noise += q[i] ** 2 * (np.diag(c) - np.outer(c, c)) / counts.validation_sizes[i]
    inverse = np.linalg.inv(C)
    slope = np.diag(q) - np.outer(q, q)
    found = slope @ gaussian_blocks(problem, latents, tau).theta_covariance @ slope
    np.testing.assert_allclose(found, inverse @ noise @ inverse.T, rtol=1e-3, atol=1e-9)


def test_a_column_that_only_the_target_holds_is_no_saddle():
    """Its own block is indefinite; the whole, with the target's curvature, is not."""
    confusion = [[42, 3, 0, 0, 0], [0, 44, 2, 0, 0], [7, 0, 46, 0, 0], [0, 1, 2, 42, 0],
                 [1, 2, 0, 8, 0]]  # fmt: skip
    problem = Problem(gs.ShiftCounts(confusion, [11, 146, 45, 42, 56]), prior="paper")
    n = 5
    fit = marginal_tau(problem, SearchSettings(), np.random.default_rng(0))
    latents, tau = fit.mode.latents, fit.tau
    hessian = as_matrix(Curvature(problem, latents, tau).product, n, False)
    onto = projection(n, False)
    assert np.linalg.eigvalsh(onto @ hessian @ onto)[n + 1] > 0.1
    covariance = np.linalg.pinv(onto @ hessian @ onto, rcond=1e-11)[:n, :n]
    blocks = gaussian_blocks(problem, latents, tau, "exact")
    np.testing.assert_allclose(blocks.theta_covariance, covariance, rtol=1e-8, atol=1e-10)
    post = NewtonCG().infer(problem, np.random.default_rng(0))
    assert post.diagnostics.status is gs.Status.NOT_IDENTIFIED


@pytest.mark.parametrize("target", [10**7, 10**9, 10**11])
def test_huge_counts_run_out_of_digits_gracefully(target):
    counts = gs.ShiftCounts([[20, 3, 1], [2, 25, 1], [1, 2, 30]], [3 * target, 2 * target, target])
    post = NewtonCG().infer(Problem(counts), np.random.default_rng(0))
    assert post.diagnostics.status is gs.Status.OK or target > 10**7
    assert np.isfinite(post.sd).all()
    for update in ("joint", "block"):
        empty = gs.ShiftCounts(np.zeros((3, 3), int), [3, 13, 8])
        NewtonCG(update=update).infer(Problem(empty), np.random.default_rng(0))


def test_leaving_a_saddle_is_said():
    """Columns alike, so that any class may be the frequent one."""
    problem = Problem(gs.ShiftCounts(np.full((3, 3), 200), [172, 99, 29]), prior="paper")
    post = NewtonCG().infer(problem, np.random.default_rng(0))
    assert post.diagnostics.status is gs.Status.SEVERAL_MODES
    assert "hmc" in post.diagnostics.message


# The inner solve


def test_preconditioner_is_the_dense_inverse_with_diagonal_columns():
    n = 6
    problem, point, tau = random_problem(n, 5, anchored=False)
    laplacian = problem.graph.laplacian.toarray()
    q, confusion = point.q, point.confusion
    centre = np.eye(n) - 1 / n
    precision, to_r = np.zeros((n + n * n, n + n * n)), np.zeros((n, n + n * n))
    precision[:n, :n] = tau.q * laplacian
    to_r[:, :n] = confusion * q - np.outer(confusion @ q, q)
    for i, c in enumerate(confusion.T):
        size = problem.column_sizes[i]
        block = np.diag(size * c + tau.C * np.diag(laplacian)) - size * np.outer(c, c)
        own = slice(n + i * n, n + (i + 1) * n)
        precision[own, own] = np.linalg.pinv(centre @ np.linalg.inv(block) @ centre)
        to_r[:, own] = q[i] * (np.diag(c) - np.outer(c, c))
    precision += to_r.T @ np.diag(problem.target.sum() / (confusion @ q)) @ to_r
    found = as_matrix(FisherPreconditioner(problem, point, tau).solve, n, False)
    onto = projection(n, False)
    np.testing.assert_allclose(
        onto @ found @ onto, np.linalg.pinv(onto @ precision @ onto, rcond=1e-11), atol=1e-10
    )


def test_conjugate_gradients_solve_a_fisher_system():
    n = 6
    problem, point, tau = random_problem(n, 2, anchored=True)
    fisher = Curvature(problem, point, tau, "fisher")
    gradient = log_joint_and_gradient(problem, point, tau)[1]
    solve = FisherPreconditioner(problem, point, tau).solve
    found = conjugate_gradients(
        LinearSystem(fisher.product, solve), gradient, Work(), InnerSettings(1e-10, 500)
    )
    left = as_vector(fisher.product(found), True) - as_vector(gradient, True)
    assert np.abs(left).max() < 1e-7 * np.abs(as_vector(gradient, True)).max()


# The mode


@pytest.mark.parametrize("seed", range(16))
def test_a_cold_start_reaches_the_mode(seed):
    problem, tau = simulated(seed), Strengths(1.0, 0.3)
    mode = find_mode(problem, tau, cold_start(problem))
    assert mode.converged
    assert mode.decrement < 1e-8
    gradient = log_joint_and_gradient(problem, mode.latents, tau)[1]
    size = np.abs(problem.target).max() + problem.column_sizes.max()
    assert np.abs(gradient.theta).max() < 1e-5 * size
    assert np.abs(gradient.phi).max() < 1e-5 * size
    assert np.abs(mode.latents.phi.sum(axis=0)).max() < 1e-9


def test_blocks_reach_the_same_mode_in_more_steps():
    problem, _, tau = random_problem(6, 1, anchored=False, n_source=60, n_target=500)
    joint, block = Work(), Work()
    one = find_mode(problem, tau, cold_start(problem), SearchSettings(1e-12), joint)
    other = find_mode(
        problem, tau, cold_start(problem), SearchSettings(1e-12, 2000, "block"), block
    )
    assert one.converged
    assert other.converged
    np.testing.assert_allclose(one.latents.q, other.latents.q, atol=1e-5)
    assert block.newton_steps > 3 * joint.newton_steps


def test_a_saddle_is_left_uphill():
    """A stationary point that treats two classes alike lies between two maxima that do not."""
    n = 12
    confusion = np.round(1e5 * (np.full((n, n), 0.95 / n) + 0.05 * np.eye(n))).astype(int)
    target = np.zeros(n, int)
    target[:2] = 1000
    problem, tau = Problem(gs.ShiftCounts(confusion, target)), Strengths(20.0, 1.0)
    saddle = find_mode(problem, tau, Latents(np.zeros(n), cold_start(problem).phi))
    assert saddle.converged
    with pytest.raises(NotPositiveDefinite):
        gaussian_blocks(problem, saddle.latents, tau, "exact")
    left = escape(problem, saddle.latents, tau, np.random.default_rng(0), Work())
    top = find_mode(problem, tau, left)
    assert top.log_density > saddle.log_density + 0.1
    assert escape(problem, top.latents, tau, np.random.default_rng(0), Work()) is None


# The backend


def test_strengths_are_a_fixed_point_and_near_the_truth():
    rng = np.random.default_rng(4)
    graph = random_graph(20, "knn", rng)
    made = gs.simulate(graph, gs.Prior(), n_source=200, n_target=5000, seed=3)
    problem = Problem(made.counts, graph)
    fit = marginal_tau(problem, SearchSettings(), rng)
    assert fit.findings == []
    conditional = tau_conditionals(problem, fit.mode.latents)
    blocks = gaussian_blocks(problem, fit.mode.latents, fit.tau, "fisher")
    expected = conditional.shape.C / (conditional.rate.C + blocks.form_C / 2)
    assert pytest.approx(expected, rel=2e-3) == fit.tau.C
    assert pytest.approx(made.tau.C, rel=0.5) == fit.tau.C


def test_joint_tau_collapses_where_labels_are_few_and_says_so():
    rng = np.random.default_rng(0)
    graph = random_graph(8, "knn", rng)
    confusion = np.column_stack([rng.multinomial(4, 0.6 * np.eye(8)[i] + 0.05) for i in range(8)])
    target = rng.multinomial(60, np.full(8, 1 / 8))
    problem = Problem(gs.ShiftCounts(confusion, target), graph)
    joint = NewtonCG(tau="joint").infer(problem, rng)
    marginal = NewtonCG().infer(problem, rng)
    assert joint.diagnostics.status is gs.Status.COLLAPSED
    assert "marginal" in joint.diagnostics.message
    assert joint.diagnostics.figures["tau_C"] > 5 * marginal.diagnostics.figures["tau_C"]
    assert marginal.diagnostics.status in (gs.Status.OK, gs.Status.PARTLY_IDENTIFIED)


def test_hitting_a_limit_is_said():
    problem, _, _ = random_problem(6, 1, anchored=True)
    post = NewtonCG(max_steps=1).infer(problem, np.random.default_rng(0))
    assert post.diagnostics.status is gs.Status.NOT_CONVERGED
    assert "after 1 steps" in post.diagnostics.message
    assert np.isfinite(post.mean).all()


def test_figures_tell_the_work_and_the_curvature():
    problem, _, _ = random_problem(5, 1, anchored=True, n_source=50)
    post = NewtonCG().infer(problem, np.random.default_rng(0))
    figures = post.diagnostics.figures
    assert figures["decrement"] < 1e-8
    assert figures["smallest_curvature"] > 0
    for name in ("newton_steps", "gradients", "hessian_products", "tau_updates"):
        assert figures[name] >= 1
    assert post.predictive(50, 10).shape == (10, 5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tau": "map"}, "tau must be 'marginal' or 'joint'"),
        ({"update": "all"}, "update 'joint' or 'block'"),
        ({"tolerance": 0.0}, "tolerance must lie between 0 and 1"),
        ({"max_steps": 0}, "max_steps must be a whole number"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        NewtonCG(**settings)
