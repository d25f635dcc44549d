"""What the structured backend says of its own answer: findings from what its parts report."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gsb3se.inference.structured.approximation import LEAST_EFFECTIVE, ApproximationReport
from gsb3se.inference.structured.column_laws import ColumnReport
from gsb3se.inference.structured.exact.chains import ExactDraws
from gsb3se.inference.structured.share_chains import (
    DRIFTING,
    LEAST_ACCEPTED,
    drift,
    effective_draws,
)
from gsb3se.posterior.status import Finding, Status
from gsb3se.support.limits import HMC_AS_SECOND_OPINION, VARIATIONAL
from gsb3se.support.simplex import Matrix

_FEW_SPIKES = 0.1  # expected a row, from which what is left out of them may matter
_TINY = 1e-300


def second_opinion(n_classes: int) -> str:
    """What to do where this backend cannot vouch for its answer."""
    doubt = "intervals may be off: collect more validation rows"
    if n_classes <= HMC_AS_SECOND_OPINION:
        return f"{doubt}, or compare with backend='hmc'"
    if n_classes <= VARIATIONAL:
        return f"{doubt}, or compare with backend='variational'"
    return doubt


def judge_columns(columns: ColumnReport, remedy: str) -> list[Finding]:
    """What there is to say of the fit of the columns."""
    findings = []
    if columns.not_converged:
        sentence = f"{columns.not_converged} columns still moved after {columns.sweeps} sweeps"
        findings.append(Finding(Status.NOT_CONVERGED, sentence, remedy))
    if not columns.settled:
        sentence = f"tau_C, alpha and beta still moved after {columns.updates} updates"
        findings.append(Finding(Status.STRENGTHS_OPEN, sentence, remedy))
    return findings


def judge_approximation(report: ApproximationReport, remedy: str) -> list[Finding]:
    """What there is to say of the mode and the chains."""
    findings = []
    if not report.mode_converged:
        sentence = f"the mode still moved after {report.mode_steps} Newton steps"
        findings.append(Finding(Status.NOT_CONVERGED, sentence, remedy))
    if report.spikes_expected > _FEW_SPIKES:
        sentence = (
            f"for every predicted class the prior expects {report.spikes_expected:.2g} confusions "
            "that would matter but that no validation row shows"
        )
        findings.append(Finding(Status.UNSEEN_CONFUSIONS, sentence))
    if report.drift > DRIFTING or report.accepted < LEAST_ACCEPTED:
        findings.append(_disagreement(report.drift_in_sd, report.accepted, remedy))
    elif report.effective_draws < LEAST_EFFECTIVE:
        sentence = f"the worst class has {report.effective_draws:.0f} effective draws"
        findings.append(Finding(Status.TOO_FEW_DRAWS, sentence))
    return findings


def _disagreement(drift_in_sd: float, accepted: float, remedy: str) -> Finding:
    sentence = (
        f"early and late draws differ ({drift_in_sd:.2g} sd in the median), "
        f"{100 * accepted:.0f} % of the trajectories were accepted"
    )
    return Finding(Status.CHAINS_DISAGREE, sentence, remedy)


@dataclass(frozen=True)
class CorrectionReport:
    """What the exact chains did, and how far they moved the approximation.

    Attributes:
        accepted: share of the kept trajectories; trajectories: of a chain.
        effective_draws: 5 % quantile over the classes.
        drift, drift_in_sd: between early and late draws.
        mean_error, mean_error_95: median and 95 % quantile over the classes of the means' move, in
            sds; sd_ratio: median sd of the approximation over theirs.
    """

    accepted: float
    trajectories: int
    effective_draws: float
    drift: float
    drift_in_sd: float
    mean_error: float
    mean_error_95: float
    sd_ratio: float

    @classmethod
    def of(cls, approximate_q: Matrix, exact_q: Matrix, exact: ExactDraws) -> CorrectionReport:
        """From draws of q before and after, (n, K) each."""
        sd = exact_q.std(axis=0) + _TINY
        moved = np.abs(approximate_q.mean(axis=0) - exact_q.mean(axis=0)) / sd
        return cls(
            exact.accepted,
            exact.trajectories,
            effective_draws(exact.theta),
            *drift(exact.theta),
            float(np.median(moved)),
            float(np.quantile(moved, 0.95)),
            float(np.median(approximate_q.std(axis=0) / sd)),
        )

    def figures(self) -> dict[str, float]:
        """Everything by name, for people."""
        return {
            "refined": True,
            "refinement_accepted": self.accepted,
            "refinement_trajectories": self.trajectories,
            "refinement_effective_draws": self.effective_draws,
            "refinement_drift": self.drift,
            "refinement_drift_in_sd": self.drift_in_sd,
            "approximation_mean_error": self.mean_error,
            "approximation_mean_error_95": self.mean_error_95,
            "approximation_sd_ratio": self.sd_ratio,
        }

    def findings(self, remedy: str) -> list[Finding]:
        """What there is to say of them."""
        if self.drift > DRIFTING or self.accepted < LEAST_ACCEPTED:
            return [_disagreement(self.drift_in_sd, self.accepted, remedy)]
        if self.effective_draws < LEAST_EFFECTIVE:
            sentence = (
                f"the worst class has {self.effective_draws:.0f} effective draws of exact chains"
            )
            return [Finding(Status.TOO_FEW_DRAWS, sentence, remedy)]
        return []


def judge_unmoved(exact: ExactDraws, remedy: str) -> Finding:
    """What there is to say of exact chains that stayed where they were."""
    sentence = (
        f"the exact chains hardly moved ({100 * exact.accepted:.0f} % of the trajectories "
        "were accepted): this is the approximation they started from"
    )
    return Finding(Status.CHAINS_DISAGREE, sentence, remedy)
