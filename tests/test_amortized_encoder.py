"""The encoder: its parts against dense versions and derivatives, and its symmetries."""

import numpy as np
import pytest
import torch
from problems import random_problem
from scipy import sparse

import gsb3se as gs
from gsb3se.support.errors import NoSolution
from gsb3se_amortized.column_encoder import Columns
from gsb3se_amortized.encoder import EncodedSource, Encoder, State, likely_log_shares, physics
from gsb3se_amortized.padded_batch import Batch, SourceWindows
from gsb3se_amortized.similarity import Similarity
from gsb3se_amortized.simulator import Shifts, simulate_batch, simulate_source


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    """Untrained, but with every head at work."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = Encoder(width=8, cell_width=4, before=2, after=1)
        for parameter in made.parameters():
            if not parameter.any():
                torch.nn.init.normal_(parameter, std=0.1)
    return made.eval().requires_grad_(False)


def windows(problem: gs.Problem, targets: np.ndarray) -> SourceWindows:
    return SourceWindows(
        problem.counts.confusion, problem.graph, problem.prior.is_anchored, targets
    )


def some_sources(*sizes: int) -> list[SourceWindows]:
    rng = np.random.default_rng(3)
    return [simulate_source(n, 2, rng).source for n in sizes]


def test_similarity_is_the_graph(encoder: Encoder) -> None:
    sources = some_sources(6, 9, 9)
    sources[1] = sources[1]._replace(graph=gs.LabelGraph.exchangeable(9))
    batch = Batch.of(sources)
    similar = Similarity.of(batch)
    dense = similar.dense_laplacian()
    x = torch.randn(3, 9, 2, generator=torch.Generator().manual_seed(0)) * batch.mask[..., None]
    for s, source in enumerate(sources):
        n = source.confusion.shape[0]
        laplacian = source.graph.laplacian.toarray()
        assert np.allclose(dense[s, :n, :n], laplacian, atol=1e-6)
        assert not dense[s, n:].any() and not dense[s, :, n:].any()
        product = similar.laplacian(x)[s].numpy()
        assert np.allclose(product[:n], laplacian @ x[s, :n].numpy(), atol=1e-5)
        assert not product[n:].any()


def exact_source(problem: gs.Problem, mean: np.ndarray, noise: np.ndarray) -> EncodedSource:
    """A source whose columns are what they are said to be."""
    batch = Batch.of([windows(problem, problem.counts.target[None])])
    similar = Similarity.of(batch)
    n = problem.n_classes
    columns = Columns(
        torch.from_numpy(mean)[None],
        torch.from_numpy(noise)[None],
        torch.zeros(1, n, n, dtype=torch.float64),
        torch.zeros(1, n, 8, dtype=torch.float64),
        torch.zeros(1, 8, dtype=torch.float64),
    )
    double = (similar.weights.double(), similar.ones.double(), similar.mask)
    similar = Similarity(*double, similar.degrees.double(), False)
    known = torch.zeros(1, 4, dtype=torch.float64)
    return EncodedSource(columns, similar, similar.dense_laplacian(), known, torch.zeros(1, n, n))


def test_the_force_is_the_gradient_of_the_hierarchy() -> None:
    """With the columns known, that of sum_j n_j log r_j - tau x'Lx / 2; MODEL.md G6."""
    problem, _, _ = random_problem(6, seed=1, anchored=False)
    rng = np.random.default_rng(0)
    mean = rng.dirichlet(np.ones(6), size=6).T
    source = exact_source(problem, mean, np.zeros(6))
    counts = torch.from_numpy(problem.target)[None, :, None]
    x = torch.from_numpy(rng.standard_normal(6)).requires_grad_()
    log_tau = torch.tensor([[0.3]]).double()
    laplacian = torch.from_numpy(problem.graph.laplacian.toarray())
    r = torch.from_numpy(mean) @ torch.softmax(x, dim=0)
    value = (torch.from_numpy(problem.target) * r.log()).sum()
    value = value - log_tau.exp()[0, 0] * (x @ laplacian @ x) / 2
    (expected,) = torch.autograd.grad(value, x)
    state = State(x.detach()[None, :, None], torch.zeros(1, 6, 1, 8).double(), log_tau)
    found = physics(source, counts, state).force[0, :, 0]
    # The force is that of the Poisson likelihood of residual / noise, equal where n'r sums to n'.
    assert torch.allclose(found, expected, atol=1e-4 * float(expected.abs().max()))


def test_the_newton_matrix_is_the_structured_information(encoder: Encoder) -> None:
    """Q C'(diag(r) / n' + S)^-1 C Q + tau L with S = sum_i q_i^2 f_i (diag(c_i) - c_i c_i')."""
    problem, _, _ = random_problem(5, seed=2, anchored=False)
    rng = np.random.default_rng(1)
    mean = rng.dirichlet(np.ones(5), size=5).T
    noise = 1 / rng.uniform(5, 60, 5)
    source = exact_source(problem, mean, noise)
    counts = torch.from_numpy(problem.target)[None, :, None]
    x, log_tau = rng.standard_normal(5), 0.4
    state = State(
        torch.from_numpy(x)[None, :, None],
        torch.zeros(1, 5, 1, 8).double(),
        torch.tensor([[log_tau]]).double(),
    )
    plain = Encoder(width=8, cell_width=4, before=1, after=1).double()
    torch.nn.init.zeros_(plain.precision.weight)
    torch.nn.init.constant_(plain.precision.bias, -40.0)  # nothing learned is added
    with torch.no_grad():
        found = plain._newton(source, counts, state)
    q = np.exp(x) / np.exp(x).sum()
    r = mean @ q
    covariance = np.diag(r) / problem.target.sum()
    for i in range(5):
        c = mean[:, i]
        covariance += q[i] ** 2 * noise[i] * (np.diag(c) - np.outer(c, c))
    forward = mean * q
    whole = forward.T @ np.linalg.solve(covariance, forward)
    whole += np.exp(log_tau) * problem.graph.laplacian.toarray()
    sd = found.sd[0, 0].numpy()
    factor = found.factor[0, 0].numpy() / sd[:, None]
    assert np.allclose(factor @ factor.T, whole, rtol=1e-4, atol=1e-4)
    inverse = np.linalg.inv(whole)
    assert np.allclose(sd**2, np.diag(inverse) - 1 / whole.sum(), rtol=1e-3)
    score = forward.T @ np.linalg.solve(covariance, problem.target / problem.target.sum() - r)
    step = inverse @ (score - np.exp(log_tau) * problem.graph.laplacian.toarray() @ x)
    moved = 4 * sd * np.tanh(step / (4 * sd))
    assert np.allclose(found.move[0, 0].numpy(), moved, rtol=1e-3, atol=1e-4)


def test_start_explains_the_counts() -> None:
    rng = np.random.default_rng(0)
    mean = torch.from_numpy(0.7 * np.eye(4) + 0.3 * rng.dirichlet(np.ones(4), size=4).T)[None]
    q = torch.tensor([0.4, 0.3, 0.2, 0.1]).double()
    counts = (1e6 * mean[0] @ q)[None, :, None]
    x = likely_log_shares(mean, counts, torch.ones(1, 4, 1, dtype=torch.bool))
    assert torch.allclose(torch.softmax(x[0, :, 0], dim=0), q, atol=0.02)
    assert abs(float(x.sum())) < 1e-9


def test_relabelling_permutes_the_answer(encoder: Encoder) -> None:
    source = next(one for one in some_sources(12, 12, 12, 12) if not one.graph.is_exchangeable)
    order = np.random.default_rng(0).permutation(12)
    graph = gs.LabelGraph.from_weights(source.graph.weights.toarray()[order][:, order])
    moved = SourceWindows(
        sparse.csc_array(source.confusion.toarray()[order][:, order]),
        graph,
        source.anchored,
        source.targets[:, order],
    )
    one, _ = encoder(Batch.of([source]))
    other, _ = encoder(Batch.of([moved]))
    for name in ("centre", "scale", "skew", "tail"):
        here, there = getattr(one, name)[0][:, order], getattr(other, name)[0]
        assert torch.allclose(here, there, atol=1e-5, rtol=1e-5), name
    precision = one.factor[0] @ one.factor[0].mT
    permuted = other.factor[0] @ other.factor[0].mT
    assert torch.allclose(precision[:, order][:, :, order], permuted, atol=1e-4)


def test_company_does_not_matter(encoder: Encoder) -> None:
    """A source alone and among others of other sizes; a window alone and among others."""
    sources = some_sources(6, 9, 8)
    sources[2] = sources[2]._replace(graph=gs.LabelGraph.exchangeable(8))
    together, _ = encoder(Batch.of(sources))
    for s, source in enumerate(sources):
        n = source.confusion.shape[0]
        for w in range(2):
            alone, _ = encoder(Batch.of([source._replace(targets=source.targets[w : w + 1])]))
            for name in ("centre", "scale", "skew", "tail"):
                shared = getattr(together, name)[s, w, :n]
                assert torch.allclose(getattr(alone, name)[0, 0], shared, atol=1e-5), name


def test_gradients_or_not_gives_the_same(encoder: Encoder) -> None:
    """Without gradients the cells are worked through in blocks."""
    batch = Batch.of(some_sources(9, 8))
    with torch.enable_grad():
        one, columns = encoder(batch)
    with torch.no_grad():
        other, again = encoder(batch)
    assert torch.allclose(columns.mean, again.mean, atol=1e-6)
    assert torch.allclose(one.centre, other.centre, atol=1e-5)


def test_columns_are_distributions(encoder: Encoder) -> None:
    batch = simulate_batch(9, 4, 2, seed=0)
    _, columns = encoder(batch)
    sums = columns.mean.sum(dim=1)[batch.mask]
    assert torch.allclose(sums, torch.ones_like(sums), atol=1e-5)
    assert (columns.variance >= 0).all() and (columns.noise > 0).all()


@pytest.mark.parametrize("case", ["two classes", "empty class", "no labels", "no target"])
def test_the_edges_of_the_data_give_finite_answers(encoder: Encoder, case: str) -> None:
    n = 2 if case == "two classes" else 6
    confusion = np.full((n, n), 1) + 9 * np.eye(n, dtype=int)
    targets = np.arange(1, n + 1)[None] * 10
    if case == "empty class":
        confusion[:, 0] = 0
        targets[0, 1] = 0
    if case == "no labels":
        confusion[:] = 0
    if case == "no target":
        targets[:] = 0
    for graph in (gs.LabelGraph.exchangeable(n), gs.LabelGraph.from_weights(np.ones((n, n)))):
        source = SourceWindows(sparse.csc_array(confusion), graph, True, targets)
        posterior, _ = encoder(Batch.of([source]))
        drawn = torch.softmax(posterior.sample(20, torch.Generator().manual_seed(0)), dim=-1)
        assert torch.isfinite(drawn).all()
        assert torch.isfinite(posterior.log_density(torch.zeros(1, 1, n).double())).all()


def test_every_parameter_learns() -> None:
    from gsb3se_amortized.objective import TrainingObjective

    with torch.random.fork_rng():
        torch.manual_seed(0)
        objective = TrainingObjective(Encoder(width=8, cell_width=4, before=1, after=1))
        torch.nn.init.normal_(objective.encoder.head.weight, std=0.1)
        torch.nn.init.normal_(objective.encoder.before[0].step.weight, std=0.1)
        torch.nn.init.normal_(objective.encoder.after[0].step.weight, std=0.1)
    sum(objective(Shifts(0).batch(1, 0))).backward()
    silent = [
        name for name, p in objective.named_parameters() if p.grad is None or not p.grad.any()
    ]
    assert silent == []


def test_the_newton_step_is_the_same_in_blocks_and_in_single_precision(
    encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(5)
    batch = Batch.of([simulate_source(n, 5, rng).source for n in (9, 8)])
    whole, _ = encoder(batch)
    monkeypatch.setattr("gsb3se_amortized.newton_step._BLOCK", 2 * 81)  # two windows at a time
    with torch.no_grad():
        blocks, _ = encoder(batch)
        monkeypatch.setattr("gsb3se_amortized.newton_step.AMORTIZED_SINGLE_PRECISION", 5)
        single, _ = encoder(batch)
    for other, tolerance in ((blocks, 1e-5), (single, 1e-2)):
        assert torch.allclose(whole.centre, other.centre, atol=tolerance)
        precision, again = (f.factor @ f.factor.mT for f in (whole, other))
        assert torch.allclose(precision, again, atol=tolerance, rtol=tolerance)


def test_single_precision_gives_way_where_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    from gsb3se_amortized import newton_step as newton

    tried = []

    nothing = torch.zeros(1, 1, newton.AMORTIZED_SINGLE_PRECISION)
    start = newton.StepStart(*(nothing for _ in range(6)))
    sources = newton.SourceMatrices(*[nothing] * 4)

    def step(*arguments: object) -> newton.Gaussian:
        tried.append(arguments[-1].dtype)
        if len(tried) < 3:
            raise torch.linalg.LinAlgError
        return newton.Gaussian(nothing, nothing, nothing + float("nan"), nothing)

    monkeypatch.setattr(newton, "_step", step)
    with pytest.raises(NoSolution, match="backend='structured'"):
        newton._step_without_gradients(sources, start)
    assert tried == [torch.float32, torch.float64, torch.float64, torch.float64]
