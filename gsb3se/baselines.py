"""The classical point estimates of the target prior: BBSE, RLLS, MLLS, EM.

Each returns q as a (K,) vector on the simplex. The first three need only counts; EM needs
calibrated class probabilities (see :func:`calibrate`) and is the strongest where they can be had.
"""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import ArrayLike

from gsb3se.model.adaptation import as_probabilities
from gsb3se.model.calibration import Calibrator, calibrate
from gsb3se.model.counts import ShiftCounts
from gsb3se.model.mixture_proportions import mixture_proportions
from gsb3se.support.errors import GSB3SEWarning, some_of
from gsb3se.support.named_axes import column_names, in_order_of
from gsb3se.support.simplex import Matrix, Vector, as_distribution, project_to_simplex

__all__ = ["Calibrator", "bbse", "calibrate", "em", "mlls", "rlls", "rlls_weights"]


def bbse(counts: ShiftCounts, project: bool = True) -> Vector:
    """Black-box shift estimation: solve C~ q = target frequencies.

    Args:
        counts: the data.
        project: project the solution onto the simplex; False returns it raw, possibly with
            negative entries.

    A singular C~ gives the least-squares solution of least norm, and a class without validation
    rows gets 0; both with a warning. O(K^3).

    >>> bbse(ShiftCounts([[8, 2], [2, 8]], target=[50, 50])).round(12).tolist()
    [0.5, 0.5]
    """
    seen = _known_classes(counts, "BBSE")
    _unexplained(counts, "BBSE has no solution that fits them")
    rates = counts.confusion_rates.toarray()[:, seen]
    observed = counts.target / counts.n_target
    solution = _solve(rates, observed)
    q = np.zeros(counts.n_classes)
    q[seen] = project_to_simplex(solution) if project else solution
    return q


def _solve(matrix: Matrix, observed: Vector) -> Vector:
    from scipy.linalg import LinAlgError, LinAlgWarning, lstsq, solve

    if matrix.shape[0] == matrix.shape[1]:
        with warnings.catch_warnings():
            warnings.simplefilter("error", LinAlgWarning)
            try:
                return solve(matrix, observed)
            except (LinAlgError, LinAlgWarning):
                pass  # singular, or as good as
    solution, _, rank, _ = lstsq(matrix, observed, cond=1e-10)
    if rank < matrix.shape[1]:
        warnings.warn(
            f"the confusion rates are singular (rank {rank} for {matrix.shape[1]} classes), so "
            "BBSE's q is one of many solutions, the one of least norm: use more validation rows, "
            "RLLS, MLLS or a Bayesian backend",
            GSB3SEWarning,
            stacklevel=3,
        )
    return solution


def rlls(counts: ShiftCounts, scale: float = 0.01, delta: float = 0.05) -> Vector:
    """Regularised learning under label shift: q_i = w_i p_i, w from :func:`rlls_weights`."""
    weighted = rlls_weights(counts, scale, delta) * counts.validation_sizes
    return weighted / weighted.sum()


def rlls_weights(counts: ShiftCounts, scale: float = 0.01, delta: float = 0.05) -> Vector:
    """RLLS' own importance weights w = 1 + x.

    Minimises |J x - b| + rho |x| over x >= -1 (norms, not squares), with J the joint frequencies of
    (predicted, true) on the validation rows and b the target's prediction frequencies less the
    validation's. rho is ``scale`` times 3 (2 log(2K/delta) / (3m) + sqrt(2 log(2K/delta) / m)), the
    error of J with probability 1 - delta; the authors' code takes a scale of 0.01, their theorem 1.
    (Azizzadenesheli et al., ICLR 2019.)
    """
    if not (0 <= scale < np.inf and 0 < delta < 1):
        raise ValueError(f"expected scale >= 0 and 0 < delta < 1; got {scale} and {delta}")
    _known_classes(counts, "RLLS")
    _unexplained(counts, "RLLS has no weights that fit them")
    m = counts.n_validation
    joint = counts.confusion.toarray() / m
    shift = counts.target / counts.n_target - joint.sum(axis=1)
    confidence = np.log(2 * counts.n_classes / delta)
    rho = scale * 3 * (2 * confidence / (3 * m) + np.sqrt(2 * confidence / m))
    return 1.0 + _regularised_shift(joint, shift, rho)


def _regularised_shift(joint: Matrix, shift: Vector, rho: float) -> Vector:
    """argmin |J x - b| + rho |x| over x >= -1.

    The minimisers of |J x - b|^2 + mu |x|^2 over mu > 0 trace the same frontier of
    (|J x - b|, |x|), whose slope mu |x| / |J x - b| grows with mu; the answer is where it is rho.
    """
    from scipy.optimize import brentq, nnls

    n_classes = len(shift)
    if np.linalg.norm(shift) < 1e-12:
        return np.zeros(n_classes)

    fit = np.column_stack([joint, shift + joint.sum(axis=1)])  # in terms of 1 + x >= 0

    def on_frontier(log_mu: float) -> tuple[Vector, float]:
        root = np.exp(log_mu / 2)
        ridge = np.column_stack([root * np.eye(n_classes), np.full(n_classes, root)])
        triangle: Matrix = np.linalg.qr(np.concatenate([fit, ridge]), mode="r")  # type: ignore[assignment]
        triangle = triangle[:n_classes]
        x = nnls(triangle[:, :-1], triangle[:, -1], maxiter=30 * n_classes)[0] - 1.0
        norm, misfit = np.linalg.norm(x), np.linalg.norm(joint @ x - shift)
        log_norm, log_misfit = np.log(np.maximum([norm, misfit], 1e-300))  # either may vanish
        return x, float(log_mu + log_norm - log_misfit)

    if np.linalg.norm(joint.T @ shift) <= rho * np.linalg.norm(shift):
        return np.zeros(n_classes)  # no shift is worth its norm
    # Walk along the frontier until its slope passes rho; past either end there is only rounding.
    aim = np.log(rho) if rho > 0 else -np.inf
    start = here = 2 * np.log(np.linalg.norm(joint))
    x, slope = on_frontier(here)
    stride = 4.0 if slope < aim else -4.0
    while (slope < aim) == (stride > 0):
        here += stride
        x, slope = on_frontier(here)
        if not -32.0 < here - start < 24.0:
            return x
    log_mu = brentq(lambda t: on_frontier(t)[1] - aim, here, here - stride, xtol=1e-8)
    return on_frontier(log_mu)[0]


def mlls(counts: ShiftCounts, tolerance: float = 1e-12) -> Vector:
    """Maximum likelihood on hard predictions: argmax of sum_j target_j log (C~ q)_j on the simplex.

    Args:
        counts: the data.
        tolerance: optimality gap at which to stop, in nats a target prediction.

    A predicted class that never occurs among the validation predictions has no likelihood under C~;
    its target counts are left out with a warning.
    """
    _known_classes(counts, "MLLS")
    rates = counts.confusion_rates.toarray()
    target = counts.target.astype(float)
    target[_unexplained(counts, "MLLS leaves them out")] = 0.0
    if not target.any():
        raise ValueError("MLLS needs a target prediction that also occurs on validation rows")
    return _proportions(rates, target / target.sum(), tolerance, "MLLS")


def em(probs: ArrayLike, source_prior: ArrayLike, tolerance: float = 1e-12) -> Vector:
    """The target prior to which Saerens' EM climbs, from soft scores.

    Args:
        probs: (n, K) calibrated class probabilities of the target rows under the source prior.
        source_prior: (K,) p.
        tolerance: optimality gap at which to stop, in nats a row.

    EM is a slow ascent of a concave likelihood; this finds its maximum by Newton steps instead, so
    that the answer does not depend on where the iteration was stopped.

    >>> em([[0.9, 0.1], [0.9, 0.1], [0.2, 0.8]], source_prior=[0.5, 0.5]).round(3).tolist()
    [0.847, 0.153]
    """
    if (names := column_names(probs)) is not None:
        source_prior = in_order_of(names, source_prior, "source_prior")
    probs = as_probabilities(probs)
    p = as_distribution(source_prior, "source_prior", probs.shape[1])
    if (p < 1e-15).any():
        empty = some_of(np.flatnonzero(p < 1e-15).tolist())
        raise ValueError(f"source_prior must be positive; drop the columns of classes {empty}")
    n_rows = len(probs)
    return _proportions(probs / p, np.full(n_rows, 1.0 / n_rows), tolerance, "EM")


def _proportions(components: Matrix, weights: Vector, tolerance: float, name: str) -> Vector:
    proportions = mixture_proportions(components, weights, tolerance)
    if not proportions.converged:
        warnings.warn(
            f"{name} stopped at an optimality gap of {proportions.gap:.1e} nats an observation, "
            f"above {tolerance:.1e}: accept that gap with tolerance=, or use more data",
            GSB3SEWarning,
            stacklevel=3,
        )
    return proportions.q


def _known_classes(counts: ShiftCounts, method: str) -> np.ndarray:
    """Indices of the classes with validation rows; the others are warned of."""
    seen = np.flatnonzero(counts.validation_sizes)
    if len(seen) == 0:
        raise ValueError(f"{method} needs validation rows, and these counts have none")
    if len(seen) < counts.n_classes:
        warnings.warn(
            f"{method} says 0 for classes without validation rows, whatever the target holds: "
            f"{some_of(counts.without_validation)}",
            GSB3SEWarning,
            stacklevel=3,
        )
    return seen


def _unexplained(counts: ShiftCounts, consequence: str) -> np.ndarray:
    """Indices of classes predicted on the target and never on the validation rows, with a note."""
    unseen = np.asarray(counts.confusion.sum(axis=1)) == 0
    strangers = np.flatnonzero((counts.target > 0) & unseen)
    if len(strangers):
        names = some_of([counts.labels[i] for i in strangers])
        warnings.warn(
            f"{counts.target[strangers].sum()} target predictions of {names}, never predicted on "
            f"the validation rows: {consequence}",
            GSB3SEWarning,
            stacklevel=3,
        )
    return strangers
