"""Structured, the default backend: the hierarchy's posterior by propagation and saddlepoints."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from gsb3se.counts import ShiftCounts
from gsb3se.errors import as_whole_number
from gsb3se.graph import LabelGraph
from gsb3se.identifiability import identified
from gsb3se.inference.columns import ColumnLaws, ColumnPropagation, fit_columns
from gsb3se.inference.exact_density import ExactDensity
from gsb3se.inference.posterior_frame import (
    ColumnGaussians,
    column_gaussians,
    posterior_frame,
)
from gsb3se.inference.refinement import (
    DRIFTING,
    LEAST_ACCEPTED,
    Plan,
    Refined,
    drift,
    effective_draws,
    refine,
)
from gsb3se.inference.strengths import Spread, spread_of
from gsb3se.inference.target import Frame, Sampled, TargetDensity, as_shares, draw_tau
from gsb3se.labels import Label
from gsb3se.posterior import Posterior
from gsb3se.prior import Prior
from gsb3se.problem import Problem
from gsb3se.simplex import Matrix, Vector
from gsb3se.status import Diagnostics, Finding, Status

_FEW = 300  # classes up to which strengths are integrated out and many draws are cheap
_LEAST_CHAINS = 64
_MOST_PASSES = 4  # of a density's chains
_MOST_KICKS, _MOST_KICKS_OF_MANY = 12, 8  # the same in kicks, in units of a first pass's
_LEAST_EFFECTIVE, _AMPLE = 100, 1.2
_FEW_SPIKES = 0.1  # expected a row, from which what is left out of them may matter
_SINGLE_PRECISION = (1e6, 1e5)  # target and validation counts up to which it has enough digits
_SLOW = 600  # classes from which progress is shown
_MOST_FOR_HMC, _MOST_FOR_VARIATIONAL = 200, 600  # classes up to which these can be asked
MOST_CORRECTED = 128  # classes up to which few counts are worth a correction
_FEW_COUNTS = 25  # largest count of a class, in the median, below which it does
_MOST_REFINED = 300  # classes up to which it can
_REFINED_SINGLE = 1e5  # target and validation counts up to which its digits are enough
_SLOW_REFINEMENT = 64  # classes from which its progress is shown


@dataclass(frozen=True)
class Structured:
    """The posterior of q by structure: fast, and close to HMC's.

    The columns are settled from the validation counts by expectation propagation
    (:mod:`gsb3se.inference.columns`); every cell of them is integrated out of the target's
    likelihood by saddlepoints (:mod:`gsb3se.inference.rows`); what is left, a density over the
    classes' levels, is sampled by many short chains at once (:mod:`gsb3se.inference.target`).
    Strengths that the counts leave open are integrated over (:mod:`gsb3se.inference.strengths`).
    Where validation counts are small, and with them the approximation's grounds, exact chains start
    from its draws and correct it (:mod:`gsb3se.inference.refinement`).

    Args:
        draws: about how many; None for 1,536 up to 300 classes, fewer beyond. Exact chains make as
            many as they need.
        refine: whether exact chains correct the result; None: up to 128 classes, if the largest
            count of a column is below 25 in the median. Possible up to 300 classes.
        progress: show a progress bar; None: from 600 classes if standard error is a terminal.

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
            as_whole_number(self.draws, "draws", least=_LEAST_CHAINS)
        if self.refine not in (None, True, False):
            raise ValueError(f"refine must be True, False or None; got {self.refine!r}")

    def infer(self, problem: Problem, rng: np.random.Generator) -> Posterior:
        """Prepare the source and infer its target."""
        return self.prepared(problem).infer(problem.counts.target, rng)

    def prepare(
        self,
        confusion: ArrayLike,
        graph: LabelGraph | None = None,
        prior: Prior | str | None = None,
        labels: tuple[Label, ...] | None = None,
    ) -> Source:
        """All work that depends on the validation counts alone.

        >>> source = Structured().prepare([[45, 5], [5, 45]])
        >>> posts = [source.infer(target, seed=0) for target in ([70, 30], [20, 80])]
        >>> bool(posts[0].mean[0] > 0.5 > posts[1].mean[0])
        True
        """
        nobody = np.ones(np.shape(confusion)[:1] or 1, dtype=int)  # stands in for a target
        counts = ShiftCounts(confusion, nobody, labels)
        return self.prepared(Problem(counts, graph, prior))

    def prepared(self, problem: Problem) -> Source:
        """The source of a problem; its target is not looked at."""
        n = problem.n_classes
        if self.refine and n > _MOST_REFINED:
            raise ValueError(
                f"refine=True holds K matrices of K x K and takes at most {_MOST_REFINED} classes; "
                f"got {n}: leave refine out, or use backend='hmc'"
            )
        began = time.perf_counter()
        with self.progress_bar(f"{n} columns", n >= _SLOW) as tick:
            laws, run = fit_columns(problem, tick)
        known = np.flatnonzero(run.sizes > 0)
        spread = Spread(laws)
        if n <= _FEW and len(known):
            spread = spread_of(run, laws, known)
        kept = run if len(known) and self._refines(problem) else None
        return Source(problem, spread, self, time.perf_counter() - began, kept)

    def _refines(self, problem: Problem) -> bool:
        if self.refine is not None:
            return self.refine
        return problem.n_classes <= MOST_CORRECTED and has_few_counts(problem)

    @contextmanager
    def progress_bar(self, what: str, slow: bool) -> Iterator[Callable[[int, int], None]]:
        """A bar on standard error, if it is wanted; yields what to tell the progress to."""
        shown = self.progress
        if shown is None:
            shown = slow and sys.stderr.isatty()
        if not shown:
            yield lambda done, total: None
            return
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True)) as bar:
            task = bar.add_task(what, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)


@dataclass(frozen=True, eq=False, repr=False)
class Source:
    """A classifier's validation counts, worked up: infer as many targets as there are.

    Attributes:
        problem: validation counts, graph and prior.
        spread: the columns' laws and how far their strengths are known.
        backend: the settings.
        seconds: what it took.
        run: the columns' propagation to go on from, if exact chains are to start from it.
    """

    problem: Problem
    spread: Spread
    backend: Structured
    seconds: float
    run: ColumnPropagation | None = None

    @property
    def columns(self) -> ColumnLaws:
        """The laws of the columns at their best strengths."""
        return self.spread.middle

    @cached_property
    def _gaussians(self) -> ColumnGaussians | None:
        """What exact chains need to know of the columns."""
        if self.run is None:
            return None
        return column_gaussians(self.run, self.columns, self.spread.curvature)

    def __repr__(self) -> str:
        return f"Source({self.problem.n_classes} classes, {self.seconds:.2f} s)"

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
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            return self._infer(target, np.random.default_rng(seed), likely, predicted)

    def _infer(
        self, target: ArrayLike, rng: np.random.Generator, likely: Vector | None, predicted: bool
    ) -> Posterior:
        began = time.perf_counter()
        counts = self.problem.counts.with_target(target)
        problem = Problem(counts, self.problem.graph, self.problem.prior)
        small = (
            counts.n_target <= _SINGLE_PRECISION[0]
            and self.columns.sizes.max() <= _SINGLE_PRECISION[1]
        )
        spread = self.spread
        middle = TargetDensity(problem, _typed(spread.middle, small), likely=likely)
        told = [
            tuple(
                TargetDensity(problem, _typed(side, small), middle.frame).frame.log_evidence
                - middle.frame.log_evidence
                for side in axis.sides
            )
            for axis in spread.axes
        ]
        places = spread.sigma_points(told)  # type: ignore[arg-type]
        plan = self._plan(len(places))
        parts = []
        for place in places:
            density = middle
            if place.any():
                laws = _typed(spread.laws_at(place), small)
                density = TargetDensity(problem, laws, middle.frame)
            parts.append(_sampled(density, plan, rng))
        refined = self._refine(problem, middle.frame, parts, rng)
        return self._posterior(problem, middle.frame, parts, refined, predicted, rng, began)

    def _refine(
        self,
        problem: Problem,
        frame: Frame,
        parts: list[tuple[TargetDensity, Sampled]],
        rng: np.random.Generator,
    ) -> Refined | None:
        """Exact chains from some of the draws, where they are wanted."""
        if self._gaussians is None:
            return None
        plan = Plan.of(problem.n_classes)
        largest = max(problem.counts.n_target, self.columns.sizes.max())
        dtype = np.float32 if largest <= _REFINED_SINGLE else np.float64
        density = ExactDensity(problem, posterior_frame(problem, self._gaussians, frame), dtype)
        drawn = np.concatenate([sampled.log_eta[-1] for _, sampled in parts], axis=1)
        chosen = rng.choice(drawn.shape[1], plan.chains, replace=drawn.shape[1] < plan.chains)
        slow = problem.n_classes >= _SLOW_REFINEMENT
        with self.backend.progress_bar("exact chains", slow) as tick:
            return refine(density, drawn[:, chosen], plan, rng, tick)

    def _plan(self, parts: int) -> _Trajectories:
        few = self.problem.n_classes <= _FEW
        kept = 8 if few else 4
        draws = self.backend.draws or (1536 if few else 512)
        chains = max(_LEAST_CHAINS // 2, -(-draws // (kept * parts)))
        # Of few classes shorter ones are accepted often enough, and more draws a second come out.
        most = _MOST_KICKS if few else _MOST_KICKS_OF_MANY
        effective = _AMPLE * _LEAST_EFFECTIVE / parts
        return _Trajectories(chains, 3 if few else 2, kept, 3 if few else 4, most, effective)

    def _posterior(
        self,
        problem: Problem,
        frame: Frame,
        parts: list[tuple[TargetDensity, Sampled]],
        refined: Refined | None,
        predicted: bool,
        rng: np.random.Generator,
        began: float,
    ) -> Posterior:
        draws = _approximate_draws(parts, predicted, rng)
        figures, findings = judge(self.columns, frame, parts)
        if refined is not None and not refined.usable:
            told, found = judge_unmoved(refined, problem.n_classes)
            figures, findings = figures | told, findings + found
        elif refined is not None:
            exact = _exact_draws(problem, refined, rng)
            told, findings = judge_refinement(draws.q, exact.q, refined)
            figures["approximation_effective_draws"] = figures["effective_draws"]
            figures |= told | {"effective_draws": told["refinement_effective_draws"]}
            draws = exact
        figures |= {
            "source_seconds": self.seconds,
            "target_seconds": time.perf_counter() - began,
        }
        # Four groups of chains, so that tools for draws of chains have something to compare.
        confusion = draws.confusion
        posterior = Posterior.from_draws(
            four_groups(draws.q),
            None if draws.r is None else four_groups(draws.r),
            others={name: four_groups(values) for name, values in draws.others.items()},
            labels=problem.counts.labels,
            diagnostics=Diagnostics.of(findings, figures),
            backend="structured",
            confusion_mean=None if confusion is None else confusion / confusion.sum(axis=0),
            n_target=problem.counts.n_target,
            problem=problem,
        )
        return identified(posterior, confusion=self.columns.mean if confusion is None else None)


class Draws(NamedTuple):
    """q and r, (n, K); tau_q and the rest by name, (n,); the mean of C, (K, K), up to a factor."""

    q: Matrix
    r: Matrix | None
    others: dict[str, Vector]
    confusion: Matrix | None


def _approximate_draws(
    parts: list[tuple[TargetDensity, Sampled]], predicted: bool, rng: np.random.Generator
) -> Draws:
    q, r, tau_q, tau_C = [], [], [], []
    confusion = np.zeros_like(parts[0][0].laws.rate, dtype=float)
    for density, sampled in parts:
        for theta, log_eta in zip(sampled.theta, sampled.log_eta, strict=True):
            q.append(as_shares(theta))
            if predicted:
                shares, mean = density.rows.draw_shares(log_eta, rng)
                r.append(shares.T)
                confusion += mean
            tau_q.append(draw_tau(density.problem, theta, rng))
            tau_C.append(np.full(theta.shape[1], density.laws.hyper.tau))
    others = {"tau_q": np.concatenate(tau_q), "tau_C": np.concatenate(tau_C)}
    if not predicted:
        return Draws(np.concatenate(q), None, others, None)
    return Draws(np.concatenate(q), np.concatenate(r), others, confusion)


def _exact_draws(problem: Problem, refined: Refined, rng: np.random.Generator) -> Draws:
    theta, r, strengths = (
        np.concatenate(part, axis=1) for part in (refined.theta, refined.r, refined.strengths)
    )
    others = {"tau_q": draw_tau(problem, theta, rng), "tau_C": np.exp(strengths[0].astype(float))}
    others |= dict(zip(("alpha", "beta"), strengths[1:].astype(float), strict=False))
    return Draws(as_shares(theta), r.T.astype(float), others, refined.confusion)


def four_groups(draws: Matrix) -> Matrix:
    """Draws (n, ...) as (4, n / 4, ...), as if of four chains."""
    return draws[: len(draws) // 4 * 4].reshape(-1, 4, *draws.shape[1:]).swapaxes(0, 1)


def has_few_counts(problem: Problem) -> bool:
    """Whether the largest count of the median column is small: thin ground for approximations."""
    largest = problem.counts.confusion.max(axis=0).toarray()
    return bool(np.median(largest) < _FEW_COUNTS)


def _typed(laws: ColumnLaws, small: bool) -> ColumnLaws:
    wanted = np.float32 if small else np.float64
    return laws if laws.rate.dtype == wanted else laws.astype(wanted)


class _Trajectories(NamedTuple):
    """How a density is sampled.

    Attributes:
        chains: side by side; discarded, kept: trajectories of each in a pass.
        kicks: of a trajectory in the first pass.
        most_kicks: after which there is no other pass, in units of a first pass's.
        effective: draws that are enough.
    """

    chains: int
    discarded: int
    kept: int
    kicks: int
    most_kicks: int
    effective: float


def _sampled(
    density: TargetDensity, plan: _Trajectories, rng: np.random.Generator
) -> tuple[TargetDensity, Sampled]:
    """Sample until chains move, early and late draws agree and are enough, or long enough."""
    sampled = Sampled(kicks=plan.kicks)
    for _ in range(_MOST_PASSES):
        sampled = density.sample(plan.chains, plan.discarded, plan.kept, rng, sampled)
        moving = np.mean(sampled.accepted[-plan.kept :]) >= LEAST_ACCEPTED
        agreed = moving and drift(sampled.theta)[0] < DRIFTING
        agreed = agreed and effective_draws(sampled.theta) > plan.effective
        trajectories = plan.discarded + plan.kept
        kicks = sampled.kicks_made + sampled.kicks * trajectories
        if agreed or kicks > plan.most_kicks * plan.kicks * trajectories:
            break
    return density, sampled


def judge(
    laws: ColumnLaws,
    frame: Frame,
    parts: list[tuple[TargetDensity, Sampled]],
) -> tuple[dict[str, Any], list[Finding]]:
    """What the solves and the chains say about themselves."""
    samples = [sampled for _, sampled in parts]
    drifts = np.array([drift(sampled.theta) for sampled in samples])
    effective = sum(effective_draws(sampled.theta) for sampled in samples)
    accepted = float(
        np.mean([np.mean(sampled.accepted[-len(sampled.theta) :]) for sampled in samples])
    )
    error = float(np.abs(laws.mean.sum(axis=0) - 1).max())
    figures: dict[str, Any] = laws.figures | {
        "column_sum_error": error,
        "tau_q": frame.tau,
        "mode_steps": frame.steps,
        "mode_converged": frame.converged,
        "spikes_expected": max(density.rows.spikes.expected for density, _ in parts),
        "terms": parts[0][0].rows.n_terms,
        "saddle_steps": max(density.rows.most_steps for density, _ in parts),
        "strengths_integrated": len(parts) // 2,
        "accepted": accepted,
        "kicks": max(sampled.kicks for sampled in samples),
        "trajectories": max(sampled.trajectories for sampled in samples),
        "effective_draws": effective,
        "drift": float(drifts[:, 0].max()),
        "drift_in_sd": float(drifts[:, 1].max()),
    }
    findings, check = [], second_opinion(len(frame.centre))
    if figures["columns_not_converged"]:
        told = (
            f"{figures['columns_not_converged']} columns still moved after "
            f"{figures['column_sweeps']} sweeps"
        )
        findings.append(Finding(Status.NOT_CONVERGED, told, check))
    if not frame.converged:
        told = f"the mode still moved after {frame.steps} Newton steps"
        findings.append(Finding(Status.NOT_CONVERGED, told, check))
    if figures["spikes_expected"] > _FEW_SPIKES:
        findings.append(
            Finding(
                Status.UNSEEN_CONFUSIONS,
                f"the prior leaves {figures['spikes_expected']:.2g} confusions open for every "
                "predicted class that the validation rows have not shown and that would matter",
            )
        )
    if not figures["strengths_converged"]:
        told = f"tau_C, alpha and beta still moved after {figures['strength_updates']} updates"
        findings.append(Finding(Status.STRENGTHS_OPEN, told, check))
    if figures["drift"] > DRIFTING or accepted < LEAST_ACCEPTED:
        findings.append(_disagreement(figures["drift_in_sd"], accepted, check))
    elif effective < _LEAST_EFFECTIVE:
        findings.append(
            Finding(Status.TOO_FEW_DRAWS, f"the worst class has {effective:.0f} effective draws")
        )
    return figures, findings


def _disagreement(drift_in_sd: float, accepted: float, remedy: str) -> Finding:
    told = (
        f"early and late draws differ ({drift_in_sd:.2g} sd in the median), "
        f"{100 * accepted:.0f} % of the trajectories were accepted"
    )
    return Finding(Status.CHAINS_DISAGREE, told, remedy)


def second_opinion(n_classes: int) -> str:
    """What to do where this backend cannot vouch for its answer."""
    doubt = "intervals may be off: collect more validation rows"
    if n_classes <= _MOST_FOR_HMC:
        return f"{doubt}, or compare with backend='hmc'"
    if n_classes <= _MOST_FOR_VARIATIONAL:
        return f"{doubt}, or compare with backend='variational'"
    return doubt


def judge_unmoved(refined: Refined, n_classes: int) -> tuple[dict[str, Any], list[Finding]]:
    """What there is to say of exact chains that stayed where they were."""
    told = (
        f"the exact chains hardly moved ({100 * refined.accepted:.0f} % of the trajectories "
        "were accepted): this is the approximation they started from"
    )
    figures = {
        "refined": False,
        "refinement_accepted": refined.accepted,
        "refinement_trajectories": refined.trajectories,
    }
    return figures, [Finding(Status.CHAINS_DISAGREE, told, second_opinion(n_classes))]


def judge_refinement(
    before: Matrix, after: Matrix, refined: Refined
) -> tuple[dict[str, Any], list[Finding]]:
    """What the exact chains say of themselves, and of the approximation they started from.

    Args:
        before, after: (n, K) draws of q by the approximation and by the chains.
    """
    sd = after.std(axis=0) + 1e-300
    moved = np.abs(before.mean(axis=0) - after.mean(axis=0)) / sd
    moving, moving_in_sd = drift(refined.theta)
    figures = {
        "refined": True,
        "refinement_accepted": refined.accepted,
        "refinement_trajectories": refined.trajectories,
        "refinement_effective_draws": effective_draws(refined.theta),
        "refinement_drift": moving,
        "refinement_drift_in_sd": moving_in_sd,
        "approximation_mean_error": float(np.median(moved)),
        "approximation_mean_error_95": float(np.quantile(moved, 0.95)),
        "approximation_sd_ratio": float(np.median(before.std(axis=0) / sd)),
    }
    effective, check = figures["refinement_effective_draws"], second_opinion(before.shape[1])
    findings = []
    if moving > DRIFTING or refined.accepted < LEAST_ACCEPTED:
        findings.append(_disagreement(moving_in_sd, refined.accepted, check))
    elif effective < _LEAST_EFFECTIVE:
        told = f"the worst class has {effective:.0f} effective draws of exact chains"
        findings.append(Finding(Status.TOO_FEW_DRAWS, told, check))
    return figures, findings
