"""The mode of the posterior at fixed strengths, by conjugate-gradient Newton steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from gsb3se.inference.gaussian.latent_vectors import Part, centred, dot, plus, restricted, times
from gsb3se.inference.gaussian.preconditioner import FisherPreconditioner
from gsb3se.model.density import (
    Curvature,
    Latents,
    Strengths,
    log_joint,
    log_joint_and_gradient,
)
from gsb3se.model.problem import Problem
from gsb3se.model.starting_values import (
    column_mean_weights,
    interior_shares,
    smoothed_rates,
)
from gsb3se.support.simplex import centred_log

Update = Literal["joint", "block"]

_ARMIJO = 1e-4
_MOST_HALVINGS = 40
_ROUNDING = 1e-14  # of a sum of logarithms, per count


@dataclass(frozen=True)
class SearchSettings:
    """When a search for a mode ends, and how it steps.

    Attributes:
        tolerance: Newton decrement at which the mode is accepted; max_steps: at most.
        update: "joint" steps in theta and all columns at once; "block" alternates between them.
    """

    tolerance: float = 1e-8
    max_steps: int = 100
    update: Update = "joint"


@dataclass(frozen=True)
class InnerSettings:
    """When conjugate gradients end.

    Attributes:
        tolerance: relative residual; None to reduce the decrement as far as it pays.
        max_steps: at most.
    """

    tolerance: float | None = None
    max_steps: int = 400


@dataclass
class Work:
    """What a search has cost so far."""

    newton_steps: int = 0
    gradients: int = 0
    hessian_products: int = 0
    negative_curvature: int = 0

    def figures(self) -> dict[str, int]:
        """Everything by name, for people."""
        return dict(vars(self))


@dataclass(frozen=True, eq=False)
class Mode:
    """Where a search for the mode ended."""

    latents: Latents
    log_density: float
    decrement: float
    converged: bool


@dataclass(frozen=True)
class LinearSystem:
    """H d = g, of which only products are known.

    Attributes:
        product: H times a direction; precondition: about the inverse of it.
        on_negative: is told a direction along which H curves the wrong way, if one is met.
    """

    product: Callable[[Latents], Latents]
    precondition: Callable[[Latents], Latents]
    on_negative: Callable[[Latents], object] = lambda direction: None


def cold_start(problem: Problem) -> Latents:
    """Logarithms of smoothed rates, and of a few steps of EM for the target."""
    rates = smoothed_rates(problem)
    phi = np.log(rates)
    alpha, beta = column_mean_weights(problem)
    theta = centred_log(interior_shares(problem, rates))
    return Latents(theta, phi - phi.mean(axis=0), float(alpha), float(beta))


def find_mode(
    problem: Problem,
    tau: Strengths,
    start: Latents,
    settings: SearchSettings | None = None,
    work: Work | None = None,
) -> Mode:
    """Ascend log p(theta, phi | tau, counts) until the Newton decrement is below tolerance."""
    settings = settings or SearchSettings()
    work = Work() if work is None else work
    parts: tuple[Part, ...] = ("both",) if settings.update == "joint" else ("columns", "theta")
    latents, decrement, value = start, np.inf, -np.inf
    enough = max(settings.tolerance, rounding_error(problem))
    for _ in range(settings.max_steps):
        decrement = 0.0
        for part in parts:
            latents, value, gained = newton_step(problem, tau, latents, work, part)
            decrement += gained
        if decrement < enough:
            return Mode(latents, value, decrement, True)
    return Mode(latents, value, decrement, False)


def rounding_error(problem: Problem) -> float:
    """A rise of the log density that rounding hides: its terms are as large as the counts."""
    return float(_ROUNDING * (problem.target.sum() + problem.column_sizes.sum()))


def newton_step(
    problem: Problem,
    tau: Strengths,
    latents: Latents,
    work: Work,
    part: Part = "both",
    inner: InnerSettings | None = None,
) -> tuple[Latents, float, float]:
    """One step with a line search: the new point, its log density, and the decrement before it."""
    value, gradient, _ = log_joint_and_gradient(problem, latents, tau)
    work.gradients += 1
    work.newton_steps += 1
    gradient = restricted(gradient, part)
    curvature = Curvature(problem, latents, tau)
    preconditioner = FisherPreconditioner(problem, latents, tau)
    system = LinearSystem(
        lambda v: restricted(curvature.product(v), part),
        lambda v: restricted(preconditioner.solve(v), part),
    )
    direction = conjugate_gradients(system, gradient, work, inner)
    slope = dot(gradient, direction)
    length, rounding = 1.0, rounding_error(problem)
    for _ in range(_MOST_HALVINGS):
        reached = centred(plus(latents, direction, length))
        risen = log_joint(problem, reached, tau)
        work.gradients += 1
        if risen >= value + _ARMIJO * length * slope - rounding:
            return reached, risen, slope
        length /= 2
    return latents, value, slope


def conjugate_gradients(
    system: LinearSystem, gradient: Latents, work: Work, settings: InnerSettings | None = None
) -> Latents:
    """Solve H d = g inexactly; stop early at a direction of negative curvature.

    The residual is measured in the preconditioner's norm, whose square is a decrement; by default
    it is reduced by min(1/4, sqrt(decrement)), which makes the outer steps converge superlinearly.
    On negative curvature the direction so far is returned, an ascent direction; at the first
    iteration, the preconditioned gradient.
    """
    settings = settings or InnerSettings()
    residual = gradient
    solved = system.precondition(residual)
    direction, step = times(gradient, 0.0), solved
    norm = start = max(dot(residual, solved), 0.0)
    forcing = min(0.25, start**0.5) if settings.tolerance is None else settings.tolerance
    for iteration in range(settings.max_steps):
        if norm <= forcing**2 * start or norm <= 0.0:
            break
        curved = system.product(step)
        work.hessian_products += 1
        along = dot(step, curved)
        if along <= 0:
            work.negative_curvature += 1
            system.on_negative(step)
            return solved if iteration == 0 else direction
        length = norm / along
        direction = plus(direction, step, length)
        residual = plus(residual, curved, -length)
        solved = system.precondition(residual)
        previous, norm = norm, dot(residual, solved)
        step = plus(solved, step, norm / previous)
    return direction
