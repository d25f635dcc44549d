"""NumPyro's NUTS on the hierarchy's density; imported only where HMC runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from threading import Event
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from numpyro.infer.hmc import hmc

from gsb3se.inference.hmc.coordinates import ColumnScaling
from gsb3se.inference.hmc.density import (
    Array,
    JaxProblem,
    Position,
    double_precision,
    point_at,
    potential,
)
from gsb3se.model.problem import Problem
from gsb3se.support.machine import available_cores

_TIMED = 5
_CHUNK = 50  # iterations between two looks at the clock


class ChainDraws(NamedTuple):
    """The draws of one chain after its warm-up; (draws, ...) each."""

    q: Array
    r: Array
    tau: Array
    weights: Array | None
    diverging: Array
    energy: Array
    num_steps: Array
    accept_prob: Array


class CompiledSampler(NamedTuple):
    """NUTS with fixed settings, compiled once for every shape of data it meets."""

    start: Callable[..., Any]  # (key, z, data) -> state
    advance: Callable[..., Any]  # (state, total, data, iterations) -> state, total, draws


@lru_cache(maxsize=8)
def sampler(warmup: int, target_accept: float, max_tree_depth: int) -> CompiledSampler:
    """NumPyro's NUTS with a diagonal mass matrix, both step and mass adapted in the warm-up."""
    init_kernel, sample_kernel = hmc(potential_fn_gen=lambda data: partial(potential, data))

    @jax.jit
    def start(key: Array, z: Position, data: JaxProblem) -> Any:
        return init_kernel(
            z,
            warmup,
            target_accept_prob=target_accept,
            max_tree_depth=max_tree_depth,
            model_args=(data,),
            rng_key=key,
        )

    @jax.jit
    def advance(state: Any, total: Array, data: JaxProblem, iterations: Array) -> Any:
        """Up to _CHUNK iterations; ``total`` sums the confusion matrices met."""

        def look(state: Any) -> tuple[ChainDraws, Array]:
            at = point_at(data, state.z)
            confusion, q = jax.nn.softmax(at.x, axis=0), jax.nn.softmax(at.theta)
            about = (state.diverging, state.energy, state.num_steps, state.accept_prob)
            return ChainDraws(q, confusion @ q, at.tau, at.weights, *about), confusion

        def step(i: Array, carried: Any) -> Any:
            state, total, kept = carried
            state = sample_kernel(state, (data,))
            seen, confusion = look(state)
            kept = jax.tree.map(lambda all_of, one: all_of.at[i].set(one), kept, seen)
            return state, total + confusion, kept

        shapes = jax.eval_shape(lambda s: look(s)[0], state)
        kept = jax.tree.map(lambda one: jnp.zeros((_CHUNK, *one.shape), one.dtype), shapes)
        return jax.lax.fori_loop(0, iterations, step, (state, total, kept))

    return CompiledSampler(start, advance)


def seconds_a_gradient(data: JaxProblem, z: dict[str, NDArray[np.float64]]) -> float:
    """Time of one gradient, compiled and warm."""
    gradient = jax.jit(jax.value_and_grad(potential, argnums=1))
    at = jax.tree.map(jnp.asarray, z)
    jax.block_until_ready(gradient(data, at))
    began = time.perf_counter()
    for _ in range(_TIMED):
        jax.block_until_ready(gradient(data, at))
    return (time.perf_counter() - began) / _TIMED


class ChainStart(NamedTuple):
    """Coordinates that a chain starts from, and its seed."""

    z: dict[str, NDArray[np.float64]]
    seed: int


def starting_points(
    problem: Problem, columns: ColumnScaling, chains: int, rng: np.random.Generator
) -> list[ChainStart]:
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
            z["anchor"] = columns.weights + 0.3 * rng.standard_normal(2)
        starts.append(z)
    seeds = rng.integers(2**31, size=chains)
    return [ChainStart(z, int(seed)) for z, seed in zip(starts, seeds, strict=True)]


def run_chains(
    run: CompiledSampler,
    data: JaxProblem,
    starts: list[ChainStart],
    warmup: int,
    draws: int,
    advance: Callable[[int], None],
) -> tuple[list[ChainDraws], NDArray[np.float64]]:
    """Every chain, side by side on the cores there are, and the mean of the confusion matrices.

    Args:
        advance: is told how many more iterations are done.

    A compiled step holds one core and no lock, so that threads suffice; they share what was
    compiled and need no setting of jax.
    """
    stop = Event()

    def one_chain(start: ChainStart) -> tuple[ChainDraws, Array]:
        with double_precision():
            z = jax.tree.map(jnp.asarray, start.z)
            state = run.start(jax.random.key(start.seed), z, data)
            chunks: list[Any] = []
            for phase in (warmup, draws):
                total, chunks = jnp.zeros_like(data.counts), []
                for done in range(0, phase, _CHUNK):
                    if stop.is_set():
                        raise RuntimeError("sampling was interrupted")
                    n = min(_CHUNK, phase - done)
                    state, total, seen = run.advance(state, total, data, n)
                    chunks.append(jax.tree.map(lambda values, n=n: np.asarray(values)[:n], seen))
                    advance(n)
            return jax.tree.map(lambda *parts: np.concatenate(parts), *chunks), np.asarray(total)

    with ThreadPoolExecutor(min(len(starts), available_cores())) as pool:
        try:
            done = list(pool.map(one_chain, starts))
        except BaseException:
            stop.set()
            raise
    return [chain for chain, _ in done], sum(total for _, total in done) / (len(done) * draws)
