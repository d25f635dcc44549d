"""The simulator: what it draws, and that batches do not depend on who makes them."""

import numpy as np
import pytest
import torch
from scipy import stats

from gsb3se_amortized.simulator import (
    Progress,
    Ranges,
    Shifts,
    _from_prior,
    _from_proposal,
    _peaked_columns,
    batch_shape,
    random_graph,
    simulate_batch,
    simulate_source,
)


@pytest.mark.parametrize("n", [5, 40])
def test_a_source_keeps_to_its_ranges(n: int) -> None:
    ranges = Ranges()
    rng = np.random.default_rng(n)
    priors, empty = set(), 0
    for _ in range(60):
        made = simulate_source(n, 2, rng, ranges)
        sizes = np.asarray(made.source.confusion.sum(axis=0))
        assert sizes.max() <= ranges.labels[1]
        totals = made.source.targets.sum(axis=1)
        assert ((totals >= ranges.target[0]) & (totals <= ranges.target[1])).all()
        assert np.allclose(made.theta.sum(axis=1), 0, atol=1e-6 * np.abs(made.theta).max())
        assert np.allclose(made.confusion.sum(axis=0), 1)
        priors.add(made.source.anchored)
        empty += (sizes == 0).any()
    assert priors == {True, False}
    assert empty > 0


def test_graphs_are_of_several_kinds() -> None:
    rng = np.random.default_rng(0)
    graphs = [random_graph(20, rng) for _ in range(60)]
    assert {graph.is_exchangeable for graph in graphs} == {True, False}
    assert any(graph.labels is not None for graph in graphs)  # of a taxonomy
    assert len({graph.n_edges for graph in graphs}) > 10


@pytest.mark.parametrize("anchored", [False, True])
def test_weights_turn_the_proposal_into_the_prior(anchored: bool) -> None:
    rng, ranges = np.random.default_rng(1), Ranges()
    proposed = [_from_proposal(anchored, ranges, rng) for _ in range(20_000)]
    weights = np.array([one.importance for one in proposed])
    assert weights.mean() == pytest.approx(1, abs=0.05)
    tau = np.array([one.tau_C for one in proposed])
    for point in (0.1, 0.5, 1.5):
        share = (weights * (tau < point)).mean()
        assert share == pytest.approx(stats.expon.cdf(point), abs=0.03)
    if anchored:
        alpha = np.array([one.alpha for one in proposed])
        exact = np.array([_from_prior(True, ranges, rng).alpha for _ in range(20_000)])
        assert (weights * alpha).mean() == pytest.approx(exact.mean(), abs=0.1)


def test_columns_handed_out_by_their_peak_keep_their_law() -> None:
    """The largest share of a column has the law that a column drawn without asking has."""
    rng = np.random.default_rng(2)
    graph = random_graph(12, rng)
    while graph.is_exchangeable:
        graph = random_graph(12, rng)
    peaked, plain = [], []
    for _ in range(400):
        columns = _peaked_columns(graph, 0.1, rng)
        on_diagonal = columns.argmax(axis=0) == np.arange(12)
        peaked += [columns[i, i] for i in np.flatnonzero(on_diagonal) if i == 3]
        drawn = graph.sample_fields(12, rng) / np.sqrt(0.1)
        plain += drawn[3, drawn.argmax(axis=0) == 3].tolist()
    assert stats.ks_2samp(peaked, plain).pvalue > 0.001
    assert len(peaked) > 100


def test_batches_follow_from_the_seed_alone() -> None:
    one, other = (simulate_batch(9, 3, 2, seed=4) for _ in range(2))
    assert torch.equal(one.targets, other.targets) and torch.equal(one.counts, other.counts)
    assert not torch.equal(one.targets, simulate_batch(9, 3, 2, seed=5).targets)
    assert one.sizes.max() == 9 and one.sizes.min() >= 6


def test_processes_share_the_shards_of_a_step() -> None:
    ranges = Ranges(classes=(5, 12))
    alone = list(Shifts(0, Progress(3, 5, shards=2), ranges))
    shared = [list(Shifts(0, Progress(3, 5, 2, rank, 2), ranges)) for rank in range(2)]
    assert len(alone) == 4
    for step in range(2):
        for shard in range(2):
            assert torch.equal(alone[2 * step + shard].targets, shared[shard][step].targets)


def test_batches_are_of_about_equal_work() -> None:
    work = [np.prod(batch_shape(n)) * n**2 for n in (100, 150, 200)]
    assert max(work) / min(work) < 2
