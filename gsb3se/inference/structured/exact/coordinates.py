"""Where the whole posterior is, cell by cell, as far as the structured stages know.

Two maps from white noise to the posterior are made of it: the exact chains'
(:mod:`gsb3se.inference.structured.exact.density`) and the variational guide's. Arrays of cells are
(true i, predicted j).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gsb3se.inference.structured.column_laws import (
    ColumnLaws,
    ColumnOutput,
    ColumnParameters,
)
from gsb3se.inference.structured.column_propagation import ColumnPropagation
from gsb3se.inference.structured.exact.hinges import Array, Hinges, fit_hinges
from gsb3se.inference.structured.share_mode import ShareGaussian
from gsb3se.model.problem import Problem
from gsb3se.model.source_problem import SourceProblem
from gsb3se.support.simplex import Matrix, Vector, softmax

_STEP = 0.3  # of a strength, for differences
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(32)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()
_PIVOT = 3.0  # normal score of a wall, about which its cell's spread grows and shrinks


class ColumnGaussians(NamedTuple):
    """The Gaussians of all columns at the best strengths, and how they move with these.

    Attributes:
        strengths: (S,) of (log tau_C, alpha, beta).
        curvature: (S, S) of the log evidence by them.
        rate, variance: (K, K) of the cells, a row a column as everything here.
        mean, precision: (K, K) of x, and pi.
        sd: (K, K) of x; covariance: (K, K, K).
        mean_slope, log_sd_slope: (K, K, S) by the strengths.
    """

    strengths: Vector
    curvature: Matrix
    rate: Matrix
    variance: Matrix
    mean: Matrix
    precision: Matrix
    sd: Matrix
    covariance: Array
    mean_slope: Array
    log_sd_slope: Array


def column_gaussians(
    propagation: ColumnPropagation, laws: ColumnLaws, curvature: Matrix
) -> ColumnGaussians:
    """Propagate the columns at the best strengths and to both sides of them; O(K^4)."""
    best, free = laws.parameters.vector, len(curvature)
    mean, precision = _gaussian(propagation, laws.parameters)
    covariance = _covariance(propagation.source, laws.parameters.tau, precision)
    by_strength = []
    for k in range(free):
        ends = []
        for sign in (1, -1):
            beside = best.copy()
            beside[k] += sign * _STEP
            parameters = ColumnParameters.of(beside)
            moved, sharper = _gaussian(propagation, parameters)
            spread = _covariance(propagation.source, parameters.tau, sharper)
            ends.append(np.stack([moved, np.log(np.einsum("ijj->ij", spread)) / 2]))
        by_strength.append((ends[0] - ends[1]) / (2 * _STEP))
    mean_slope, log_sd_slope = np.stack(by_strength, axis=-1)
    return ColumnGaussians(
        strengths=best[:free],
        curvature=curvature,
        rate=laws.rate.T.astype(float),
        variance=laws.variance.T.astype(float),
        mean=mean,
        precision=precision,
        sd=np.sqrt(np.einsum("ijj->ij", covariance)),
        covariance=covariance,
        mean_slope=mean_slope,
        log_sd_slope=log_sd_slope,
    )


def _gaussian(
    propagation: ColumnPropagation, parameters: ColumnParameters
) -> tuple[Matrix, Matrix]:
    """Mean and site precisions of all columns, a row a column."""
    n = propagation.n_classes
    output = ColumnOutput.gaussians(n, propagation.dtype)
    seen = propagation.sizes > 0
    if seen.any():
        propagation.run(parameters, np.flatnonzero(seen), output)
    assert output.mean is not None and output.precision is not None
    mean, precision = output.mean.T.astype(float), output.precision.T.astype(float)
    if not seen.all():
        # A class without rows: its prior, with a total of about one.
        prior_mean = propagation.mean_of(parameters, np.flatnonzero(~seen)).T.astype(float)
        share = softmax(prior_mean, axis=1)
        mean[~seen], precision[~seen] = np.log(share), 1 / n
    return mean, precision


def _covariance(source: SourceProblem, tau: float, precision: Matrix) -> Array:
    n = len(precision)
    matrices = np.repeat(tau * source.graph.laplacian.toarray()[None], n, axis=0)
    diagonal = np.arange(n)
    matrices[:, diagonal, diagonal] += precision
    return np.linalg.inv(matrices)


class CellShapes(NamedTuple):
    """Cells as bent normals y, and how they move with the strengths.

    Attributes:
        hinges: of every cell; pivot: (K, K) about which its spread changes.
        by_place, by_spread: (K, K, S) of cells' places and log spreads, by the strengths.
        omega: (K, K) and modes: (K, K, K) of every column: y = modes (1 + tau_C omega)^-1/2 z.
        tied: (K, K, K) correlations of a column's y.
    """

    hinges: Hinges
    pivot: Matrix
    by_place: Array
    by_spread: Array
    omega: Matrix
    modes: Array
    tied: Array


class RowAnswers(NamedTuple):
    """How the rows' expected counts mu answer to cells, levels and strengths.

    Attributes:
        rate, sensitivity: (K, K) mean of a cell e^x, and of its relative change with y.
        share: (K, K) of class i in mu_j; load: (K, K) change of log mu_j with y_ij.
        by_strength: (K, S) change of log mu with the strengths.
        weight: (K, K) of the rows' residuals, cells integrated out; give: (K, K) by how much cells
            give way to them.
    """

    rate: Matrix
    sensitivity: Matrix
    share: Matrix
    load: Matrix
    by_strength: Matrix
    weight: Matrix
    give: Matrix


class PosteriorCoordinates(NamedTuple):
    """How cells, levels and strengths lie in the posterior.

    Attributes:
        shapes: of the cells; answers: of the rows.
        centre, spread: (K,) and (K, K) of log eta; follow: (K, S) its change with the strengths.
        strengths, axes: (S,) and (S, S), middle of the strengths and root of their covariance.
    """

    shapes: CellShapes
    answers: RowAnswers
    centre: Vector
    spread: Matrix
    follow: Matrix
    strengths: Vector
    axes: Matrix


def posterior_coordinates(
    problem: Problem, columns: ColumnGaussians, shares: ShareGaussian
) -> PosteriorCoordinates:
    """Coordinates from a problem's columns and from where its levels are; O(K^4)."""
    eta, spread = np.exp(shares.centre.astype(float)), shares.spread.astype(float)
    hinges = _hinges(problem, columns, eta, (spread**2).sum(axis=1))
    bent, _, _ = hinges.bend(_NODES[:, None, None])
    shapes = _cell_shapes(problem, columns, hinges, bent)
    answers = _row_answers(problem, shapes, bent, eta)
    # Response of the levels, then the strengths' information with the levels integrated out.
    cross = answers.share @ answers.weight @ answers.by_strength
    follow = -spread @ (spread.T @ cross)
    information = columns.curvature + answers.by_strength.T @ answers.weight @ answers.by_strength
    information += cross.T @ follow
    widths, axes = np.linalg.eigh((information + information.T) / 2)
    widths = np.maximum(widths, np.linalg.eigvalsh(columns.curvature)[0] / 2)
    return PosteriorCoordinates(
        shapes,
        answers,
        shares.centre.astype(float),
        spread,
        follow,
        columns.strengths,
        axes / np.sqrt(widths),
    )


def _cell_shapes(
    problem: Problem, columns: ColumnGaussians, hinges: Hinges, bent: Array
) -> CellShapes:
    """The cells' shapes; ``bent`` are they at the nodes of a normal, (nodes, K, K)."""
    laplacian = problem.graph.laplacian.toarray()
    middle = np.tensordot(_WEIGHTS, bent, 1)
    sd = np.sqrt(np.tensordot(_WEIGHTS, (bent - middle) ** 2, 1))
    # The spread of a cell with a wall changes about the wall, of another about its middle.
    pivot = hinges.bend(_PIVOT * (1 - hinges.narrow / hinges.wide))[0]
    by_spread = columns.log_sd_slope
    by_place = columns.mean_slope - (middle - pivot)[..., None] * by_spread
    scaled = columns.precision**-0.5
    omega, modes = np.linalg.eigh(scaled[:, :, None] * laplacian * scaled[:, None, :])
    modes *= (scaled / sd)[:, :, None]
    tied = columns.covariance / (sd[:, :, None] * sd[:, None, :])
    return CellShapes(hinges, pivot, by_place, by_spread, np.maximum(omega, 0), modes, tied)


def _row_answers(problem: Problem, shapes: CellShapes, bent: Array, eta: Vector) -> RowAnswers:
    """How log mu_j answers to cells, levels and strengths."""
    # Relative to each cell's largest: rates by themselves may be beyond all digits.
    peak = bent.max(axis=0)
    relative = np.exp(bent - peak)
    mean = np.tensordot(_WEIGHTS, relative, 1)
    log_rate = shapes.hinges.centre + peak + np.log(mean)
    share = softmax(np.log(eta)[:, None] + log_rate, axis=0)
    sensitivity = np.tensordot(_WEIGHTS * _NODES, relative, 1) / mean
    load = share * sensitivity
    moved = shapes.by_place + shapes.by_spread * (bent - shapes.pivot)[..., None]
    pulled = np.einsum("a,aij,aijk->ijk", _WEIGHTS, relative, moved) / mean[..., None]
    by_strength = np.einsum("ij,ijk->jk", share, pulled)
    root = np.sqrt(problem.target)
    values, vectors = np.linalg.eigh(
        root[:, None] * np.einsum("ij,ijk,ik->jk", load, shapes.tied, load) * root
    )
    values, sides = np.maximum(values, 1e-12), root[:, None] * vectors
    return RowAnswers(
        rate=np.exp(log_rate),
        sensitivity=sensitivity,
        share=share,
        load=load,
        by_strength=by_strength,
        weight=(sides / (1 + values)) @ sides.T,
        give=(sides * (((1 + values) ** -0.5 - 1) / values)) @ sides.T,
    )


def _hinges(
    problem: Problem, columns: ColumnGaussians, eta: Vector, log_eta_variance: Vector
) -> Hinges:
    """Every cell's map, given its column's cavity and what its row leaves for it."""
    counts = problem.counts.confusion.toarray().T.astype(float)
    cavity = 1 / np.maximum(columns.sd**-2 - columns.precision, 1e-9 * columns.precision)
    level = np.repeat(eta[:, None], len(eta), axis=1)
    mean, variance = level * columns.rate, level**2 * columns.variance
    wanted = problem.target - (mean.sum(axis=0) - mean)
    noise = np.maximum(problem.target, 1) + variance.sum(axis=0) - variance
    noise += log_eta_variance @ mean**2
    seen = problem.column_sizes[:, None] > 0
    tilt = np.where(seen, cavity * (counts - columns.rate), 0)
    return fit_hinges(counts, columns.mean - tilt, cavity, level, wanted, noise)
