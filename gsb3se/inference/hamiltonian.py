"""One integrator: Hamiltonian trajectories of many chains in a space where they roam N(0, I).

Where a density is nearly that of N(0, I), whose trajectories are rotations, only the difference of
both forces needs steps: the motion alternates kicks by that difference with exact rotations. It
preserves volume and can be reversed, so that a Metropolis step at the end makes it exact.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gsb3se.support.simplex import Vector

Array = NDArray[Any]


class Steps(NamedTuple):
    """How a trajectory goes.

    Attributes:
        angle: (C,) radians to rotate by after each kick; kicks: how many there are.
        n_fixed: number of leading coordinates that stay fixed.
    """

    angle: Array
    kicks: int
    n_fixed: int = 0


def trajectory(
    place: Array,
    force: Array,
    momentum: Array,
    steps: Steps,
    force_at: Callable[[Array, bool], Array],
) -> tuple[Array, Array]:
    """Follow C chains side by side; place and momentum at the end.

    Args:
        place, force, momentum: (D, C) where the chains are, the density's force there, and how they
            move.
        force_at: the force at another place; told whether it is the last one.

    >>> start, momentum = np.ones((1, 1)), np.zeros((1, 1))
    >>> half = Steps(angle=np.array([np.pi / 4]), kicks=2)
    >>> end, _ = trajectory(start, -start, momentum, half, lambda place, last: -place)
    >>> bool(abs(end[0, 0]) < 1e-15)  # of N(0, I) itself: a rotation by a quarter turn
    True
    """
    angle, fixed = steps.angle, steps.n_fixed
    cosine, sine = np.cos(angle), np.sin(angle)
    for left in range(steps.kicks - 1, -1, -1):
        momentum = momentum + angle / 2 * (force + place)
        momentum[:fixed] = 0
        rest = place[:fixed]
        place, momentum = cosine * place + sine * momentum, cosine * momentum - sine * place
        place[:fixed], momentum[:fixed] = rest, 0
        force = force_at(place, left == 0)
        momentum = momentum + angle / 2 * (force + place)
        momentum[:fixed] = 0
    return place, momentum


def kinetic_energy(momentum: Array) -> Vector:
    """Of each chain, (C,), in double precision."""
    return np.einsum("dc,dc->c", momentum, momentum, dtype=float) / 2


def accepted_chains(change: Vector, log_uniform: Vector) -> NDArray[np.bool_]:
    """Metropolis' rule, (C,); a chain whose change of log density is NaN is rejected."""
    return log_uniform < np.where(np.isnan(change), -np.inf, change)
