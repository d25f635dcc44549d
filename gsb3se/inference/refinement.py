"""Refinement: exact chains that start where the approximation ends.

Some hundred chains over levels, cells and strengths (:mod:`gsb3se.inference.exact_density`) start
at draws of the structured backend and move side by side by Hamiltonian trajectories whose free
motion is the rotation of N(0, I). What they end with is the exact posterior's, up to Monte Carlo
error; how far its means and sds have moved is an estimate of the approximation's own error.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from gsb3se.inference.exact_density import Array, ExactDensity, Point
from gsb3se.inference.target import as_shares
from gsb3se.simplex import Matrix

_CELLS = 120_000  # classes squared times chains
_MOST = 256  # chains
_SHARED = 48  # classes from which two groups of chains run side by side, a core each
_CACHED = 160_000  # classes squared times chains of a group, about what a core's cache holds
_FIRST_KICK, _KICKS = 0.12, (0.008, 0.5)  # radians from one kick to the next: at first, and range
_ACCEPTED = (0.65, 0.85)  # below it kicks come closer, above it farther apart
_CLOSER, _FARTHER = 0.65, 1.2
_MOST_KICKS = 200  # of a trajectory, however close they are
_PATIENCE = 3  # trajectories with the closest kicks and hardly any accepted, after which it ends
_FINER = 3.0  # kicks of a fine trajectory, in units of those of another
_JITTER = (0.7, 1.2)  # of a trajectory's length, and of a chain's pace in it
_HOPELESS = 12.0  # spreads of the log density below its median
DRIFTING = 1.6  # root mean square t statistic between early and late draws
LEAST_ACCEPTED = 0.4
_STRETCHINGS = 3  # times that wide directions are looked for while a single group settles: of many
# classes they are neither very wide nor clear from few chains
_CLEARLY = 1.3  # times as wide as by chance
_INDEPENDENT = 3.0  # points of a chain among those they are looked for in
_FEW = 0.05  # classes that may have fewer effective draws
_TINY = 1e-300


class Plan(NamedTuple):
    """How many chains run, and how long.

    Attributes:
        chains: of all groups together; groups: that run side by side.
        turn: radians of a trajectory.
        slowest: pace of a chain in a trajectory, at least; fine: share of fine trajectories.
        effective: draws that the worst but a few classes shall have.
        held: first trajectories, in which levels stay and only cells and strengths move.
        settling: trajectories before any is kept, in which the kicks' distance is settled.
        kicks: after so many it ends.
        least, most: trajectories before and after which it does not end, kicks allowing.
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
    def of(cls, n_classes: int) -> Plan:
        """Few classes share many predictions: narrow ridges, but cheap to go along."""
        if n_classes < _SHARED:
            chains = min(_CELLS // n_classes**2, _MOST)
            turn, least = np.clip(180 / n_classes, 1.8, 6.0), np.clip(2400 // n_classes, 48, 96)
            return cls(chains, 1, float(turn), 0.4, 0.15, 600, 8000, int(least))
        chains = 2 * int(np.clip(_CACHED // n_classes**2, 26, 64))
        return cls(chains, 2, 1.8, _JITTER[0], 0.0, 250, 2400, 48)


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
class Chains:
    """One group of chains: where it is, and where it was after every trajectory.

    Attributes:
        z: (D, C) coordinates; kick: radians between kicks; kicks: how many there were.
        stretch: of wide directions.
        theta: (T, K, C); strengths: (T, S, C); r: (T, K, C); confusion: (T, K, K) means of C.
        accepted: (T,) share of accepted trajectories.
        met: while it settles, places since wide directions were looked for.
        in_vain: trajectories with the closest kicks and hardly any accepted, one after the other.
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
    met: list[Array] = field(default_factory=list)
    in_vain: int = 0


@dataclass(frozen=True, eq=False)
class Refined:
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


def refine(
    density: ExactDensity,
    log_eta: Array,
    plan: Plan,
    rng: np.random.Generator,
    tick: Callable[[int, int], None] = lambda done, total: None,
) -> Refined:
    """Run chains from levels (K, C) until early and late draws agree and there are enough of them.

    A third of all trajectories is discarded, however many there are.
    """
    starts = np.array_split(log_eta, plan.groups, axis=1)
    seeds = rng.spawn(plan.groups)
    groups = [Chains(density.start(part, seed)) for part, seed in zip(starts, seeds, strict=True)]
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
            if any(group.in_vain >= _PATIENCE for group in groups):
                break
            if done < plan.least:
                continue
            theta = _joined([group.theta[kept] for group in groups])
            stuck = accepted < LEAST_ACCEPTED / 2
            if stuck or (drift(theta)[0] < DRIFTING and effective_draws(theta) > plan.effective):
                break
    return Refined(
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
    density: ExactDensity, chains: Chains, plan: Plan, trajectories: int, rng: np.random.Generator
) -> None:
    """Trajectories of one group; only while it settles is anything adapted."""
    with np.errstate(all="ignore"):  # a wild chain is rejected, not repaired
        here = density.at(chains.z)
        for _ in range(trajectories):
            held = density.n_classes if len(chains.accepted) < plan.held else 0
            here, moved = _trajectory(density, chains, here, plan, rng, held)
            hopeless = moved < LEAST_ACCEPTED / 2 and chains.kick <= _KICKS[0]
            chains.in_vain = chains.in_vain + 1 if hopeless else 0
            if len(chains.accepted) < plan.settling:
                here = _rescue(chains, here, rng)
                _settle(chains, moved, plan)
            r, confusion = density.predicted(chains.z)
            chains.accepted.append(moved)
            chains.theta.append(here.theta)
            chains.strengths.append(here.strengths)
            chains.r.append(r)
            chains.confusion.append(confusion)


def _settle(chains: Chains, moved: float, plan: Plan) -> None:
    """Adapt the distance of the kicks to the share of accepted trajectories, and stretch."""
    if moved < _ACCEPTED[0]:
        chains.kick = max(_CLOSER * chains.kick, _KICKS[0])
    elif moved > _ACCEPTED[1]:
        chains.kick = min(_FARTHER * chains.kick, _KICKS[1])
    chains.met.append(chains.z)
    if plan.groups == 1 and len(chains.met) == plan.settling // _STRETCHINGS:
        independent = _INDEPENDENT * chains.z.shape[1]
        chains.stretch = Stretch.of(np.concatenate(chains.met[1:], axis=1), independent)
        chains.met = []


def _trajectory(
    density: ExactDensity,
    chains: Chains,
    here: Point,
    plan: Plan,
    rng: np.random.Generator,
    held: int = 0,
) -> tuple[Point, float]:
    """One trajectory of every chain, accepted or not; the share that was.

    Args:
        held: coordinates, from the first, that stay where they are.
    """
    stretch, dtype = chains.stretch, density.dtype
    n_chains = chains.z.shape[1]
    # Where kicks come closer, now and then, chains get where the density is steep, and out again.
    kick = chains.kick / (_FINER if rng.uniform() < plan.fine else 1)
    kicks = max(2, int(np.ceil(plan.turn * rng.uniform(*_JITTER) / kick)))
    kicks = min(kicks, _MOST_KICKS)
    chains.kicks += kicks
    paces = np.log([plan.slowest, _JITTER[1]])
    angle = (kick * np.exp(rng.uniform(paces[0], paces[1], n_chains))).astype(dtype)
    momentum = rng.standard_normal(chains.z.shape, dtype=dtype)
    momentum[:held] = 0
    start, before = here.value - _kinetic(momentum), here
    cosine, sine = np.cos(angle), np.sin(angle)
    w, z = stretch.apply(chains.z, -1), chains.z
    for last in range(kicks - 1, -1, -1):
        # Kicks are by what N(0, I) does not explain of the force.
        momentum = momentum + angle / 2 * (stretch.apply(here.force) + w)
        momentum[:held] = 0
        rest = w[:held]
        w, momentum = cosine * w + sine * momentum, cosine * momentum - sine * w
        w[:held], momentum[:held] = rest, 0
        z = stretch.apply(w)
        here = density.at(z, valued=last == 0)
        momentum += angle / 2 * (stretch.apply(here.force) + w)
        momentum[:held] = 0
    change = here.value - _kinetic(momentum) - start
    accepted = np.log(rng.uniform(size=n_chains)) < np.where(np.isfinite(change), change, -np.inf)
    chains.z = np.where(accepted, z, chains.z)
    reached = (np.where(accepted, new, old) for new, old in zip(here, before, strict=True))
    return Point(*reached), float(accepted.mean())


def _kinetic(momentum: Array) -> Array:
    return np.einsum("dc,dc->c", momentum, momentum, dtype=float) / 2


def _rescue(chains: Chains, here: Point, rng: np.random.Generator) -> Point:
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
    return Point(*(part[..., origin] for part in here))


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
    """As many independent draws have means that are as far off; of the worst class but a few.

    Chains that started alike and still move together are off by more than their means differ: what
    their halves differ by, beyond chance, is taken for what is still to come.
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
