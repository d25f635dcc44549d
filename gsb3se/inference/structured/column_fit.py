"""tau_C, alpha and beta by the evidence of the columns, and the columns at their best values.

Columns are independent given (tau_C, alpha, beta), which maximise the evidence of all of them. Of
many classes a sample of columns settles them before all columns are run.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gsb3se.inference.structured.column_laws import (
    ColumnLaws,
    ColumnOutput,
    ColumnParameters,
    ColumnReport,
    ColumnSums,
)
from gsb3se.inference.structured.column_propagation import ColumnPropagation
from gsb3se.inference.structured.graph_solver import LoopySolver
from gsb3se.model.source_problem import SourceProblem
from gsb3se.model.starting_values import column_mean_weights
from gsb3se.support.simplex import Vector, softmax

_SAMPLE = 96  # columns that settle the parameters when there are more than twice as many
_FIRST_STEP = 0.5  # of log tau_C
_LOG_TAU_TOLERANCE = 0.02
_WEIGHT_TOLERANCE = 0.05
_MOST_UPDATES, _MOST_WEIGHT_STEPS = 20, 4
_LOG_TAU_RANGE = (-9.0, 7.0)
_TUNINGS, _TUNED = 3, 0.05  # at most, and the change of log tau_C at which it is enough
_PRIOR_DRAWS = 200  # fields behind the law of a column without counts
_FIRST_TAU, _FIRST_ANCHORED_TAU = 0.05, 0.5


def fit_columns(
    source: SourceProblem, tick: Callable[[int, int], None] = lambda done, total: None
) -> tuple[ColumnLaws, ColumnReport, ColumnPropagation]:
    """Settle tau_C, alpha and beta, then propagate every column; O(K^2 + edges K) a sweep.

    Args:
        tick: is told how many of how many columns are done.

    Returns:
        The laws, how it went, and the propagation to go on from.
    """
    propagation = ColumnPropagation(source)
    seen = np.flatnonzero(propagation.sizes > 0)  # columns with validation rows
    output = ColumnOutput.laws(source.n_classes, propagation.dtype)
    start = ColumnParameters(_FIRST_TAU)
    if source.column_mean.n_weights:
        start = ColumnParameters(_FIRST_ANCHORED_TAU, *map(float, column_mean_weights(source)))
    sample, is_sampled = seen, len(seen) > 2 * _SAMPLE
    if is_sampled:
        sample = seen[np.linspace(0, len(seen) - 1, _SAMPLE).astype(int)]
    search = EvidenceSearch(propagation, sample)
    parameters, sums = prior_parameters(source), ColumnSums()
    if len(seen):
        parameters = search.settle_tuned(start)
        done = 0

        def advance(columns: int) -> None:
            nonlocal done
            done += columns
            tick(done, len(seen))

        if is_sampled:
            propagation.forget()
        sums = propagation.run(parameters, seen, output, advance)
    sizes = propagation.sizes.copy()
    for i in np.flatnonzero(propagation.sizes == 0):
        output.rate[:, i], sizes[i] = _prior_column(propagation, parameters, int(i))
        output.variance[:, i] = output.rate[:, i]
    report = ColumnReport(
        parameters, sums.most_sweeps, sums.not_converged, search.updates, search.converged
    )
    return ColumnLaws(output.rate, output.variance, sizes, parameters), report, propagation


class EvidenceSearch:
    """The maximum of the evidence of some columns over tau_C, alpha and beta.

    Steps in log tau_C, with alpha and beta refitted at each, go uphill until the slope changes its
    sign; regula falsi then finds its root. Expectation maximisation would take thousands of
    updates, because most cells hold no information about tau_C.

    Attributes:
        updates: evaluations of the slope so far; converged: whether the last search ended by
            itself.
    """

    def __init__(self, propagation: ColumnPropagation, columns: NDArray[np.int64]) -> None:
        self.propagation, self.columns = propagation, columns
        self.updates, self.converged = 0, not len(columns)

    def settle_tuned(self, start: ColumnParameters) -> ColumnParameters:
        """Settle; if the solver is not exact, correct it there and settle again till both agree."""
        here = self.settle(start)
        loopy = isinstance(self.propagation.solver, LoopySolver)
        for _ in range(_TUNINGS if loopy else 0):
            self.propagation.tune(here, self.columns)
            before, here = here, self.settle(here, _FIRST_STEP / 3)
            if abs(np.log(here.tau / before.tau)) < _TUNED:
                break
        return here

    def settle(self, start: ColumnParameters, step: float = _FIRST_STEP) -> ColumnParameters:
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

    def _profile(self, parameters: ColumnParameters) -> tuple[ColumnParameters, float]:
        """The slope by log tau_C where alpha and beta have followed."""
        for _ in range(_MOST_WEIGHT_STEPS):
            self.updates += 1
            sums = self.propagation.run(parameters, self.columns)
            updated = self.propagation.updated(parameters, sums)
            moved = np.abs(np.subtract(updated[1:], parameters[1:])).max()
            if moved < _WEIGHT_TOLERANCE:
                break
            parameters = ColumnParameters(parameters.tau, *updated[1:])
        return parameters, float(1 - parameters.tau / updated.tau)


def prior_parameters(source: SourceProblem) -> ColumnParameters:
    """Without any validation row: the prior's own means."""
    return ColumnParameters(source.prior.a_C / source.prior.b_C)


def _prior_column(
    propagation: ColumnPropagation, parameters: ColumnParameters, i: int
) -> tuple[Vector, float]:
    """Mean rates and concentration of the Dirichlet nearest to the prior of column i."""
    source = propagation.source
    fields = source.graph.sample_fields(_PRIOR_DRAWS, np.random.default_rng(i))
    mean = np.zeros(source.n_classes)
    if source.column_mean.n_weights:
        mean = propagation.mean_of(parameters, np.array([i]))[:, 0].astype(float)
    draws = softmax(mean[:, None] + fields / np.sqrt(parameters.tau))
    share = draws.mean(axis=1)
    spread = draws.var(axis=1).sum() / max((share * (1 - share)).sum(), 1e-12)
    size = float(np.clip(1 / max(spread, 1e-6) - 1, 0.05, 1e4))
    return size * share, size
