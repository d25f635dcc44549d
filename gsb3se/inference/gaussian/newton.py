"""NewtonCG: the mode of the posterior given tau, by conjugate-gradient Newton steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from gsb3se.inference.gaussian.hessian_blocks import (
    GaussianBlocks,
    NotPositiveDefinite,
    gaussian_blocks,
)
from gsb3se.inference.gaussian.mode_search import SearchSettings
from gsb3se.inference.gaussian.strength_search import StrengthFit, marginal_tau, paper_scheme
from gsb3se.model.problem import Problem
from gsb3se.posterior.families import LogisticNormal
from gsb3se.posterior.identifiability import identified
from gsb3se.posterior.posterior import Posterior
from gsb3se.posterior.status import Diagnostics, Finding, Measures, Status
from gsb3se.support.errors import as_whole_number


@dataclass(frozen=True)
class NewtonCG:
    """Mode of the posterior given tau, by Newton steps on (theta, phi), and the Gaussian there.

    Args:
        tau: "marginal" re-estimates both strengths from quadratic forms corrected by the trace of
            the posterior covariance, and never maximises over tau. "joint" is the paper's scheme,
            kept for reference: one Newton step a block with at most 8 conjugate-gradient
            iterations to 1e-4, closed-form tau, stopped when the log joint changes by less than a
            relative 1e-3. Its target, the joint mode, *collapses* when labels are few: tau_C runs
            to thousands, and columns and q become uniform; and it often stops before that mode.
        update: "joint" steps in theta and all columns at once; "block" alternates between them,
            which converges linearly. tau="joint" always alternates.
        tolerance: Newton decrement g'H^-1 g at which the mode is accepted.
        max_steps: Newton steps for one value of tau.

    A Newton step costs some tens of Hessian products of O(K^2 + edges K) each and O(K^3) once; the
    Gaussian costs O(K^4) time a value of tau and O(K^2) memory. The posterior it returns is the
    plain Laplace approximation: rare classes are more skewed than it can say, and it has no E[C].

    >>> NewtonCG()
    NewtonCG(tau='marginal', update='joint', tolerance=1e-08, max_steps=100)
    """

    tau: Literal["marginal", "joint"] = "marginal"
    update: Literal["joint", "block"] = "joint"
    tolerance: float = 1e-8
    max_steps: int = 100

    def __post_init__(self) -> None:
        if self.tau not in ("marginal", "joint") or self.update not in ("joint", "block"):
            raise ValueError(
                f"tau must be 'marginal' or 'joint' and update 'joint' or 'block'; got "
                f"{self.tau!r} and {self.update!r}"
            )
        if not 0 < self.tolerance < 1:
            raise ValueError(f"tolerance must lie between 0 and 1; got {self.tolerance!r}")
        as_whole_number(self.max_steps, "max_steps", least=1)

    def infer(self, problem: Problem, rng: np.random.Generator) -> Posterior:
        """Find tau and the mode; ``rng`` is used only to leave a saddle."""
        if self.tau == "joint":
            fit = paper_scheme(problem, self.max_steps)
        else:
            settings = SearchSettings(self.tolerance, self.max_steps, self.update)
            fit = marginal_tau(problem, settings, rng)
        blocks, findings = _gaussian(problem, fit)
        findings += fit.findings
        figures = fit.work.figures() | {
            "decrement": fit.mode.decrement,
            "tau_q": fit.tau.q,
            "tau_C": fit.tau.C,
            "alpha": fit.mode.latents.alpha,
            "beta": fit.mode.latents.beta,
            "tau_updates": fit.updates,
            "smallest_curvature": blocks.smallest_curvature,
        }
        r = fit.mode.latents.confusion @ fit.mode.latents.q
        factor, r_factor = blocks.draw_factors()
        return identified(
            Posterior(
                LogisticNormal(fit.mode.latents.theta, factor, np.log(r), r_factor / r[:, None]),
                problem.counts.labels,
                Diagnostics.of(findings, figures, measures=Measures(tau_q=fit.tau.q)),
                "newton",
                fit.mode.latents.confusion,
                problem.counts.n_target,
                problem,
            )
        )


def _gaussian(problem: Problem, fit: StrengthFit) -> tuple[GaussianBlocks, list[Finding]]:
    """The Gaussian of the exact Hessian, or of the Fisher information where that is indefinite."""
    try:
        return gaussian_blocks(problem, fit.mode.latents, fit.tau, "exact"), []
    except NotPositiveDefinite:
        sentence = (
            "the Hessian is indefinite where the search ended: this point is not a maximum, and "
            "the Fisher information stands in for the Hessian"
        )
        blocks = gaussian_blocks(problem, fit.mode.latents, fit.tau, "fisher")
        return blocks, [Finding(Status.NOT_A_MAXIMUM, sentence)]
