"""What to ask of a posterior: how much the counts told it, and how it hangs on the graph."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gsb3se.identifiability import as_target
from gsb3se.posterior import Posterior
from gsb3se.simplex import Matrix, Vector, centred_log
from gsb3se.status import Diagnostics, Finding, Status

__all__ = [
    "Diagnostics",
    "EffectiveInformation",
    "Finding",
    "GraphSensitivity",
    "Status",
    "effective_information",
    "graph_sensitivity",
    "rank_uniformity",
]

_SIMULATED_CURVES = 2000


@dataclass(frozen=True, eq=False)
class EffectiveInformation:
    """What the counts say about theta on the sum-zero space, beside what the prior says.

    Attributes:
        information: (K, K) J'(D^-1 + S)^-1 J: of the target counts, the columns' own uncertainty
            taken into account; zero along 1.
        smallest: its smallest eigenvalue on the sum-zero space; zero if some direction is unseen.
        weakest: (K,) that direction.
        shrinkage: (K,) share of each class's log share that is the prior's: 0 where the counts
            alone speak, 1 where they say nothing.
        variance_bound: 1 / (tau_q lambda_2 + smallest), above every variance of theta.
    """

    information: Matrix
    smallest: float
    weakest: Vector
    shrinkage: Vector
    variance_bound: float


def effective_information(posterior: Posterior) -> EffectiveInformation:
    """The information about theta = log q in a posterior that knows E[C].

    At the posterior mean of q and of the confusion matrix, with Cov(theta) = (tau_q L +
    information)^+ on the sum-zero space, no variance exceeds 1 / (tau_q lambda_2 + smallest).
    O(K^3).
    """
    found = as_target(posterior)
    information, laplacian, n = found.information(), found.laplacian.toarray(), len(found.q)
    level = np.trace(information) / n
    values, vectors = np.linalg.eigh(information + level / n)
    kept = found.covariance(information) @ (found.tau * laplacian)
    connectivity = float(np.linalg.eigvalsh(laplacian)[1])
    smallest = max(float(values[0]), 0.0)
    return EffectiveInformation(
        information,
        smallest,
        vectors[:, 0],
        np.clip(np.diag(kept) * n / (n - 1), 0.0, 1.0),
        1 / (found.tau * connectivity + smallest),
    )


@dataclass(frozen=True, eq=False)
class GraphSensitivity:
    """How q would move with the label graph.

    Attributes:
        edges: (E, 2) pairs of classes.
        change: (E, K) derivative of q by the relative weight of each edge, d q / d log w.
        strongest: (E,) total variation of q for a doubled weight, to first order.
        without_graph: (K,) the mean of q if the graph were dropped for the exchangeable one, to
            first order: mean + d q.
    """

    edges: NDArray[np.int64]
    change: Matrix
    strongest: Vector
    without_graph: Vector


def graph_sensitivity(posterior: Posterior) -> GraphSensitivity:
    """The derivative of q by every edge of the graph, for a posterior that knows E[C].

    The mode moves by -tau_q Cov(theta) (dL) theta when the Laplacian does by dL, and q by
    diag(q) - qq' times that, tau_q held.
    """
    found = as_target(posterior)
    q, theta, laplacian = found.q, centred_log(found.q), found.laplacian.toarray()
    covariance = found.covariance(found.information())
    jacobian = q[:, None] * covariance - np.outer(q, q @ covariance)
    upper = np.argwhere(np.triu(-laplacian, k=1) > 0)
    i, j = upper.T
    weight = -laplacian[i, j]
    pull = -found.tau * weight * (theta[i] - theta[j])
    change = pull[:, None] * (jacobian[:, i] - jacobian[:, j]).T
    n = len(q)
    exchangeable = np.eye(n) - 1 / n
    # Scaled to the graph's own mean degree: the shape is dropped, not the strength.
    exchangeable *= np.trace(laplacian) / np.trace(exchangeable)
    moved = -found.tau * jacobian @ ((exchangeable - laplacian) @ theta)
    return GraphSensitivity(
        upper,
        change,
        np.abs(change).sum(axis=1) / 2 * np.log(2),
        posterior.mean + moved,
    )


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
