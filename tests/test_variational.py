"""The variational backend: its program, its guide, its bound, and what it ends with."""

import os
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyro
import pytest
import torch
from collapsed import log_collapsed
from exact import collapsed, three_classes, two_classes
from hypothesis import given
from hypothesis import strategies as st
from problems import random_problem
from pyro import poutine
from scipy.special import logsumexp
from scipy.stats import poisson
from sum_zero import sum_zero_basis

import gsb3se as gs
from gsb3se.inference.variational import backend as variational
from gsb3se.inference.variational import draw as drawing
from gsb3se.inference.variational import fit as fitting
from gsb3se.inference.variational.backend import structured_coordinates
from gsb3se.inference.variational.guide import StructuredGuide
from gsb3se.inference.variational.pyro_program import GraphField, Hierarchy
from gsb3se.inference.variational.row_equations import rising_root
from gsb3se.model.density import Latents, log_joint
from gsb3se.support.forked_processes import check_not_forked

CPU = torch.device("cpu")
PRIORS = pytest.mark.parametrize("anchored", [False, True], ids=["paper", "anchored"])


def program_and_guide(problem, scatter=0.0):
    """The pair; the guide's parameters away from their start by as much."""
    model = Hierarchy(problem, CPU, torch.float64)
    guide = StructuredGuide(model, structured_coordinates(problem)).eval()
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in guide.parameters():
            parameter += scatter * torch.randn_like(parameter)
    return model, guide


@pytest.fixture(autouse=True)
def same_noise():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


# The program


def test_a_field_has_its_gaussian_density_on_the_sum_zero_space():
    graph = gs.LabelGraph.knn(np.random.default_rng(0).standard_normal((5, 3)), k=2)
    laplacian, basis = graph.laplacian.toarray(), sum_zero_basis(5)
    rng = np.random.default_rng(1)
    mean, value, tau = rng.standard_normal((2, 5)), rng.standard_normal((2, 5)), 0.7
    normal = torch.distributions.MultivariateNormal(
        torch.zeros(4, dtype=torch.float64),
        precision_matrix=torch.as_tensor(tau * basis.T @ laplacian @ basis),
    )
    expected = normal.log_prob(torch.as_tensor((value - mean) @ basis)).sum()
    field = GraphField(
        torch.as_tensor(mean),
        torch.tensor(tau, dtype=torch.float64),
        torch.as_tensor(laplacian),
        graph.log_pseudo_determinant,
        2,
    )
    lifted = torch.as_tensor(value) + torch.tensor([[3.0], [-1.0]])  # the level does not matter
    torch.testing.assert_close(field.log_prob(lifted), expected)
    wider = field.expand(torch.Size([4]))
    torch.testing.assert_close(wider.log_prob(lifted), expected.expand(4))
    with pytest.raises(NotImplementedError, match="only scored"):
        field.sample()


@PRIORS
def test_the_program_is_the_hierarchy_with_free_totals(anchored):
    problem, point, tau = random_problem(4, 3, anchored, n_source=3)
    assert (problem.column_sizes == 0).any()
    rng = np.random.default_rng(2)
    theta, phi = point.theta + 2.0, point.phi + rng.standard_normal(4)
    values = {"theta": theta, "columns": phi.T, "tau_q": tau.q, "tau_C": tau.C}
    if anchored:
        values["weights"] = [point.alpha, point.beta]
    tensors = {name: torch.as_tensor(np.asarray(value)) for name, value in values.items()}
    model = Hierarchy(problem, CPU, torch.float64)
    found = poutine.trace(poutine.condition(model, tensors)).get_trace().log_prob_sum()
    centred = Latents(theta - theta.mean(), phi - phi.mean(axis=0), point.alpha, point.beta)
    expected = log_joint(problem, centred, tau)
    totals, sizes = np.exp(phi).sum(axis=0), problem.column_sizes
    expected += np.where(sizes > 0, poisson.logpmf(sizes, totals), np.log(totals) - totals).sum()
    expected += poisson.logpmf(problem.target.sum(), np.exp(theta).sum())
    np.testing.assert_allclose(found.item(), expected, rtol=1e-12)


# The guide


@PRIORS
@pytest.mark.parametrize("kind", ["knn", "exchangeable"])
def test_the_guides_volume_is_that_of_its_jacobian(anchored, kind):
    problem, _, _ = random_problem(3, 5, anchored, kind, n_source=6)
    _, guide = program_and_guide(problem, scatter=0.2)

    def flat(z):
        at = guide.place(z[None])
        return torch.cat([at.theta.ravel(), at.columns.ravel(), at.strengths.ravel()])

    for _ in range(3):
        z = torch.randn(guide.size, dtype=torch.float64)
        jacobian = torch.autograd.functional.jacobian(flat, z)
        with guide.counting_unsolved() as unsolved:
            at = guide.place(z[None])
        torch.testing.assert_close(
            at.log_volume[0], torch.linalg.slogdet(jacobian)[1], rtol=1e-8, atol=1e-8
        )
        assert unsolved() == 0


def test_a_rows_cells_move_until_they_meet_the_target():
    """Where the target outweighs everything, every draw predicts what was counted."""
    confusion = np.diag([20, 20, 20]) + 2
    target = np.array([500_000, 300_000, 200_000])
    _, guide = program_and_guide(gs.Problem(gs.ShiftCounts(confusion, target)))
    at = guide.place(torch.randn(200, guide.size, dtype=torch.float64))
    c, q = torch.softmax(at.columns, -1), torch.softmax(at.theta, -1)
    r = torch.einsum("cij,ci->cj", c, q).detach().numpy()
    assert np.abs(r / (target / target.sum()) - 1).max() < 0.02
    assert q.std(0).min() > 0.01  # although q itself is not known so well


def test_the_control_variate_has_mean_zero():
    problem, _, _ = random_problem(3, 5, True)
    _, guide = program_and_guide(problem, scatter=0.3)
    known = guide.place(torch.randn(4_000, guide.size, dtype=torch.float64)).known.detach()
    assert abs(known.mean()) < 4 * known.std() / 4_000**0.5


@given(
    st.lists(st.tuples(st.floats(0.01, 100), st.floats(-20, 20)), min_size=1, max_size=6),
    st.floats(0.01, 1),
)
def test_a_rising_functions_root_is_found(bends, slope):
    """Sums of hinges, as sharp as rows may be."""
    sharp, place = torch.tensor(bends, dtype=torch.float64).T

    def function(s):
        turn = sharp[:, None] * (s - place[:, None])
        value = slope * s + torch.nn.functional.softplus(turn).sum(0) - 3.0
        return value, slope + (sharp[:, None] * torch.sigmoid(turn)).sum(0)

    s, left = rising_root(function, torch.linspace(-5, 5, 7, dtype=torch.float64), 60)
    value, rise = function(s)
    assert not left.any()
    assert (value / rise).abs().max() < 1e-6


# The bound


def log_evidence_of_two_classes():
    problem = two_classes().problem
    nodes, weights = np.polynomial.legendre.leggauss(90)
    grid = np.stack(np.meshgrid(*[12 * nodes] * 3, indexing="ij"), axis=-1).reshape(-1, 3)
    mass = np.prod(np.meshgrid(*[12 * weights] * 3, indexing="ij"), axis=0).ravel()
    half = np.array([1.0, -1.0]) / np.sqrt(2)
    theta, phi = grid[:, :1] * half, grid[:, None, 1:] * half[:, None]
    density = collapsed(problem, theta, phi)
    constant = log_collapsed(problem, Latents(theta[0], phi[0])) - density[0]
    return logsumexp(density, b=mass) + constant


@pytest.mark.parametrize("layers", [0, 3])
def test_weights_have_the_evidence_as_their_mean_and_the_bound_is_below_it(layers):
    model, guide = program_and_guide(two_classes().problem)
    fitting.fit(model, guide, particles=16, max_steps=100)
    weights = drawing.draw(model, guide, 4000, 1000, layers).log_weights
    evidence = log_evidence_of_two_classes()
    spread = np.exp(weights - evidence).std() / np.sqrt(len(weights))
    assert abs(np.exp(weights - evidence).mean() - 1) < 4 * spread + 0.01
    assert evidence - 0.5 < weights.mean() < evidence


def test_hamiltonian_layers_widen_a_narrow_guide_and_keep_its_bound():
    """A guide that is too narrow on purpose; the layers make it wider."""
    problem = three_classes().problem
    model, guide = program_and_guide(problem)
    with torch.no_grad():
        guide.level_scale -= 0.7
    short = drawing.draw(model, guide, 2000, 1000)
    longer = drawing.draw(model, guide, 2000, 1000, layers=4)
    assert longer.log_weights.mean() > short.log_weights.mean() - 0.1
    assert (longer.q.std(axis=0) > 1.2 * short.q.std(axis=0)).all()
    assert longer.thrown == 0


def test_the_tail_index_is_that_of_pareto_weights():
    rng = np.random.default_rng(0)
    for k in (0.3, 0.9):
        weights = k * rng.standard_exponential(20_000)  # log of Pareto(1 / k)
        assert abs(drawing.pareto_k(weights) - k) < 0.15
    assert drawing.pareto_k(np.zeros(20)) == np.inf


def test_flat_is_told_from_rising():
    noise = np.random.default_rng(0).standard_normal(100)
    assert fitting.is_flat(list(noise))
    assert not fitting.is_flat(list(noise + np.linspace(0, 5, 100)))


# The backend


@pytest.mark.parametrize("make", [two_classes, three_classes], ids=["K=2", "K=3"])
def test_matches_the_exact_posterior(make):
    problem, mean, sd, predicted, confusion = make()
    posterior = gs.Variational(draws=4000).infer(problem, np.random.default_rng(0))
    assert (np.abs(posterior.mean - mean) < 0.1 * sd).all()
    np.testing.assert_allclose(posterior.sd, sd, rtol=0.1)
    np.testing.assert_allclose(posterior.form.r.mean(axis=(0, 1)), predicted, atol=0.01)
    np.testing.assert_allclose(posterior.confusion_mean, confusion, atol=0.02)
    figures = posterior.diagnostics.figures
    assert figures["elbo_flat"] and figures["elbo_rose"]
    assert figures["elbo"] >= figures["elbo_start"]
    assert figures["pareto_k"] < 1.0
    assert len(figures["elbo_trace"]) == figures["steps"]
    assert figures["gradient"] < figures["gradient_noise"]


def test_mean_field_is_narrower_than_the_structured_guide():
    problem, _, sd, _, _ = three_classes()
    independent = gs.Variational("mean-field", draws=2000)
    posterior = independent.infer(problem, np.random.default_rng(0))
    assert posterior.backend == "mean-field"
    assert (posterior.sd < 0.85 * sd).all()


def test_nothing_global_changes_and_a_seed_repeats():
    counts = gs.ShiftCounts([[30, 4], [2, 25]], [60, 40])
    pyro.param("mine", torch.ones(1))
    before = torch.get_rng_state().clone()
    small = gs.Variational(draws=100, max_steps=100, layers=1)
    first, again = (gs.estimate(counts, backend=small, seed=3) for _ in range(2))
    np.testing.assert_array_equal(first.form.q, again.form.q)
    assert (gs.estimate(counts, backend=small, seed=4).mean != first.mean).any()
    assert torch.equal(torch.get_rng_state(), before)
    assert list(pyro.get_param_store()) == ["mine"]
    assert torch.get_default_dtype() is torch.float32
    pyro.clear_param_store()


@pytest.mark.slow
def test_single_precision_agrees():
    counts = gs.ShiftCounts([[30, 4], [2, 25]], [60, 40])
    posts = [
        gs.estimate(counts, backend=gs.Variational(dtype=dtype)) for dtype in ("float64", "float32")
    ]
    assert abs(posts[0].mean[0] - posts[1].mean[0]) < 0.15 * posts[0].sd[0]


def test_too_few_steps_are_told():
    problem, _, _ = random_problem(5, 1, False)
    posterior = gs.Variational(max_steps=2, layers=0).infer(problem, np.random.default_rng(0))
    assert posterior.diagnostics.status is gs.Status.NOT_CONVERGED
    assert "still rose after 2 steps" in posterior.diagnostics.message


def test_a_fit_that_ends_below_its_start_is_not_taken(monkeypatch):
    def worse(model, guide, *rest):
        with torch.no_grad():
            guide.level_shift += 5.0
        return fitting.GuideFit(elbo=[0.0], flat=True)

    counts = gs.ShiftCounts([[30, 4], [2, 25]], [60, 40])
    monkeypatch.setattr(fitting, "fit", worse)
    posterior = gs.Variational(draws=500, layers=0).infer(
        gs.Problem(counts), np.random.default_rng(0)
    )
    assert posterior.diagnostics.status is gs.Status.NOT_CONVERGED
    assert "this is the start" in posterior.diagnostics.message
    figures = posterior.diagnostics.figures
    assert figures["elbo"] == figures["elbo_start"]
    assert abs(posterior.mean[0] - 0.6) < 0.1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"family": "full"}, "family must be 'structured' or 'mean-field'"),
        ({"dtype": "half"}, "dtype must be 'float64' or 'float32'"),
        ({"draws": 0}, "draws must be a whole number"),
        ({"particles": 1}, "particles must be a whole number of at least 2"),
        ({"layers": -1}, "layers must be a whole number"),
        ({"max_steps": 0}, "max_steps must be a whole number"),
        ({"family": "mean-field", "layers": 2}, "leave them out of mean-field"),
    ],
)
def test_wrong_settings_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        gs.Variational(**arguments)


def test_what_cannot_run_says_so_before_the_work(monkeypatch):
    counts = gs.ShiftCounts([[30, 4], [2, 25]], [60, 40])
    for device in ("cuda:7", "abacus"):
        with pytest.raises(ValueError, match=f"device '{device}' cannot be used"):
            gs.estimate(counts, backend=gs.Variational(device=device))
    many = gs.ShiftCounts(np.eye(601, dtype=int), np.ones(601, dtype=int))
    with pytest.raises(ValueError, match=r"at most 600 classes; got 601: use backend='structured'"):
        gs.estimate(many, backend="variational")
    monkeypatch.setattr(variational, "VARIATIONAL_SAYS_HOW_LONG", 1)
    with pytest.warns(gs.GSB3SEWarning, match="s a step on a CPU"):
        gs.estimate(counts, backend=gs.Variational(draws=50, layers=0))
    monkeypatch.setitem(sys.modules, "pyro", None)
    with pytest.raises(ImportError, match=r"pip install .*\[variational\]'"):
        gs.estimate(counts, backend="variational")


def test_its_progress_is_shown(capsys):
    counts = gs.ShiftCounts([[30, 4], [2, 25]], [60, 40])
    shown = gs.Variational(draws=50, max_steps=100, layers=0, progress=True)
    gs.estimate(counts, prior="paper", backend=shown)
    told = capsys.readouterr().err
    assert "ELBO" in told and "draws" in told


def test_parallel_threads_find_what_one_finds():
    counts = gs.ShiftCounts([[30, 4, 1], [3, 25, 2], [1, 2, 30]], [60, 30, 10])
    backend = gs.Variational(max_steps=60, draws=100, progress=False)

    def means(seed):
        return gs.estimate(counts, backend=backend, seed=seed).mean

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gs.GSB3SEWarning)
        singly = [means(seed) for seed in range(2)]
        with ThreadPoolExecutor(2) as pool:
            together = list(pool.map(means, range(2)))
    np.testing.assert_array_equal(singly, together)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_is_told_instead_of_waiting_forever():
    counts = gs.ShiftCounts([[30, 4], [3, 25]], [60, 30])
    for backend in (gs.HMC(chains=1, warmup=20, draws=20), gs.Variational(), "amortized"):
        check_not_forked("jax" if isinstance(backend, gs.HMC) else "torch")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            child = os.fork()
            if child == 0:
                try:
                    gs.estimate(counts, backend=backend)
                except RuntimeError as error:
                    os._exit(3 if "'spawn'" in str(error) else 4)
                os._exit(5)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3


_FORKED_AFTER = """
import os, warnings
import gsb3se as gs
{at_work}
warnings.simplefilter("ignore")
counts = gs.ShiftCounts([[30, 4], [3, 25]], [60, 30])
child = os.fork()
if child == 0:
    try:
        gs.estimate(counts, backend={backend})
    except RuntimeError as error:
        os._exit(3 if "'spawn'" in str(error) else 4)
    os._exit(0)
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.parametrize(
    ("at_work", "backend", "ends"),
    [
        ("import torch; torch.rand(900, 900) @ torch.rand(900, 900)", '"amortized"', 0),
        ("import jax.numpy as j; (j.ones((900, 900)) * 2).sum().item()", "gs.HMC(draws=9)", 3),
    ],
)
def test_a_child_of_a_process_with_a_library_at_work_does_not_wait(at_work, backend, ends):
    program = _FORKED_AFTER.format(at_work=at_work, backend=backend)
    finished = subprocess.run([sys.executable, "-c", program], timeout=120, check=False)
    assert finished.returncode == ends


def test_a_problem_it_cannot_even_begin_is_refused_soon():
    counts = gs.ShiftCounts(np.outer([0, 50, 0], [1, 1, 1]), [10**6] * 3)
    chain = np.diag([1e-8, 1e-8], 1)
    graph = gs.LabelGraph.from_weights(chain + chain.T)
    prior = gs.Prior(10.0, 1.0, 1.0, 1e-3)
    with pytest.raises(ValueError, match="use backend='structured'"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gs.estimate(counts, graph, prior=prior, backend="variational")
