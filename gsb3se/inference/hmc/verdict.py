"""What HMC's draws say of themselves: R-hat, effective draws, divergences and energies."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gsb3se.model.problem import Problem
from gsb3se.posterior.arviz_bridge import Convergence, convergence
from gsb3se.posterior.chain_mixing import LARGEST_R_HAT, LEAST_ESS, Mixing
from gsb3se.posterior.status import Diagnostics, Finding, Measures, Status

_TWO_SIDED = 1.05  # R-hat of tau_C from which chains sit on different sides
_LEAST_BFMI = 0.3
_DIVERGENT_SHARE = 1e-3
_SAMPLED = ("tau_q", "tau_C", "alpha", "beta")


def judge(
    problem: Problem,
    q: NDArray[np.float64],
    others: dict[str, NDArray[Any]],
    max_tree_depth: int,
    seconds: float,
) -> Diagnostics:
    """Compare what the chains did with what a user may expect of them.

    Args:
        q: (chains, draws, K); others: strengths, weights and the sampler's figures by name.
    """
    sampled = {name: others[name] for name in _SAMPLED if name in others}
    mixed = convergence({"q": q, **sampled})
    energy = others["energy"]
    bfmi = np.square(np.diff(energy, axis=1)).mean(axis=1) / energy.var(axis=1)
    at_limit = float(np.mean(others["n_steps"] >= 2**max_tree_depth - 1))
    mixing = Mixing(
        r_hat=float(np.max(mixed.r_hat["q"])),
        bulk_ess=float(mixed.bulk_ess["q"].min()),
        tail_ess=float(mixed.tail_ess["q"].min()),
        divergences=int(others["diverging"].sum()),
    )
    findings = _judge_divergences(mixing.divergences, energy.size)
    findings += _judge_agreement(problem, mixed, others)
    findings += _judge_effective_draws(problem, mixed, at_limit)
    if bfmi.min() < _LEAST_BFMI:
        sentence = f"E-BFMI is {bfmi.min():.2f}, below {_LEAST_BFMI}: the tails are reached slowly"
        findings.append(Finding(Status.TOO_FEW_DRAWS, sentence))
    figures = {
        "seconds": seconds,
        "divergences": mixing.divergences,
        "e_bfmi": bfmi.tolist(),
        "mean_steps": float(others["n_steps"].mean()),
        "share_at_max_tree_depth": at_limit,
        "mean_acceptance": float(others["acceptance_rate"].mean()),
        "r_hat_max": max(float(np.max(values)) for values in mixed.r_hat.values()),
        "bulk_ess_min": mixing.bulk_ess,
        "tail_ess_min": mixing.tail_ess,
    }
    for name in ("q", *sampled):
        figures |= {f"{figure}_{name}": by[name].tolist() for figure, by in mixed._asdict().items()}
    measures = Measures(tau_q=float(others["tau_q"].mean()), seconds=seconds, mixing=mixing)
    return Diagnostics.of(findings, figures, measures=measures)


def _judge_divergences(divergences: int, draws: int) -> list[Finding]:
    if divergences <= _DIVERGENT_SHARE * draws:
        return []
    return [Finding(Status.DIVERGENT, f"{divergences} of {draws} draws diverged")]


def _judge_agreement(
    problem: Problem, mixed: Convergence, others: dict[str, NDArray[Any]]
) -> list[Finding]:
    """Whether the chains agree about shares, strengths and weights."""
    r_hat = {name: float(np.max(values)) for name, values in mixed.r_hat.items()}
    worst = max(r_hat, key=lambda name: r_hat[name])
    if r_hat[worst] <= LARGEST_R_HAT:
        return []
    where = worst
    if worst == "q":
        label = problem.counts.labels[int(np.argmax(mixed.r_hat["q"]))]
        where = f"the share of class {label!r}"
    sentence = f"R-hat of {where} is {r_hat[worst]:.3f}, above {LARGEST_R_HAT}"
    if problem.prior.is_anchored and r_hat["tau_C"] > _TWO_SIDED:
        sides = ", ".join(f"{level:.2g}" for level in others["tau_C"].mean(axis=1))
        sentence += (
            f"; chains hold tau_C at {sides}: with few labels the columns may be explained by "
            "their anchored mean or by their fields, and chains started on both sides stay apart"
        )
    return [Finding(Status.CHAINS_DISAGREE, sentence)]


def _judge_effective_draws(problem: Problem, mixed: Convergence, at_limit: float) -> list[Finding]:
    """Whether every class has enough effective draws.

    Args:
        at_limit: share of the trajectories that end at the largest tree depth.
    """
    by_kind = {"bulk": mixed.bulk_ess["q"], "tail": mixed.tail_ess["q"]}
    kind = min(by_kind, key=lambda name: by_kind[name].min())
    least, worst = float(by_kind[kind].min()), int(by_kind[kind].argmin())
    if least >= LEAST_ESS:
        return []
    remedy = "; raise max_tree_depth too, for most trajectories end at it" * (at_limit > 0.5)
    label = problem.counts.labels[worst]
    sentence = f"{kind} ESS of class {label!r} is {least:.0f}, below {LEAST_ESS}{remedy}"
    return [Finding(Status.TOO_FEW_DRAWS, sentence)]
