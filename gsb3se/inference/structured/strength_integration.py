"""How well the counts know (tau_C, alpha, beta), and the columns around their best values.

The slope of the log evidence by (log tau_C, alpha, beta) comes with every run of the columns. Its
differences give the curvature at the maximum, hence axes and widths. Along the axes that are wide
enough to matter the columns are run at both sides; in between their logarithms are interpolated.
The evidence of a target then gives a mean and a variance along each axis, and the axes are
integrated out by sigma points: places of equal weight with that mean and variance, each with its
own columns' laws.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gsb3se.inference.structured.column_laws import (
    ColumnLaws,
    ColumnOutput,
    ColumnParameters,
    ColumnSums,
)
from gsb3se.inference.structured.column_propagation import ColumnPropagation
from gsb3se.support.simplex import Matrix, Vector

_DIFFERENCE = np.array([0.15, 0.3, 0.3])
_WIDE = 0.2  # length of an axis from which it is integrated over
_WIDEST = 1.2  # of an axis
_REACH = 1.2  # of the two sides, in widths
_LEAST_CURVATURE = 0.25  # of the evidence along an axis, in units of the columns' own
_FARTHEST = 2.5  # widths that the interpolation may be asked for
_ROUNDED = 1.5  # a variance may exceed its rate by so much before its law counts as impossible


class Axis(NamedTuple):
    """A direction of (log tau_C, alpha, beta), one width long, and both of its sides."""

    direction: Vector
    sides: tuple[ColumnLaws, ColumnLaws]
    log_evidence: tuple[float, float]  # of the sides, relative to the middle


@dataclass(frozen=True, eq=False)
class Spread:
    """The columns' laws at the best strengths, and the axes along which these are uncertain.

    Attributes:
        middle: the laws at the best strengths; axes: the wide directions.
        curvature: of the log evidence by the free ones of (log tau_C, alpha, beta), if it is known.
    """

    middle: ColumnLaws
    axes: tuple[Axis, ...] = ()
    curvature: Matrix = field(default_factory=lambda: np.zeros((0, 0)))

    def laws_at(self, place: Vector) -> ColumnLaws:
        """The laws at a place on the axes, in widths.

        Beyond the sides the parabolas through them may leave what is possible, Var(g) <= E g; then
        the place is taken nearer.
        """
        if not np.any(place):
            return self.middle
        place = np.clip(place, -_FARTHEST, _FARTHEST)
        laws = self._on_parabolas(place)
        while not (laws.variance <= _ROUNDED * laws.rate).all():
            if not np.abs(place).max() >= _REACH / 2:
                break
            place = place / 2
            laws = self._on_parabolas(place)
        return laws

    def _on_parabolas(self, place: Vector) -> ColumnLaws:
        """Log rates and log variances on parabolas through the middle and both sides."""
        middle = self.middle
        log_rate, log_variance = np.log(middle.rate), np.log(middle.variance)
        rate, variance = log_rate.copy(), log_variance.copy()
        vector = middle.parameters.vector
        for axis, t in zip(self.axes, place, strict=True):
            low, high = axis.sides
            slope, bend = t / (2 * _REACH), t**2 / (2 * _REACH**2)
            for value, centre, name in (
                (rate, log_rate, "rate"),
                (variance, log_variance, "variance"),
            ):
                below, above = np.log(getattr(low, name)), np.log(getattr(high, name))
                value += slope * (above - below) + bend * (above + below - 2 * centre)
            vector = vector + t * axis.direction
        with np.errstate(over="ignore"):
            rate = np.exp(rate)
            scale = (middle.sizes / rate.sum(axis=0)).astype(rate.dtype)
            return ColumnLaws(
                rate * scale, np.exp(variance), middle.sizes, ColumnParameters.of(vector)
            )

    def sigma_points(self, log_target: list[tuple[float, float]]) -> list[Vector]:
        """Places of equal weight that have the mean and variance of the strengths given a target.

        Args:
            log_target: for each axis the target's log evidence at both sides, relative to the
                middle.
        """
        if not self.axes:
            return [np.zeros(0)]
        centre, width = np.zeros(len(self.axes)), np.ones(len(self.axes))
        for k, (axis, of_target) in enumerate(zip(self.axes, log_target, strict=True)):
            low, high = (a + b for a, b in zip(axis.log_evidence, of_target, strict=True))
            curvature = max(-(low + high) / _REACH**2, _LEAST_CURVATURE)
            centre[k] = np.clip((high - low) / (2 * _REACH) / curvature, -_REACH, _REACH)
            width[k] = 1 / np.sqrt(curvature)
        steps = np.sqrt(len(self.axes)) * np.diag(width)
        return [centre + sign * step for step in steps for sign in (-1, 1)]


def spread_of(
    propagation: ColumnPropagation, middle: ColumnLaws, columns: NDArray[np.int64]
) -> Spread:
    """Run the columns beside the best strengths, and along the wide axes at both sides."""
    at = middle.parameters.vector
    n_free = 1 + propagation.source.column_mean.n_weights
    slope = _slope(propagation, middle.parameters, columns)
    hessian = np.empty((n_free, n_free))
    for k in range(n_free):
        beside = at.copy()
        beside[k] += _DIFFERENCE[k]
        moved = _slope(propagation, ColumnParameters.of(beside), columns)
        hessian[k] = (slope - moved)[:n_free] / _DIFFERENCE[k]
    values, vectors = np.linalg.eigh((hessian + hessian.T) / 2)
    values = np.maximum(values, _WIDEST**-2)
    widths = 1 / np.sqrt(values)
    axes = []
    for width, vector in zip(widths, vectors.T, strict=True):
        if width < _WIDE:
            continue
        direction = np.zeros(3)
        direction[:n_free] = width * vector
        sides, evidence = [], []
        for sign in (-1, 1):
            step = sign * _REACH * direction
            laws, reached = _laws(propagation, middle, ColumnParameters.of(at + step), columns)
            sides.append(laws)
            evidence.append(float(step @ (slope + reached) / 2))
        axes.append(Axis(direction, (sides[0], sides[1]), (evidence[0], evidence[1])))
    return Spread(middle, tuple(axes), (vectors * values) @ vectors.T)


def _slope(
    propagation: ColumnPropagation, parameters: ColumnParameters, columns: NDArray[np.int64]
) -> Vector:
    return slope_of_evidence(propagation, parameters, propagation.run(parameters, columns))


def slope_of_evidence(
    propagation: ColumnPropagation, parameters: ColumnParameters, sums: ColumnSums
) -> Vector:
    """Slope of log p(counts, strengths) by (log tau_C, alpha, beta), (3,).

    By log tau_C: the shape less tau_C times the rate of its conditional; by the weights the force
    of the columns on them.
    """
    updated = propagation.updated(parameters, sums)
    prior = propagation.source.prior
    shape = prior.a_C + sums.dimensions / 2
    slope = np.array([shape * (1 - parameters.tau / updated.tau), 0.0, 0.0])
    if prior.anchor_sd is not None:
        normal: Matrix = parameters.tau * sums.gram + np.eye(2) / prior.anchor_sd**2
        slope[1:] = normal @ (np.array(updated[1:]) - np.array(parameters[1:]))
    return slope


def _laws(
    propagation: ColumnPropagation,
    middle: ColumnLaws,
    parameters: ColumnParameters,
    columns: NDArray[np.int64],
) -> tuple[ColumnLaws, Vector]:
    """The laws at other parameters, and the slope of the evidence there."""
    output = ColumnOutput(middle.rate.copy(), middle.variance.copy())
    sums = propagation.run(parameters, columns, output)
    laws = ColumnLaws(output.rate, output.variance, middle.sizes, parameters)
    return laws, slope_of_evidence(propagation, parameters, sums)
