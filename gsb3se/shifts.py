"""Shifted target priors, and target sets drawn to have them."""

from gsb3se.model.shifts import (
    TargetSet,
    dirichlet,
    draw_target,
    graph_smooth,
    knock_out,
    largest_target,
    power_law,
    tweak_one,
)

__all__ = [
    "TargetSet",
    "dirichlet",
    "draw_target",
    "graph_smooth",
    "knock_out",
    "largest_target",
    "power_law",
    "tweak_one",
]
