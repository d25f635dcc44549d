"""How a posterior would move if its assumptions were others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gsb3se.posterior.identifiability import target_information
from gsb3se.posterior.posterior import Posterior
from gsb3se.support.simplex import Matrix, Vector, centred_log


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
    target = target_information(posterior)
    q, theta, laplacian = target.q, centred_log(target.q), target.laplacian.toarray()
    covariance = target.covariance(target.information())
    jacobian = q[:, None] * covariance - np.outer(q, q @ covariance)
    upper = np.argwhere(np.triu(-laplacian, k=1) > 0)
    i, j = upper.T
    weight = -laplacian[i, j]
    pull = -target.tau * weight * (theta[i] - theta[j])
    change = pull[:, None] * (jacobian[:, i] - jacobian[:, j]).T
    n = len(q)
    exchangeable = np.eye(n) - 1 / n
    # Scaled to the graph's own mean degree: the shape is dropped, not the strength.
    exchangeable *= np.trace(laplacian) / np.trace(exchangeable)
    moved = -target.tau * jacobian @ ((exchangeable - laplacian) @ theta)
    return GraphSensitivity(
        upper,
        change,
        np.abs(change).sum(axis=1) / 2 * np.log(2),
        posterior.mean + moved,
    )
