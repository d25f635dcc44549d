"""The exact chains: their density against the model's, their force, and what they end with."""

import numpy as np
import pytest
from exact import three_classes, two_classes
from problems import PRIORS_THE_PAPERS_SLOW, random_problem
from scipy.special import logsumexp

import gsb3se as gs
from gsb3se.inference.structured.backend import Structured
from gsb3se.inference.structured.exact.chains import ExactPlan, Stretch, run_exact_chains
from gsb3se.inference.structured.exact.coordinates import column_gaussians, posterior_coordinates
from gsb3se.inference.structured.exact.density import ExactDensity
from gsb3se.inference.structured.share_density import ShareDensity
from gsb3se.model.density import Latents, Strengths, log_joint


def density_of(problem):
    source = Structured(refine=True).prepared(problem)
    shares = ShareDensity(problem, source.columns).gaussian
    gaussians = column_gaussians(source.propagation, source.columns, source.spread.curvature)
    return ExactDensity(problem, posterior_coordinates(problem, gaussians, shares), np.float64)


def model_value(problem, log_eta, x, strengths):
    """From gsb3se.model: tau_q integrated on a grid, the free totals' own laws added."""
    totals, eta = np.exp(x).sum(axis=1), np.exp(log_eta)
    theta, phi = log_eta + np.log(totals), (x - x.mean(axis=1, keepdims=True)).T
    anchor = strengths[1:] if len(strengths) == 3 else (0.0, 0.0)
    latents = Latents(theta - theta.mean(), phi, *anchor)
    log_tau_q = np.linspace(-25, 12, 4001)
    values = [
        log_joint(problem, latents, Strengths(np.exp(t), np.exp(strengths[0]))) + t
        for t in log_tau_q
    ]
    value = logsumexp(values) + np.log(log_tau_q[1] - log_tau_q[0]) + strengths[0]
    sizes = np.maximum(problem.column_sizes, 1)  # of a class without rows: one
    value += sizes @ np.log(totals) - totals.sum()
    whole = eta @ totals
    return value + problem.target.sum() * np.log(whole) - whole


@pytest.mark.parametrize("anchored", [False, True])
def test_the_density_is_the_models_with_the_volume_of_its_coordinates(anchored):
    problem, _, _ = random_problem(3, 4, anchored, n_source=9)
    density, n = density_of(problem), 3
    rng = np.random.default_rng(0)
    size = n + n * n + density.n_strengths

    def there(z):
        at = density._forward(z)
        return np.concatenate([at.log_eta.ravel(), at.x.ravel(), at.strengths.ravel()])

    gaps = []
    for _ in range(3):
        z = 0.7 * rng.standard_normal((size, 1))
        step = 1e-5 * np.eye(size)[..., None]
        jacobian = np.stack([(there(z + e) - there(z - e)) / 2e-5 for e in step])
        at = density._forward(z)
        expected = model_value(problem, at.log_eta[:, 0], at.x[..., 0], at.strengths[:, 0])
        gaps.append(density.at(z).value[0] - expected - np.linalg.slogdet(jacobian)[1])
    np.testing.assert_allclose(gaps, gaps[0], atol=1e-5)


@pytest.mark.parametrize("kind", ["knn", "exchangeable"])
@pytest.mark.parametrize("anchored", [False, True])
def test_the_force_is_that_of_differences(anchored, kind):
    problem, _, _ = random_problem(5, 1, anchored, kind)
    density = density_of(problem)
    rng = np.random.default_rng(1)
    z = 0.7 * rng.standard_normal((5 + 25 + density.n_strengths, 2))
    force = density.at(z).force
    for _ in range(6):
        step = rng.standard_normal(z.shape)
        rise = density.at(z + 1e-5 * step).value - density.at(z - 1e-5 * step).value
        np.testing.assert_allclose((force * step).sum(axis=0), rise / 2e-5, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(density.at(z, valued=False).force, force)


def test_shares_and_confusion_are_those_of_the_point():
    problem, _, _ = random_problem(4, 2, False, n_source=9)
    density = density_of(problem)
    z = np.random.default_rng(0).standard_normal((4 + 16 + 1, 3))
    r, confusion = density.predicted(z)
    theta = density.at(z).theta
    q = np.exp(theta - logsumexp(theta, axis=0))
    x = density._forward(z).x
    columns = np.exp(x - logsumexp(x, axis=1, keepdims=True))
    np.testing.assert_allclose(r, np.einsum("ijc,ic->jc", columns, q), rtol=1e-10)
    np.testing.assert_allclose(confusion, columns.mean(axis=2).T, rtol=1e-10)


def test_a_stretch_finds_wide_directions_alone_and_undoes_itself():
    rng = np.random.default_rng(0)
    points = rng.standard_normal((40, 4000))
    assert not Stretch.of(points, 4000).gains.size
    points[3] *= 5
    stretch = Stretch.of(points, 4000)
    assert stretch.gains.shape == (1,)
    assert stretch.gains[0] == pytest.approx(5, rel=0.15)
    assert abs(stretch.directions[3, 0]) > 0.99
    np.testing.assert_allclose(stretch.apply(stretch.apply(points), -1), points, atol=1e-10)
    few = Stretch.of(points[:, :20], 20)  # fewer points than coordinates
    np.testing.assert_allclose(few.directions.T @ few.directions, np.eye(few.gains.size), atol=1e-9)


@pytest.mark.parametrize("make", [two_classes, three_classes], ids=["K=2", "K=3"])
def test_chains_end_with_the_exact_posterior(make):
    problem, mean, sd, predicted, confusion = make()
    posterior = Structured(refine=True).infer(problem, np.random.default_rng(0))
    figures = posterior.diagnostics.figures
    assert figures["refined"]
    assert figures["refinement_accepted"] > 0.6
    assert (np.abs(posterior.mean - mean) < 0.07 * sd).all()
    np.testing.assert_allclose(posterior.sd, sd, rtol=0.06)
    np.testing.assert_allclose(posterior.form.r.mean(axis=(0, 1)), predicted, atol=0.005)
    np.testing.assert_allclose(posterior.confusion_mean, confusion, atol=0.01)


@pytest.mark.parametrize("prior", PRIORS_THE_PAPERS_SLOW)
def test_few_labels_are_refined_and_agree_with_hmc(prior):
    rng = np.random.default_rng(3)
    graph = gs.LabelGraph.knn(rng.standard_normal((8, 6)), k=3)
    truth = 0.75 * np.eye(8) + 0.25 * rng.dirichlet(np.full(8, 0.5), 8).T
    columns = np.column_stack([rng.multinomial(10, column) for column in truth.T])
    counts = gs.ShiftCounts(columns, rng.multinomial(4000, truth @ rng.dirichlet(np.ones(8))))
    problem = gs.Problem(counts, graph, prior)
    ours = Structured().infer(problem, np.random.default_rng(0))
    exact = gs.HMC(chains=4, warmup=500, draws=1500, progress=False)
    reference = exact.infer(problem, np.random.default_rng(1))
    figures = ours.diagnostics.figures
    assert figures["refined"]
    gap = np.abs(ours.mean - reference.mean) / reference.sd
    assert np.median(gap) < 0.1
    assert gap.max() < 0.25
    np.testing.assert_allclose(ours.sd, reference.sd, rtol=0.2)
    for name in set(ours.form.others) & {"tau_C", "alpha", "beta"}:
        one, other = (post.form.others[name] for post in (ours, reference))
        assert abs(one.mean() - other.mean()) < 0.35 * other.std()
    # The chains' own estimate of the approximation's error is what HMC sees of it.
    rough = Structured(refine=False).infer(problem, np.random.default_rng(0))
    seen = np.median(np.abs(rough.mean - reference.mean) / reference.sd)
    assert figures["approximation_mean_error"] == pytest.approx(seen, abs=0.08)


def test_many_classes_cannot_be_refined():
    counts = gs.ShiftCounts(np.eye(301, dtype=int), np.ones(301, int))
    with pytest.raises(ValueError, match="at most 300 classes"):
        Structured(refine=True).prepared(gs.Problem(counts))


def test_chains_that_never_move_end_early():
    problem, _, _ = random_problem(5, 1, False, n_source=9)
    density = density_of(problem)
    steep = density.at

    def hopeless(z, valued=True):
        there = steep(z, valued)
        return there._replace(value=there.value - 1e9 * np.abs(z).sum(axis=0))

    density.at = hopeless
    plan = ExactPlan.of(5)
    rng = np.random.default_rng(0)
    levels = np.zeros((5, 8))
    refined = run_exact_chains(density, levels, plan, rng)
    assert not refined.usable
    assert refined.trajectories < plan.settling
