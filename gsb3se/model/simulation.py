"""Made-up data: drawn from the hierarchy, or from a classifier that is of use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from gsb3se.graph import LabelGraph
from gsb3se.graph.laplacian import SparsePlusConstant
from gsb3se.model.counts import ShiftCounts
from gsb3se.model.density import Latents, Strengths
from gsb3se.model.prior import Prior
from gsb3se.model.shifts import dirichlet
from gsb3se.support.errors import as_whole_number
from gsb3se.support.simplex import Matrix, Vector


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
    prior: Prior | str,
    n_source: int | ArrayLike,
    n_target: int,
    seed: int | np.random.Generator,
) -> Simulation:
    """Draw parameters and counts from the hierarchy.

    Args:
        graph: the label graph.
        prior: the hyper-priors, or "paper" or "anchored".
        n_source: validation rows of each class, one number or (K,).
        n_target: target predictions.
        seed: seed or generator.

    >>> simulate(LabelGraph.exchangeable(3), Prior(), n_source=50, n_target=200, seed=0).counts
    ShiftCounts(3 classes, 150 validation rows, 200 target predictions)
    """
    rng, prior = np.random.default_rng(seed), Prior.of(prior)
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
    phi = draw_columns(graph, tau.C, alpha, beta, n_classes, rng)
    latents = Latents(theta, phi, float(alpha), float(beta))
    confusion = latents.confusion
    columns = rng.multinomial(sizes, confusion.T).T
    target = rng.multinomial(n_target, latents.q @ confusion.T)
    return Simulation(ShiftCounts(columns, target, graph.labels), latents, tau)


def draw_columns(
    graph: LabelGraph, tau_C: float, alpha: float, beta: float, n: int, rng: np.random.Generator
) -> Matrix:
    """(K, n) draws of N(mu_i, (tau_C L)^+), mu_i = alpha e_i + beta W[:, i], centred.

    With alpha = beta = 0 there may be any number of them, otherwise there are K.
    """
    phi = graph.sample_fields(n, rng) / np.sqrt(tau_C)
    if alpha or beta:
        phi.reshape(-1)[:: graph.n_classes + 1] += alpha
        SparsePlusConstant.of(graph.weights).add_to(phi, beta)
    return phi - phi.mean(axis=0)


class ClassifierCase(NamedTuple):
    """Counts of a made-up classifier, the graph of its labels, and the target's true shares."""

    counts: ShiftCounts
    graph: LabelGraph
    q: Vector


def simulate_classifier(
    n_classes: int, labels: int, n_target: int, seed: int | np.random.Generator
) -> ClassifierCase:
    """A useful classifier, right 80 % of the time, whose errors the graph explains in part.

    What the hierarchy itself draws with its default hyper-priors mostly guesses; a classifier that
    somebody uses does not. Labels are random points in 16 dimensions, similar to their 8 nearest.

    Args:
        labels: validation rows a class.
        n_target: target predictions; their shares are Dirichlet(1).

    >>> simulate_classifier(5, labels=20, n_target=300, seed=0).counts
    ShiftCounts(5 classes, 100 validation rows, 300 target predictions)
    """
    n = as_whole_number(n_classes, "n_classes", least=2)
    as_whole_number(labels, "labels", least=1)
    as_whole_number(n_target, "n_target", least=1)
    rng = np.random.default_rng(seed)
    graph = LabelGraph.knn(rng.standard_normal((n, 16)), k=8)
    similar = graph.weights.toarray() ** 2 * rng.gamma(1.0, size=(n, n))
    right = rng.beta(8, 2, n)
    confusion = 0.75 * (1 - right) * similar / similar.sum(axis=0) + 0.25 * (1 - right) / n
    confusion[np.diag_indices(n)] += right
    q = dirichlet(n, 1.0, rng)
    confusion /= confusion.sum(axis=0)
    columns = np.column_stack([rng.multinomial(labels, column) for column in confusion.T])
    target = rng.multinomial(n_target, confusion @ q)
    return ClassifierCase(ShiftCounts(columns, target), graph, q)
