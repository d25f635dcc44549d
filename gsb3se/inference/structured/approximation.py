"""The approximate posterior of one target: share densities at several strengths, sampled.

The strengths that the validation counts leave open are integrated out by sigma points, each with
columns' laws of its own (:mod:`gsb3se.inference.structured.strength_integration`), and hence a
share density. Draws of all of them together are draws of the posterior.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gsb3se.inference.structured.column_laws import ColumnLaws
from gsb3se.inference.structured.count_likelihood import Array
from gsb3se.inference.structured.share_chains import (
    ChainPlan,
    SampledShares,
    drift,
    effective_draws,
    sample_shares,
)
from gsb3se.inference.structured.share_density import ShareDensity, as_shares
from gsb3se.inference.structured.share_mode import ShareGaussian
from gsb3se.inference.structured.strength_integration import Spread
from gsb3se.model.problem import Problem
from gsb3se.support.limits import STRENGTHS_INTEGRATED
from gsb3se.support.simplex import Matrix, Vector

LEAST_CHAINS = 64
LEAST_EFFECTIVE = 100  # draws of the worst class
_AMPLE = 1.2  # times as many are aimed at
_DRAWS, _DRAWS_OF_MANY = 1536, 512
_MOST_KICKS, _MOST_KICKS_OF_MANY = 12, 8  # of a density's chains, in units of a first pass's
_SINGLE_PRECISION = (1e6, 1e5)  # target and validation counts up to which it has enough digits


class PosteriorDraws(NamedTuple):
    """Draws of a posterior, and what goes with them.

    Attributes:
        q: (n, K); r: (n, K) predicted shares C q, if they were wanted.
        others: (n,) of tau_q, tau_C and the weights, by name.
        confusion: (K, K) the mean of C, if it was wanted; its columns sum to one.
    """

    q: Matrix
    r: Matrix | None
    others: dict[str, Vector]
    confusion: Matrix | None


class SigmaPoint(NamedTuple):
    """The share density at some strengths, and its draws."""

    density: ShareDensity
    sampled: SampledShares


@dataclass(frozen=True)
class ApproximationReport:
    """What the mode search and the chains did.

    Attributes:
        tau_q: at the mode; mode_steps, mode_converged: of the search for it.
        spikes_expected: confusions of tiny probability that are left out, a row.
        terms: cells that are kept one by one.
        strengths_integrated: directions of the strengths that are.
        accepted: share of the kept trajectories; kicks: of a trajectory, at the end.
        trajectories: of a chain; effective_draws: 5 % quantile over the classes.
        drift, drift_in_sd: between early and late draws.
    """

    tau_q: float
    mode_steps: int
    mode_converged: bool
    spikes_expected: float
    terms: int
    strengths_integrated: int
    accepted: float
    kicks: int
    trajectories: int
    effective_draws: float
    drift: float
    drift_in_sd: float


@dataclass(frozen=True, eq=False)
class Approximation:
    """The sampled posterior of a target.

    Attributes:
        problem: with the target.
        gaussian: at the mode, with the best strengths.
        points: the densities and their draws, all of one weight.
    """

    problem: Problem
    gaussian: ShareGaussian
    points: list[SigmaPoint]

    def log_eta(self) -> Array:
        """(K, n) levels at the end of every chain."""
        return np.concatenate([point.sampled.log_eta[-1] for point in self.points], axis=1)

    def draws(self, rng: np.random.Generator, predicted: bool) -> PosteriorDraws:
        """Draws of q and the strengths, and of C q if ``predicted``."""
        q, r, tau_q, tau_C = [], [], [], []
        confusion = np.zeros_like(self.points[0].density.laws.rate, dtype=float)
        prior = self.problem.share_prior
        for density, sampled in self.points:
            for theta, log_eta in zip(sampled.theta, sampled.log_eta, strict=True):
                q.append(as_shares(theta))
                if predicted:
                    shares, mean = density.likelihood.draw_shares(log_eta, rng)
                    r.append(shares.T)
                    confusion += mean
                tau_q.append(prior.draw_strength(theta, rng))
                tau_C.append(np.full(theta.shape[1], density.laws.parameters.tau))
        others = {"tau_q": np.concatenate(tau_q), "tau_C": np.concatenate(tau_C)}
        if not predicted:
            return PosteriorDraws(np.concatenate(q), None, others, None)
        confusion /= confusion.sum(axis=0)
        return PosteriorDraws(np.concatenate(q), np.concatenate(r), others, confusion)

    def report(self) -> ApproximationReport:
        """What the solves and the chains did."""
        samples = [point.sampled for point in self.points]
        drifts = np.array([drift(sampled.theta) for sampled in samples])
        likelihoods = [point.density.likelihood for point in self.points]
        accepted = [np.mean(sampled.accepted[-len(sampled.theta) :]) for sampled in samples]
        return ApproximationReport(
            tau_q=self.gaussian.tau,
            mode_steps=self.gaussian.steps,
            mode_converged=self.gaussian.converged,
            spikes_expected=max(likelihood.rare.expected for likelihood in likelihoods),
            terms=likelihoods[0].n_terms,
            strengths_integrated=len(self.points) // 2,
            accepted=float(np.mean(accepted)),
            kicks=max(sampled.kicks for sampled in samples),
            trajectories=max(sampled.trajectories for sampled in samples),
            effective_draws=sum(effective_draws(sampled.theta) for sampled in samples),
            drift=float(drifts[:, 0].max()),
            drift_in_sd=float(drifts[:, 1].max()),
        )


def approximate(
    problem: Problem,
    spread: Spread,
    draws: int | None,
    rng: np.random.Generator,
    likely: Vector | None = None,
) -> Approximation:
    """Sample the posterior of a target given what its columns are.

    Args:
        draws: about how many; None for as many as the number of classes asks for.
        likely: (K,) a guess of q to start from.
    """
    dtype = _precision(problem, spread.middle)
    middle = ShareDensity(problem, spread.middle.astype(dtype), likely=likely)

    def gain(side: ColumnLaws) -> float:
        """How much better than the middle a side explains the target."""
        beside = ShareDensity(problem, side.astype(dtype), middle.gaussian)
        return beside.gaussian.log_evidence - middle.gaussian.log_evidence

    gains = [(gain(axis.sides[0]), gain(axis.sides[1])) for axis in spread.axes]
    places = spread.sigma_points(gains)
    plan = chain_plan(problem.n_classes, draws, len(places))
    points = []
    for place in places:
        density = middle
        if place.any():
            laws = spread.laws_at(place).astype(dtype)
            density = ShareDensity(problem, laws, middle.gaussian)
        points.append(SigmaPoint(density, sample_shares(density, plan, rng)))
    return Approximation(problem, middle.gaussian, points)


def chain_plan(n_classes: int, draws: int | None, points: int) -> ChainPlan:
    """How each of several densities is sampled."""
    few = n_classes <= STRENGTHS_INTEGRATED
    kept = 8 if few else 4
    draws = draws or (_DRAWS if few else _DRAWS_OF_MANY)
    # With few classes, fewer kicks a trajectory are accepted often enough and give draws faster.
    return ChainPlan(
        chains=max(LEAST_CHAINS // 2, -(-draws // (kept * points))),
        discarded=3 if few else 2,
        kept=kept,
        kicks=3 if few else 4,
        most_kicks=_MOST_KICKS if few else _MOST_KICKS_OF_MANY,
        effective=_AMPLE * LEAST_EFFECTIVE / points,
    )


def _precision(problem: Problem, laws: ColumnLaws) -> type:
    few_target = problem.counts.n_target <= _SINGLE_PRECISION[0]
    few_rows = laws.sizes.max() <= _SINGLE_PRECISION[1]
    return np.float32 if few_target and few_rows else np.float64
