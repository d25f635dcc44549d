"""The hierarchy's density in jax; imported only where HMC runs.

It is that of gsb3se.model.density with both log tau as coordinates, pulled back to
gsb3se.inference.hmc.coordinates. (The density with tau integrated out has no funnel either, but
given the columns tau_C has a relative sd of 1 / K, but its posterior is several times wider: NUTS,
whose draws change the energy little, would need hundreds of draws to cross it.)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import sparse as jax_sparse
from jax.scipy.special import logsumexp
from scipy import sparse

from gsb3se.inference.hmc.coordinates import TARGET_LEVEL, ColumnScaling, ShareScaling
from gsb3se.model.problem import Problem

Array = Any
Position = dict[str, Array]


class JaxProblem(NamedTuple):
    """What the density needs of a problem, as jax arrays; None where the model has no such part."""

    counts: Array  # (K, K)
    target: Array
    laplacian: Any  # sparse, or None for the exchangeable graph
    similarity: Array | None  # (K, K) W
    weight_sd: Array | None  # of alpha and beta
    shapes: Array  # of the conditionals of tau_q and tau_C
    rates: Array  # b_q and b_C
    columns: ColumnScaling
    theta: ShareScaling


class HierarchyPoint(NamedTuple):
    """A point of the hierarchy, and the log volume of the map that led to it."""

    theta: Array
    x: Array  # phi with free levels
    tau: Array  # tau_q, tau_C
    weights: Array | None  # alpha, beta
    mean: Array  # mu, (K, K) or 0
    log_volume: Array


@contextmanager
def double_precision() -> Iterator[None]:
    """float64 on the CPU, for this thread and this block alone."""
    with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
        yield


def as_data(problem: Problem, columns: ColumnScaling, target: ShareScaling) -> JaxProblem:
    """A problem and its scalings as jax arrays; call within :func:`double_precision`."""
    prior, graph = problem.prior, problem.graph
    laplacian = None
    if not graph.is_exchangeable:
        laplacian = jax_sparse.BCSR.from_scipy_sparse(sparse.csr_matrix(graph.laplacian))
    return JaxProblem(
        counts=jnp.asarray(problem.counts.confusion.toarray(), float),
        target=jnp.asarray(problem.target),
        laplacian=laplacian,
        similarity=jnp.asarray(graph.weights.toarray()) if prior.is_anchored else None,
        weight_sd=jnp.asarray(prior.anchor_sd) if prior.is_anchored else None,
        shapes=jnp.asarray(problem.tau_shapes),
        rates=jnp.asarray([prior.b_q, prior.b_C]),
        columns=jax.tree.map(jnp.asarray, columns),
        theta=jax.tree.map(jnp.asarray, target),
    )


def point_at(data: JaxProblem, z: Position) -> HierarchyPoint:
    """The point of the hierarchy at the coordinates z."""
    tau = jnp.exp(z["log_tau"])
    scaling, modes, weights = data.columns, data.columns.modes, z.get("anchor")
    mean, level = _column_means(data, weights)
    pull = tau[1] * scaling.degrees[:, None]
    cell = data.counts + pull
    leak = (scaling.cut + 1 / tau[1]) / scaling.volume
    stretch = 1 / jnp.sqrt(scaling.frequencies[:, None] + leak)
    y = z["columns"]
    y = y + modes @ ((stretch - 1) * (modes.T @ y))
    counted = data.counts * jnp.log(jnp.maximum(data.counts, 1.0))
    x, slope = _hinged(y, 1 / jnp.sqrt(cell))
    x = x + (counted + pull * (mean + level)) / cell

    theta, theta_slope = _hinged(
        data.theta.rotation @ z["theta"],
        1 / jnp.sqrt(data.theta.information + tau[0] * scaling.degrees),
    )
    theta = theta + data.theta.hinge

    log_volume = jnp.log(stretch).sum() + jnp.log(slope).sum() + jnp.log(theta_slope).sum()
    return HierarchyPoint(theta, x, tau, weights, mean, log_volume)


def _hinged(y: Array, wide: Array) -> tuple[Array, Array]:
    """A map of slope ``wide`` below the hinge and at most 1 above it, and its slope."""
    narrow = jnp.minimum(wide, 1.0)
    bent = narrow * y - (wide - narrow) * jax.nn.softplus(-y)
    return bent, narrow + (wide - narrow) * jax.nn.sigmoid(-y)


def _column_means(data: JaxProblem, weights: Array | None) -> tuple[Array, Array]:
    """mu, and the level at which column i has m_i expected counts.

    The level follows alpha and beta only in columns without counts; elsewhere the counts hold it.
    """
    n_classes, scaling = len(data.target), data.columns
    if weights is None:
        return jnp.zeros((1, 1)), jnp.log(scaling.levels / n_classes)

    def means(weight: Array) -> Array:
        return weight[0] * jnp.eye(n_classes) + weight[1] * data.similarity

    unseen = data.counts.sum(axis=0) == 0
    mean, at_start = means(weights), means(scaling.weights)
    total = jnp.where(unseen, logsumexp(mean, axis=0), logsumexp(at_start, axis=0))
    return mean, jnp.log(scaling.levels) - total


def potential(data: JaxProblem, z: Position) -> Array:
    """Minus the log posterior density of the coordinates, up to a constant."""
    at = point_at(data, z)
    value = at.log_volume + log_likelihood(at.theta, at.x, data)
    value += data.shapes @ z["log_tau"] - data.rates @ at.tau
    value -= 0.5 * at.tau[0] * quadratic_form(at.theta[:, None], data.laplacian)
    value -= 0.5 * at.tau[1] * quadratic_form(at.x - at.mean, data.laplacian)
    if at.weights is not None and data.weight_sd is not None:
        value -= 0.5 * (at.weights**2).sum() / data.weight_sd**2
    return -value


@jax.custom_vjp
def quadratic_form(fields: Array, laplacian: Any) -> Array:
    """sum_i f_i'L f_i over the columns, its gradient from the one product L f."""
    return _quadratic_form(fields, laplacian)[0]


def _quadratic_form(fields: Array, laplacian: Any) -> tuple[Array, Array]:
    product = fields - fields.mean(axis=0) if laplacian is None else laplacian @ fields
    return (fields * product).sum(), product


quadratic_form.defvjp(_quadratic_form, lambda product, slope: (2 * slope * product, None))


@jax.custom_vjp
def log_likelihood(theta: Array, x: Array, data: JaxProblem) -> Array:
    """Log likelihood of the counts plus the log densities of the columns' totals."""
    return _log_likelihood(theta, x, data)[0]


def _log_likelihood(theta: Array, x: Array, data: JaxProblem) -> tuple[Array, Any]:
    q = jax.nn.softmax(theta)
    exp_x = jnp.exp(x)
    totals = exp_x.sum(axis=0)
    share = q / totals
    r = exp_x @ share
    sizes, levels = data.counts.sum(axis=0), data.columns.levels
    log_total = logsumexp(theta)
    value = TARGET_LEVEL * log_total - jnp.exp(log_total)
    value += (data.counts * x).sum() + (levels - sizes) @ jnp.log(totals) - totals.sum()
    value += jnp.where(data.target > 0, data.target * jnp.log(r), 0.0).sum()
    return value, (q, jnp.exp(log_total), exp_x, totals, share, r, data)


def _log_likelihood_slope(saved: Any, slope: Array) -> tuple[Array, Array, None]:
    q, total, exp_x, totals, share, r, data = saved
    nu = data.target / r
    w = (exp_x.T @ nu) / totals
    excess = (data.columns.levels - data.counts.sum(axis=0)) / totals - 1 - share * w
    by_theta = q * (w - data.target.sum() + TARGET_LEVEL - total)
    by_x = data.counts + exp_x * (share * nu[:, None] + excess)
    return slope * by_theta, slope * by_x, None


log_likelihood.defvjp(_log_likelihood, _log_likelihood_slope)
