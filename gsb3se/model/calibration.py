"""Calibrators: logits to probabilities, fitted on labelled validation rows.

All three are softmax(scale * logits + bias): temperature scaling has one scale, bias-corrected
temperature scaling (BCTS) adds a bias for each class, vector scaling a scale for each class too.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from gsb3se.support.errors import GSB3SEWarning
from gsb3se.support.named_axes import check_same_rows
from gsb3se.support.simplex import Matrix, Vector, softmax

Method = Literal["temperature", "bcts", "vector"]

# A whisper of a Gaussian prior on scale - 1 and bias, against the mean log loss: it moves what the
# rows determine by about its own size, and keeps finite what they do not (a class without rows, a
# classifier without errors).
_RIDGE = 1e-7


@dataclass(frozen=True, eq=False)
class Calibrator:
    """softmax(scale * logits + bias).

    Attributes:
        scale: (K,) or (1,) factors; 1 / temperature.
        bias: (K,) or (1,) offsets.
    """

    scale: Vector
    bias: Vector

    def __call__(self, logits: ArrayLike) -> Matrix:
        """(n, K) logits to (n, K) probabilities."""
        logits = _check_logits(logits)
        columns = max(len(self.scale), len(self.bias))
        if columns not in (1, logits.shape[1]):
            raise ValueError(f"expected logits with {columns} columns; got shape {logits.shape}")
        return softmax(logits * self.scale + self.bias, axis=1)


def calibrate(logits: ArrayLike, y: ArrayLike, method: Method = "bcts") -> Calibrator:
    """Fit a calibrator by maximum likelihood.

    Args:
        logits: (n, K) scores of labelled rows; log-probabilities will do.
        y: (n,) class indices 0..K-1.
        method: "temperature", "bcts" or "vector".

    The log loss is convex in (scale, bias), so the fit is the global one. A bias follows the class
    frequencies of the rows: fit it on rows with the source prior.

    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(3, size=500)
    >>> overconfident = 5.0 * (np.eye(3)[y] + rng.normal(size=(500, 3)))
    >>> bool(calibrate(overconfident, y, method="temperature").scale[0] < 0.5)
    True
    """
    from scipy.optimize import minimize

    logits, y = _check(logits, y)
    n_classes = logits.shape[1]
    free = {"temperature": (1, 0), "bcts": (1, n_classes), "vector": (n_classes, n_classes)}
    if method not in free:
        raise ValueError(f"method must be one of {', '.join(map(repr, free))}; got {method!r}")
    n_scales, n_biases = free[method]
    # With a bias, the fit must not depend on where the logits are centred.
    centre = logits.mean(axis=0) if n_biases else np.zeros(n_classes)
    logits = logits - centre
    truth = np.zeros_like(logits)
    truth[np.arange(len(y)), y] = 1.0

    def loss(x: Vector) -> tuple[float, Vector]:
        scale, bias = x[:n_scales], x[n_scales:]
        z = logits * scale + (bias if n_biases else 0.0)
        z -= z.max(axis=1, keepdims=True)
        log_total = np.log(np.exp(z).sum(axis=1))
        residual = (np.exp(z - log_total[:, None]) - truth) / len(y)
        by_scale = np.einsum("ni,ni->i", residual, logits)
        by_scale = by_scale if n_scales == n_classes else by_scale.sum(keepdims=True)
        away = np.concatenate([scale - 1.0, bias])
        gradient = np.concatenate([by_scale, residual.sum(axis=0)[:n_biases]]) + _RIDGE * away
        value = np.mean(log_total - z[np.arange(len(y)), y]) + 0.5 * _RIDGE * away @ away
        return float(value), gradient

    start = np.concatenate([np.ones(n_scales), np.zeros(n_biases)])
    options = {"maxiter": 5000, "maxfun": 10000, "ftol": 0.0, "gtol": 1e-9, "maxcor": 30}
    fit = minimize(loss, start, jac=True, method="L-BFGS-B", options=options)
    slope = float(np.abs(loss(fit.x)[1]).max())
    if slope > 1e-5:
        warnings.warn(
            f"calibration stopped at a slope of {slope:.1e} ({fit.message}): "
            "rescale the logits to a range of about ten",
            GSB3SEWarning,
            stacklevel=2,
        )
    scale = fit.x[:n_scales]
    return Calibrator(scale, fit.x[n_scales:] - scale * centre if n_biases else np.zeros(1))


def _check(logits: ArrayLike, y: ArrayLike) -> tuple[Matrix, np.ndarray]:
    check_same_rows(logits, y, ("logits", "y"))
    logits, y = _check_logits(logits), np.asarray(y)
    if y.shape != (len(logits),):
        raise ValueError(
            f"y must hold {len(logits)} labels, one a row of logits; got shape {y.shape}"
        )
    if y.dtype.kind not in "iu" or y.min() < 0 or y.max() >= logits.shape[1]:
        raise ValueError(f"y must hold class indices 0..{logits.shape[1] - 1}")
    return logits, y


def _check_logits(logits: ArrayLike) -> Matrix:
    logits = np.asarray(logits, dtype=float)
    if logits.ndim != 2 or logits.shape[1] < 2 or len(logits) == 0:
        raise ValueError(f"logits must be (n, K) with at least 2 columns; got shape {logits.shape}")
    if not np.isfinite(logits).all():
        raise ValueError("logits must be finite: clip log-probabilities of zero")
    return logits
