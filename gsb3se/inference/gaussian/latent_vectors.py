"""Latents as vectors: products, sums, and parts of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np

from gsb3se.model.density import Latents

Part = Literal["both", "theta", "columns"]


def dot(one: Latents, other: Latents) -> float:
    """The inner product."""
    inner = one.theta @ other.theta + np.einsum("ji,ji->", one.phi, other.phi)
    return float(inner + one.alpha * other.alpha + one.beta * other.beta)


def plus(one: Latents, other: Latents, scale: float = 1.0) -> Latents:
    """one + scale other."""
    return Latents(
        one.theta + scale * other.theta,
        one.phi + scale * other.phi,
        one.alpha + scale * other.alpha,
        one.beta + scale * other.beta,
    )


def times(latents: Latents, scale: float) -> Latents:
    """scale latents."""
    return plus(latents, latents, scale - 1)


def centred(latents: Latents) -> Latents:
    """theta and every column moved to mean zero."""
    return replace(
        latents,
        theta=latents.theta - latents.theta.mean(),
        phi=latents.phi - latents.phi.mean(axis=0),
    )


def restricted(latents: Latents, part: Part) -> Latents:
    """The part of a direction within a block; alpha and beta belong to the columns."""
    if part == "theta":
        return Latents(latents.theta, np.zeros_like(latents.phi))
    if part == "columns":
        return replace(latents, theta=np.zeros_like(latents.theta))
    return latents
