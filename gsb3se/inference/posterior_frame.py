"""Where the whole posterior is, cell by cell: what the structured stages know, as a frame.

Two coordinate systems are made of it: the exact chains' (:mod:`gsb3se.inference.exact_density`) and
the variational guide's (:mod:`gsb3se.inference.guide`). Arrays of cells are (true i, predicted j).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gsb3se.inference.cell_maps import Array, Hinges, fit_hinges
from gsb3se.inference.columns import (
    ColumnLaws,
    ColumnPropagation,
    Hyper,
    Kept,
    as_hyper,
    as_vector,
)
from gsb3se.inference.target import Frame
from gsb3se.problem import Problem
from gsb3se.simplex import Matrix, Vector, softmax

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
    run: ColumnPropagation, laws: ColumnLaws, curvature: Matrix
) -> ColumnGaussians:
    """Propagate the columns at the best strengths and to both sides of them; O(K^4)."""
    best, free = as_vector(laws.hyper), len(curvature)
    mean, precision = _gaussian(run, laws.hyper)
    covariance = _covariance(run.problem, laws.hyper.tau, precision)
    by_strength = []
    for k in range(free):
        ends = []
        for sign in (1, -1):
            beside = best.copy()
            beside[k] += sign * _STEP
            hyper = as_hyper(beside)
            moved, sharper = _gaussian(run, hyper)
            spread = np.einsum("ijj->ij", _covariance(run.problem, hyper.tau, sharper))
            ends.append(np.stack([moved, np.log(spread) / 2]))
        by_strength.append((ends[0] - ends[1]) / (2 * _STEP))
    mean_slope, log_sd_slope = np.stack(by_strength, axis=-1)
    return ColumnGaussians(
        best[:free],
        curvature,
        laws.rate.T.astype(float),
        laws.variance.T.astype(float),
        mean,
        precision,
        np.sqrt(np.einsum("ijj->ij", covariance)),
        covariance,
        mean_slope,
        log_sd_slope,
    )


def _gaussian(run: ColumnPropagation, hyper: Hyper) -> tuple[Matrix, Matrix]:
    """Mean and site precisions of all columns, a row a column."""
    n = run.n_classes
    found = Kept(*(np.empty((n, n), dtype=run.dtype) for _ in range(4)))
    known = run.sizes > 0
    if known.any():
        run.run(hyper, np.flatnonzero(known), found)
    assert found.mean is not None and found.precision is not None
    mean, precision = found.mean.T.astype(float), found.precision.T.astype(float)
    if not known.all():
        # A class without rows: its prior, with a total of about one.
        anchor = run.anchor(hyper, np.flatnonzero(~known)).T.astype(float)
        share = softmax(anchor, axis=1)
        mean[~known], precision[~known] = np.log(share), 1 / n
    return mean, precision


def _covariance(problem: Problem, tau: float, precision: Matrix) -> Array:
    n = len(precision)
    matrices = np.repeat(tau * problem.graph.laplacian.toarray()[None], n, axis=0)
    diagonal = np.arange(n)
    matrices[:, diagonal, diagonal] += precision
    return np.linalg.inv(matrices)


class PosteriorFrame(NamedTuple):
    """Cells as bent normals y, and how they, levels and strengths move together.

    Attributes:
        hinges: of every cell; pivot: (K, K) about which its spread changes.
        by_place, by_spread: (K, K, S) of cells' places and log spreads, by the strengths.
        omega: (K, K) and modes: (K, K, K) of every column: y = modes (1 + tau_C omega)^-1/2 z.
        tied: (K, K, K) correlations of a column's y.
        rate, sensitivity: (K, K) mean of a cell e^x, and of its relative change with y.
        share: (K, K) of class i in mu_j; load: (K, K) change of log mu_j with y_ij.
        by_strength: (K, S) change of log mu with the strengths.
        weight: (K, K) of the rows' residuals, cells integrated out; give: (K, K) by how much cells
            give way to them.
        centre, spread: (K,) and (K, K) of log eta; follow: (K, S) its change with the strengths.
        strengths, axes: (S,) and (S, S), middle of the strengths and root of their covariance.
    """

    hinges: Hinges
    pivot: Matrix
    by_place: Array
    by_spread: Array
    omega: Matrix
    modes: Array
    tied: Array
    rate: Matrix
    sensitivity: Matrix
    share: Matrix
    load: Matrix
    by_strength: Matrix
    weight: Matrix
    give: Matrix
    centre: Vector
    spread: Matrix
    follow: Matrix
    strengths: Vector
    axes: Matrix


def posterior_frame(problem: Problem, columns: ColumnGaussians, frame: Frame) -> PosteriorFrame:
    """The frame of a problem from its columns' Gaussians and where its levels are; O(K^4)."""
    laplacian = problem.graph.laplacian.toarray()
    eta, spread = np.exp(frame.centre.astype(float)), frame.spread.astype(float)

    hinges = _hinges(problem, columns, eta, (spread**2).sum(axis=1))
    bent, _, _ = hinges.bend(_NODES[:, None, None])
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

    # How log mu_j answers to cells, levels and strengths.
    # Relative to each cell's largest: rates by themselves may be beyond all digits.
    peak = bent.max(axis=0)
    relative = np.exp(bent - peak)
    mean = np.tensordot(_WEIGHTS, relative, 1)
    log_rate = hinges.centre + peak + np.log(mean)
    share = softmax(np.log(eta)[:, None] + log_rate, axis=0)
    sensitivity = np.tensordot(_WEIGHTS * _NODES, relative, 1) / mean
    load = share * sensitivity
    moved = by_place + by_spread * (bent - pivot)[..., None]
    pulled = np.einsum("a,aij,aijk->ijk", _WEIGHTS, relative, moved) / mean[..., None]
    by_strength = np.einsum("ij,ijk->jk", share, pulled)
    root = np.sqrt(problem.target)
    values, vectors = np.linalg.eigh(
        root[:, None] * np.einsum("ij,ijk,ik->jk", load, tied, load) * root
    )
    values, sides = np.maximum(values, 1e-12), root[:, None] * vectors
    weight = (sides / (1 + values)) @ sides.T  # of a row's residual, cells integrated out
    cross = share @ weight @ by_strength
    follow = -spread @ (spread.T @ cross)
    information = columns.curvature + by_strength.T @ weight @ by_strength + cross.T @ follow
    widths, axes = np.linalg.eigh((information + information.T) / 2)
    widths = np.maximum(widths, np.linalg.eigvalsh(columns.curvature)[0] / 2)
    return PosteriorFrame(
        hinges,
        pivot,
        by_place,
        by_spread,
        np.maximum(omega, 0),
        modes,
        tied,
        np.exp(log_rate),
        sensitivity,
        share,
        load,
        by_strength,
        weight,
        (sides * (((1 + values) ** -0.5 - 1) / values)) @ sides.T,
        frame.centre.astype(float),
        spread,
        follow,
        columns.strengths,
        axes / np.sqrt(widths),
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
    known = problem.column_sizes[:, None] > 0
    tilt = np.where(known, cavity * (counts - columns.rate), 0)
    return fit_hinges(counts, columns.mean - tilt, cavity, level, wanted, noise)
