"""Chains over the share density: a few hundred short ones that move together.

They start at draws of the Gaussian at the mode and move by Hamiltonian trajectories of about a
quarter turn (:mod:`gsb3se.inference.hamiltonian`), a handful of kicks each. Three criteria decide
whether they stop: the share of accepted trajectories, the difference between early and late draws,
and the effective number of draws.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from gsb3se.inference.hamiltonian import Steps, accepted_chains, kinetic_energy, trajectory
from gsb3se.inference.structured.count_likelihood import Array
from gsb3se.inference.structured.share_density import ShareDensity, SharePoint, as_shares

_QUARTER_TURN = np.pi / 2
_JITTER = (0.8, 1.2)  # of a chain's angle
_LEAST_ACCEPTED_TRAJECTORIES, _MOST_KICKS = 0.7, 32
_CLOSER = ((0.4, 1.5), (0.1, 2.5), (0.0, 4.0))  # times as many kicks, from so many accepted
_MOST_PASSES = 4
DRIFTING = 1.6  # root mean square t statistic between early and late draws
LEAST_ACCEPTED = 0.4  # share of trajectories, below which chains do not move
_FEW = 0.05  # classes that may have fewer effective draws
_TINY = 1e-300


class ChainPlan(NamedTuple):
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

    @property
    def trajectories(self) -> int:
        """Of a pass."""
        return self.discarded + self.kept


@dataclass
class SampledShares:
    """Draws and what the chains did.

    Attributes:
        kicks: kicks a trajectory now; kicks_made: of all trajectories.
        theta, log_eta: (T, K, C) kept points.
        accepted: share of accepted trajectories, each.
        trajectories: how many were made; z: (2K, C) where the chains are.
    """

    kicks: int
    kicks_made: int = 0
    theta: list[Array] = field(default_factory=list)
    log_eta: list[Array] = field(default_factory=list)
    accepted: list[float] = field(default_factory=list)
    trajectories: int = 0
    z: Array = field(default_factory=lambda: np.empty(0))


def sample_shares(
    density: ShareDensity, plan: ChainPlan, rng: np.random.Generator
) -> SampledShares:
    """Run passes until the draws meet the three criteria or the limit on kicks is reached."""
    sampled = SampledShares(kicks=plan.kicks)
    for _ in range(_MOST_PASSES):
        sampled = one_pass(density, plan, rng, sampled)
        moving = np.mean(sampled.accepted[-plan.kept :]) >= LEAST_ACCEPTED
        agreed = moving and drift(sampled.theta)[0] < DRIFTING
        agreed = agreed and effective_draws(sampled.theta) > plan.effective
        kicks = sampled.kicks_made + sampled.kicks * plan.trajectories
        if agreed or kicks > plan.most_kicks * plan.kicks * plan.trajectories:
            break
    return sampled


def one_pass(
    density: ShareDensity, plan: ChainPlan, rng: np.random.Generator, earlier: SampledShares
) -> SampledShares:
    """Let all chains make trajectories of about a quarter turn; keep the last ones.

    Args:
        earlier: where to go on from, or an empty one; its draws are not kept.
    """
    n, dtype = density.problem.n_classes, density.likelihood.dtype
    done = replace(earlier, theta=[], log_eta=[])
    if earlier.trajectories:
        z = earlier.z
    else:
        z = rng.standard_normal((2 * n, plan.chains), dtype=dtype)
    here = _first_points(density, z)
    for number in range(plan.trajectories):
        momentum = rng.standard_normal(z.shape, dtype=dtype)
        angle = _QUARTER_TURN / done.kicks * rng.uniform(*_JITTER, plan.chains)
        log_uniform = np.log(rng.uniform(size=plan.chains))
        steps = Steps(angle.astype(dtype), done.kicks)
        reached_z, reached, change = _moved(density, z, here, momentum, steps)
        accepted = accepted_chains(change, log_uniform)
        z = np.where(accepted, reached_z, z)
        here = SharePoint(
            *(np.where(accepted, new, old) for new, old in zip(reached, here, strict=True))
        )
        done.accepted.append(float(accepted.mean()))
        done.trajectories += 1
        done.kicks_made += done.kicks
        if number >= plan.discarded:
            done.theta.append(here.theta)
            done.log_eta.append(here.log_eta)
        elif done.accepted[-1] < _LEAST_ACCEPTED_TRAJECTORIES and done.kicks < _MOST_KICKS:
            more = next(times for least, times in _CLOSER if done.accepted[-1] >= least)
            done.kicks = min(_MOST_KICKS, int(np.ceil(more * done.kicks)))
    done.z = z
    return done


def _first_points(density: ShareDensity, z: Array) -> SharePoint:
    """The density at the chains' first places; a wild one is moved to the mode, in place."""
    with np.errstate(all="ignore"):
        here = density.at(z)
    wild = ~np.isfinite(here.value)
    if wild.any():
        z[:, wild] = 0
        here = density.at(z)
    return here


def _moved(
    density: ShareDensity, z: Array, here: SharePoint, momentum: Array, steps: Steps
) -> tuple[Array, SharePoint, Array]:
    """Where a trajectory leads, the density there, and the change of the energy."""
    start = here.value - kinetic_energy(momentum)

    def force_at(z: Array, last: bool) -> Array:
        nonlocal here
        with np.errstate(all="ignore"):  # a wild chain is rejected, not repaired
            here = density.at(z, here)
        return here.force

    z, momentum = trajectory(z, here.force, momentum, steps, force_at)
    end = here.value - kinetic_energy(momentum)
    return z, here, end - start


# What draws tell of the chains that made them


def drift(theta: list[Array]) -> tuple[float, float]:
    """Between the first and the last half of every chain's kept draws.

    Returns:
        The root mean square over classes of the t statistic of the difference (about 1 if nothing
        drifts), and the median difference in sds.
    """
    q = np.stack([as_shares(each) for each in theta])
    apart, error = _between_halves(q)
    sd = q.std(axis=(0, 1)) + _TINY
    return float(np.sqrt(np.mean((apart / error) ** 2))), float(np.median(np.abs(apart) / sd))


def effective_draws(theta: list[Array]) -> float:
    """Effective number of draws, from the variance of the chains' means; 5 % quantile over classes.

    Chains that still drift together have a larger error than the spread of their means shows. The
    number is reduced by how much early and late draws differ beyond chance.
    """
    q = np.stack([as_shares(each) for each in theta])
    apart, error = _between_halves(q)
    chance = 1 + 2 * np.sqrt(2 / len(apart))
    still_moving = 4 * max(0.0, float(np.mean((apart / error) ** 2)) - chance)
    between = q.mean(axis=0).var(axis=0) + _TINY
    ratio = np.minimum(q.var(axis=(0, 1)) / between, len(q))
    return float(np.quantile(ratio, _FEW) * q.shape[1] / (1 + still_moving))


def _between_halves(q: Array) -> tuple[Array, Array]:
    """Mean of the late draws less that of the early ones, (K,), and its standard error."""
    half = len(q) // 2
    apart = q[half:].mean(axis=0) - q[:half].mean(axis=0)
    return apart.mean(axis=0), apart.std(axis=0) / np.sqrt(len(apart)) + _TINY
