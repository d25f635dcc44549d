"""Shifted target priors, and target sets drawn to have them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gsb3se.graph import LabelGraph
from gsb3se.support.errors import as_whole_number, some_of
from gsb3se.support.labels import Label, as_codes
from gsb3se.support.simplex import Vector, as_distribution, softmax

Seed = int | np.random.Generator


def dirichlet(
    n_classes: int, alpha: float, seed: Seed, base: Literal["ones", "ramp"] = "ones"
) -> Vector:
    """A draw from Dirichlet(alpha u), u = (1, ..., 1) or, as the paper writes it, (1, ..., K).

    >>> q = dirichlet(4, alpha=1.0, seed=0)
    >>> q.shape, round(float(q.sum()), 12)
    ((4,), 1.0)
    """
    n_classes = as_whole_number(n_classes, "n_classes", least=2)
    _check_positive(alpha, "alpha")
    if base not in ("ones", "ramp"):
        raise ValueError(f"base must be 'ones' or 'ramp'; got {base!r}")
    shape = alpha * (np.ones(n_classes) if base == "ones" else np.arange(1.0, n_classes + 1))
    # Gamma draws in logarithms: with a small alpha plain ones underflow to zero together.
    rng = np.random.default_rng(seed)
    log_gamma = np.log(rng.gamma(shape + 1)) + np.log(rng.uniform(size=n_classes)) / shape
    return softmax(log_gamma)


def power_law(n_classes: int, exponent: float, seed: Seed | None = None) -> Vector:
    """q_i proportional to i^-exponent, in the order of the labels or shuffled by a seed.

    >>> power_law(3, exponent=1.0).round(4).tolist()
    [0.5455, 0.2727, 0.1818]
    """
    n_classes = as_whole_number(n_classes, "n_classes", least=2)
    if not np.isfinite(exponent):
        raise ValueError(f"exponent must be finite; got {exponent}")
    q = np.arange(1.0, n_classes + 1) ** -float(exponent)
    q /= q.sum()
    return q if seed is None else np.random.default_rng(seed).permutation(q)


def tweak_one(n_classes: int, index: int, mass: float) -> Vector:
    """Class ``index`` has the given mass, the others share the rest.

    >>> tweak_one(3, index=0, mass=0.8).round(12).tolist()
    [0.8, 0.1, 0.1]
    """
    n_classes = as_whole_number(n_classes, "n_classes", least=2)
    if not 0 <= mass <= 1:
        raise ValueError(f"mass must lie in [0, 1]; got {mass}")
    q = np.full(n_classes, (1.0 - mass) / (n_classes - 1))
    q[_as_index(index, n_classes)] = mass
    return q


def knock_out(source_prior: ArrayLike, index: int | Iterable[int], fraction: float = 1.0) -> Vector:
    """Remove a fraction of the given classes from a prior and normalise.

    >>> knock_out([0.5, 0.25, 0.25], index=0).tolist()
    [0.0, 0.5, 0.5]
    """
    q = as_distribution(source_prior, "source_prior")
    if not 0 <= fraction <= 1:
        raise ValueError(f"fraction must lie in [0, 1]; got {fraction}")
    indices = [index] if isinstance(index, int | np.integer) else list(index)
    q[[_as_index(i, len(q)) for i in indices]] *= 1.0 - fraction
    if q.sum() == 0:
        raise ValueError("knock_out must leave at least one class")
    return q / q.sum()


def graph_smooth(graph: LabelGraph, tau_q: float, seed: Seed) -> Vector:
    """softmax of a draw from N(0, (tau_q L)^+): alike labels become frequent together."""
    _check_positive(tau_q, "tau_q")
    field = graph.sample_fields(1, np.random.default_rng(seed))[:, 0]
    return softmax(field / np.sqrt(tau_q))


@dataclass(frozen=True, eq=False)
class TargetSet:
    """Rows drawn from a labelled pool.

    Attributes:
        indices: (n,) rows of the pool.
        realised: (K,) class proportions of those rows; they scatter about the q asked for.
    """

    indices: NDArray[np.int64]
    realised: Vector


def draw_target(
    y_pool: ArrayLike,
    q: ArrayLike,
    n: int,
    seed: Seed,
    *,
    replace: bool = False,
    labels: Iterable[Label] | None = None,
) -> TargetSet:
    """Draw n rows of a labelled pool whose classes follow q.

    Args:
        y_pool: labels of the pool.
        q: (K,) target prior.
        n: rows to draw.
        seed: seed or generator.
        replace: draw rows with replacement. Repeated rows carry no new information, so a posterior
            that takes them for independent is too sure of itself.
        labels: the classes in the order of q; by default the sorted distinct values of the pool.

    Raises:
        ValueError: without replacement, the pool has too few rows of a class.

    >>> target = draw_target([0] * 50 + [1] * 50, q=[0.9, 0.1], n=40, seed=0)
    >>> len(set(target.indices.tolist()))
    40
    """
    codes, names, q = _pool(y_pool, q, labels)
    n = as_whole_number(n, "n", least=1)
    rng = np.random.default_rng(seed)
    supply = np.bincount(codes, minlength=len(names))
    demand = rng.multinomial(n, q)
    short = np.flatnonzero(demand > (np.where(supply > 0, demand, 0) if replace else supply))
    if len(short):
        raise ValueError(
            f"the pool has too few rows of {some_of([names[i] for i in short])} to draw {n}: take "
            f"fewer than {largest_target(y_pool, q, labels=names)}, or replace=True where the "
            "class has any row"
        )
    by_class = np.split(np.argsort(codes, kind="stable"), np.cumsum(supply)[:-1])
    chosen = [
        rng.choice(rows, size, replace=replace)
        for rows, size in zip(by_class, demand, strict=True)
        if size
    ]
    return TargetSet(rng.permutation(np.concatenate(chosen)), demand / n)


def largest_target(
    y_pool: ArrayLike, q: ArrayLike, *, labels: Iterable[Label] | None = None
) -> int:
    """The size at which a target set without replacement exhausts a class on average.

    >>> largest_target([0] * 50 + [1] * 50, q=[0.75, 0.25])
    66
    """
    codes, names, q = _pool(y_pool, q, labels)
    supply = np.bincount(codes, minlength=len(names))
    with np.errstate(over="ignore"):  # a class of next to no share sets no limit
        return int(np.min(supply[q > 0] / q[q > 0]))


def _pool(
    y_pool: ArrayLike, q: ArrayLike, labels: Iterable[Label] | None
) -> tuple[NDArray[np.int64], tuple[Label, ...], Vector]:
    codes, names = as_codes(y_pool, labels, "y_pool")
    return codes, names, as_distribution(q, "q", len(names))


def _check_positive(value: float, name: str) -> None:
    if not 0 < value < np.inf:
        raise ValueError(f"{name} must be positive and finite; got {value}")


def _as_index(index: int, n_classes: int) -> int:
    if not (isinstance(index, int | np.integer) and 0 <= index < n_classes):
        raise ValueError(f"index must be a whole number in 0..{n_classes - 1}; got {index}")
    return int(index)
