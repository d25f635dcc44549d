"""Simulated shifts without end: what the encoder learns from.

Targets are the hierarchy's own: tau_q from its Gamma prior, theta ~ N(0, (tau_q L)^+). The columns'
hyper-parameters come from a wider proposal, since those that the hyper-priors draw belong to
classifiers that mostly guess: tau_C is mostly log-uniform, alpha and beta are uniform. Every source
carries its importance weight, prior over proposal, which is bounded: where few counts leave the
hyper-parameters open, the encoder learns their prior and not the proposal.

The paper's columns have no preferred row; a classifier of use has its peaks on the diagonal. So a
random share of the classes gets a column that peaks on the diagonal: more columns than needed are
drawn from one law and assigned to the class at their peak. This changes neither the law of a column
given the position of its peak nor that of tau_C, which does not move a peak.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import sparse
from scipy.special import erf, ndtr, ndtri
from torch.utils.data import IterableDataset

from gsb3se.graph import LabelGraph
from gsb3se.model.simulation import draw_columns
from gsb3se.support.simplex import Matrix, softmax
from gsb3se_amortized.padded_batch import Batch, SourceWindows

_CANDIDATES = 3  # columns drawn for each one that is handed out by its peak
_ANCHOR_SD = 5.0  # of the prior of alpha and beta
_FROM_PRIOR = 0.25  # share of the proposal's tau_C that are the prior's
_LEAST_TAU = 1e-3  # below, columns are points and shares beyond any data


@dataclass(frozen=True)
class Ranges:
    """What is simulated, and with it what a trained encoder knows; both ends included.

    Attributes:
        classes: K, log-uniform.
        labels: validation rows a class, log-uniform; of a source's classes some have more or fewer,
            and some may have none.
        target: predictions of a window, log-uniform.
        tau_C: mostly log-uniform, otherwise from its prior; alpha, beta: uniform.
    """

    classes: tuple[int, int] = (5, 300)
    labels: tuple[int, int] = (1, 300)
    target: tuple[int, int] = (20, 100_000)
    tau_C: tuple[float, float] = (0.01, 3.0)
    alpha: tuple[float, float] = (0.0, 9.0)
    beta: tuple[float, float] = (0.0, 8.0)

    def __post_init__(self) -> None:
        least = {"classes": 2, "labels": 1, "target": 1, "tau_C": 1e-6, "alpha": 0.0, "beta": 0.0}
        for name, bound in least.items():
            low, high = getattr(self, name)
            if not bound <= low <= high:
                raise ValueError(
                    f"{name} must be two rising numbers from {bound:g} on; got {low} and {high}"
                )

    @classmethod
    def of(cls, ends: Mapping[str, Sequence[float]]) -> Ranges:
        """Ranges as JSON has them, with lists for pairs."""
        return cls(**{name: tuple(pair) for name, pair in ends.items()})  # type: ignore[arg-type]


class Simulated(NamedTuple):
    """A source with its windows, and the truth: theta (W, K), columns (K, K); and its weight."""

    source: SourceWindows
    theta: Matrix
    confusion: Matrix
    importance: float


class HyperParameters(NamedTuple):
    """Hyper-parameters of the columns and the weight of their draw, prior over proposal."""

    tau_C: float
    alpha: float = 0.0
    beta: float = 0.0
    importance: float = 1.0


def simulate_source(
    n_classes: int,
    windows: int,
    rng: np.random.Generator,
    ranges: Ranges = Ranges(),  # noqa: B008
    wide: bool = True,
) -> Simulated:
    """One classifier with some windows.

    Args:
        wide: whether the columns' hyper-parameters come from the proposal, or from their prior (of
            alpha and beta what lies in the ranges), all weights one.

    >>> simulated = simulate_source(7, windows=3, rng=np.random.default_rng(0))
    >>> simulated.source.targets.shape, simulated.theta.shape, simulated.confusion.shape
    ((3, 7), (3, 7), (7, 7))
    """
    graph = random_graph(n_classes, rng)
    anchored = bool(rng.random() < 0.5)
    draw = _from_proposal if wide else _from_prior
    hyper = draw(anchored, ranges, rng)
    if anchored:
        phi = draw_columns(graph, *hyper[:3], n_classes, rng)
    else:
        phi = _peaked_columns(graph, hyper.tau_C, rng)
    confusion = softmax(phi, axis=0)
    sizes = _validation_sizes(n_classes, ranges, rng)
    counts = rng.multinomial(sizes, confusion.T).T
    tau_q = np.maximum(rng.gamma(1.0, size=windows), 1e-6)
    theta = (graph.sample_fields(windows, rng) / np.sqrt(tau_q)).T
    n_target = [round(log_uniform(ranges.target, rng)) for _ in range(windows)]
    predicted = softmax(theta, axis=1) @ confusion.T
    targets = rng.multinomial(n_target, predicted / predicted.sum(axis=1, keepdims=True))
    source = SourceWindows(sparse.csc_array(counts), graph, anchored, targets)
    return Simulated(source, theta, confusion, hyper.importance)


def random_graph(n_classes: int, rng: np.random.Generator) -> LabelGraph:
    """Nearest neighbours of points in clusters, relatives in a tree, or nothing known."""
    kind = rng.random()
    k = min(int(rng.integers(3, 13)), n_classes - 1)
    if kind < 0.2:
        return LabelGraph.exchangeable(n_classes)
    if kind < 0.35:
        groups = rng.integers(max(2, n_classes // int(rng.integers(3, 10))), size=n_classes)
        families = rng.integers(max(2, len(np.unique(groups)) // 4), size=groups.max() + 1)
        parents: dict[Hashable, Hashable] = {
            f"label {i}": f"group {g}" for i, g in enumerate(groups)
        }
        parents |= {f"group {g}": f"family {families[g]}" for g in np.unique(groups)}
        parents |= {f"family {f}": "root" for f in np.unique(families[groups])}
        names = [f"label {i}" for i in range(n_classes)]
        return LabelGraph.from_taxonomy(parents, k, labels=names)
    dimensions = int(rng.integers(2, 33))
    points = rng.standard_normal((n_classes, dimensions))
    if kind < 0.7:
        n_centres = max(2, n_classes // int(rng.integers(3, 20)))
        centres = rng.standard_normal((n_centres, dimensions))
        points = centres[rng.integers(len(centres), size=n_classes)] + rng.uniform(0.2, 1) * points
    return LabelGraph.knn(points, k, normalise=bool(rng.random() < 0.5))


def simulate_batch(
    n_classes: int,
    sources: int,
    windows: int,
    seed: object,
    ranges: Ranges = Ranges(),  # noqa: B008
    wide: bool = True,
) -> Batch:
    """Sources of about one size; the same seed makes the same batch."""
    rng = np.random.default_rng(seed)  # type: ignore[arg-type]
    least = max(ranges.classes[0], int(0.75 * n_classes))
    sizes = [n_classes, *rng.integers(least, n_classes + 1, size=sources - 1)]
    simulated = [simulate_source(int(n), windows, rng, ranges, wide) for n in sizes]
    return Batch.of(
        [one.source for one in simulated],
        theta=[one.theta for one in simulated],
        confusion=[one.confusion for one in simulated],
        importance=[one.importance for one in simulated],
    )


class Progress(NamedTuple):
    """Steps that are left, and which of their shards a process makes.

    Attributes:
        first_step, last_step: of the steps; shards: of each.
        rank, world: which process this is, of how many.
    """

    first_step: int = 0
    last_step: int = 0
    shards: int = 1
    rank: int = 0
    world: int = 1


class Shifts(IterableDataset[Batch]):
    """Batches from a step on, each from its own seed: the same ones whoever makes them.

    A global step is made of shards; process ``rank`` of ``world`` makes every world-th of them, so
    that the number of processes does not change what is learned from.
    """

    def __init__(
        self,
        seed: int,
        progress: Progress = Progress(),  # noqa: B008
        ranges: Ranges = Ranges(),  # noqa: B008
        wide: bool = True,
    ) -> None:
        self.seed, self.progress, self.ranges, self.wide = seed, progress, ranges, wide

    def __iter__(self) -> Iterator[Batch]:
        from torch.utils.data import get_worker_info

        worker = get_worker_info()
        offset, stride = (0, 1) if worker is None else (worker.id, worker.num_workers)
        mine = [
            (step, shard)
            for step in range(self.progress.first_step, self.progress.last_step)
            for shard in range(self.progress.rank, self.progress.shards, self.progress.world)
        ]
        for step, shard in mine[offset::stride]:
            yield self.batch(step, shard)

    def batch(self, step: int, shard: int) -> Batch:
        """The batch of a step's shard."""
        rng = np.random.default_rng([self.seed, step, shard])
        n_classes = round(log_uniform(self.ranges.classes, rng))
        sources, windows = batch_shape(n_classes)
        return simulate_batch(n_classes, sources, windows, rng, self.ranges, self.wide)


def batch_shape(n_classes: int) -> tuple[int, int]:
    """Sources and windows of a batch: about equal work at every size."""
    return int(np.clip(60_000 // n_classes**2, 2, 12)), 4


def _from_prior(anchored: bool, ranges: Ranges, rng: np.random.Generator) -> HyperParameters:
    tau_C = max(rng.gamma(1.0), _LEAST_TAU)
    if not anchored:
        return HyperParameters(tau_C)
    alpha, beta = (_half_normal(ends, rng) for ends in (ranges.alpha, ranges.beta))
    return HyperParameters(tau_C, alpha, beta)


def _from_proposal(anchored: bool, ranges: Ranges, rng: np.random.Generator) -> HyperParameters:
    low, high = ranges.tau_C
    tau_C = max(rng.gamma(1.0), _LEAST_TAU)
    if rng.random() >= _FROM_PRIOR:
        tau_C = log_uniform(ranges.tau_C, rng)
    # Densities of log tau_C: Gamma(1, 1) and log-uniform.
    prior = tau_C * np.exp(-tau_C)
    uniform = (low <= tau_C <= high) / np.log(high / low)
    importance = prior / (_FROM_PRIOR * prior + (1 - _FROM_PRIOR) * uniform)
    if not anchored:
        return HyperParameters(tau_C, importance=importance)
    alpha, beta = rng.uniform(*ranges.alpha), rng.uniform(*ranges.beta)
    importance *= _normal_over_uniform(alpha, ranges.alpha)
    importance *= _normal_over_uniform(beta, ranges.beta)
    return HyperParameters(tau_C, alpha, beta, importance)


def _normal_over_uniform(value: float, ends: tuple[float, float]) -> float:
    """Density of N(0, anchor_sd^2) between the ends, over the uniform one."""
    low, high = np.divide(ends, _ANCHOR_SD)
    mass = np.sqrt(np.pi / 2) * (erf(high / np.sqrt(2)) - erf(low / np.sqrt(2)))
    return float(np.exp(-((value / _ANCHOR_SD) ** 2) / 2) * (high - low) / mass)


def _half_normal(ends: tuple[float, float], rng: np.random.Generator) -> float:
    """N(0, anchor_sd^2) between the ends."""
    low, high = np.divide(ends, _ANCHOR_SD)
    if low > 0:  # below zero the distribution function has more digits
        return -_half_normal((-ends[1], -ends[0]), rng)
    return float(_ANCHOR_SD * ndtri(rng.uniform(ndtr(low), ndtr(high))))


def _peaked_columns(graph: LabelGraph, tau_C: float, rng: np.random.Generator) -> Matrix:
    """(K, K) columns of N(0, (tau_C L)^+); a share of the classes has its peak on the diagonal."""
    n = graph.n_classes
    share = 0.0 if rng.random() < 0.2 else rng.beta(3.0, 0.7)
    candidates = draw_columns(graph, tau_C, 0.0, 0.0, (1 + _CANDIDATES * (share > 0)) * n, rng)
    columns, spare = candidates[:, :n].copy(), candidates[:, n:]
    peaks = spare.argmax(axis=0)
    first = np.full(n, -1)
    first[peaks[::-1]] = np.arange(len(peaks))[::-1]
    chosen = np.flatnonzero((first >= 0) & (rng.random(n) < share))
    columns[:, chosen] = spare[:, first[chosen]]
    return columns


def _validation_sizes(n: int, ranges: Ranges, rng: np.random.Generator) -> np.ndarray:
    usual = log_uniform(ranges.labels, rng)
    unequal = rng.random() < 0.5
    spread = np.exp(rng.uniform(0, 1) * rng.standard_normal(n)) if unequal else np.ones(n)
    sizes = np.clip(np.rint(usual * spread), *ranges.labels).astype(np.int64)
    if rng.random() < 0.25:
        sizes[rng.random(n) < rng.uniform(0, 0.2)] = 0
    return sizes


def log_uniform(ends: tuple[float, float], rng: np.random.Generator) -> float:
    """A number between the ends, its logarithm uniform."""
    return float(np.exp(rng.uniform(*np.log(ends))))
