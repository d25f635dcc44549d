"""Both strengths beside the mode: re-estimated with the trace, or by the paper's joint scheme."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from gsb3se.inference.gaussian.hessian_blocks import NotPositiveDefinite, gaussian_blocks
from gsb3se.inference.gaussian.latent_vectors import Part, centred, dot, plus
from gsb3se.inference.gaussian.mode_search import (
    InnerSettings,
    LinearSystem,
    Mode,
    SearchSettings,
    Work,
    cold_start,
    conjugate_gradients,
    find_mode,
    newton_step,
    rounding_error,
)
from gsb3se.inference.gaussian.preconditioner import FisherPreconditioner
from gsb3se.model.density import (
    Curvature,
    Latents,
    Strengths,
    log_joint,
    tau_conditionals,
)
from gsb3se.model.problem import Problem
from gsb3se.posterior.status import Finding, Status
from gsb3se.support.simplex import Vector

_FIRST_TAU = (1.0, 0.3)
_MOST_UPDATES = 60
_TOLERANCE = 1e-3  # change of log tau at which it is accepted
_LARGEST_STEP = 2.0  # of log tau
_LEAST_SLOPE = 0.05  # of the change of log tau: steps are extrapolated up to 20 times
_MOST_ESCAPES = 5
_ESCAPE_SETTINGS = InnerSettings(tolerance=1e-6)
_PAPER_SETTINGS, _PAPER_CHANGE = InnerSettings(tolerance=1e-4, max_steps=8), 1e-3
_OVERSTATED = 1.5  # joint tau over its trace-corrected update, from which it counts as collapsed


@dataclass(frozen=True, eq=False)
class StrengthFit:
    """A mode with the strengths it belongs to.

    Attributes:
        updates: of the strengths; work: what it all cost.
        findings: what there is to say of the search.
    """

    mode: Mode
    tau: Strengths
    updates: int
    work: Work
    findings: list[Finding] = field(default_factory=list)


def marginal_tau(
    problem: Problem, settings: SearchSettings, rng: np.random.Generator
) -> StrengthFit:
    """Alternate the mode with tau = (a + d/2) / (b + E[Q]/2), E[Q] at the Gaussian there.

    The fixed point is that of expectation maximisation; secant steps on log tau reach it in
    some ten updates where plain iteration takes a hundred. Ending at a saddle, it leaves along a
    direction in which the log density rises and goes on.
    """
    work, latents, escapes = Work(), cold_start(problem), 0
    log_tau = np.log(_FIRST_TAU)
    last: tuple[Vector, Vector] | None = None
    trouble = ""
    for updates in range(1, _MOST_UPDATES + 1):
        tau = Strengths(*np.exp(log_tau))
        mode = find_mode(problem, tau, latents, settings, work)
        if not mode.converged:
            trouble = f"Newton decrement {mode.decrement:.2g} after {settings.max_steps} steps"
            break
        latents = mode.latents
        change = np.log(_trace_corrected(problem, latents, tau)) - log_tau
        if np.abs(change).max() < _TOLERANCE:
            escaped = None if escapes == _MOST_ESCAPES else escape(problem, latents, tau, rng, work)
            if escaped is None:
                return StrengthFit(mode, tau, updates, work, _several_modes(escapes))
            latents, last, escapes = escaped, None, escapes + 1
            trouble = f"the search met {escapes} saddle points in {updates} updates of tau"
            continue
        step = _secant(log_tau, change, last)
        last = (log_tau, change)
        log_tau = log_tau + step
        trouble = f"log tau still moved by {np.abs(change).max():.2g} after {updates} updates"
    return StrengthFit(mode, tau, updates, work, [Finding(Status.NOT_CONVERGED, trouble)])


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
    noise = centred(Latents(rng.standard_normal(n), rng.standard_normal((n, n))))
    falling: list[Latents] = []
    preconditioner = FisherPreconditioner(problem, latents, tau)
    system = LinearSystem(curvature.product, preconditioner.solve, falling.append)
    conjugate_gradients(system, noise, work, _ESCAPE_SETTINGS)
    if not falling:
        return None
    value = log_joint(problem, latents, tau)
    curved = -dot(falling[0], curvature.product(falling[0]))
    for length in np.geomspace(2.0, 1e-3, 8) / np.sqrt(curved):
        for sign in (1.0, -1.0):
            reached = centred(plus(latents, falling[0], sign * length))
            if log_joint(problem, reached, tau) > value + rounding_error(problem):
                return reached
    return None


def paper_scheme(problem: Problem, max_steps: int) -> StrengthFit:
    """The joint mode over (theta, phi, tau) by the paper's sweeps and tolerances."""
    work, latents, tau = Work(), cold_start(problem), Strengths(1.0, 1.0)
    previous, decrement = log_joint(problem, latents, tau), np.inf
    findings: list[Finding] = []
    for _ in range(max_steps):
        decrement = 0.0
        parts: tuple[Part, Part] = ("columns", "theta")
        for part in parts:
            latents, _, gained = newton_step(problem, tau, latents, work, part, _PAPER_SETTINGS)
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
    mode = Mode(latents, previous, decrement, converged)
    return StrengthFit(mode, tau, work.newton_steps // 2, work, findings)


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
    return np.clip(step, -_LARGEST_STEP, _LARGEST_STEP)
