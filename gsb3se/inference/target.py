"""The posterior of the class shares given the columns' laws: one density, sampled in parallel.

The state is (log eta, d): levels, and what log u deviates from its mean given them, d ~ N(0, V).
With theta = log eta + log u(eta) + d and tau_q integrated out in closed form, the density is

    prod_j p(n_j | eta)  N(d; 0, V)  (b_q + theta'L theta / 2)^-(a_q + (K-1)/2),

O(K^2) a point. A Gaussian at its mode gives coordinates z in which it is nearly N(0, I); a few
hundred chains start there and move together by Hamiltonian trajectories whose free motion is the
Gaussian's own rotation, so that a handful of kicks by the remaining force make a whole turn.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from scipy.linalg import LinAlgError, cholesky, solve_triangular

from gsb3se.errors import NoSolution
from gsb3se.inference.blocks import symmetric_root
from gsb3se.inference.columns import ColumnLaws
from gsb3se.inference.rows import Array, RowValues, TargetRows
from gsb3se.linear_algebra import filled_cholesky
from gsb3se.problem import Problem
from gsb3se.simplex import Matrix, Vector, softmax

_EM_STEPS = 200
_PSEUDO_SHARE = 0.1  # of the counts, that pseudo-counts are
_MODE_STEPS = 40
_MODE_TOLERANCE, _MODE_TOLERANCE_A_CLASS = 0.05, 1e-3  # decrement: the mode only sets the pace
_TAU_CHANGE = 0.05
_NO_LONGER_RISING = 4  # steps that gain less than the tolerance together
_LARGEST_STEP, _SHORTEST_STEP = 3.0, 1e-4  # in log eta; as a share of Newton's
_ROUNDING = 1e-4  # of a log density in single precision, a class
_EXACT_TRACE, _PROBES = 300, 16
_QUARTER_TURN = np.pi / 2
_LEAST_ACCEPTED, _MOST_KICKS = 0.7, 32
_CLOSER = ((0.4, 1.5), (0.1, 2.5), (0.0, 4.0))  # times as many kicks, from so many accepted


@dataclass(frozen=True, eq=False)
class Frame:
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


class Point(NamedTuple):
    """C points of the density: value (C,), force (2K, C); (K, C) theta, log eta, and the room of
    every row's saddlepoint."""

    value: Array
    force: Array
    theta: Array
    log_eta: Array
    room: Array


class _Trial(NamedTuple):
    """A place on the way to the mode: levels, what the rows say there, theta and L theta."""

    log_eta: Vector
    rows: RowValues
    theta: Vector
    smooth: Vector

    def value(self, tau: float) -> float:
        """Log density at a fixed tau_q and d = 0."""
        return float(self.rows.log_likelihood[0]) - tau * float(self.theta @ self.smooth) / 2


class _Bends:
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
                told = (self._before[1] - slope) / moved - known
            more = turned & np.isfinite(told)
            self.extra[more] = np.maximum(self.extra[more], told[more])
        self._before = (place, slope)


@dataclass
class Sampled:
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


class TargetDensity:
    """The density of one target given the columns' laws."""

    def __init__(
        self,
        problem: Problem,
        laws: ColumnLaws,
        near: Frame | None = None,
        likely: Vector | None = None,
    ) -> None:
        """Find where the density is.

        Args:
            near: the frame of the same target under similar laws, whose tau_q is taken over.
            likely: (K,) a guess of q to start from; None for that of a few steps of EM.
        """
        self.problem, self.laws = problem, laws
        self.likely = likely_shares(laws.mean, problem.target) if likely is None else likely
        self.rows = TargetRows(laws, problem.target, self.likely)
        self.shape = problem.tau_shapes[0]
        self._laplacian = problem.graph.laplacian
        self.frame = self.find_frame(near)

    def find_frame(self, near: Frame | None) -> Frame:
        """Newton steps to the mode at a tau_q that is re-estimated with the trace."""
        n, prior = self.problem.n_classes, self.problem.prior
        laplacian = self._laplacian.toarray()
        tolerance = max(_MODE_TOLERANCE, _MODE_TOLERANCE_A_CLASS * n)
        log_eta, tau = self.rows.levels_at(self.likely), 1.0
        if near is not None:
            log_eta, tau = near.centre.astype(float), near.tau
        settled = near is not None  # tau_q
        rounding = _ROUNDING * n
        here = self._trial(log_eta)
        bends = _Bends(n)
        best, since = -np.inf, 0  # value since when it no longer rises
        for steps in range(1, _MODE_STEPS + 1):  # noqa: B007
            value, gradient = here.value(tau), self._gradient(here, tau)
            geometry = self.rows.geometry(here.log_eta, here.rows)
            weight = 1 + geometry.response
            whole = geometry.information + tau * weight[:, None] * laplacian * weight
            factor = _cholesky(whole)
            bends.look(here.log_eta, gradient, np.diag(whole))
            bent = factor
            if bends.extra.any():
                bent = _cholesky(whole + np.diag(bends.extra))
            step = _solve(bent, gradient)
            decrement = float(gradient @ step)
            since = 0 if value > best + tolerance or not settled else since + 1
            best = value if since == 0 else best
            done = settled and (decrement < tolerance or since >= _NO_LONGER_RISING)
            if done:
                break
            # A class that the counts say little of may be sent far: it alone is held back.
            np.clip(step, -_LARGEST_STEP, _LARGEST_STEP, out=step)
            promised, length = float(gradient @ step), 1.0
            while True:
                reached = self._trial(here.log_eta + length * step, here)
                enough = value + 1e-4 * length * promised - rounding
                if reached.value(tau) >= enough or length < _SHORTEST_STEP:
                    break
                length /= 2
            if not np.isfinite(reached.value(tau)):
                break  # nowhere to go from here
            here = reached
            if near is not None:
                continue
            # Where the step leads, not where it began: else tau and theta swing about each other.
            form = float(here.theta @ here.smooth)
            form += geometry.roughness(self._laplacian)
            form += self._trace(factor, weight)
            updated = self.shape / (prior.b_q + max(form, 0.0) / 2)
            if not updated > 0:
                break  # theta is beyond all digits
            settled = abs(np.log(updated / tau)) < _TAU_CHANGE
            tau = float(updated)
        inverse = solve_triangular(factor, np.eye(n), lower=True, check_finite=False)
        return Frame(
            here.log_eta,
            inverse.T,
            _root(geometry.covariance()),
            tau,
            value - float(np.log(np.diag(factor)).sum()),
            bool(done),
            steps,
        )

    def _trace(self, factor: Matrix, weight: Vector) -> float:
        """tr(L W P^-1 W) for a factor of P: exactly, or by random signs of many classes."""
        n = len(weight)
        if n <= _EXACT_TRACE:
            right, copies = np.eye(n), 1
        else:
            right = np.random.default_rng(0).choice([-1.0, 1.0], (n, _PROBES))
            copies = _PROBES
        half = solve_triangular(factor, weight[:, None] * right, lower=True, check_finite=False)
        smooth = weight[:, None] * (self._laplacian @ right)
        half_smooth = solve_triangular(factor, smooth, lower=True, check_finite=False)
        return float(np.einsum("ij,ij->", half, half_smooth)) / copies

    def _trial(self, log_eta: Vector, near: _Trial | None = None) -> _Trial:
        """A place that may be the mode; ``near`` is one to start the saddlepoints from."""
        room = None if near is None else near.rows.saddle.room
        rows = self.rows.evaluate(log_eta[:, None].astype(self.rows.dtype), room)
        theta = log_eta + rows.log_totals[:, 0].astype(float)
        return _Trial(log_eta, rows, theta, self._laplacian @ theta)

    def _gradient(self, here: _Trial, tau: float) -> Vector:
        """Of the log density at a fixed tau_q and d = 0."""
        pull = -tau * here.smooth
        rows = self.rows.gradient(here.rows, pull[:, None].astype(self.rows.dtype))[:, 0]
        return rows.astype(float) + pull

    def at(self, z: Array, near: Point | None = None) -> Point:
        """The density and the force at (2K, C) coordinates."""
        frame, n = self._typed, len(z) // 2
        log_eta = frame.centre[:, None] + frame.spread @ z[:n]
        rows = self.rows.evaluate(log_eta, None if near is None else near.room)
        theta = log_eta + rows.log_totals + frame.own @ z[n:]
        smooth = (self._laplacian @ theta).astype(theta.dtype)
        rate = self.problem.prior.b_q + np.einsum("ic,ic->c", theta, smooth, dtype=float) / 2
        value = rows.log_likelihood - self.shape * np.log(rate)
        value -= np.einsum("ic,ic->c", z[n:], z[n:], dtype=float) / 2
        smooth *= -(self.shape / rate).astype(theta.dtype)
        gradient = self.rows.gradient(rows, smooth)
        gradient += smooth
        force = np.concatenate([frame.spread.T @ gradient, frame.own.T @ smooth - z[n:]])
        return Point(value, force, theta, log_eta, rows.saddle.room)

    @property
    def _typed(self) -> Frame:
        """The frame in the precision of the columns."""
        frame, dtype = self.frame, self.rows.dtype
        if frame.centre.dtype != dtype:
            names = ("centre", "spread", "own")
            typed = {name: getattr(frame, name).astype(dtype) for name in names}
            frame = Frame(**(vars(frame) | typed))
            self.frame = frame
        return frame

    def sample(
        self,
        chains: int,
        discarded: int,
        kept: int,
        rng: np.random.Generator,
        earlier: Sampled,
    ) -> Sampled:
        """Let all chains make trajectories of about a quarter turn; keep the last ones.

        Args:
            earlier: where to go on from, or an empty one; its draws are not kept.
        """
        n, dtype = self.problem.n_classes, self.rows.dtype
        done = replace(earlier, theta=[], log_eta=[])
        z = earlier.z if earlier.trajectories else rng.standard_normal((2 * n, chains), dtype=dtype)
        here = self._start(z)
        for trajectory in range(discarded + kept):
            momentum = rng.standard_normal(z.shape, dtype=dtype)
            angle = (_QUARTER_TURN / done.kicks * rng.uniform(0.8, 1.2, chains)).astype(dtype)
            log_uniform = np.log(rng.uniform(size=chains))
            reached_z, reached, change = self._trajectory(z, here, momentum, angle, done.kicks)
            accepted = log_uniform < change
            z = np.where(accepted, reached_z, z)
            here = Point(
                *(np.where(accepted, new, old) for new, old in zip(reached, here, strict=True))
            )
            done.accepted.append(float(accepted.mean()))
            done.trajectories += 1
            done.kicks_made += done.kicks
            if trajectory >= discarded:
                done.theta.append(here.theta)
                done.log_eta.append(here.log_eta)
            elif done.accepted[-1] < _LEAST_ACCEPTED and done.kicks < _MOST_KICKS:
                more = next(times for least, times in _CLOSER if done.accepted[-1] >= least)
                done.kicks = min(_MOST_KICKS, int(np.ceil(more * done.kicks)))
        done.z = z
        return done

    def _start(self, z: Array) -> Point:
        """The density at the chains' first places; a wild one is moved to the mode, in place."""
        with np.errstate(all="ignore"):
            here = self.at(z)
        wild = ~np.isfinite(here.value)
        if wild.any():
            z[:, wild] = 0
            here = self.at(z)
        return here

    def _trajectory(
        self, z: Array, here: Point, momentum: Array, angle: Array, kicks: int
    ) -> tuple[Array, Point, Array]:
        """Kicks by what the Gaussian does not explain, between its exact rotations."""
        start = here.value - np.einsum("ic,ic->c", momentum, momentum, dtype=float) / 2
        cosine, sine = np.cos(angle), np.sin(angle)
        for _ in range(kicks):
            momentum = momentum + angle / 2 * (here.force + z)
            z, momentum = cosine * z + sine * momentum, cosine * momentum - sine * z
            with np.errstate(all="ignore"):  # a wild chain is rejected, not repaired
                here = self.at(z, here)
            momentum = momentum + angle / 2 * (here.force + z)
        end = here.value - np.einsum("ic,ic->c", momentum, momentum, dtype=float) / 2
        change = np.where(np.isfinite(end), end - start, -np.inf)
        return z, here, change


def likely_shares(confusion: Matrix, target: Vector) -> Vector:
    """Where EM on the target counts and a few pseudo-counts a class gets from the uniform q.

    Maximum likelihood gives most of many classes no share at all. A search for the mode that starts
    there finds shares that rough likely, and stays.
    """
    share = (target / target.sum()).astype(confusion.dtype)
    n, least = len(target), np.finfo(confusion.dtype).tiny
    q = np.full(n, 1 / n, dtype=confusion.dtype)
    for _ in range(_EM_STEPS):
        before = q
        # A row that no class predicts at all may be there in the target nevertheless.
        q = q * (confusion.T @ (share / np.maximum(confusion @ q, least))) + _PSEUDO_SHARE / n
        q /= q.sum()
        if np.abs(q - before).sum() < 1e-4:
            break
    return q.astype(float)


def _cholesky(matrix: Matrix) -> Matrix:
    """The lower factor, with as much added to the diagonal as it takes.

    Raises:
        NoSolution: the matrix has entries that are no numbers.
    """
    if not np.isfinite(matrix).all():
        raise NoSolution(
            "the curvature of the target's posterior has entries that are not finite: these counts "
            "are beyond what the structured backend can do; use backend='hmc'"
        )
    return filled_cholesky(matrix)


def _solve(factor: Matrix, right: Vector) -> Vector:
    half = solve_triangular(factor, right, lower=True, check_finite=False)
    return solve_triangular(factor, half, lower=True, trans="T", check_finite=False)


def _root(covariance: Matrix) -> Matrix:
    """F with F F' = covariance, which is positive but for rounding."""
    try:
        return cholesky(covariance, lower=True, check_finite=False)
    except LinAlgError:
        return symmetric_root(covariance)


def as_shares(theta: Array) -> Matrix:
    """q at (K, C) points, (C, K)."""
    return softmax(theta.astype(float), axis=0).T


def draw_tau(problem: Problem, theta: Array, rng: np.random.Generator) -> Vector:
    """tau_q given (K, C) points, (C,)."""
    form = np.einsum("ic,ic->c", theta, problem.graph.laplacian @ theta, dtype=float)
    return rng.gamma(problem.tau_shapes[0], size=theta.shape[1]) / (problem.prior.b_q + form / 2)
