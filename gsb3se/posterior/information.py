"""How much the counts contribute to a posterior, beside its prior."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gsb3se.posterior.identifiability import target_information
from gsb3se.posterior.posterior import Posterior
from gsb3se.support.simplex import Matrix, Vector


@dataclass(frozen=True, eq=False)
class EffectiveInformation:
    """What the counts say about theta on the sum-zero space, beside what the prior says.

    Attributes:
        information: (K, K) J'(D^-1 + S)^-1 J: of the target counts, the columns' own uncertainty
            taken into account; zero along 1.
        smallest: its smallest eigenvalue on the sum-zero space; zero if some direction is unseen.
        weakest: (K,) that direction.
        shrinkage: (K,) weight of the prior in each class's log share: 0 where the counts alone
            determine it, 1 where they carry no information.
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
    target = target_information(posterior)
    information, laplacian, n = target.information(), target.laplacian.toarray(), len(target.q)
    level = np.trace(information) / n
    values, vectors = np.linalg.eigh(information + level / n)
    kept = target.covariance(information) @ (target.tau * laplacian)
    connectivity = float(np.linalg.eigvalsh(laplacian)[1])
    smallest = max(float(values[0]), 0.0)
    return EffectiveInformation(
        information,
        smallest,
        vectors[:, 0],
        np.clip(np.diag(kept) * n / (n - 1), 0.0, 1.0),
        1 / (target.tau * connectivity + smallest),
    )
