"""The posterior of the class shares given the columns' laws: one density, many points at once.

The state is (log eta, d): levels, and what log u deviates from its mean given them, d ~ N(0, V).
With theta = log eta + log u(eta) + d and tau_q integrated out in closed form, the density is

    prod_j p(n_j | eta)  N(d; 0, V)  (b_q + theta'L theta / 2)^-(a_q + (K-1)/2),

O(K^2) a point. The Gaussian at its mode (:mod:`gsb3se.inference.structured.share_mode`) gives
coordinates z in which it is nearly N(0, I).

What the target tells comes in through a likelihood object alone: ``evaluate`` gives the log
likelihood and log u at levels, ``gradient`` its derivative, ``geometry`` its information, and
``levels_at`` the levels that belong to shares. Prediction counts have
:class:`~gsb3se.inference.structured.count_likelihood.CountLikelihood`; other evidence that is
explained by levels needs another such class. What is believed of theta comes in through
:class:`~gsb3se.model.share_prior.SharePrior`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gsb3se.inference.structured.column_laws import ColumnLaws
from gsb3se.inference.structured.count_likelihood import Array, CountLikelihood
from gsb3se.inference.structured.share_mode import ModeSearch, ShareGaussian
from gsb3se.model.problem import Problem
from gsb3se.model.starting_values import shares_with_pseudo_counts
from gsb3se.support.simplex import Matrix, Vector, softmax


class SharePoint(NamedTuple):
    """C points of the density.

    Attributes:
        value: (C,) log density; force: (2K, C) its gradient.
        theta, log_eta: (K, C); room: (K, C) of every row's saddlepoint.
    """

    value: Array
    force: Array
    theta: Array
    log_eta: Array
    room: Array


class ShareDensity:
    """The density of one target given the columns' laws.

    Args:
        near: the Gaussian of the same target under similar laws, whose tau_q is taken over.
        likely: (K,) a guess of q to start from; None for that of a few steps of EM.

    Attributes:
        gaussian: at the mode, in double precision.
    """

    def __init__(
        self,
        problem: Problem,
        laws: ColumnLaws,
        near: ShareGaussian | None = None,
        likely: Vector | None = None,
    ) -> None:
        self.problem, self.laws, self.prior = problem, laws, problem.share_prior
        if likely is None:
            likely = shares_with_pseudo_counts(laws.mean, problem.target)
        self.likelihood = CountLikelihood(laws, problem.target, likely)
        log_eta = self.likelihood.levels_at(likely) if near is None else near.centre
        self.gaussian = ModeSearch(self.likelihood, self.prior).run(log_eta, near)
        self._coordinates = self.gaussian.astype(self.likelihood.dtype.type)

    def at(self, z: Array, near: SharePoint | None = None) -> SharePoint:
        """The density and the force at (2K, C) coordinates."""
        coordinates, n = self._coordinates, len(z) // 2
        log_eta = coordinates.centre[:, None] + coordinates.spread @ z[:n]
        values = self.likelihood.evaluate(log_eta, None if near is None else near.room)
        theta = log_eta + values.log_totals + coordinates.own @ z[n:]
        log_prior, pull = self.prior.collapsed(theta)
        value = values.log_likelihood + log_prior
        value -= np.einsum("ic,ic->c", z[n:], z[n:], dtype=float) / 2
        gradient = self.likelihood.gradient(values, pull)
        gradient += pull
        force = np.concatenate([coordinates.spread.T @ gradient, coordinates.own.T @ pull - z[n:]])
        return SharePoint(value, force, theta, log_eta, values.saddle.room)


def as_shares(theta: Array) -> Matrix:
    """q at (K, C) points, (C, K)."""
    return softmax(theta.astype(float), axis=0).T
