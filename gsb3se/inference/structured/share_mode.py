"""The mode of the share density, and the Gaussian there: coordinates for the chains that sample it.

Newton steps in log eta with d = 0, at a tau_q that is re-estimated with the trace of the Gaussian's
covariance. The mode only sets the pace of the chains; how far off it may be is said in its status.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_triangular

from gsb3se.inference.structured.count_likelihood import (
    CountGeometry,
    CountLikelihood,
    CountValues,
)
from gsb3se.model.share_prior import SharePrior
from gsb3se.support.errors import NoSolution
from gsb3se.support.limits import EXACT_TRACES
from gsb3se.support.linear_algebra import filled_cholesky, triangular_covariance_root
from gsb3se.support.simplex import Matrix, Vector

_MOST_STEPS = 40
_TOLERANCE, _TOLERANCE_A_CLASS = 0.05, 1e-3  # of the decrement
_TAU_CHANGE = 0.05  # of log tau_q, below which it is settled
_NO_LONGER_RISING = 4  # steps that gain less than the tolerance together
_LARGEST_STEP, _SHORTEST_STEP = 3.0, 1e-4  # in log eta; as a share of Newton's
_ARMIJO = 1e-4
_ROUNDING = 1e-4  # of a log density in single precision, a class
_PROBES = 16  # random signs that estimate a trace


@dataclass(frozen=True, eq=False)
class ShareGaussian:
    """Where the density is, and how wide: log eta = centre + spread z, d = own z'.

    Attributes:
        centre: (K,) mode of log eta; spread: (K, K); own: (K, K).
        tau: the strength tau_q at the mode.
        log_evidence: Laplace's, at that tau_q, up to what does not depend on the columns.
        converged: whether the search for the mode ended by itself.
        steps: Newton steps it took.
    """

    centre: Vector
    spread: Matrix
    own: Matrix
    tau: float
    log_evidence: float
    converged: bool
    steps: int

    def astype(self, dtype: type) -> ShareGaussian:
        """The same in another precision."""
        parts = {name: getattr(self, name).astype(dtype) for name in ("centre", "spread", "own")}
        return replace(self, **parts)


class _Trial(NamedTuple):
    """A place on the way to the mode: levels, what the counts say there, theta and L theta."""

    log_eta: Vector
    values: CountValues
    theta: Vector
    smooth: Vector

    def log_density(self, tau: float) -> float:
        """At a fixed tau_q and d = 0."""
        return float(self.values.log_likelihood[0]) - tau * float(self.theta @ self.smooth) / 2


class _Local(NamedTuple):
    """The Gaussian at a trial: log density, gradient, factor of the precision, and what it is
    made of."""

    log_density: float
    gradient: Vector
    geometry: CountGeometry
    weight: Vector
    precision: Matrix
    factor: Matrix


class _ExtraCurvature:
    """Where the density bends more than its information says, as next to a kink.

    A class whose slope has changed its sign from one place to the next was sent too far; the
    difference of the slopes tells its curvature.

    Attributes:
        extra: (K,) curvature beyond what is known.
    """

    def __init__(self, n: int) -> None:
        self.extra = np.zeros(n)
        self._before: tuple[Vector, Vector] | None = None

    def look(self, place: Vector, slope: Vector, known: Vector) -> None:
        """Take another place's slopes and known curvatures into account, (K,) each."""
        if self._before is not None:
            moved, turned = place - self._before[0], slope * self._before[1] < 0
            with np.errstate(all="ignore"):
                beyond = (self._before[1] - slope) / moved - known
            more = turned & np.isfinite(beyond)
            self.extra[more] = np.maximum(self.extra[more], beyond[more])
        self._before = (place, slope)


class ModeSearch:
    """Newton steps to the mode of one target's share density."""

    def __init__(self, likelihood: CountLikelihood, prior: SharePrior) -> None:
        self.likelihood, self.prior = likelihood, prior
        self._laplacian = prior.laplacian
        self._dense = prior.laplacian.toarray()

    def run(self, log_eta: Vector, near: ShareGaussian | None) -> ShareGaussian:
        """Search from (K,) levels.

        Args:
            near: the Gaussian of the same target under similar columns, whose tau_q is kept.
        """
        n = len(log_eta)
        tolerance = max(_TOLERANCE, _TOLERANCE_A_CLASS * n)
        tau, settled = (1.0, False) if near is None else (near.tau, True)
        here, curvature = self._trial(log_eta), _ExtraCurvature(n)
        best, n_stalled = -np.inf, 0  # best log density, and steps without a gain
        for steps in range(1, _MOST_STEPS + 1):  # noqa: B007
            local = self._local(here, tau)
            curvature.look(here.log_eta, local.gradient, np.diag(local.precision))
            step = _newton_step(local, curvature.extra)
            decrement = float(local.gradient @ step)
            rises = local.log_density > best + tolerance or not settled
            n_stalled = 0 if rises else n_stalled + 1
            best = local.log_density if n_stalled == 0 else best
            done = settled and (decrement < tolerance or n_stalled >= _NO_LONGER_RISING)
            if done:
                break
            reached = self._line_search(here, local, step, tau)
            if not np.isfinite(reached.log_density(tau)):
                break  # nowhere to go from here
            here = reached
            if near is not None:
                continue
            updated = self._updated_strength(here, local)
            if not updated > 0:
                break  # theta is beyond all digits
            settled = abs(np.log(updated / tau)) < _TAU_CHANGE
            tau = float(updated)
        inverse = solve_triangular(local.factor, np.eye(n), lower=True, check_finite=False)
        return ShareGaussian(
            here.log_eta,
            inverse.T,
            triangular_covariance_root(local.geometry.covariance()),
            tau,
            local.log_density - float(np.log(np.diag(local.factor)).sum()),
            bool(done),
            steps,
        )

    def _trial(self, log_eta: Vector, near: _Trial | None = None) -> _Trial:
        """A place that may be the mode; ``near`` is one to start the saddlepoints from."""
        room = None if near is None else near.values.saddle.room
        values = self.likelihood.evaluate(log_eta[:, None].astype(self.likelihood.dtype), room)
        theta = log_eta + values.log_totals[:, 0].astype(float)
        return _Trial(log_eta, values, theta, self._laplacian @ theta)

    def _local(self, here: _Trial, tau: float) -> _Local:
        """The Gaussian that a place's slope and information make."""
        pull = -tau * here.smooth
        typed = pull[:, None].astype(self.likelihood.dtype)
        gradient = self.likelihood.gradient(here.values, typed)[:, 0].astype(float) + pull
        geometry = self.likelihood.geometry(here.log_eta, here.values)
        weight = 1 + geometry.response
        precision = geometry.information + tau * weight[:, None] * self._dense * weight
        factor = checked_cholesky(precision)
        return _Local(here.log_density(tau), gradient, geometry, weight, precision, factor)

    def _line_search(self, here: _Trial, local: _Local, step: Vector, tau: float) -> _Trial:
        """Halve the step until the density rises as its slope promised."""
        # A class that the counts say little of may be sent far: it alone is held back.
        np.clip(step, -_LARGEST_STEP, _LARGEST_STEP, out=step)
        promised, length = float(local.gradient @ step), 1.0
        rounding = _ROUNDING * len(step)
        while True:
            reached = self._trial(here.log_eta + length * step, here)
            enough = local.log_density + _ARMIJO * length * promised - rounding
            if reached.log_density(tau) >= enough or length < _SHORTEST_STEP:
                return reached
            length /= 2

    def _updated_strength(self, here: _Trial, local: _Local) -> float:
        """tau_q given the expected roughness of theta.

        Where the step leads, not where it began: else tau and theta swing about each other.
        """
        roughness = float(here.theta @ here.smooth)
        roughness += local.geometry.roughness(self._laplacian)
        roughness += self._trace(local.factor, local.weight)
        return float(self.prior.strength_given(max(roughness, 0.0)))

    def _trace(self, factor: Matrix, weight: Vector) -> float:
        """tr(L W P^-1 W) for a factor of P: exactly, or by random signs of many classes."""
        n = len(weight)
        if n <= EXACT_TRACES:
            right, copies = np.eye(n), 1
        else:
            right = np.random.default_rng(0).choice([-1.0, 1.0], (n, _PROBES))
            copies = _PROBES
        half = solve_triangular(factor, weight[:, None] * right, lower=True, check_finite=False)
        smooth = weight[:, None] * (self._laplacian @ right)
        half_smooth = solve_triangular(factor, smooth, lower=True, check_finite=False)
        return float(np.einsum("ij,ij->", half, half_smooth)) / copies


def _newton_step(local: _Local, extra: Vector) -> Vector:
    """The step to where the local Gaussian has its mode; ``extra`` curvature shortens it."""
    factor = local.factor
    if extra.any():
        factor = checked_cholesky(local.precision + np.diag(extra))
    half = solve_triangular(factor, local.gradient, lower=True, check_finite=False)
    return solve_triangular(factor, half, lower=True, trans="T", check_finite=False)


def checked_cholesky(matrix: Matrix) -> Matrix:
    """The lower factor, with as much added to the diagonal as it takes.

    Raises:
        NoSolution: an entry of the matrix is not finite.
    """
    if not np.isfinite(matrix).all():
        raise NoSolution(
            "the curvature of the target's posterior has entries that are not finite: these counts "
            "are beyond what the structured backend can do; use backend='hmc'"
        )
    return filled_cholesky(matrix)
