"""Exact chains that start where the approximation ends.

Some hundred chains over levels, cells and strengths
(:mod:`gsb3se.inference.structured.exact.density`) start at draws of the approximation and move side
by side by Hamiltonian trajectories. What they end with is the exact posterior's, up to Monte Carlo
error; how far its means and sds have moved is an estimate of the approximation's own error.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from gsb3se.inference.hamiltonian import Steps, accepted_chains, kinetic_energy, trajectory
from gsb3se.inference.structured.exact.density import ExactDensity, ExactPoint
from gsb3se.inference.structured.exact.hinges import Array
from gsb3se.inference.structured.share_chains import (
    DRIFTING,
    LEAST_ACCEPTED,
    drift,
    effective_draws,
)
from gsb3se.support.limits import CHAIN_GROUPS
from gsb3se.support.simplex import Matrix

_CELLS = 120_000  # classes squared times chains
_MOST = 256  # chains
_CACHED = 160_000  # classes squared times chains of a group, about what a core's cache holds
_FIRST_KICK, _KICKS = 0.12, (0.008, 0.5)  # radians from one kick to the next: at first, and range
_ACCEPTED = (0.65, 0.85)  # below it kicks come closer, above it farther apart
_CLOSER, _FARTHER = 0.65, 1.2
_MOST_KICKS = 200  # of a trajectory, however close they are
_PATIENCE = 3  # trajectories with the closest kicks and hardly any accepted, after which it ends
_FINER = 3.0  # kicks of a fine trajectory, in units of those of another
_JITTER = (0.7, 1.2)  # of a trajectory's length, and of a chain's pace in it
_HOPELESS = 12.0  # spreads of the log density below its median
_STRETCHINGS = 3  # times that wide directions are looked for while a single group settles: of many
# classes they are neither very wide nor clear from few chains
_CLEARLY = 1.3  # times as wide as by chance
_INDEPENDENT = 3.0  # effective points of each chain in a search for wide directions


class ExactPlan(NamedTuple):
    """How many chains run, and how long.

    Attributes:
        chains: of all groups together; groups: that run side by side.
        turn: radians of a trajectory.
        slowest: pace of a chain in a trajectory, at least; fine: share of fine trajectories.
        effective: draws that the worst but a few classes shall have.
        held: first trajectories, in which levels stay and only cells and strengths move.
        settling: warm-up trajectories, which are discarded and in which the step size adapts.
        kicks: limit on the total kicks of a chain.
        least, most: fewest and most trajectories; the limit on kicks overrides both.
    """

    chains: int
    groups: int
    turn: float
    slowest: float
    fine: float
    effective: float
    kicks: int
    least: int
    held: int = 6
    settling: int = 24
    most: int = 160

    @classmethod
    def of(cls, n_classes: int) -> ExactPlan:
        """Few classes share many predictions: narrow ridges, but cheap to go along."""
        if n_classes < CHAIN_GROUPS:
            return cls(
                chains=min(_CELLS // n_classes**2, _MOST),
                groups=1,
                turn=float(np.clip(180 / n_classes, 1.8, 6.0)),
                slowest=0.4,
                fine=0.15,
                effective=600,
                kicks=8000,
                least=int(np.clip(2400 // n_classes, 48, 96)),
            )
        return cls(
            chains=2 * int(np.clip(_CACHED // n_classes**2, 26, 64)),
            groups=2,
            turn=1.8,
            slowest=_JITTER[0],
            fine=0.0,
            effective=250,
            kicks=2400,
            least=48,
        )


@dataclass(frozen=True, eq=False)
class Stretch:
    """z = w + V diag(gain - 1) V'w: coordinates w in which wide directions V have unit width too.

    >>> stretch = Stretch(np.array([[1.0], [0.0]]), np.array([3.0]))
    >>> stretch.apply(np.ones((2, 1))).ravel().tolist()
    [3.0, 1.0]
    """

    directions: Array = field(default_factory=lambda: np.zeros((0, 0)))
    gains: Array = field(default_factory=lambda: np.zeros(0))

    @classmethod
    def of(cls, points: Array, independent: float) -> Stretch:
        """Along the principal directions of (D, N) points that chance does not make so wide.

        N independent points of N(0, I) have no direction wider than 1 + sqrt(D / N), or hardly
        ever.
        """
        size, count = points.shape
        centred = (points - points.mean(axis=1, keepdims=True)).astype(float)
        chance = (1 + np.sqrt(size / independent)) ** 2
        if size <= count:
            values, vectors = np.linalg.eigh(centred @ centred.T / count)
        else:
            values, right = np.linalg.eigh(centred.T @ centred / count)
            vectors = centred @ (right / np.sqrt(np.maximum(values * count, 1e-12)))
        wide = values > _CLEARLY * chance
        dtype = points.dtype
        return cls(vectors[:, wide].astype(dtype), np.sqrt(values[wide] / chance).astype(dtype))

    def apply(self, w: Array, power: int = 1) -> Array:
        """w stretched (D, C), or with power -1 its origin; the map is its own transpose."""
        if not self.gains.size:
            return w
        along = self.directions.T @ w
        return w + self.directions @ ((self.gains**power - 1)[:, None] * along)


@dataclass
class ChainGroup:
    """One group of chains: where it is, and where it was after every trajectory.

    Attributes:
        z: (D, C) coordinates; kick: radians between kicks; kicks: how many there were.
        stretch: of wide directions.
        theta: (T, K, C); strengths: (T, S, C); r: (T, K, C); confusion: (T, K, K) means of C.
        accepted: (T,) share of accepted trajectories.
        recent_points: in warm-up, points since the last search for wide directions.
        n_stuck: consecutive trajectories at the smallest step size with hardly any accepted.
    """

    z: Array
    kick: float = _FIRST_KICK
    kicks: int = 0
    stretch: Stretch = field(default_factory=lambda: Stretch())
    theta: list[Array] = field(default_factory=list)
    strengths: list[Array] = field(default_factory=list)
    r: list[Array] = field(default_factory=list)
    confusion: list[Matrix] = field(default_factory=list)
    accepted: list[float] = field(default_factory=list)
    recent_points: list[Array] = field(default_factory=list)
    n_stuck: int = 0


@dataclass(frozen=True, eq=False)
class ExactDraws:
    """Draws of the exact posterior.

    Attributes:
        theta, r: (T, K, C) kept points of all chains; strengths: (T, S, C).
        confusion: (K, K) mean of C.
        accepted: share of the kept trajectories that were accepted.
        trajectories: of every chain, the first third not kept.
    """

    theta: list[Array]
    r: list[Array]
    strengths: list[Array]
    confusion: Matrix
    accepted: float
    trajectories: int

    @property
    def usable(self) -> bool:
        """Whether the chains moved at all."""
        return self.accepted >= LEAST_ACCEPTED / 2


def run_exact_chains(
    density: ExactDensity,
    log_eta: Array,
    plan: ExactPlan,
    rng: np.random.Generator,
    tick: Callable[[int, int], None] = lambda done, total: None,
) -> ExactDraws:
    """Run chains from levels (K, C) until early and late draws agree and there are enough of them.

    A third of all trajectories is discarded, however many there are.
    """
    starts = np.array_split(log_eta, plan.groups, axis=1)
    seeds = rng.spawn(plan.groups)
    groups = [
        ChainGroup(density.start(part, seed)) for part, seed in zip(starts, seeds, strict=True)
    ]
    with ThreadPoolExecutor(plan.groups) as pool:

        def advance(trajectories: int) -> None:
            runs = [
                pool.submit(_run, density, group, plan, trajectories, seed)
                for group, seed in zip(groups, seeds, strict=True)
            ]
            for run in runs:
                run.result()

        done = 0
        while done < plan.most and groups[0].kicks < plan.kicks:
            if done < plan.settling:
                reached = done + _PATIENCE
            else:
                left = (plan.kicks / groups[0].kicks - 1) * done
                reached = max(plan.least, int(1.5 * done))
                reached = min(reached, plan.most, done + max(_PATIENCE, int(left)))
            advance(reached - done)
            done = reached
            tick(done, plan.most)
            kept = slice(min(max(plan.settling, done // 3), done - _PATIENCE), None)
            accepted = np.mean([group.accepted[kept] for group in groups])
            if any(group.n_stuck >= _PATIENCE for group in groups):
                break
            if done < plan.least:
                continue
            theta = _joined([group.theta[kept] for group in groups])
            stuck = accepted < LEAST_ACCEPTED / 2
            if stuck or (drift(theta)[0] < DRIFTING and effective_draws(theta) > plan.effective):
                break
    return ExactDraws(
        _joined([group.theta[kept] for group in groups]),
        _joined([group.r[kept] for group in groups]),
        _joined([group.strengths[kept] for group in groups]),
        np.mean([group.confusion[kept] for group in groups], axis=(0, 1)),
        float(accepted),
        done,
    )


def _joined(groups: list[list[Array]]) -> list[Array]:
    return [np.concatenate(step, axis=-1) for step in zip(*groups, strict=True)]


def _run(
    density: ExactDensity,
    chains: ChainGroup,
    plan: ExactPlan,
    trajectories: int,
    rng: np.random.Generator,
) -> None:
    """Trajectories of one group; only while it settles is anything adapted."""
    with np.errstate(all="ignore"):  # a wild chain is rejected, not repaired
        here = density.at(chains.z)
        for _ in range(trajectories):
            n_fixed = density.n_classes if len(chains.accepted) < plan.held else 0
            here, moved = _trajectory(density, chains, here, plan, rng, n_fixed)
            hopeless = moved < LEAST_ACCEPTED / 2 and chains.kick <= _KICKS[0]
            chains.n_stuck = chains.n_stuck + 1 if hopeless else 0
            if len(chains.accepted) < plan.settling:
                here = _rescue(chains, here, rng)
                _settle(chains, moved, plan)
            r, confusion = density.predicted(chains.z)
            chains.accepted.append(moved)
            chains.theta.append(here.theta)
            chains.strengths.append(here.strengths)
            chains.r.append(r)
            chains.confusion.append(confusion)


def _settle(chains: ChainGroup, moved: float, plan: ExactPlan) -> None:
    """Adapt the distance of the kicks to the share of accepted trajectories, and stretch."""
    if moved < _ACCEPTED[0]:
        chains.kick = max(_CLOSER * chains.kick, _KICKS[0])
    elif moved > _ACCEPTED[1]:
        chains.kick = min(_FARTHER * chains.kick, _KICKS[1])
    chains.recent_points.append(chains.z)
    if plan.groups == 1 and len(chains.recent_points) == plan.settling // _STRETCHINGS:
        independent = _INDEPENDENT * chains.z.shape[1]
        chains.stretch = Stretch.of(np.concatenate(chains.recent_points[1:], axis=1), independent)
        chains.recent_points = []


def _trajectory(
    density: ExactDensity,
    chains: ChainGroup,
    here: ExactPoint,
    plan: ExactPlan,
    rng: np.random.Generator,
    n_fixed: int = 0,
) -> tuple[ExactPoint, float]:
    """One trajectory of every chain, accepted or not; the share that was.

    Args:
        n_fixed: number of leading coordinates that stay fixed.
    """
    stretch, dtype = chains.stretch, density.dtype
    n_chains = chains.z.shape[1]
    # Some trajectories use a smaller step size, so that chains can enter and leave steep regions.
    kick = chains.kick / (_FINER if rng.uniform() < plan.fine else 1)
    kicks = max(2, int(np.ceil(plan.turn * rng.uniform(*_JITTER) / kick)))
    kicks = min(kicks, _MOST_KICKS)
    chains.kicks += kicks
    paces = np.log([plan.slowest, _JITTER[1]])
    angle = (kick * np.exp(rng.uniform(paces[0], paces[1], n_chains))).astype(dtype)
    momentum = rng.standard_normal(chains.z.shape, dtype=dtype)
    momentum[:n_fixed] = 0
    start, before = here.value - kinetic_energy(momentum), here
    w, z = stretch.apply(chains.z, -1), chains.z

    def force_at(w: Array, last: bool) -> Array:
        nonlocal here, z
        z = stretch.apply(w)
        here = density.at(z, valued=last)
        return stretch.apply(here.force)

    steps = Steps(angle, kicks, n_fixed)
    _, momentum = trajectory(w, stretch.apply(here.force), momentum, steps, force_at)
    change = here.value - kinetic_energy(momentum) - start
    accepted = accepted_chains(change, np.log(rng.uniform(size=n_chains)))
    chains.z = np.where(accepted, z, chains.z)
    reached = (np.where(accepted, new, old) for new, old in zip(here, before, strict=True))
    return ExactPoint(*reached), float(accepted.mean())


def _rescue(chains: ChainGroup, here: ExactPoint, rng: np.random.Generator) -> ExactPoint:
    """Put chains that began in a hopeless place where others are."""
    if not np.isfinite(here.value).any():
        return here
    middle = np.nanmedian(here.value)
    spread = 1.5 * np.nanmedian(np.abs(here.value - middle)) + 1
    lost = ~(here.value > middle - _HOPELESS * spread)
    if not lost.any() or lost.all():
        return here
    origin = np.arange(len(lost))
    origin[lost] = rng.choice(np.flatnonzero(~lost), lost.sum())
    chains.z = chains.z[:, origin]
    return ExactPoint(*(part[..., origin] for part in here))
