import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest
from exact import three_classes, two_classes
from problems import random_problem
from scipy.special import logsumexp

import gsb3se as gs
from gsb3se.diagnostics import rank_uniformity
from gsb3se.inference.hmc import backend, density, sampler
from gsb3se.inference.hmc.coordinates import TARGET_LEVEL, column_scaling, share_scaling
from gsb3se.inference.hmc.verdict import judge
from gsb3se.model.density import Latents, Strengths, log_joint
from gsb3se.model.problem import Problem

QUICK = gs.HMC(chains=4, warmup=400, draws=1000, progress=False)


def coordinates(problem, rng):
    n = problem.n_classes
    z = {"theta": rng.standard_normal(n), "columns": rng.standard_normal((n, n))}
    z["log_tau"] = rng.standard_normal(2)
    if problem.prior.is_anchored:
        z["anchor"] = 2 * rng.standard_normal(2)
    return z


@pytest.mark.parametrize("anchored", [False, True])
@pytest.mark.parametrize("graph", ["knn", "exchangeable"])
def test_potential_is_the_joint_density_of_the_coordinates(anchored, graph):
    """Against gsb3se.model, the laws of the totals, and the map's Jacobian by differentiation."""
    n = 4
    problem, _, _ = random_problem(n, 1, anchored, graph)
    rng = np.random.default_rng(0)
    levels = np.maximum(problem.column_sizes, 1)
    differences = []
    with density.double_precision():
        data = density.as_data(problem, column_scaling(problem), share_scaling(problem))

        def place(z):
            at = density.point_at(data, z)
            anchor = [] if at.weights is None else [at.weights]
            return jnp.concatenate([at.theta, at.x.ravel(), jnp.log(at.tau), *anchor])

        _, unflatten = jax.flatten_util.ravel_pytree(coordinates(problem, rng))
        slopes = jax.jit(jax.jacfwd(lambda v: place(unflatten(v))))
        potential, point_at = jax.jit(density.potential), jax.jit(density.point_at)
        for _ in range(5):
            z = coordinates(problem, rng)
            jacobian = slopes(jax.flatten_util.ravel_pytree(z)[0])
            at = point_at(data, z)
            theta, x, tau = (np.asarray(part) for part in (at.theta, at.x, at.tau))
            anchor = (0.0, 0.0) if at.weights is None else map(float, at.weights)
            latents = Latents(theta - theta.mean(), x - x.mean(axis=0), *anchor)
            expected = log_joint(problem, latents, Strengths(*tau)) + np.log(tau).sum()
            expected += np.linalg.slogdet(jacobian)[1]
            total, totals = logsumexp(theta), logsumexp(x, axis=0)
            expected += TARGET_LEVEL * total - np.exp(total)
            expected += levels @ totals - np.exp(totals).sum()
            differences.append(float(potential(data, z)) + expected)
    np.testing.assert_allclose(differences, differences[0], rtol=1e-9)


@pytest.mark.parametrize("anchored", [False, True])
def test_written_gradients_are_those_of_automatic_differentiation(anchored):
    problem, _, _ = random_problem(5, 2, anchored)
    with density.double_precision():
        data = density.as_data(problem, column_scaling(problem), share_scaling(problem))
        z = coordinates(problem, np.random.default_rng(1))
        flat, unflatten = jax.flatten_util.ravel_pytree(z)
        potential = jax.jit(lambda v: density.potential(data, unflatten(v)))
        gradient = jax.grad(potential)(flat)
        for i in np.linspace(0, len(flat) - 1, 12).astype(int):
            step = 1e-5 * np.eye(len(flat))[i]
            ends = [potential(flat + s * step) for s in (1, -1)]
            slope = float(ends[0] - ends[1]) / 2e-5
            assert float(gradient[i]) == pytest.approx(slope, rel=1e-5, abs=1e-5)


def check_against(posterior, mean, sd):
    """Means and sds within Monte Carlo error of the reference."""
    figures = posterior.diagnostics.figures
    error = posterior.sd / np.sqrt(figures["bulk_ess_q"])
    assert (np.abs(posterior.mean - mean) < 4 * error).all()
    np.testing.assert_allclose(posterior.sd, sd, rtol=4 / np.sqrt(min(figures["tail_ess_q"])))


@pytest.mark.parametrize("make", [two_classes, three_classes], ids=["K=2", "K=3"])
def test_small_posteriors_match_the_exact_ones(make):
    exact = make()
    posterior = QUICK.infer(exact.problem, np.random.default_rng(0))
    check_against(posterior, exact.mean, exact.sd)
    np.testing.assert_allclose(posterior.form.r.mean(axis=(0, 1)), exact.predicted, atol=0.005)
    np.testing.assert_allclose(posterior.confusion_mean, exact.confusion, atol=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("prior", [gs.Prior(), gs.Prior.anchored()], ids=["paper", "anchored"])
def test_the_truth_falls_evenly_among_the_draws(prior):
    """A small simulation-based calibration; examples/benchmarks/sbc.py is the large one."""
    backend = gs.HMC(chains=2, progress=False)
    ranks = []
    for seed in range(30):
        rng = np.random.default_rng([seed, 5])
        graph = gs.LabelGraph.from_weights(np.ones((3, 3)))
        made = gs.simulate(graph, prior, n_source=15, n_target=60, seed=rng)
        posterior = backend.infer(Problem(made.counts, graph, prior), rng)
        chosen = rng.permutation(2000)[:19]
        draws = np.column_stack(
            [posterior.form.q.reshape(-1, 3)]
            + [posterior.form.others[name].reshape(-1, 1) for name in ("tau_q", "tau_C")]
        )
        ranks.append((draws[chosen] < [*made.q, made.tau.q, made.tau.C]).sum(axis=0))
    assert min(rank_uniformity(found, 19) for found in np.array(ranks).T) > 0.005


def test_jax_is_left_as_it_was_and_a_seed_repeats():
    assert not jax.config.jax_enable_x64
    problem, _, _ = random_problem(3, 0, anchored=False)
    backend = gs.HMC(chains=2, warmup=50, draws=60, progress=False)
    first, again, other = (backend.infer(problem, np.random.default_rng(s)) for s in (1, 1, 2))
    assert not jax.config.jax_enable_x64
    assert first.form.q.dtype == np.float64
    np.testing.assert_array_equal(first.form.q, again.form.q)
    assert not np.array_equal(first.form.q, other.form.q)
    assert first.form.q.shape == (2, 60, 3)
    assert set(first.form.others) >= {"tau_q", "tau_C", "diverging", "energy", "n_steps"}


def test_one_chain_is_judged_by_its_halves():
    problem, _, _ = random_problem(3, 0, anchored=False)
    posterior = gs.HMC(chains=1, warmup=200, draws=300).infer(problem, np.random.default_rng(0))
    assert 0.99 < posterior.diagnostics.figures["r_hat_max"] < 1.2
    assert posterior.diagnostics.figures["bulk_ess_min"] > 10


def test_few_draws_are_said():
    problem, _, _ = random_problem(3, 0, anchored=True)
    posterior = gs.HMC(chains=2, warmup=50, draws=60).infer(problem, np.random.default_rng(0))
    assert "too few draws" in posterior.diagnostics.message
    assert "below 400" in posterior.diagnostics.message
    assert {"alpha", "beta"} < set(posterior.form.others)


def judged(**changes):
    """The verdict on clean draws with some of them spoilt."""
    rng = np.random.default_rng(0)
    prior = gs.Prior.anchored() if changes.pop("anchored", False) else gs.Prior()
    problem = Problem(gs.ShiftCounts([[45, 5], [5, 45]], [70, 30]), None, prior)
    q = rng.dirichlet([7, 3], (4, 1000))
    others = {name: rng.gamma(5, size=(4, 1000)) for name in ("tau_q", "tau_C")}
    others |= {"energy": rng.normal(size=(4, 1000)), "diverging": np.zeros((4, 1000), bool)}
    others |= {"n_steps": np.full((4, 1000), 31), "acceptance_rate": np.full((4, 1000), 0.9)}
    return judge(problem, changes.pop("q", q), others | changes, 9, 1.0)


def test_clean_draws_are_ok():
    assert judged().status is gs.Status.OK


def test_spoilt_draws_are_not():
    rng = np.random.default_rng(1)
    q = rng.dirichlet([7, 3], (4, 1000))
    q[0] = rng.dirichlet([3, 7], 1000)
    apart = judged(q=q)
    assert apart.status is gs.Status.CHAINS_DISAGREE
    assert "the share of class 0" in apart.message
    diverging = np.zeros((4, 1000), bool)
    diverging[:, :5] = True
    assert judged(diverging=diverging).status is gs.Status.DIVERGENT
    slow = np.cumsum(rng.normal(size=(4, 1000)), axis=1)
    assert "E-BFMI" in judged(energy=slow).message
    sides = rng.gamma(5, size=(4, 1000)) * np.array([[1], [10], [1], [10]])
    two_sided = judged(tau_C=sides, anchored=True)
    assert two_sided.status is gs.Status.CHAINS_DISAGREE
    assert "chains started on both sides stay apart" in two_sided.message


def test_a_long_run_says_so_beforehand(monkeypatch):
    problem, _, _ = random_problem(3, 0, anchored=False)
    monkeypatch.setattr(backend, "HMC_SAYS_HOW_LONG", 2)
    monkeypatch.setattr(backend, "_WORTH_SAYING", 0.0)
    short = gs.HMC(chains=2, warmup=50, draws=60, progress=False)
    with pytest.warns(gs.GSB3SEWarning, match="HMC over 3 classes may take"):
        short.infer(problem, np.random.default_rng(0))


def test_chains_start_on_both_sides():
    problem, _, _ = random_problem(6, 0, anchored=True)
    starts = sampler.starting_points(problem, column_scaling(problem), 4, np.random.default_rng(0))
    log_tau = np.array([start.z["log_tau"][1] for start in starts])
    assert log_tau[[0, 2]].max() + 2 < log_tau[[1, 3]].min()


def test_progress_is_shown_when_asked_for(capsys):
    problem, _, _ = random_problem(3, 0, anchored=False)
    shown = gs.HMC(chains=2, warmup=50, draws=60, progress=True)
    shown.infer(problem, np.random.default_rng(0))
    assert "NUTS, 2 chains" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"chains": 0}, "chains must be a whole number of at least 1"),
        ({"warmup": 5}, "warmup must be a whole number of at least 20"),
        ({"draws": 2.5}, "draws must be a whole number"),
        ({"target_accept": 1.0}, "target_accept must lie between"),
        ({"max_tree_depth": 0}, "max_tree_depth must be"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        gs.HMC(**settings)
