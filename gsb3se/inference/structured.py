"""Structured, the default backend: the hierarchy's posterior by propagation and saddlepoints."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gsb3se.counts import ShiftCounts
from gsb3se.diagnostics import Diagnostics, Finding, Status, identifiability, weak_directions
from gsb3se.errors import as_whole_number
from gsb3se.graph import LabelGraph
from gsb3se.inference.columns import ColumnLaws, fit_columns
from gsb3se.inference.strengths import Spread, spread_of
from gsb3se.inference.target import Frame, Sampled, TargetDensity, as_shares
from gsb3se.labels import Label
from gsb3se.posterior import Posterior
from gsb3se.prior import Prior
from gsb3se.problem import Problem
from gsb3se.simplex import Matrix, Vector

_FEW = 300  # classes up to which strengths are integrated out and many draws are cheap
_LEAST_CHAINS = 64
_MOST_PASSES = 4
_DRIFTING = 1.6  # root mean square t statistic between early and late draws
_LEAST_EFFECTIVE = 100
_LEAST_ACCEPTED = 0.4
_SINGLE_PRECISION = (1e6, 1e5)  # target and validation counts up to which it has enough digits
_SLOW = 600  # classes from which progress is shown


@dataclass(frozen=True)
class Structured:
    """The posterior of q by structure: fast, and close to HMC's.

    The columns are settled from the validation counts by expectation propagation
    (:mod:`gsb3se.inference.columns`); every cell of them is integrated out of the target's
    likelihood by saddlepoints (:mod:`gsb3se.inference.rows`); what is left, a density over the
    classes' levels, is sampled by many short chains at once (:mod:`gsb3se.inference.target`).
    Strengths that the counts leave open are integrated over (:mod:`gsb3se.inference.strengths`).

    Args:
        draws: about how many; None for 1,536 up to 300 classes, fewer beyond.
        progress: show a progress bar; None: from 600 classes if standard error is a terminal.

    O(K^2 + edges K) a sweep of the columns, of which there are some ten; O(K^3) a few times and
    O(K^2) a draw for a target.

    >>> Structured()
    Structured(draws=None, progress=None)
    """

    draws: int | None = None
    progress: bool | None = None

    def __post_init__(self) -> None:
        if self.draws is not None:
            as_whole_number(self.draws, "draws", least=_LEAST_CHAINS)

    def infer(self, problem: Problem, rng: np.random.Generator) -> Posterior:
        """Prepare the source and infer its target."""
        return self.prepared(problem).infer(problem.counts.target, rng)

    def prepare(
        self,
        confusion: ArrayLike,
        graph: LabelGraph | None = None,
        prior: Prior | None = None,
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
        began = time.perf_counter()
        with self._progress(problem.n_classes) as tick:
            laws, run = fit_columns(problem, tick)
        known = np.flatnonzero(run.sizes > 0)
        spread = Spread(laws)
        if problem.n_classes <= _FEW and len(known):
            spread = spread_of(run, laws, known)
        return Source(problem, spread, self, time.perf_counter() - began)

    @contextmanager
    def _progress(self, n_classes: int) -> Iterator[Callable[[int, int], None]]:
        shown = self.progress
        if shown is None:
            shown = n_classes >= _SLOW and sys.stderr.isatty()
        if not shown:
            yield lambda done, total: None
            return
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True)) as bar:
            task = bar.add_task(f"{n_classes} columns", total=n_classes)
            yield lambda done, total: bar.update(task, completed=done, total=total)


@dataclass(frozen=True, eq=False, repr=False)
class Source:
    """A classifier's validation counts, worked up: infer as many targets as there are.

    Attributes:
        problem: validation counts, graph and prior.
        spread: the columns' laws and how far their strengths are known.
        backend: the settings.
        seconds: what it took.
    """

    problem: Problem
    spread: Spread
    backend: Structured
    seconds: float

    @property
    def columns(self) -> ColumnLaws:
        """The laws of the columns at their best strengths."""
        return self.spread.middle

    @cached_property
    def _directions(self) -> tuple[Vector, Matrix] | None:
        known = self.problem.counts.n_validation > 0
        return weak_directions(self.problem.counts) if known else None

    def __repr__(self) -> str:
        return f"Source({self.problem.n_classes} classes, {self.seconds:.2f} s)"

    def infer(self, target: ArrayLike, seed: int | np.random.Generator = 0) -> Posterior:
        """The posterior of a target from its (K,) counts of predictions."""
        rng = np.random.default_rng(seed)
        began = time.perf_counter()
        counts = self.problem.counts.with_target(target)
        problem = Problem(counts, self.problem.graph, self.problem.prior)
        small = (
            counts.n_target <= _SINGLE_PRECISION[0]
            and self.columns.sizes.max() <= _SINGLE_PRECISION[1]
        )
        spread = self.spread
        middle = TargetDensity(problem, _typed(spread.middle, small))
        told = [
            tuple(
                TargetDensity(problem, _typed(side, small), middle.frame).frame.log_evidence
                - middle.frame.log_evidence
                for side in axis.sides
            )
            for axis in spread.axes
        ]
        places = spread.sigma_points(told)  # type: ignore[arg-type]
        chains, discarded, kept = self._plan(len(places))
        parts = []
        for place in places:
            density = middle
            if place.any():
                laws = _typed(spread.laws_at(place), small)
                density = TargetDensity(problem, laws, middle.frame)
            parts.append(_sampled(density, chains, discarded, kept, rng))
        return self._posterior(problem, middle.frame, parts, rng, began)

    def _plan(self, parts: int) -> tuple[int, int, int]:
        """Chains a part, trajectories to discard and to keep."""
        few = self.problem.n_classes <= _FEW
        kept = 8 if few else 4
        draws = self.backend.draws or (1536 if few else 512)
        return max(_LEAST_CHAINS // 2, -(-draws // (kept * parts))), (4 if few else 2), kept

    def _posterior(
        self,
        problem: Problem,
        frame: Frame,
        parts: list[tuple[TargetDensity, Sampled]],
        rng: np.random.Generator,
        began: float,
    ) -> Posterior:
        q, r, confusion = [], [], np.zeros((problem.n_classes, problem.n_classes))
        tau_q, tau_C = [], []
        for density, sampled in parts:
            for theta, log_eta in zip(sampled.theta, sampled.log_eta, strict=True):
                shares, mean = density.rows.draw_shares(log_eta, rng)
                q.append(as_shares(theta))
                r.append(shares.T)
                confusion += mean / (len(parts) * len(sampled.theta))
                tau_q.append(density.draw_tau(theta, rng))
                tau_C.append(np.full(theta.shape[1], density.laws.hyper.tau))
        figures, findings = judge(problem, self.columns, frame, parts)
        identified = identifiability(problem.counts, self._directions)
        figures |= {
            "source_seconds": self.seconds,
            "target_seconds": time.perf_counter() - began,
        }
        # Four groups of chains, so that tools for draws of chains have something to compare.
        grouped = (_four(np.concatenate(some)) for some in (q, r, tau_q, tau_C))
        q4, r4, tau_q4, tau_C4 = grouped
        return Posterior.from_draws(
            q4,
            r4,
            others={"tau_q": tau_q4, "tau_C": tau_C4},
            labels=problem.counts.labels,
            diagnostics=Diagnostics.of(
                [*identified.findings, *findings], figures | identified.figures()
            ),
            backend="structured",
            confusion_mean=confusion / confusion.sum(axis=0),
            n_target=problem.counts.n_target,
            problem=problem,
        )


def _four(draws: Matrix) -> Matrix:
    return draws[: len(draws) // 4 * 4].reshape(-1, 4, *draws.shape[1:]).swapaxes(0, 1)


def _typed(laws: ColumnLaws, small: bool) -> ColumnLaws:
    wanted = np.float32 if small else np.float64
    return laws if laws.rate.dtype == wanted else laws.astype(wanted)


def _sampled(
    density: TargetDensity, chains: int, discarded: int, kept: int, rng: np.random.Generator
) -> tuple[TargetDensity, Sampled]:
    """Sample until early and late draws agree, or long enough."""
    sampled = density.sample(chains, discarded, kept, rng)
    for _ in range(_MOST_PASSES - 1):
        if drift(sampled)[0] < _DRIFTING:
            break
        sampled = density.sample(chains, discarded, kept, rng, sampled)
    return density, sampled


def drift(sampled: Sampled) -> tuple[float, float]:
    """Between the first and the last half of every chain's kept draws.

    Returns:
        The root mean square over classes of the t statistic of the difference (about 1 if nothing
        drifts), and the median difference in sds.
    """
    q = np.stack([as_shares(theta) for theta in sampled.theta])
    half = len(q) // 2
    apart = q[half:].mean(axis=0) - q[:half].mean(axis=0)
    error = apart.std(axis=0) / np.sqrt(len(apart)) + 1e-300
    t = apart.mean(axis=0) / error
    sd = q.std(axis=(0, 1)) + 1e-300
    return float(np.sqrt(np.mean(t**2))), float(np.median(np.abs(apart.mean(axis=0)) / sd))


def effective_draws(sampled: Sampled) -> float:
    """Of the worst class: as many independent draws have means that vary as much."""
    q = np.stack([as_shares(theta) for theta in sampled.theta])
    between = q.mean(axis=0).var(axis=0) + 1e-300
    ratio = q.var(axis=(0, 1)) / between
    return float(np.minimum(ratio, len(q)).min() * q.shape[1])


def judge(
    problem: Problem,
    laws: ColumnLaws,
    frame: Frame,
    parts: list[tuple[TargetDensity, Sampled]],
) -> tuple[dict[str, Any], list[Finding]]:
    """What the solves and the chains say about themselves."""
    samples = [sampled for _, sampled in parts]
    drifts = np.array([drift(sampled) for sampled in samples])
    effective = sum(effective_draws(sampled) for sampled in samples)
    accepted = float(
        np.mean([np.mean(sampled.accepted[-len(sampled.theta) :]) for sampled in samples])
    )
    error = float(np.abs(laws.mean.sum(axis=0) - 1).max())
    figures: dict[str, Any] = laws.figures | {
        "column_sum_error": error,
        "tau_q": frame.tau,
        "mode_steps": frame.steps,
        "mode_converged": frame.converged,
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
    findings = []
    if figures["columns_not_converged"]:
        findings.append(
            Finding(
                Status.NOT_CONVERGED,
                f"{figures['columns_not_converged']} columns still moved after "
                f"{figures['column_sweeps']} sweeps",
            )
        )
    if not figures["strengths_converged"]:
        findings.append(
            Finding(
                Status.STRENGTHS_OPEN,
                f"tau_C, alpha and beta still moved after {figures['strength_updates']} updates",
            )
        )
    if figures["drift"] > _DRIFTING or accepted < _LEAST_ACCEPTED:
        findings.append(
            Finding(
                Status.CHAINS_DISAGREE,
                f"early and late draws differ ({figures['drift_in_sd']:.2g} sd in the median), "
                f"{100 * accepted:.0f} % of the trajectories were accepted",
            )
        )
    elif effective < _LEAST_EFFECTIVE:
        findings.append(
            Finding(Status.TOO_FEW_DRAWS, f"the worst class has {effective:.0f} effective draws")
        )
    return figures, findings
