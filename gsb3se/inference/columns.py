"""The confusion columns given the validation counts: expectation propagation on Poisson cells.

Give column i a free level: x_i = phi_i + a_i 1, a_i flat. Independent Poisson counts n_ji of rate
exp(x_ji) then have the multinomial column as their conditional law, whatever a_i. So each column is
a log-Gaussian Cox process on the label graph: prior precision tau_C L, one site exp(n x - e^x) a
cell. With the cavity of every cell from :mod:`gsb3se.inference.fields` and its tilted moments from
:mod:`gsb3se.inference.poisson_sites`, a sweep is a Newton step on

    tau_C L (m_i - mu_i) = n_i - lambda_i,    lambda_ji = E[e^{x_ji}],

and half a dozen sweeps reach the fixed point, where sum_j lambda_ji = n_i holds by itself.

Columns are independent given (tau_C, alpha, beta), which maximise the evidence of all of them: the
fixed point of expectation maximisation, found by Anderson's extrapolation. Of many classes a
sample of columns settles them before all columns are run.

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
from gsb3se.inference.fields import Field, field_of
from gsb3se.inference.poisson_sites import counted_moments, empty_cells
from gsb3se.problem import Problem
from gsb3se.simplex import Matrix, Vector, softmax

_TOLERANCE = 3e-3  # of a sweep: change of a cell's mean in its sd, and relative of its variance
_MOST_SWEEPS = 60
_DAMPED_FROM = 20  # sweeps after which only half a step is taken
_LARGEST_STEP = 4.0  # of a cell's mean
_SINGLE_PRECISION = 256  # classes from which the sweeps run in single precision
_BLOCK_CELLS = 1 << 16  # cells that are swept together
_SAMPLE = 96  # columns that settle the strengths when there are more
_HYPER_TOLERANCE = 2e-3
_MOST_UPDATES = 30
_MEMORY = 4  # past updates the extrapolation looks at
_LARGEST_UPDATE = np.array([1.5, 3.0, 3.0])  # of log tau_C, alpha, beta
_LOG_TAU_RANGE = (-9.0, 7.0)
_SCALE_RANGE = (0.05, 2.0)  # of the correction for dependence within a column
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


class ColumnPropagation:
    """Expectation propagation over a problem's columns; remembers where it ended."""

    def __init__(self, problem: Problem, exact: bool = False) -> None:
        n = problem.n_classes
        self.problem, self.n_classes = problem, n
        self.dtype = np.float32 if n >= _SINGLE_PRECISION and not exact else np.float64
        self.field: Field = field_of(problem.graph, self.dtype)
        self.counts = problem.counts.confusion
        self.sizes = problem.column_sizes
        self._mean: dict[int, Matrix] = {}
        self._precision: dict[int, Matrix] = {}
        weights = problem.graph.weights
        self._exchangeable = isinstance(weights, IdentityPlusOnes)
        self._weights = weights if self._exchangeable else weights.tocsc()
        if problem.prior.is_anchored:
            image = problem.graph.laplacian @ weights if not self._exchangeable else None
            degrees = self.field.degrees
            if image is None:
                self._gram = np.array([degrees, -degrees / n, degrees / n**2])
            else:
                squares = np.asarray(weights.multiply(image).sum(axis=0)).ravel()
                self._gram = np.array([degrees, image.diagonal(), squares])

    def run(
        self,
        hyper: Hyper,
        columns: NDArray[np.int64],
        keep: tuple[Matrix, Matrix] | None = None,
        tick: Callable[[int], None] = lambda done: None,
    ) -> Sums:
        """Sweep the columns to their fixed points; rates and variances are written to ``keep``."""
        width = max(1, _BLOCK_CELLS // self.n_classes)
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

    def _block(
        self, hyper: Hyper, columns: NDArray[np.int64], keep: tuple[Matrix, Matrix] | None
    ) -> Sums:
        field, dtype, tau = self.field, self.dtype, hyper.tau
        table = empty_cells()
        counts = self.counts[:, columns].tocoo()
        rows, at, values = counts.row, counts.col, counts.data.astype(float)
        cells = np.zeros((self.n_classes, len(columns)), dtype=dtype)
        cells[rows, at] = values
        sizes = self.sizes[columns].astype(dtype)
        anchored = self.problem.prior.is_anchored
        pull = field.apply(tau, self._anchor(hyper, columns)) if anchored else None

        key = int(columns[0]) * self.n_classes + len(columns)
        if key in self._mean:
            mean, precision = self._mean[key], self._precision[key]
        else:
            mean = np.log(cells + (0.3 / self.n_classes) * sizes)
            precision = cells + (0.1 / self.n_classes) * sizes
        messages = field.start(tau, precision)
        # The slope of each site at the mean; where a run ended it balances the field's force.
        slope = np.zeros_like(mean)
        if key in self._mean:
            slope = field.apply(tau, mean)
            if pull is not None:
                slope -= pull
        damping, converged = 1.0, False
        for sweep in range(1, _MOST_SWEEPS + 1):
            seen, messages = field.conductance(tau, precision, messages)
            cavity = 1 / seen
            tilted = mean - cavity * slope
            rate, curvature = table(tilted, np.sqrt(cavity))
            rate[rows, at], curvature[rows, at] = counted_moments(
                values, tilted[rows, at].astype(float), cavity[rows, at].astype(float)
            )
            force = cells - rate
            reached = tilted + cavity * force
            sharper = curvature / (1 - cavity * curvature)
            variance = 1 / (sharper + seen)
            moved = np.abs(reached - mean) / np.sqrt(variance)
            turned = np.abs(sharper - precision) * variance
            worst = max(float(moved.max()), float(turned.max()))
            if sweep > _DAMPED_FROM:
                damping = 0.5
            precision = sharper if damping == 1.0 else precision + damping * (sharper - precision)
            linear = force + precision * (reached - mean)
            right = linear - field.apply(tau, mean)
            if pull is not None:
                right += pull
            step = field.solve(tau, precision, right)
            np.clip(step, -_LARGEST_STEP, _LARGEST_STEP, out=step)
            if damping < 1.0:
                step *= damping
            mean = mean + step
            slope = linear - precision * step
            if worst < _TOLERANCE:
                converged = True
                break
        self._mean[key], self._precision[key] = mean, precision
        if keep is not None:
            keep[0][:, columns] = rate * (sizes / rate.sum(axis=0))
            keep[1][:, columns] = independent_variances(rate, curvature)
        return self._sums(hyper, columns, mean, precision * variance, sweep, converged)

    def _anchor(self, hyper: Hyper, columns: NDArray[np.int64]) -> Matrix:
        """alpha e_i + beta W_i for a block of columns, up to levels."""
        here = np.arange(len(columns))
        if self._exchangeable:
            mean = np.zeros((self.n_classes, len(columns)), dtype=self.dtype)
            mean[columns, here] = hyper.alpha - hyper.beta / self.n_classes
            return mean
        mean = (hyper.beta * self._weights[:, columns].toarray()).astype(self.dtype)
        mean[columns, here] += hyper.alpha
        return mean

    def _sums(
        self,
        hyper: Hyper,
        columns: NDArray[np.int64],
        mean: Matrix,
        grounded: Matrix,
        sweeps: int,
        converged: bool,
    ) -> Sums:
        found = Sums(dimensions=len(columns) * (self.n_classes - 1), most_sweeps=sweeps)
        found.not_converged = 0 if converged else len(columns)
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
        self._mean.clear()
        self._precision.clear()

    def typical_precision(self) -> Vector:
        """(K,) mean precision of the cells without counts, of what was run so far."""
        parts = (p.ravel()[:: max(1, p.size // 4096)] for p in self._precision.values())
        cells = np.concatenate(list(parts))
        low = cells[cells <= np.quantile(cells, 0.9)]
        return np.full(self.n_classes, float(low.mean(dtype=float)))


def independent_variances(rate: Matrix, curvature: Matrix) -> Matrix:
    """Variances of independent cells whose shares of their sum vary as much as those of the field.

    The cells of a field go together: Cov(e^x) has the row sums lambda, while its diagonal is
    lambda - kappa. Since the sum of a column is independent of its shares,
    n (n + 1) Var(c_j) = lambda_j - kappa_j - lambda_j^2 / n. Independent cells of variances w_j have
    n^2 Var(c_j) = w_j (1 - 2 c_j) + c_j^2 sum(w) to first order; w is lambda - kappa, scaled so that
    the two agree when summed over the column.
    """
    cells = np.maximum(rate - curvature, 1e-12 * rate)
    size = rate.sum(axis=0)
    share = rate / size
    total, squares = cells.sum(axis=0), np.square(share).sum(axis=0)
    wanted = total - size * squares
    given = total - 2 * (cells * share).sum(axis=0) + total * squares
    return cells * np.clip(wanted / given, *_SCALE_RANGE)


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
    sample = known[np.unique(np.linspace(0, len(known) - 1, _SAMPLE).astype(int))]
    search = Search(run, sample if len(known) > 2 * _SAMPLE else known)
    hyper = search.settle(start) if len(known) else _prior_hyper(problem)
    sums = Sums()
    if len(known):
        run.field.tune(hyper.tau, run.typical_precision())
        done = 0

        def tell(columns: int) -> None:
            nonlocal done
            done += columns
            tick(done, len(known))

        if len(known) > 2 * _SAMPLE:
            run.forget()
        sums = run.run(hyper, known, (rate, variance), tell)
    sizes = run.sizes.copy()
    for i in np.flatnonzero(run.sizes == 0):
        rate[:, i], sizes[i] = _prior_column(problem, hyper, int(i))
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
    """The fixed point of the strengths' updates over some columns, by Anderson's extrapolation."""

    def __init__(self, run: ColumnPropagation, columns: NDArray[np.int64]) -> None:
        self.run, self.columns = run, columns
        self.updates, self.converged = 0, not len(columns)

    def settle(self, start: Hyper) -> Hyper:
        """Update until nothing moves."""
        at = as_vector(start)
        points: list[Vector] = []
        changes: list[Vector] = []
        for self.updates in range(1, _MOST_UPDATES + 1):
            hyper = as_hyper(at)
            sums = self.run.run(hyper, self.columns)
            change = as_vector(self.run.updated(hyper, sums)) - at
            points.append(at)
            changes.append(change)
            if np.abs(change).max() < _HYPER_TOLERANCE:
                self.converged = True
                return hyper
            step = _extrapolated(points[-_MEMORY:], changes[-_MEMORY:])
            at = at + np.clip(step, -_LARGEST_UPDATE, _LARGEST_UPDATE)
            at[0] = np.clip(at[0], *_LOG_TAU_RANGE)
        return hyper


def _extrapolated(points: list[Vector], changes: list[Vector]) -> Vector:
    """The step to where the changes, linear in the points, would vanish."""
    change = changes[-1]
    if len(points) == 1:
        return change
    moved = np.diff(np.array(points), axis=0).T
    turned = np.diff(np.array(changes), axis=0).T
    weights = np.linalg.lstsq(turned, change, rcond=1e-6)[0]
    return change - (moved + turned) @ weights


def as_vector(hyper: Hyper) -> Vector:
    """(log tau_C, alpha, beta)."""
    return np.array([np.log(hyper.tau), hyper.alpha, hyper.beta])


def as_hyper(vector: Vector) -> Hyper:
    """From (log tau_C, alpha, beta)."""
    return Hyper(float(np.exp(vector[0])), float(vector[1]), float(vector[2]))


def _prior_hyper(problem: Problem) -> Hyper:
    """Without any validation row: the prior's own means."""
    return Hyper(problem.prior.a_C / problem.prior.b_C)


def _prior_column(problem: Problem, hyper: Hyper, i: int) -> tuple[Vector, float]:
    """Mean rates and concentration of the Dirichlet nearest to the prior of column i."""
    fields = problem.graph.sample_fields(_PRIOR_DRAWS, np.random.default_rng(i))
    mean = np.zeros(problem.n_classes)
    if problem.prior.is_anchored:
        weights = problem.graph.weights
        if isinstance(weights, IdentityPlusOnes):
            mean[i] = hyper.alpha - hyper.beta / problem.n_classes
        else:
            mean = hyper.beta * weights[:, [i]].toarray().ravel()
            mean[i] += hyper.alpha
    draws = softmax(mean[:, None] + fields / np.sqrt(hyper.tau))
    share = draws.mean(axis=1)
    spread = draws.var(axis=1).sum() / max((share * (1 - share)).sum(), 1e-12)
    size = float(np.clip(1 / max(spread, 1e-6) - 1, 0.05, 1e4))
    return size * share, size
