"""The hierarchy in jax, and NumPyro's NUTS on it; imported only where HMC runs.

The density is that of gsb3se.model with both log tau as coordinates, pulled back to
gsb3se.inference.coordinates. (The density with tau integrated out has no funnel either, but
given the fields tau_C is known to a relative 1 / K, and NUTS, whose draws change the energy little,
takes hundreds of them across a posterior of log tau_C that is several times wider.)
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache, partial
from threading import Event
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import sparse as jax_sparse
from jax.scipy.special import logsumexp
from numpy.typing import NDArray
from numpyro.infer.hmc import hmc
from scipy import sparse

from gsb3se.inference.coordinates import TARGET_LEVEL, ColumnFrame, TargetFrame
from gsb3se.problem import Problem

Array = Any
Position = dict[str, Array]

_TIMED = 5
_CHUNK = 50  # iterations between two looks at the clock


class Data(NamedTuple):
    """What the density needs of a problem, as jax arrays; None where the model has no such part."""

    counts: Array  # (K, K)
    target: Array
    laplacian: Any  # sparse, or None for the exchangeable graph
    weights: Array | None  # (K, K), of the anchor
    anchor_sd: Array | None
    shapes: Array  # of the conditionals of tau_q and tau_C
    rates: Array  # b_q and b_C
    columns: ColumnFrame
    theta: TargetFrame


class Point(NamedTuple):
    """A point of the hierarchy, and the log volume of the map that led to it."""

    theta: Array
    x: Array  # phi with free levels
    tau: Array  # tau_q, tau_C
    anchor: Array | None
    mean: Array  # mu, (K, K) or 0
    log_volume: Array


class Chain(NamedTuple):
    """The draws of one chain after its warm-up; (draws, ...) each."""

    q: Array
    r: Array
    tau: Array
    anchor: Array | None
    diverging: Array
    energy: Array
    num_steps: Array
    accept_prob: Array


@contextmanager
def double_precision() -> Iterator[None]:
    """float64 on the CPU, for this thread and this block alone."""
    with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
        yield


# The density


def as_data(problem: Problem, columns: ColumnFrame, target: TargetFrame) -> Data:
    """A problem and its frames as jax arrays; call within :func:`double_precision`."""
    prior, graph = problem.prior, problem.graph
    laplacian = None
    if not graph.is_exchangeable:
        laplacian = jax_sparse.BCSR.from_scipy_sparse(sparse.csr_matrix(graph.laplacian))
    return Data(
        counts=jnp.asarray(problem.counts.confusion.toarray(), float),
        target=jnp.asarray(problem.target),
        laplacian=laplacian,
        weights=jnp.asarray(graph.weights.toarray()) if prior.is_anchored else None,
        anchor_sd=jnp.asarray(prior.anchor_sd) if prior.is_anchored else None,
        shapes=jnp.asarray(problem.tau_shapes),
        rates=jnp.asarray([prior.b_q, prior.b_C]),
        columns=jax.tree.map(jnp.asarray, columns),
        theta=jax.tree.map(jnp.asarray, target),
    )


def point_at(data: Data, z: Position) -> Point:
    """The point of the hierarchy at the coordinates z."""
    tau = jnp.exp(z["log_tau"])
    frame, modes, anchor = data.columns, data.columns.modes, z.get("anchor")
    mean, level = _column_means(data, frame, anchor)
    pull = tau[1] * frame.degrees[:, None]
    cell = data.counts + pull
    leak = (frame.cut + 1 / tau[1]) / frame.volume
    stretch = 1 / jnp.sqrt(frame.frequencies[:, None] + leak)
    y = z["columns"]
    y = y + modes @ ((stretch - 1) * (modes.T @ y))
    known = data.counts * jnp.log(jnp.maximum(data.counts, 1.0))
    x, slope = _hinged(y, 1 / jnp.sqrt(cell))
    x = x + (known + pull * (mean + level)) / cell

    theta, theta_slope = _hinged(
        data.theta.rotation @ z["theta"],
        1 / jnp.sqrt(data.theta.information + tau[0] * frame.degrees),
    )
    theta = theta + data.theta.hinge

    log_volume = jnp.log(stretch).sum() + jnp.log(slope).sum() + jnp.log(theta_slope).sum()
    return Point(theta, x, tau, anchor, mean, log_volume)


def _hinged(y: Array, wide: Array) -> tuple[Array, Array]:
    """A map of slope ``wide`` below the hinge and at most 1 above it, and its slope."""
    narrow = jnp.minimum(wide, 1.0)
    bent = narrow * y - (wide - narrow) * jax.nn.softplus(-y)
    return bent, narrow + (wide - narrow) * jax.nn.sigmoid(-y)


def _column_means(data: Data, frame: ColumnFrame, anchor: Array | None) -> tuple[Array, Array]:
    """mu, and the level at which column i has m_i expected counts.

    The level follows alpha and beta only in columns without counts; elsewhere the counts hold it.
    """
    n_classes = len(data.target)
    if anchor is None:
        return jnp.zeros((1, 1)), jnp.log(frame.levels / n_classes)

    def means(weight: Array) -> Array:
        return weight[0] * jnp.eye(n_classes) + weight[1] * data.weights

    unseen = data.counts.sum(axis=0) == 0
    mean = means(anchor)
    total = jnp.where(unseen, logsumexp(mean, axis=0), logsumexp(means(frame.anchor), axis=0))
    return mean, jnp.log(frame.levels) - total


def potential(data: Data, z: Position) -> Array:
    """Minus the log posterior density of the coordinates, up to a constant."""
    at = point_at(data, z)
    value = at.log_volume + log_likelihood(at.theta, at.x, data)
    value += data.shapes @ z["log_tau"] - data.rates @ at.tau
    value -= 0.5 * at.tau[0] * quadratic_form(at.theta[:, None], data.laplacian)
    value -= 0.5 * at.tau[1] * quadratic_form(at.x - at.mean, data.laplacian)
    if at.anchor is not None and data.anchor_sd is not None:
        value -= 0.5 * (at.anchor**2).sum() / data.anchor_sd**2
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
def log_likelihood(theta: Array, x: Array, data: Data) -> Array:
    """Log likelihood of the counts plus the log densities of the columns' totals."""
    return _log_likelihood(theta, x, data)[0]


def _log_likelihood(theta: Array, x: Array, data: Data) -> tuple[Array, Any]:
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


# The sampler


class Sampler(NamedTuple):
    """NUTS with fixed settings, compiled once for every shape of data it meets."""

    start: Callable[..., Any]  # (key, z, data) -> state
    advance: Callable[..., Any]  # (state, total, data, iterations) -> state, total, draws


@lru_cache(maxsize=8)
def sampler(warmup: int, target_accept: float, max_tree_depth: int) -> Sampler:
    """NumPyro's NUTS with a diagonal mass matrix, both step and mass adapted in the warm-up."""
    init_kernel, sample_kernel = hmc(potential_fn_gen=lambda data: partial(potential, data))

    @jax.jit
    def start(key: Array, z: Position, data: Data) -> Any:
        return init_kernel(
            z,
            warmup,
            target_accept_prob=target_accept,
            max_tree_depth=max_tree_depth,
            model_args=(data,),
            rng_key=key,
        )

    @jax.jit
    def advance(state: Any, total: Array, data: Data, iterations: Array) -> Any:
        """Up to _CHUNK iterations; ``total`` sums the confusion matrices met."""

        def look(state: Any) -> tuple[Chain, Array]:
            at = point_at(data, state.z)
            confusion, q = jax.nn.softmax(at.x, axis=0), jax.nn.softmax(at.theta)
            about = (state.diverging, state.energy, state.num_steps, state.accept_prob)
            return Chain(q, confusion @ q, at.tau, at.anchor, *about), confusion

        def step(i: Array, carried: Any) -> Any:
            state, total, kept = carried
            state = sample_kernel(state, (data,))
            seen, confusion = look(state)
            kept = jax.tree.map(lambda all_of, one: all_of.at[i].set(one), kept, seen)
            return state, total + confusion, kept

        shapes = jax.eval_shape(lambda s: look(s)[0], state)
        kept = jax.tree.map(lambda one: jnp.zeros((_CHUNK, *one.shape), one.dtype), shapes)
        return jax.lax.fori_loop(0, iterations, step, (state, total, kept))

    return Sampler(start, advance)


def seconds_a_gradient(data: Data, z: dict[str, NDArray[np.float64]]) -> float:
    """Time of one gradient, compiled and warm."""
    gradient = jax.jit(jax.value_and_grad(potential, argnums=1))
    at = jax.tree.map(jnp.asarray, z)
    jax.block_until_ready(gradient(data, at))
    began = time.perf_counter()
    for _ in range(_TIMED):
        jax.block_until_ready(gradient(data, at))
    return (time.perf_counter() - began) / _TIMED


def starting_points(
    problem: Problem, columns: ColumnFrame, chains: int, rng: np.random.Generator
) -> list[dict[str, NDArray[np.float64]]]:
    """Scattered starts; every other chain where fields explain the columns, or where they do not.

    (With few labels tau_C can have a posterior on both sides, and a chain may stay on its own.)
    """
    n, degree = problem.n_classes, columns.degrees.mean()
    starts = []
    for chain in range(chains):
        tau_C = (0.2, 10.0)[chain % 2] / degree
        z = {
            "theta": 0.5 * rng.standard_normal(n),
            "columns": 0.5 * rng.standard_normal((n, n)),
            "log_tau": np.log([2.0 / degree, tau_C]) + 0.3 * rng.standard_normal(2),
        }
        if problem.prior.is_anchored:
            z["anchor"] = columns.anchor + 0.3 * rng.standard_normal(2)
        starts.append(z)
    return starts


def run_chains(
    run: Sampler,
    data: Data,
    starts: list[dict[str, NDArray[np.float64]]],
    seeds: list[int],
    warmup: int,
    draws: int,
    tell: Callable[[int], None],
) -> tuple[list[Chain], NDArray[np.float64]]:
    """Every chain, side by side on the cores there are, and the mean of the confusion matrices.

    A compiled step holds one core and no lock, so that threads suffice; they share what was
    compiled and need no setting of jax.
    """
    stop = Event()

    def one_chain(start: dict[str, NDArray[np.float64]], seed: int) -> tuple[Chain, Array]:
        with double_precision():
            state = run.start(jax.random.key(seed), jax.tree.map(jnp.asarray, start), data)
            kept: list[Any] = []
            for phase in (warmup, draws):
                total, kept = jnp.zeros_like(data.counts), []
                for done in range(0, phase, _CHUNK):
                    if stop.is_set():
                        raise RuntimeError("sampling was interrupted")
                    n = min(_CHUNK, phase - done)
                    state, total, seen = run.advance(state, total, data, n)
                    kept.append(jax.tree.map(lambda values, n=n: np.asarray(values)[:n], seen))
                    tell(n)
            return jax.tree.map(lambda *parts: np.concatenate(parts), *kept), np.asarray(total)

    with ThreadPoolExecutor(workers(len(starts))) as pool:
        try:
            done = list(pool.map(one_chain, starts, seeds))
        except BaseException:
            stop.set()
            raise
    return [chain for chain, _ in done], sum(total for _, total in done) / (len(done) * draws)


def workers(chains: int) -> int:
    """Chains that run at a time."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(chains, cores or 1))
