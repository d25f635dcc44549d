"""Structured, the default backend: the hierarchy's posterior by propagation and saddlepoints."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gsb3se.graph import LabelGraph
from gsb3se.inference.structured.approximation import (
    LEAST_CHAINS,
    Approximation,
    PosteriorDraws,
    approximate,
)
from gsb3se.inference.structured.column_fit import fit_columns
from gsb3se.inference.structured.column_laws import ColumnLaws, ColumnReport
from gsb3se.inference.structured.column_propagation import ColumnPropagation
from gsb3se.inference.structured.exact.chains import ExactDraws, ExactPlan, run_exact_chains
from gsb3se.inference.structured.exact.coordinates import (
    ColumnGaussians,
    column_gaussians,
    posterior_coordinates,
)
from gsb3se.inference.structured.exact.density import ExactDensity
from gsb3se.inference.structured.share_density import as_shares
from gsb3se.inference.structured.strength_integration import Spread, spread_of
from gsb3se.inference.structured.verdict import (
    CorrectionReport,
    judge_approximation,
    judge_columns,
    judge_unmoved,
    second_opinion,
)
from gsb3se.model.counts import ConfusionCounts
from gsb3se.model.prior import Prior
from gsb3se.model.problem import Problem
from gsb3se.model.source_problem import SourceProblem
from gsb3se.posterior.families import four_chains
from gsb3se.posterior.identifiability import identified
from gsb3se.posterior.posterior import Posterior
from gsb3se.posterior.status import Diagnostics, Finding, Measures
from gsb3se.support.errors import as_whole_number
from gsb3se.support.labels import Label
from gsb3se.support.limits import (
    EXACT_CHAINS,
    EXACT_CHAINS_BY_DEFAULT,
    PROGRESS_OF_COLUMNS,
    PROGRESS_OF_EXACT_CHAINS,
    STRENGTHS_INTEGRATED,
)
from gsb3se.support.progress import progress_bar, someone_watches
from gsb3se.support.simplex import Vector

_FEW_COUNTS = 25  # largest count of a class, in the median, below which exact chains are worth it
_EXACT_SINGLE = 1e5  # target and validation counts up to which its digits are enough for these


@dataclass(frozen=True)
class Structured:
    """The posterior of q by structure: fast, and close to HMC's.

    The columns are settled from the validation counts by expectation propagation, every cell of
    them is integrated out of the target's likelihood by saddlepoints, and what is left, a density
    over the classes' levels, is sampled by many short chains at once. Strengths that the counts
    leave open are integrated over. Where validation counts are small, the approximation is
    less accurate, and exact chains start from its draws and correct it.
    :mod:`gsb3se.inference.structured` tells more.

    Args:
        draws: about how many; None for 1,536 up to 300 classes, 512 beyond. Exact chains make as
            many as they need.
        refine: whether exact chains correct the result; None: up to 128 classes, if the largest
            count of a column is below 25 in the median. Possible up to 300 classes.
        progress: show a progress bar; None: for long work, if standard error is a terminal.

    O(K^2 + edges K) a sweep of the columns, of which there are some ten; O(K^3) a few times and
    O(K^2) a draw for a target. Exact chains take O(K^3) a step, of which they make some hundreds.

    >>> Structured()
    Structured(draws=None, refine=None, progress=None)
    """

    draws: int | None = None
    refine: bool | None = None
    progress: bool | None = None

    def __post_init__(self) -> None:
        if self.draws is not None:
            as_whole_number(self.draws, "draws", least=LEAST_CHAINS)
        if self.refine not in (None, True, False):
            raise ValueError(f"refine must be True, False or None; got {self.refine!r}")

    def infer(self, problem: Problem, rng: np.random.Generator) -> Posterior:
        """Prepare the source and infer its target."""
        return self.prepared(problem).infer_problem(problem, rng)

    def prepare(
        self,
        confusion: ArrayLike,
        graph: LabelGraph | None = None,
        prior: Prior | str | None = None,
        labels: tuple[Label, ...] | None = None,
    ) -> StructuredSource:
        """All work that depends on the validation counts alone.

        >>> source = Structured().prepare([[45, 5], [5, 45]])
        >>> posts = [source.infer(target, seed=0) for target in ([70, 30], [20, 80])]
        >>> bool(posts[0].mean[0] > 0.5 > posts[1].mean[0])
        True
        """
        return self.prepared(SourceProblem(ConfusionCounts(confusion, labels), graph, prior))

    def prepared(self, source: SourceProblem) -> StructuredSource:
        """The same for a source that was checked."""
        n = source.n_classes
        if self.refine and n > EXACT_CHAINS:
            raise ValueError(
                f"refine=True holds K matrices of K x K and takes at most {int(EXACT_CHAINS)} "
                f"classes; got {n}: leave refine out, or use backend='hmc'"
            )
        began = time.perf_counter()
        with progress_bar(f"{n} columns", shown=self._shown(n >= PROGRESS_OF_COLUMNS)) as bar:
            laws, report, propagation = fit_columns(source, bar.update)
        seen = np.flatnonzero(propagation.sizes > 0)
        spread = Spread(laws)
        if n <= STRENGTHS_INTEGRATED and len(seen):
            spread = spread_of(propagation, laws, seen)
        kept = propagation if len(seen) and self._corrects(source) else None
        seconds = time.perf_counter() - began
        return StructuredSource(source, self, spread, report, seconds, kept)

    def _corrects(self, source: SourceProblem) -> bool:
        """Whether exact chains are to correct the result."""
        if self.refine is not None:
            return self.refine
        return source.n_classes <= EXACT_CHAINS_BY_DEFAULT and has_few_counts(source)

    def _shown(self, slow: bool) -> bool:
        """Whether to show a bar."""
        return self.progress if self.progress is not None else slow and someone_watches()


@dataclass(frozen=True, eq=False, repr=False)
class StructuredSource:
    """A classifier's validation counts, worked up: infer as many targets as there are.

    Attributes:
        problem: validation counts, graph and prior.
        backend: the settings.
        spread: the columns' laws and how far their strengths are known.
        report: how the fit of the columns went.
        seconds: what it took.
        propagation: of the columns to go on from, if exact chains are to start from it.
    """

    problem: SourceProblem
    backend: Structured
    spread: Spread
    report: ColumnReport
    seconds: float
    propagation: ColumnPropagation | None = None

    @property
    def columns(self) -> ColumnLaws:
        """The laws of the columns at their best strengths."""
        return self.spread.middle

    @cached_property
    def _gaussians(self) -> ColumnGaussians | None:
        """What exact chains need to know of the columns."""
        if self.propagation is None:
            return None
        return column_gaussians(self.propagation, self.columns, self.spread.curvature)

    def __repr__(self) -> str:
        return f"StructuredSource({self.problem.n_classes} classes, {self.seconds:.2f} s)"

    def infer(
        self,
        target: ArrayLike,
        seed: int | np.random.Generator = 0,
        likely: Vector | None = None,
        predicted: bool = True,
    ) -> Posterior:
        """The posterior of a target from its (K,) counts of predictions.

        Args:
            likely: (K,) a guess of its shares to start from, of another backend say.
            predicted: whether to draw the predicted shares C q and E[C] too, an eighth of the time
                where no exact chains are needed.
        """
        problem = Problem.of(self.problem, target)
        return self.infer_problem(problem, np.random.default_rng(seed), likely, predicted)

    def infer_problem(
        self,
        problem: Problem,
        rng: np.random.Generator,
        likely: Vector | None = None,
        predicted: bool = True,
    ) -> Posterior:
        """The same for a problem of this source that was checked."""
        began = time.perf_counter()
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            approximation = approximate(problem, self.spread, self.backend.draws, rng, likely)
            exact = self._exact(approximation, rng)
            answer = _Answer.of(self, approximation, exact, predicted, rng)
            return answer.posterior(self, problem, time.perf_counter() - began)

    def _exact(self, approximation: Approximation, rng: np.random.Generator) -> ExactDraws | None:
        """Exact chains from some of the draws, where they are wanted."""
        if self._gaussians is None:
            return None
        problem = approximation.problem
        plan = ExactPlan.of(problem.n_classes)
        largest = max(problem.counts.n_target, self.columns.sizes.max())
        dtype = np.float32 if largest <= _EXACT_SINGLE else np.float64
        coordinates = posterior_coordinates(problem, self._gaussians, approximation.gaussian)
        density = ExactDensity(problem, coordinates, dtype)
        drawn = approximation.log_eta()
        chosen = rng.choice(drawn.shape[1], plan.chains, replace=drawn.shape[1] < plan.chains)
        slow = problem.n_classes >= PROGRESS_OF_EXACT_CHAINS
        with progress_bar("exact chains", shown=self.backend._shown(slow)) as bar:
            return run_exact_chains(density, drawn[:, chosen], plan, rng, bar.update)


@dataclass(frozen=True, eq=False)
class _Answer:
    """Draws, and what there is to say of them.

    Attributes:
        draws: of the exact chains if they moved, else of the approximation.
        effective_draws: 5 % quantile over the classes.
        figures: by name, for people; findings: for the status.
    """

    draws: PosteriorDraws
    tau_q: float
    effective_draws: float
    figures: dict[str, Any]
    findings: list[Finding]

    @classmethod
    def of(
        cls,
        source: StructuredSource,
        approximation: Approximation,
        exact: ExactDraws | None,
        predicted: bool,
        rng: np.random.Generator,
    ) -> _Answer:
        """Draw, and judge what made the draws."""
        problem, report = approximation.problem, approximation.report()
        remedy = second_opinion(problem.n_classes)
        draws = approximation.draws(rng, predicted)
        error = float(np.abs(source.columns.mean.sum(axis=0) - 1).max())
        figures = source.report.figures() | {"column_sum_error": error} | asdict(report)
        findings = judge_columns(source.report, remedy) + judge_approximation(report, remedy)
        effective = report.effective_draws
        if exact is not None and not exact.usable:
            findings.append(judge_unmoved(exact, remedy))
            figures |= {
                "refined": False,
                "refinement_accepted": exact.accepted,
                "refinement_trajectories": exact.trajectories,
            }
        elif exact is not None:
            corrected = _exact_draws(problem, exact, rng)
            correction = CorrectionReport.of(draws.q, corrected.q, exact)
            figures |= correction.figures() | {"approximation_effective_draws": effective}
            draws, findings = corrected, correction.findings(remedy)
            effective = correction.effective_draws
            figures["effective_draws"] = effective
        return cls(draws, report.tau_q, effective, figures, findings)

    def posterior(self, source: StructuredSource, problem: Problem, seconds: float) -> Posterior:
        """As every backend returns it."""
        draws = self.draws
        times = {"source_seconds": source.seconds, "target_seconds": seconds}
        measures = Measures(tau_q=self.tau_q, effective_draws=self.effective_draws)
        posterior = Posterior.from_draws(
            four_chains(draws.q),
            None if draws.r is None else four_chains(draws.r),
            others={name: four_chains(values) for name, values in draws.others.items()},
            labels=problem.counts.labels,
            diagnostics=Diagnostics.of(self.findings, self.figures | times, measures=measures),
            backend="structured",
            confusion_mean=draws.confusion,
            n_target=problem.counts.n_target,
            problem=problem,
        )
        confusion = source.columns.mean if draws.confusion is None else None
        return identified(posterior, confusion=confusion)


def _exact_draws(problem: Problem, exact: ExactDraws, rng: np.random.Generator) -> PosteriorDraws:
    """The draws of the exact chains, as those of the approximation."""
    theta, r, strengths = (
        np.concatenate(part, axis=1) for part in (exact.theta, exact.r, exact.strengths)
    )
    tau_q = problem.share_prior.draw_strength(theta, rng)
    others = {"tau_q": tau_q, "tau_C": np.exp(strengths[0].astype(float))}
    others |= dict(zip(("alpha", "beta"), strengths[1:].astype(float), strict=False))
    confusion = exact.confusion / exact.confusion.sum(axis=0)
    return PosteriorDraws(as_shares(theta), r.T.astype(float), others, confusion)


def has_few_counts(source: SourceProblem) -> bool:
    """Whether the columns' largest counts have a small median, which makes approximations poor."""
    largest = source.counts.confusion.max(axis=0).toarray()
    return bool(np.median(largest) < _FEW_COUNTS)
