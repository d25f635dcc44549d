"""Simulation-based calibration: whether the truth falls evenly among a backend's draws."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gsb3se.support.simplex import Vector

_SIMULATED_CURVES = 2000


def rank_uniformity(ranks: ArrayLike, largest: int, seed: int = 0) -> float:
    """How likely ranks this uneven are if they are uniform on 0..largest.

    The statistic is the least likely of all points of the ranks' cumulative counts, so that a value
    of at least 0.05 means that the whole curve lies within its 95 % simultaneous band (Säilynoja,
    Bürkner and Vehtari, 2022).

    Args:
        ranks: (n,) of the truth among ``largest`` draws, one a simulated data set.

    >>> rank_uniformity(np.arange(100), largest=99) > 0.05, rank_uniformity([3] * 100, 99) < 0.05
    (True, True)
    """
    observed = np.asarray(ranks)
    whole = observed.ndim == 1 and observed.size > 0 and observed.dtype.kind in "iu"
    if not whole or observed.min() < 0 or observed.max() > largest:
        raise ValueError(f"ranks must be whole numbers from 0 to {largest}, one a data set")
    from scipy.stats import binom  # slow to import, and needed by nobody else

    rng = np.random.default_rng(seed)
    simulated = rng.integers(largest + 1, size=(_SIMULATED_CURVES, len(observed)))
    level = np.arange(1, largest + 1) / (largest + 1)

    def extremity(sets: NDArray[np.int64]) -> Vector:
        below = np.array([np.bincount(one, minlength=largest + 1) for one in sets])
        below = below.cumsum(axis=1)[:, :-1]
        lower = binom.cdf(below, len(observed), level)
        upper = binom.sf(below - 1, len(observed), level)
        return np.minimum(lower, upper).min(axis=1)

    return float(np.mean(extremity(simulated) <= extremity(observed[None])[0]))
