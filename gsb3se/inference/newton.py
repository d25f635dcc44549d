"""NewtonCG: the mode of the posterior given tau, by conjugate-gradient Newton steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from gsb3se.errors import as_whole_number
from gsb3se.forms import LogisticNormal
from gsb3se.identifiability import identified
from gsb3se.inference.blocks import GaussianBlocks, NotPositiveDefinite, gaussian_blocks
from gsb3se.inference.coordinates import likely_anchor, likely_prior, smoothed_rates
from gsb3se.inference.preconditioner import FisherPreconditioner
from gsb3se.model import (
    Curvature,
    Latents,
    Strengths,
    log_joint,
    log_joint_and_gradient,
    tau_conditionals,
)
from gsb3se.posterior import Posterior
from gsb3se.problem import Problem
from gsb3se.simplex import centred_log
from gsb3se.status import Diagnostics, Finding, Status

Part = Literal["both", "theta", "columns"]

_ARMIJO = 1e-4
_MOST_HALVINGS = 40
_MOST_CG_STEPS = 400
_ROUNDING = 1e-14  # of a sum of logarithms, per count
_MOST_TAU_UPDATES = 60
_TAU_TOLERANCE = 1e-3  # change of log tau at which it is accepted
_LARGEST_TAU_STEP = 2.0  # of log tau
_LEAST_SLOPE = 0.05  # of the change of log tau: steps are extrapolated up to 20 times
_MOST_ESCAPES = 5
_PAPER_CG_TOLERANCE, _PAPER_CG_STEPS, _PAPER_CHANGE = 1e-4, 8, 1e-3
_OVERSTATED = 1.5  # joint tau over its trace-corrected update, from which it counts as collapsed


@dataclass(frozen=True)
class NewtonCG:
    """Mode of the posterior given tau, by Newton steps on (theta, phi), and the Gaussian there.

    Args:
        tau: "marginal" re-estimates both strengths from quadratic forms corrected by the trace of
            the posterior covariance, and never maximises over tau. "joint" is the paper's scheme,
            kept for reference: one Newton step a block with at most 8 conjugate-gradient
            iterations to 1e-4, closed-form tau, stopped when the log joint changes by less than a
            relative 1e-3. Its target, the joint mode, *collapses* when labels are few: tau_C runs
            to thousands, columns to guessing and q to uniform; and it often stops short of it.
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
            fit = marginal_tau(problem, self.update, self.tolerance, self.max_steps, rng)
        blocks, findings = _gaussian(problem, fit)
        findings += fit.findings
        figures = fit.work.figures() | {
            "decrement": fit.mode.decrement,
            "tau_q": fit.tau.q,
            "tau_C": fit.tau.C,
            "alpha": fit.mode.latents.alpha,
            "beta": fit.mode.latents.beta,
            "tau_updates": fit.tau_updates,
            "smallest_curvature": blocks.smallest_curvature,
        }
        r = fit.mode.latents.confusion @ fit.mode.latents.q
        factor, r_factor = blocks.draw_factors()
        return identified(
            Posterior(
                LogisticNormal(fit.mode.latents.theta, factor, np.log(r), r_factor / r[:, None]),
                problem.counts.labels,
                Diagnostics.of(findings, figures),
                "newton",
                fit.mode.latents.confusion,
                problem.counts.n_target,
                problem,
            )
        )


@dataclass
class Work:
    """What a search has cost so far."""

    newton_steps: int = 0
    gradients: int = 0
    hessian_products: int = 0
    negative_curvature: int = 0

    def figures(self) -> dict[str, int]:
        return dict(vars(self))


@dataclass(frozen=True, eq=False)
class Mode:
    """Where a search for the mode ended."""

    latents: Latents
    log_density: float
    decrement: float
    converged: bool


@dataclass(frozen=True, eq=False)
class Fit:
    """A mode with the strengths it belongs to."""

    mode: Mode
    tau: Strengths
    tau_updates: int
    work: Work
    findings: list[Finding] = field(default_factory=list)


# The mode at fixed tau


def cold_start(problem: Problem) -> Latents:
    """Logarithms of smoothed rates, and of a few steps of EM for the target."""
    rates = smoothed_rates(problem)
    phi = np.log(rates)
    alpha, beta = likely_anchor(problem)
    theta = centred_log(likely_prior(problem, rates))
    return Latents(theta, phi - phi.mean(axis=0), float(alpha), float(beta))


def find_mode(
    problem: Problem,
    tau: Strengths,
    start: Latents,
    tolerance: float = 1e-8,
    max_steps: int = 100,
    update: Literal["joint", "block"] = "joint",
    work: Work | None = None,
) -> Mode:
    """Ascend log p(theta, phi | tau, counts) until the Newton decrement is below tolerance."""
    work = Work() if work is None else work
    parts: tuple[Part, ...] = ("both",) if update == "joint" else ("columns", "theta")
    latents, decrement, value = start, np.inf, -np.inf
    enough = max(tolerance, _digits(problem))
    for _ in range(max_steps):
        decrement = 0.0
        for part in parts:
            latents, value, gained = newton_step(problem, tau, latents, part, work)
            decrement += gained
        if decrement < enough:
            return Mode(latents, value, decrement, True)
    return Mode(latents, value, decrement, False)


def _digits(problem: Problem) -> float:
    """A rise of the log density that rounding hides: its terms are as large as the counts."""
    return float(_ROUNDING * (problem.target.sum() + problem.column_sizes.sum()))


def newton_step(
    problem: Problem,
    tau: Strengths,
    latents: Latents,
    part: Part,
    work: Work,
    cg_tolerance: float | None = None,
    cg_steps: int = _MOST_CG_STEPS,
) -> tuple[Latents, float, float]:
    """One step with a line search: the new point, its log density, and the decrement before it."""
    value, gradient, _ = log_joint_and_gradient(problem, latents, tau)
    work.gradients += 1
    work.newton_steps += 1
    gradient = _restricted(gradient, part)
    curvature = Curvature(problem, latents, tau)
    preconditioner = FisherPreconditioner(problem, latents, tau)
    direction = conjugate_gradients(
        lambda v: _restricted(curvature.product(v), part),
        gradient,
        lambda v: _restricted(preconditioner.solve(v), part),
        cg_tolerance,
        cg_steps,
        work,
    )
    slope = _dot(gradient, direction)
    length, rounding = 1.0, _digits(problem)
    for _ in range(_MOST_HALVINGS):
        reached = _centred(_plus(latents, direction, length))
        risen = log_joint(problem, reached, tau)
        work.gradients += 1
        if risen >= value + _ARMIJO * length * slope - rounding:
            return reached, risen, slope
        length /= 2
    return latents, value, slope


def conjugate_gradients(
    product: Callable[[Latents], Latents],
    gradient: Latents,
    precondition: Callable[[Latents], Latents],
    tolerance: float | None,
    max_steps: int,
    work: Work,
    on_negative: Callable[[Latents], object] | None = None,
) -> Latents:
    """Solve H d = g as far as it pays, or until H curves the wrong way.

    The residual is measured in the preconditioner's norm, whose square is a decrement; by default
    it is reduced by min(1/4, sqrt(decrement)), which makes the outer steps converge superlinearly.
    On negative curvature the direction so far is returned, an ascent direction; at the first
    iteration, the preconditioned gradient. ``on_negative`` is told the direction that was met.
    """
    residual = gradient
    solved = precondition(residual)
    direction, step = _times(gradient, 0.0), solved
    norm = start = max(_dot(residual, solved), 0.0)
    forcing = min(0.25, start**0.5) if tolerance is None else tolerance
    for iteration in range(max_steps):
        if norm <= forcing**2 * start or norm <= 0.0:
            break
        curved = product(step)
        work.hessian_products += 1
        along = _dot(step, curved)
        if along <= 0:
            work.negative_curvature += 1
            if on_negative is not None:
                on_negative(step)
            return solved if iteration == 0 else direction
        length = norm / along
        direction = _plus(direction, step, length)
        residual = _plus(residual, curved, -length)
        solved = precondition(residual)
        previous, norm = norm, _dot(residual, solved)
        step = _plus(solved, step, norm / previous)
    return direction


# The strengths


def marginal_tau(
    problem: Problem,
    update: Literal["joint", "block"],
    tolerance: float,
    max_steps: int,
    rng: np.random.Generator,
) -> Fit:
    """Alternate the mode with tau = (a + d/2) / (b + E[Q]/2), E[Q] at the Gaussian there.

    The fixed point is that of expectation maximisation; secant steps on log tau reach it in
    some ten updates where plain iteration takes a hundred. Ending at a saddle, it leaves along a
    direction in which the log density rises and goes on.
    """
    work, latents, escapes = Work(), cold_start(problem), 0
    log_tau = np.log([1.0, 0.3])
    last: tuple[np.ndarray, np.ndarray] | None = None
    told = ""
    for updates in range(1, _MOST_TAU_UPDATES + 1):
        tau = Strengths(*np.exp(log_tau))
        mode = find_mode(problem, tau, latents, tolerance, max_steps, update, work)
        if not mode.converged:
            told = f"Newton decrement {mode.decrement:.2g} after {max_steps} steps"
            break
        latents = mode.latents
        change = np.log(_trace_corrected(problem, latents, tau)) - log_tau
        if np.abs(change).max() < _TAU_TOLERANCE:
            escaped = None if escapes == _MOST_ESCAPES else escape(problem, latents, tau, rng, work)
            if escaped is None:
                return Fit(mode, tau, updates, work, _several_modes(escapes))
            latents, last, escapes = escaped, None, escapes + 1
            told = f"{escapes} saddles were left in {updates} updates of tau"
            continue
        step = _secant(log_tau, change, last)
        last = (log_tau, change)
        log_tau = log_tau + step
        told = f"log tau still moved by {np.abs(change).max():.2g} after {updates} updates"
    return Fit(mode, tau, updates, work, [Finding(Status.NOT_CONVERGED, told)])


def _several_modes(escapes: int) -> list[Finding]:
    if not escapes:
        return []
    return [Finding(Status.SEVERAL_MODES, f"the search met {escapes} saddle points on its way")]


def escape(
    problem: Problem, latents: Latents, tau: Strengths, rng: np.random.Generator, work: Work
) -> Latents | None:
    """A higher point beside a saddle; None at a maximum.

    Conjugate gradients with a random right-hand side meet negative curvature wherever there is any.
    """
    try:
        gaussian_blocks(problem, latents, tau, "exact")
        return None
    except NotPositiveDefinite:
        pass
    curvature = Curvature(problem, latents, tau)
    n = problem.n_classes
    noise = _centred(Latents(rng.standard_normal(n), rng.standard_normal((n, n))))
    met: list[Latents] = []
    preconditioner = FisherPreconditioner(problem, latents, tau)
    conjugate_gradients(
        curvature.product, noise, preconditioner.solve, 1e-6, _MOST_CG_STEPS, work, met.append
    )
    if not met:
        return None
    value = log_joint(problem, latents, tau)
    curved = -_dot(met[0], curvature.product(met[0]))
    for length in np.geomspace(2.0, 1e-3, 8) / np.sqrt(curved):
        for sign in (1.0, -1.0):
            reached = _centred(_plus(latents, met[0], sign * length))
            if log_joint(problem, reached, tau) > value + _digits(problem):
                return reached
    return None


def paper_scheme(problem: Problem, max_steps: int) -> Fit:
    """The joint mode over (theta, phi, tau) by the paper's sweeps and tolerances."""
    work, latents, tau = Work(), cold_start(problem), Strengths(1.0, 1.0)
    previous, decrement = log_joint(problem, latents, tau), np.inf
    findings: list[Finding] = []
    for _ in range(max_steps):
        decrement = 0.0
        parts: tuple[Part, Part] = ("columns", "theta")
        for part in parts:
            latents, _, gained = newton_step(
                problem, tau, latents, part, work, _PAPER_CG_TOLERANCE, _PAPER_CG_STEPS
            )
            decrement += gained
        conditional = tau_conditionals(problem, latents)
        # The conditional's mode, the step of a coordinate ascent; its mean where there is none.
        tau = Strengths(
            (conditional.shape.q - (conditional.shape.q > 1)) / conditional.rate.q,
            (conditional.shape.C - (conditional.shape.C > 1)) / conditional.rate.C,
        )
        value = log_joint(problem, latents, tau)
        converged = abs(value - previous) <= _PAPER_CHANGE * abs(value)
        previous = value
        if converged:
            break
    else:
        findings.append(Finding(Status.NOT_CONVERGED, f"the log joint moved at sweep {max_steps}"))
    ratio = np.array([tau.q, tau.C]) / _trace_corrected(problem, latents, tau)
    if ratio.max() > _OVERSTATED:
        findings.append(
            Finding(
                Status.COLLAPSED,
                f"tau_q = {tau.q:.3g} and tau_C = {tau.C:.3g} are {ratio[0]:.2g} and "
                f"{ratio[1]:.2g} times what the Gaussian at the same point supports",
            )
        )
    return Fit(
        Mode(latents, previous, decrement, converged), tau, work.newton_steps // 2, work, findings
    )


def _trace_corrected(problem: Problem, latents: Latents, tau: Strengths) -> np.ndarray:
    """Both strengths' means given the expected quadratic forms."""
    conditional = tau_conditionals(problem, latents)
    blocks = gaussian_blocks(problem, latents, tau, "fisher")
    return np.array(
        [
            conditional.shape.q / (conditional.rate.q + blocks.form_q / 2),
            conditional.shape.C / (conditional.rate.C + blocks.form_C / 2),
        ]
    )


def _secant(
    at: np.ndarray, change: np.ndarray, last: tuple[np.ndarray, np.ndarray] | None
) -> np.ndarray:
    """Each strength's secant step to where its change vanishes; the change itself at first."""
    if last is None:
        return change
    moved, turned = at - last[0], change - last[1]
    slope = np.divide(turned, moved, where=moved != 0, out=np.full(2, -1.0))
    step = change / np.clip(-slope, _LEAST_SLOPE, 1.0)
    return np.clip(step, -_LARGEST_TAU_STEP, _LARGEST_TAU_STEP)


def _gaussian(problem: Problem, fit: Fit) -> tuple[GaussianBlocks, list[Finding]]:
    """The exact curvature's Gaussian, or Fisher's where the exact one is none."""
    try:
        return gaussian_blocks(problem, fit.mode.latents, fit.tau, "exact"), []
    except NotPositiveDefinite:
        told = "the search ended at no maximum; Fisher's curvature stands in for the exact one"
        blocks = gaussian_blocks(problem, fit.mode.latents, fit.tau, "fisher")
        return blocks, [Finding(Status.NOT_A_MAXIMUM, told)]


# Latents as vectors


def _dot(one: Latents, other: Latents) -> float:
    inner = one.theta @ other.theta + np.einsum("ji,ji->", one.phi, other.phi)
    return float(inner + one.alpha * other.alpha + one.beta * other.beta)


def _plus(one: Latents, other: Latents, scale: float) -> Latents:
    return Latents(
        one.theta + scale * other.theta,
        one.phi + scale * other.phi,
        one.alpha + scale * other.alpha,
        one.beta + scale * other.beta,
    )


def _times(latents: Latents, scale: float) -> Latents:
    return _plus(latents, latents, scale - 1)


def _centred(latents: Latents) -> Latents:
    return replace(
        latents,
        theta=latents.theta - latents.theta.mean(),
        phi=latents.phi - latents.phi.mean(axis=0),
    )


def _restricted(latents: Latents, part: Part) -> Latents:
    """The part of a direction within a block; the anchor belongs to the columns."""
    if part == "theta":
        return Latents(latents.theta, np.zeros_like(latents.phi))
    if part == "columns":
        return replace(latents, theta=np.zeros_like(latents.theta))
    return latents
