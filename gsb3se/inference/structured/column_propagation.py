"""The confusion columns given the validation counts: expectation propagation on Poisson cells.

Give column i a free level: x_i = phi_i + a_i 1, a_i flat. Independent Poisson counts n_ji of rate
exp(x_ji) then have the multinomial column as their conditional law, whatever a_i. So each column is
a log-Gaussian Cox process on the label graph: prior precision tau_C L, one site exp(n x - e^x) a
cell. With the cavity of every cell from :mod:`gsb3se.inference.structured.graph_solver` and its
tilted moments from :mod:`gsb3se.inference.structured.poisson_cells`, a sweep is a Newton step on

    tau_C L (m_i - mu_i) = n_i - lambda_i,    lambda_ji = E[e^{x_ji}],

and half a dozen sweeps reach the fixed point, where sum_j lambda_ji = n_i holds by itself.

What the target needs of a column is its law: cells e^{x_ji} of mean lambda_ji and variance
lambda_ji - kappa_ji, independent Gammas, divided by their sum.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gsb3se.inference.structured.column_laws import ColumnOutput, ColumnParameters, ColumnSums
from gsb3se.inference.structured.graph_solver import GraphSolver, graph_solver
from gsb3se.inference.structured.poisson_cells import (
    EmptyCellTable,
    counted_moments,
    empty_cell_table,
)
from gsb3se.model.source_problem import SourceProblem
from gsb3se.support.limits import SINGLE_PRECISION_COLUMNS
from gsb3se.support.simplex import Matrix, Vector

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
_BLOCK_CELLS = 1 << 16  # cells that are swept together
_TUNING_WORK, _MOST_TUNING = 8e9, 12  # classes cubed times columns; columns


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


class _Sites(NamedTuple):
    """The cells' sites as they follow from their cavities, (K, B) each.

    Attributes:
        rate, curvature: moments of the tilted cells.
        force: n - rate; reached: the tilted means; precision: of the sites.
    """

    rate: Matrix
    curvature: Matrix
    force: Matrix
    reached: Matrix
    precision: Matrix


class _Block(NamedTuple):
    """The counts of B columns: nearly all cells are empty, and the others are few.

    Attributes:
        cells: (K, B) counts; rows, at, values: of the counted ones.
        even: (B,) the columns' sizes over K.
        table: moments of empty cells.
    """

    cells: Matrix
    rows: NDArray[np.int64]
    at: NDArray[np.int64]
    values: Vector
    even: Vector
    table: EmptyCellTable

    @classmethod
    def of(cls, source: SourceProblem, columns: NDArray[np.int64], dtype: type) -> _Block:
        counts = source.counts.confusion[:, columns].tocoo()
        rows, at, values = counts.row, counts.col, counts.data.astype(float)
        cells: Matrix = np.zeros((source.n_classes, len(columns)), dtype=dtype)
        cells[rows, at] = values
        even: Vector = (source.column_sizes[columns] / source.n_classes).astype(dtype)
        return cls(cells, rows, at, values, even, empty_cell_table())

    def start(self) -> tuple[Matrix, Matrix, Matrix]:
        """Means, precisions and slopes of the sites to begin with."""
        mean = np.log(self.cells + np.minimum(0.3 * self.even, _PSEUDO_COUNT))
        precision = self.cells + np.minimum(0.1 * self.even, _PSEUDO_COUNT)
        return mean, precision, np.zeros_like(mean)

    def moments(self, tilted: Matrix, cavity: Matrix, cavity_precision: Matrix) -> _Sites:
        """The sites given their cavities' means, variances and precisions."""
        rows, at = self.rows, self.at
        rate, curvature = self.table(tilted, np.sqrt(cavity))
        counted = counted_moments(
            self.values, tilted[rows, at].astype(float), cavity[rows, at].astype(float)
        )
        rate[rows, at], curvature[rows, at] = counted.rate, counted.curvature
        force = self.cells - rate
        reached = tilted + cavity * force
        reached[rows, at] = counted.mean  # of a wide cavity no digit would be left
        precision = np.minimum(curvature, _MOST_CERTAIN * cavity_precision)
        precision /= 1 - cavity * precision
        precision[rows, at] = np.maximum(counted.precision, 0)
        return _Sites(rate, curvature, force, reached, precision)


class ColumnPropagation:
    """Expectation propagation over a source's columns; remembers where it ended.

    Args:
        source: validation counts, graph and prior.
        exact: invert every column's matrix, in place of belief propagation: O(K^3) a column.
    """

    def __init__(self, source: SourceProblem, exact: bool = False) -> None:
        n = source.n_classes
        self.source, self.n_classes = source, n
        single = n >= SINGLE_PRECISION_COLUMNS and not exact
        self.dtype = np.float32 if single else np.float64
        self.solver: GraphSolver = graph_solver(source.graph, self.dtype, exact)
        self.sizes = source.column_sizes
        self._ended: dict[bytes, _Swept] = {}
        if source.column_mean.n_weights:
            self._gram = source.column_mean.gram(self.solver.degrees)

    def run(
        self,
        parameters: ColumnParameters,
        columns: NDArray[np.int64],
        output: ColumnOutput | None = None,
        tick: Callable[[int], None] = lambda done: None,
    ) -> ColumnSums:
        """Sweep the columns to their fixed points, and write these to ``output``.

        Args:
            tick: is told how many more columns are done.
        """
        width = max(1, min(_BLOCK_CELLS // self.n_classes, -(-len(columns) // 2)))
        blocks = [columns[start : start + width] for start in range(0, len(columns), width)]

        def work(block: NDArray[np.int64]) -> ColumnSums:
            sums = self._block(parameters, block, output)
            tick(len(block))
            return sums

        total = ColumnSums()
        if len(blocks) == 1:
            total += work(blocks[0])
            return total
        with ThreadPoolExecutor(2) as pool:
            for sums in pool.map(work, blocks):
                total += sums
        return total

    def _block(
        self,
        parameters: ColumnParameters,
        columns: NDArray[np.int64],
        output: ColumnOutput | None,
    ) -> ColumnSums:
        """One block's fixed point, from where it was last; if there is none, damped from afresh."""
        key = columns.tobytes()
        swept = self._sweeps(parameters, columns, self._ended.get(key), damping=1.0)
        if not swept.converged:
            swept = self._sweeps(parameters, columns, None, damping=_DAMPING)
        self._ended[key] = swept
        if output is not None:
            sizes: Vector = self.sizes[columns].astype(self.dtype)
            # Even a negligible rate must stay positive: later code divides by it.
            rate = np.maximum(swept.rate, _LEAST_SHARE * sizes)
            output.rate[:, columns] = rate * (sizes / rate.sum(axis=0))
            output.variance[:, columns] = np.maximum(rate - swept.curvature, _LEAST_VARIANCE * rate)
            if output.mean is not None and output.precision is not None:
                output.mean[:, columns] = swept.mean
                output.precision[:, columns] = swept.precision
        return self._sums(parameters, columns, swept)

    def _sweeps(
        self,
        parameters: ColumnParameters,
        columns: NDArray[np.int64],
        start: _Swept | None,
        damping: float,
    ) -> _Swept:
        """Sweep a block to convergence; each site moves by ``damping`` times its update."""
        solver, tau = self.solver, parameters.tau
        block = _Block.of(self.source, columns, self.dtype)
        pull = None
        if self.source.column_mean.n_weights:
            pull = solver.apply(tau, self.mean_of(parameters, columns))
        if start is not None:
            mean, precision, slope = start.mean, start.precision, start.slope
        else:
            mean, precision, slope = block.start()
        messages = solver.start(tau, precision)
        converged = False
        farthest = max(_FARTHEST, _FARTHEST_SDS / float(np.sqrt(tau)))
        for sweep in range(1, _MOST_SWEEPS + 1):
            cavity_precision, messages = solver.conductance(tau, precision, messages)
            cavity = 1 / cavity_precision
            tilted = np.clip(mean - cavity * slope, mean - farthest, mean + farthest)
            site = block.moments(tilted, cavity, cavity_precision)
            variance = 1 / (site.precision + cavity_precision)
            moved = np.abs(site.reached - mean) / np.sqrt(variance)
            turned = np.abs(site.precision - precision) * variance
            worst = max(float(moved.max()), float(turned.max()))
            linear = site.force + site.precision * (site.reached - mean)
            if sweep > _DAMPED_FROM:
                damping = _DAMPING
            if damping == 1.0:
                precision = site.precision
            else:
                precision = precision + damping * (site.precision - precision)
                linear = slope + damping * (linear - slope)
            right = linear - solver.apply(tau, mean)
            if pull is not None:
                right += pull
            step = solver.solve(tau, precision, right)
            np.clip(step, -_LARGEST_STEP, _LARGEST_STEP, out=step)
            mean = mean + step
            slope = linear - precision * step
            if worst < _TOLERANCE:
                converged = True
                break
        grounded = precision * variance
        return _Swept(mean, precision, slope, site.rate, site.curvature, grounded, sweep, converged)

    def mean_of(self, parameters: ColumnParameters, columns: NDArray[np.int64]) -> Matrix:
        """The prior mean of a block of columns, (K, B), up to levels."""
        weights = parameters.alpha, parameters.beta
        return self.source.column_mean.columns(*weights, columns, self.dtype)

    def _sums(
        self, parameters: ColumnParameters, columns: NDArray[np.int64], swept: _Swept
    ) -> ColumnSums:
        """What these columns contribute to the next update of the parameters."""
        mean, grounded = swept.mean, swept.grounded
        sums = ColumnSums(dimensions=len(columns) * (self.n_classes - 1), most_sweeps=swept.sweeps)
        sums.not_converged = 0 if swept.converged else len(columns)
        image = self.solver.apply(1.0, mean)
        sums.energy = float(np.einsum("jb,jb->", mean, image, dtype=float))
        sums.trace = float(len(columns) * self.n_classes - grounded.sum(dtype=float))
        if self.source.column_mean.n_weights:
            aa, ab, bb = self._gram[:, columns].sum(axis=1)
            sums.along = self.source.column_mean.along(columns, image)
            sums.gram = np.array([[aa, ab], [ab, bb]])
            weights = np.array([parameters.alpha, parameters.beta])
            sums.energy += float(weights @ sums.gram @ weights - 2 * weights @ sums.along)
        return sums

    def updated(self, parameters: ColumnParameters, sums: ColumnSums) -> ColumnParameters:
        """The step of expectation maximisation, the hyper-priors in proportion to the columns."""
        prior, n = self.source.prior, self.n_classes
        share = sums.dimensions / (n * (n - 1))
        rate = share * prior.b_C + (sums.energy + sums.trace / parameters.tau) / 2
        tau = (share * prior.a_C + sums.dimensions / 2) / rate
        if prior.anchor_sd is None:
            return ColumnParameters(tau)
        normal = parameters.tau * sums.gram + share * np.eye(2) / prior.anchor_sd**2
        alpha, beta = np.linalg.solve(normal, parameters.tau * sums.along)
        return ColumnParameters(tau, float(alpha), float(beta))

    def forget(self) -> None:
        """Start the next run from the counts."""
        self._ended.clear()

    def tune(self, parameters: ColumnParameters, columns: NDArray[np.int64]) -> None:
        """Correct the solver by what a few of the columns are without approximation."""
        few = int(np.clip(_TUNING_WORK / self.n_classes**3, 1, _MOST_TUNING))
        chosen = columns[np.unique(np.linspace(0, len(columns) - 1, few + 2)[1:-1].astype(int))]
        precisions = []
        for column in chosen:
            self.run(parameters, np.array([column]))
            precisions.append(self._ended[np.array([column]).tobytes()].precision)
        self.solver.tune(parameters.tau, np.concatenate(precisions, axis=1).astype(float))
