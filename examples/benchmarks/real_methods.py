"""Every estimator of the benchmark on real classifiers, behind one call.

A method is given the validation rows of a repeat and all its targets, and returns an estimate for
each. ``seconds`` is what one target alone would take: work on the validation rows that several
targets share counts in full for each of them, compilation is not counted where it is kept.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from real_data import Repeat, Target

import gsb3se as gs
from gsb3se.estimate import as_backend
from gsb3se.support.simplex import project_to_simplex

Vector = np.ndarray
Matrix = np.ndarray
LEVELS = (0.5, 0.9)
PRIORS = {"paper": gs.Prior(), "anchored": gs.Prior.anchored()}
BACKENDS = {
    "structured": gs.Structured(progress=False),
    "plain": gs.Structured(refine=False, progress=False),  # without exact chains
    "hmc": gs.HMC(progress=False),
}
RESAMPLES = 200  # of the bootstrap


@dataclass(frozen=True, eq=False)
class Task:
    """A classifier's validation rows and targets.

    Attributes:
        counts: a target each, the validation counts alike.
        graph: of the labels.
        source_prior: (K,) under which the classifier's scores are right.
        truth, scores: (m,) and (m, K) of the validation rows; target_scores: (n', K) a target;
            scores are log-probabilities, None if only predictions are known.
        seed: of all that is random, for each target anew.
    """

    counts: Sequence[gs.ShiftCounts]
    graph: gs.LabelGraph
    source_prior: Vector
    truth: Vector
    scores: Matrix | None
    target_scores: Sequence[Matrix]
    seed: int

    @classmethod
    def of(
        cls, repeat: Repeat, labels: int, targets: Sequence[Target], graph: str = "main"
    ) -> "Task":
        """Validation rows of a repeat, so many a class, and targets of it."""
        outputs, held = repeat.outputs, repeat.validation(labels)
        scores = outputs.scores
        return cls(
            [
                gs.ShiftCounts.from_predictions(
                    outputs.truth[held],
                    outputs.predicted[held],
                    outputs.predicted[target.rows],
                    labels=range(outputs.n_classes),
                )
                for target in targets
            ],
            repeat.graph(graph),
            outputs.source_prior,
            outputs.truth[held],
            None if scores is None else scores[held],
            [] if scores is None else [scores[target.rows] for target in targets],
            repeat.number,
        )

    @cached_property
    def calibrator(self) -> tuple[gs.baselines.Calibrator, float]:
        """BCTS fitted to the validation rows, and its seconds."""
        return timed(gs.baselines.calibrate, self.scores, self.truth, "bcts")


@dataclass(frozen=True, eq=False)
class Estimate:
    """A point estimate, and intervals by level from a method that has any."""

    q: Vector
    seconds: float
    intervals: dict[float, tuple[Vector, Vector]] | None = None
    status: str = "ok"


@dataclass(frozen=True)
class Method:
    """What runs, and what it needs."""

    run: Callable[[Task], list[Estimate]]
    needs_scores: bool = False
    uses_graph: bool = False


def timed(run: Callable[..., Any], *arguments: object) -> tuple[Any, float]:
    """A result and its seconds."""
    began = time.perf_counter()
    result = run(*arguments)
    return result, time.perf_counter() - began


def _by_counts(estimator: Callable[[gs.ShiftCounts], Vector]) -> Method:
    return Method(lambda task: [Estimate(*timed(estimator, one)) for one in task.counts])


def _em(task: Task) -> list[Estimate]:
    """Saerens' EM on the scores as they are."""
    return [
        Estimate(*timed(gs.baselines.em, np.exp(scores), task.source_prior))
        for scores in task.target_scores
    ]


def _em_calibrated(task: Task) -> list[Estimate]:
    """EM on scores calibrated by BCTS, whose prior is that of the validation rows."""
    calibrator, fitted = task.calibrator
    p = task.counts[0].validation_shares
    found = [timed(lambda x: gs.baselines.em(calibrator(x), p), x) for x in task.target_scores]
    return [Estimate(q, fitted + seconds) for q, seconds in found]


def _bootstrap(task: Task) -> list[Estimate]:
    """BBSE, and intervals from resampled validation columns and target counts."""

    def resampled(counts: gs.ShiftCounts) -> Matrix:
        rng = np.random.default_rng(task.seed)
        rates, sizes = counts.confusion_rates.toarray(), counts.validation_sizes
        observed = counts.target / counts.n_target
        drawn = np.empty((RESAMPLES, counts.n_classes))
        for q in drawn:
            columns = rng.multinomial(sizes, rates.T).T / np.maximum(sizes, 1)
            target = rng.multinomial(counts.n_target, observed) / counts.n_target
            q[:] = project_to_simplex(_least_squares(columns, target))
        return drawn

    estimates = []
    for counts in task.counts:
        point, one = timed(gs.baselines.bbse, counts)
        draws, many = timed(resampled, counts)
        estimates.append(Estimate(point, one + many, _intervals(draws)))
    return estimates


def _least_squares(matrix: Matrix, observed: Vector) -> Vector:
    try:
        return np.linalg.solve(matrix, observed)
    except np.linalg.LinAlgError:  # resampled columns can be alike
        return np.linalg.lstsq(matrix, observed, rcond=1e-10)[0]


def _intervals(draws: Matrix) -> dict[float, tuple[Vector, Vector]]:
    return {level: gs.Posterior.from_draws(draws).interval(level) for level in LEVELS}


def _adjusted_count(task: Task) -> list[Estimate]:
    from quapy_peers import adjusted_count

    return [Estimate(*timed(adjusted_count, one)) for one in task.counts]


def _bayesian_cc(task: Task) -> list[Estimate]:
    from quapy_peers import bayesian_cc

    found = [timed(bayesian_cc, one, task.seed) for one in task.counts]
    return [Estimate(draws.mean(axis=0), s, _intervals(draws)) for draws, s in found]


def _hierarchy(prior: str, backend: str) -> Method:
    def run(task: Task) -> list[Estimate]:
        chosen, shared = _backend(backend), 0.0
        problems = [gs.Problem(counts, task.graph, PRIORS[prior]) for counts in task.counts]
        if isinstance(chosen, gs.Structured):
            source, shared = timed(chosen.prepared, problems[0])
            found = [timed(source.infer, one.counts.target, task.seed) for one in problems]
        else:
            found = [timed(chosen.infer, one, np.random.default_rng(task.seed)) for one in problems]
        return [of_posterior(post, shared + seconds) for post, seconds in found]

    return Method(run, uses_graph=True)


@lru_cache
def _backend(name: str):
    """A backend; one that loads a network has done so, so that this is not timed."""
    chosen = BACKENDS[name] if name in BACKENDS else as_backend(name)
    if name == "amortized":
        tiny = gs.ShiftCounts([[9, 1], [1, 9]], [5, 5])
        chosen.infer(gs.Problem(tiny), np.random.default_rng(0))
    return chosen


def of_posterior(post: gs.Posterior, seconds: float) -> Estimate:
    """Its mean and intervals, whose making counts too."""
    (intervals, mean), taken = timed(
        lambda: ({level: post.interval(level) for level in LEVELS}, post.mean)
    )
    return Estimate(mean, seconds + taken, intervals, post.diagnostics.status.value)


METHODS: dict[str, Method] = {
    "unshifted": Method(lambda task: [Estimate(task.source_prior, 0.0) for _ in task.counts]),
    "counted": _by_counts(lambda counts: counts.target / counts.n_target),  # as if never wrong
    "bbse raw": _by_counts(lambda counts: gs.baselines.bbse(counts, project=False)),
    "bbse": _by_counts(gs.baselines.bbse),
    "rlls": _by_counts(gs.baselines.rlls),
    "mlls": _by_counts(gs.baselines.mlls),
    "acc": Method(_adjusted_count),
    "bbse bootstrap": Method(_bootstrap),
    "bayesian-cc": Method(_bayesian_cc),
    "em": Method(_em, needs_scores=True),
    "em bcts": Method(_em_calibrated, needs_scores=True),
} | {
    f"{prior} {backend}": _hierarchy(prior, backend)
    for prior in PRIORS
    for backend in ("structured", "plain", "amortized", "hmc")
}
