"""The confusion columns given the validation counts: expectation propagation on Poisson cells.

Give column i a free level: x_i = phi_i + a_i 1, a_i flat. Independent Poisson counts n_ji of rate
exp(x_ji) then have the multinomial column as their conditional law, whatever a_i. So each column is
a log-Gaussian Cox process on the label graph: prior precision tau_C L, one site exp(n x - e^x) a
cell. With the cavity of every cell from :mod:`gsb3se.inference.fields` and its tilted moments from
:mod:`gsb3se.inference.poisson_sites`, a sweep is a Newton step on

    tau_C L (m_i - mu_i) = n_i - lambda_i,    lambda_ji = E[e^{x_ji}],

and half a dozen sweeps reach the fixed point, where sum_j lambda_ji = n_i holds by itself.

Columns are independent given (tau_C, alpha, beta), which maximise the evidence of all of them. Of
many classes a sample of columns settles them before all columns are run.

What the target needs of a column is its law: cells e^{x_ji} of mean lambda_ji and variance
lambda_ji - kappa_ji, independent Gammas, divided by their sum.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gsb3se.graph import IdentityPlusOnes
from gsb3se.inference.coordinates import likely_anchor
from gsb3se.inference.fields import Field, LoopyField, field_of
from gsb3se.inference.poisson_sites import counted_moments, empty_cells
from gsb3se.problem import Problem
from gsb3se.simplex import Matrix, Vector, softmax

_TOLERANCE = 3e-3  # of a sweep: change of a cell's mean in its sd, and relative of its variance
_MOST_SWEEPS = 60
_DAMPED_FROM, _DAMPING = 20, 0.5  # sweeps after which sites go only half the way
_LARGEST_STEP = 4.0  # of a cell's mean
_FARTHEST, _FARTHEST_SDS = 100.0, 6.0  # of a cavity's mean from the cell's; may be as many of the
# field's sds if that is more
_MOST_CERTAIN = 1 - 1e-6  # share of a cavity's variance that a site takes away, at most
_PSEUDO_COUNT = 0.5  # of a cell to begin with, at most
_LEAST_SHARE = 1e-25  # of its column, that a cell's mean is said to be
_LEAST_VARIANCE = 1e-12  # of a cell, in units of its mean
_SINGLE_PRECISION = 256  # classes from which the sweeps run in single precision
_BLOCK_CELLS = 1 << 16  # cells that are swept together
_SAMPLE = 96  # columns that settle the strengths when there are more
_FIRST_STEP = 0.5  # of log tau_C
_LOG_TAU_TOLERANCE = 0.02
_ANCHOR_TOLERANCE = 0.05
_MOST_UPDATES, _MOST_ANCHOR_STEPS = 20, 4
_LOG_TAU_RANGE = (-9.0, 7.0)
_TUNING_WORK, _MOST_TUNING = 8e9, 12  # classes cubed times columns; columns
_TUNINGS, _TUNED = 3, 0.05  # at most, and the change of log tau_C at which it is enough
_PRIOR_DRAWS = 200  # fields behind the law of a column without counts


class Hyper(NamedTuple):
    """tau_C and the anchor's weights."""

    tau: float
    alpha: float = 0.0
    beta: float = 0.0


@dataclass(frozen=True, eq=False)
class ColumnLaws:
    """The law of every column: Gamma cells of these means and variances, divided by their sum.

    Attributes:
        rate: (K, K) lambda; a column sums to its size.
        variance: (K, K).
        sizes: (K,) n_i; for a class without rows the concentration of the Dirichlet that has the
            mean and the total variance of its prior.
        hyper: the strength and the anchor they belong to.
        figures: convergence, by name.
    """

    rate: Matrix
    variance: Matrix
    sizes: Vector
    hyper: Hyper
    figures: dict[str, Any] = field(default_factory=dict)

    @property
    def mean(self) -> Matrix:
        """(K, K) E[C] given the validation counts alone."""
        return self.rate / self.rate.sum(axis=0)

    def astype(self, dtype: type) -> ColumnLaws:
        """The same in another precision."""
        return replace(self, rate=self.rate.astype(dtype), variance=self.variance.astype(dtype))


@dataclass
class Sums:
    """What the update of the strengths needs, summed over columns."""

    energy: float = 0.0  # (m - mu)'L(m - mu)
    trace: float = 0.0  # tr(tau L V)
    along: Vector = field(default_factory=lambda: np.zeros(2))  # (e_i, W_i)'L m_i
    gram: Matrix = field(default_factory=lambda: np.zeros((2, 2)))  # of (e_i, W_i) under L
    dimensions: int = 0
    most_sweeps: int = 0
    not_converged: int = 0

    def __iadd__(self, other: Sums) -> Sums:
        for name in ("energy", "trace", "along", "gram", "dimensions", "not_converged"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.most_sweeps = max(self.most_sweeps, other.most_sweeps)
        return self


class Kept(NamedTuple):
    """Where a run writes what it finds, (K, K) each: the cells' rates and variances; if wanted,
    also the Gaussian of every column: its mean, and what its sites add to tau_C L.
    """

    rate: Matrix
    variance: Matrix
    mean: Matrix | None = None
    precision: Matrix | None = None


class _Swept(NamedTuple):
    """Where the sweeps of a block of B columns ended, (K, B) each: the sites' means, precisions and
    slopes, the cells' moments, and the share of each cell's variance that its site takes away."""

    mean: Matrix
    precision: Matrix
    slope: Matrix
    rate: Matrix
    curvature: Matrix
    grounded: Matrix
    sweeps: int
    converged: bool


class ColumnPropagation:
    """Expectation propagation over a problem's columns; remembers where it ended.

    Args:
        exact: invert every column's matrix, in place of belief propagation: O(K^3) a column.
    """

    def __init__(self, problem: Problem, exact: bool = False) -> None:
        n = problem.n_classes
        self.problem, self.n_classes = problem, n
        self.dtype = np.float32 if n >= _SINGLE_PRECISION and not exact else np.float64
        self.field: Field = field_of(problem.graph, self.dtype, exact)
        self.counts = problem.counts.confusion
        self.sizes = problem.column_sizes
        self._ended: dict[bytes, _Swept] = {}
        weights = problem.graph.weights
        self._exchangeable = isinstance(weights, IdentityPlusOnes)
        self._weights: Any = None
        if not isinstance(weights, IdentityPlusOnes):
            self._weights = weights.tocsc()
        if problem.prior.is_anchored:
            degrees = self.field.degrees
            if self._exchangeable:
                self._gram = np.array([degrees, -degrees / n, degrees / n**2])
            else:
                laplacian: Any = problem.graph.laplacian
                image = laplacian @ self._weights
                squares = np.asarray(self._weights.multiply(image).sum(axis=0)).ravel()
                self._gram = np.array([degrees, image.diagonal(), squares])

    def run(
        self,
        hyper: Hyper,
        columns: NDArray[np.int64],
        keep: Kept | None = None,
        tick: Callable[[int], None] = lambda done: None,
    ) -> Sums:
        """Sweep the columns to their fixed points; what was found is written to ``keep``."""
        width = max(1, min(_BLOCK_CELLS // self.n_classes, -(-len(columns) // 2)))
        blocks = [columns[start : start + width] for start in range(0, len(columns), width)]

        def work(block: NDArray[np.int64]) -> Sums:
            found = self._block(hyper, block, keep)
            tick(len(block))
            return found

        total = Sums()
        if len(blocks) == 1:
            total += work(blocks[0])
            return total
        with ThreadPoolExecutor(2) as pool:
            for found in pool.map(work, blocks):
                total += found
        return total

    def _block(self, hyper: Hyper, columns: NDArray[np.int64], keep: Kept | None) -> Sums:
        """One block's fixed point, from where it was last; if there is none, damped from afresh."""
        key = columns.tobytes()
        found = self._sweeps(hyper, columns, self._ended.get(key), damping=1.0)
        if not found.converged:
            found = self._sweeps(hyper, columns, None, damping=_DAMPING)
        self._ended[key] = found
        if keep is not None:
            sizes: Vector = self.sizes[columns].astype(self.dtype)
            # A cell below any that matters must not vanish: ratios of its moments are asked for.
            rate = np.maximum(found.rate, _LEAST_SHARE * sizes)
            keep.rate[:, columns] = rate * (sizes / rate.sum(axis=0))
            keep.variance[:, columns] = np.maximum(rate - found.curvature, _LEAST_VARIANCE * rate)
            if keep.mean is not None and keep.precision is not None:
                keep.mean[:, columns], keep.precision[:, columns] = found.mean, found.precision
        return self._sums(hyper, columns, found)

    def _sweeps(
        self, hyper: Hyper, columns: NDArray[np.int64], start: _Swept | None, damping: float
    ) -> _Swept:
        """Sweep a block until its cells rest; damped, a site goes only so far to its new self."""
        field, dtype, tau = self.field, self.dtype, hyper.tau
        table = empty_cells()
        counts = self.counts[:, columns].tocoo()
        rows, at, values = counts.row, counts.col, counts.data.astype(float)
        cells: Matrix = np.zeros((self.n_classes, len(columns)), dtype=dtype)
        cells[rows, at] = values
        anchored = self.problem.prior.is_anchored
        pull = field.apply(tau, self.anchor(hyper, columns)) if anchored else None
        if start is not None:
            mean, precision, slope = start.mean, start.precision, start.slope
        else:
            even: Vector = (self.sizes[columns] / self.n_classes).astype(dtype)
            mean = np.log(cells + np.minimum(0.3 * even, _PSEUDO_COUNT))
            precision = cells + np.minimum(0.1 * even, _PSEUDO_COUNT)
            slope = np.zeros_like(mean)  # of each site at the mean
        messages = field.start(tau, precision)
        converged = False
        farthest = max(_FARTHEST, _FARTHEST_SDS / float(np.sqrt(tau)))
        for sweep in range(1, _MOST_SWEEPS + 1):
            seen, messages = field.conductance(tau, precision, messages)
            cavity = 1 / seen
            tilted = np.clip(mean - cavity * slope, mean - farthest, mean + farthest)
            rate, curvature = table(tilted, np.sqrt(cavity))
            counted = counted_moments(
                values, tilted[rows, at].astype(float), cavity[rows, at].astype(float)
            )
            rate[rows, at], curvature[rows, at] = counted.rate, counted.curvature
            force = cells - rate
            reached = tilted + cavity * force
            reached[rows, at] = counted.mean  # of a wide cavity no digit would be left
            sharper = np.minimum(curvature, _MOST_CERTAIN * seen)
            sharper /= 1 - cavity * sharper
            sharper[rows, at] = np.maximum(counted.precision, 0)
            variance = 1 / (sharper + seen)
            moved = np.abs(reached - mean) / np.sqrt(variance)
            turned = np.abs(sharper - precision) * variance
            worst = max(float(moved.max()), float(turned.max()))
            linear = force + sharper * (reached - mean)
            if sweep > _DAMPED_FROM:
                damping = _DAMPING
            if damping == 1.0:
                precision = sharper
            else:
                precision = precision + damping * (sharper - precision)
                linear = slope + damping * (linear - slope)
            right = linear - field.apply(tau, mean)
            if pull is not None:
                right += pull
            step = field.solve(tau, precision, right)
            np.clip(step, -_LARGEST_STEP, _LARGEST_STEP, out=step)
            mean = mean + step
            slope = linear - precision * step
            if worst < _TOLERANCE:
                converged = True
                break
        grounded = precision * variance
        return _Swept(mean, precision, slope, rate, curvature, grounded, sweep, converged)

    def anchor(self, hyper: Hyper, columns: NDArray[np.int64]) -> Matrix:
        """alpha e_i + beta W_i for a block of columns, up to levels."""
        here = np.arange(len(columns))
        if self._exchangeable:
            mean = np.zeros((self.n_classes, len(columns)), dtype=self.dtype)
            mean[columns, here] = hyper.alpha - hyper.beta / self.n_classes
            return mean
        mean = (hyper.beta * self._weights[:, columns].toarray()).astype(self.dtype)
        mean[columns, here] += hyper.alpha
        return mean

    def _sums(self, hyper: Hyper, columns: NDArray[np.int64], swept: _Swept) -> Sums:
        mean, grounded = swept.mean, swept.grounded
        found = Sums(dimensions=len(columns) * (self.n_classes - 1), most_sweeps=swept.sweeps)
        found.not_converged = 0 if swept.converged else len(columns)
        image = self.field.apply(1.0, mean)
        found.energy = float(np.einsum("jb,jb->", mean, image, dtype=float))
        found.trace = float(len(columns) * self.n_classes - grounded.sum(dtype=float))
        if self.problem.prior.is_anchored:
            here = np.arange(len(columns))
            own = float(image[columns, here].sum(dtype=float))
            if self._exchangeable:
                near = -own / self.n_classes
            else:
                near = float(self._weights[:, columns].multiply(image).sum())
            aa, ab, bb = self._gram[:, columns].sum(axis=1)
            found.along, found.gram = np.array([own, near]), np.array([[aa, ab], [ab, bb]])
            weights = np.array([hyper.alpha, hyper.beta])
            found.energy += float(weights @ found.gram @ weights - 2 * weights @ found.along)
        return found

    def updated(self, hyper: Hyper, sums: Sums) -> Hyper:
        """The step of expectation maximisation, the hyper-priors in proportion to the columns."""
        prior, n = self.problem.prior, self.n_classes
        share = sums.dimensions / (n * (n - 1))
        rate = share * prior.b_C + (sums.energy + sums.trace / hyper.tau) / 2
        tau = (share * prior.a_C + sums.dimensions / 2) / rate
        if prior.anchor_sd is None:
            return Hyper(tau)
        normal = hyper.tau * sums.gram + share * np.eye(2) / prior.anchor_sd**2
        alpha, beta = np.linalg.solve(normal, hyper.tau * sums.along)
        return Hyper(tau, float(alpha), float(beta))

    def forget(self) -> None:
        """Start the next run from the counts."""
        self._ended.clear()

    def tune(self, hyper: Hyper, columns: NDArray[np.int64]) -> None:
        """Correct the field by what a few of the columns are without approximation."""
        few = int(np.clip(_TUNING_WORK / self.n_classes**3, 1, _MOST_TUNING))
        chosen = columns[np.unique(np.linspace(0, len(columns) - 1, few + 2)[1:-1].astype(int))]
        precisions = []
        for column in chosen:
            self.run(hyper, np.array([column]))
            precisions.append(self._ended[np.array([column]).tobytes()].precision)
        self.field.tune(hyper.tau, np.concatenate(precisions, axis=1).astype(float))


def fit_columns(
    problem: Problem, tick: Callable[[int, int], None] = lambda done, total: None
) -> tuple[ColumnLaws, ColumnPropagation]:
    """Settle tau_C, alpha and beta, then propagate every column; O(K^2 + edges K) a sweep.

    Args:
        problem: only its validation counts, graph and prior are looked at.
        tick: told how many of how many columns are done.

    Returns:
        The laws, and the propagation to go on from.
    """
    n = problem.n_classes
    run = ColumnPropagation(problem)
    known = np.flatnonzero(run.sizes > 0)
    dtype = run.dtype
    rate, variance = np.empty((n, n), dtype=dtype), np.empty((n, n), dtype=dtype)
    start = Hyper(0.05)
    if problem.prior.is_anchored:
        start = Hyper(0.5, *map(float, likely_anchor(problem)))
    sample, sampled = known, len(known) > 2 * _SAMPLE
    if sampled:
        sample = known[np.linspace(0, len(known) - 1, _SAMPLE).astype(int)]
    search = Search(run, sample)
    hyper = start if len(known) else _prior_hyper(problem)
    sums = Sums()
    if len(known):
        hyper = search.settle_tuned(hyper)
        done = 0

        def tell(columns: int) -> None:
            nonlocal done
            done += columns
            tick(done, len(known))

        if sampled:
            run.forget()
        sums = run.run(hyper, known, Kept(rate, variance), tell)
    sizes = run.sizes.copy()
    for i in np.flatnonzero(run.sizes == 0):
        rate[:, i], sizes[i] = _prior_column(run, hyper, int(i))
        variance[:, i] = rate[:, i]
    figures = {
        "tau_C": hyper.tau,
        "alpha": hyper.alpha,
        "beta": hyper.beta,
        "column_sweeps": sums.most_sweeps,
        "columns_not_converged": sums.not_converged,
        "strength_updates": search.updates,
        "strengths_converged": search.converged,
    }
    return ColumnLaws(rate, variance, sizes, hyper, figures), run


class Search:
    """The maximum of the evidence of some columns over tau_C, alpha and beta.

    The slope by log tau_C, alpha and beta following, is stepped along until it changes its sign and
    then brought to zero between the two: expectation maximisation would take thousands of updates,
    for most cells know nothing of tau_C.
    """

    def __init__(self, run: ColumnPropagation, columns: NDArray[np.int64]) -> None:
        self.run, self.columns = run, columns
        self.updates, self.converged = 0, not len(columns)

    def settle_tuned(self, start: Hyper) -> Hyper:
        """Settle; if the field is not exact, correct it there and settle again till both agree."""
        hyper = self.settle(start)
        for _ in range(_TUNINGS if isinstance(self.run.field, LoopyField) else 0):
            self.run.tune(hyper, self.columns)
            before, hyper = hyper, self.settle(hyper, _FIRST_STEP / 3)
            if abs(np.log(hyper.tau / before.tau)) < _TUNED:
                break
        return hyper

    def settle(self, start: Hyper, step: float = _FIRST_STEP) -> Hyper:
        """Bracket the root of the slope, then shrink the bracket by regula falsi (Illinois)."""
        here, slope = self._profile(start)
        for _ in range(_MOST_UPDATES):  # the range of log tau_C ends it sooner
            before, slope_before = here, slope
            reached = np.clip(np.log(here.tau) + np.sign(slope) * step, *_LOG_TAU_RANGE)
            here, slope = self._profile(here._replace(tau=float(np.exp(reached))))
            if slope * slope_before <= 0:
                break
            if reached in _LOG_TAU_RANGE:
                self.converged = True  # columns cannot be rougher, or smoother, than there
                return here
            step *= 2
        else:
            return here  # a slope that is no number, and its status
        one, other = (np.log(before.tau), slope_before), (np.log(here.tau), slope)
        for _ in range(_MOST_UPDATES):
            place = (one[0] * other[1] - other[0] * one[1]) / (other[1] - one[1])
            moved = abs(place - np.log(here.tau))
            here, slope = self._profile(here._replace(tau=float(np.exp(place))))
            if moved < _LOG_TAU_TOLERANCE or abs(other[0] - one[0]) < _LOG_TAU_TOLERANCE:
                self.converged = True
                break
            one = other if slope * other[1] <= 0 else (one[0], one[1] / 2)
            other = (place, slope)
        return here

    def _profile(self, hyper: Hyper) -> tuple[Hyper, float]:
        """The slope by log tau_C where alpha and beta have followed."""
        for _ in range(_MOST_ANCHOR_STEPS):
            self.updates += 1
            sums = self.run.run(hyper, self.columns)
            updated = self.run.updated(hyper, sums)
            moved = np.abs(np.subtract(updated[1:], hyper[1:])).max()
            if moved < _ANCHOR_TOLERANCE:
                break
            hyper = Hyper(hyper.tau, *updated[1:])
        return hyper, float(1 - hyper.tau / updated.tau)


def as_vector(hyper: Hyper) -> Vector:
    """(log tau_C, alpha, beta)."""
    return np.array([np.log(hyper.tau), hyper.alpha, hyper.beta])


def as_hyper(vector: Vector) -> Hyper:
    """From (log tau_C, alpha, beta)."""
    return Hyper(float(np.exp(vector[0])), float(vector[1]), float(vector[2]))


def _prior_hyper(problem: Problem) -> Hyper:
    """Without any validation row: the prior's own means."""
    return Hyper(problem.prior.a_C / problem.prior.b_C)


def _prior_column(run: ColumnPropagation, hyper: Hyper, i: int) -> tuple[Vector, float]:
    """Mean rates and concentration of the Dirichlet nearest to the prior of column i."""
    problem = run.problem
    fields = problem.graph.sample_fields(_PRIOR_DRAWS, np.random.default_rng(i))
    mean = np.zeros(problem.n_classes)
    if problem.prior.is_anchored:
        mean = run.anchor(hyper, np.array([i]))[:, 0].astype(float)
    draws = softmax(mean[:, None] + fields / np.sqrt(hyper.tau))
    share = draws.mean(axis=1)
    spread = draws.var(axis=1).sum() / max((share * (1 - share)).sum(), 1e-12)
    size = float(np.clip(1 / max(spread, 1e-6) - 1, 0.05, 1e4))
    return size * share, size
