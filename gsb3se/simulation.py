"""simulate: parameters and counts drawn from the hierarchy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from gsb3se.counts import ShiftCounts
from gsb3se.errors import as_whole_number
from gsb3se.graph import LabelGraph
from gsb3se.model import Latents, Strengths
from gsb3se.prior import Prior
from gsb3se.problem import Pattern
from gsb3se.simplex import Matrix, Vector


@dataclass(frozen=True, eq=False)
class Simulation:
    """Counts drawn from the hierarchy, with the parameters that made them."""

    counts: ShiftCounts
    latents: Latents
    tau: Strengths

    @property
    def q(self) -> Vector:
        """(K,) the true target prior."""
        return self.latents.q

    @property
    def confusion(self) -> Matrix:
        """(K, K) the true confusion matrix."""
        return self.latents.confusion


def simulate(
    graph: LabelGraph,
    prior: Prior,
    n_source: int | ArrayLike,
    n_target: int,
    seed: int | np.random.Generator,
) -> Simulation:
    """Draw parameters and counts from the hierarchy.

    Args:
        graph: the label graph.
        prior: the hyper-priors, paper or anchored.
        n_source: validation rows of each class, one number or (K,).
        n_target: target predictions.
        seed: seed or generator.

    >>> simulate(LabelGraph.exchangeable(3), Prior(), n_source=50, n_target=200, seed=0).counts
    ShiftCounts(3 classes, 150 validation rows, 200 target predictions)
    """
    rng = np.random.default_rng(seed)
    n_classes = graph.n_classes
    n_target = as_whole_number(n_target, "n_target", least=1)
    sizes = np.asarray(n_source)
    if sizes.shape not in ((), (n_classes,)) or sizes.dtype.kind not in "iu" or (sizes < 0).any():
        raise ValueError(
            f"n_source must be a whole number, none negative, or {n_classes} of them, one a class; "
            f"got {n_source!r}"
        )
    sizes = np.broadcast_to(sizes, (n_classes,))
    tau = Strengths(
        rng.gamma(prior.a_q) / prior.b_q,
        rng.gamma(prior.a_C) / prior.b_C,
    )
    if min(tau.q, tau.C) < 1e-200:
        raise ValueError(
            f"this prior drew a strength of {min(tau.q, tau.C):.3g}, a field without bounds: take "
            f"larger shapes a_q and a_C than {prior.a_q:g} and {prior.a_C:g}"
        )
    alpha, beta = (0.0, 0.0) if prior.anchor_sd is None else rng.normal(0, prior.anchor_sd, 2)
    theta = graph.sample_fields(1, rng)[:, 0] / np.sqrt(tau.q)
    phi = graph.sample_fields(n_classes, rng) / np.sqrt(tau.C)
    if prior.is_anchored:
        phi.reshape(-1)[:: n_classes + 1] += alpha
        Pattern.of(graph.weights).add_to(phi, beta)
    phi -= phi.mean(axis=0)
    latents = Latents(theta, phi, float(alpha), float(beta))
    confusion = latents.confusion
    columns = rng.multinomial(sizes, confusion.T).T
    target = rng.multinomial(n_target, latents.q @ confusion.T)
    return Simulation(ShiftCounts(columns, target, graph.labels), latents, tau)
