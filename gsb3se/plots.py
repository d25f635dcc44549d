"""Pictures of a posterior; they need the extra ``plots``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gsb3se.errors import require
from gsb3se.files import write_atomically
from gsb3se.posterior import Posterior

_MOST_CLASSES = 60  # in one picture, the most frequent
SUFFIXES = (".png", ".pdf", ".svg")


def intervals(
    posterior: Posterior,
    path: str | os.PathLike[str],
    *,
    level: float = 0.9,
    others: Mapping[str, ArrayLike] | None = None,
) -> None:
    """Draw the interval of every class, the most frequent on top, and write it to a file.

    Args:
        posterior: what to draw.
        path: ends in .png, .pdf or .svg.
        level: of the equal-tailed intervals.
        others: further shares to mark, (K,) each, by the name the legend shall give them.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(f"a picture ends in .png, .pdf or .svg; got {path}")
    figures = require("matplotlib.figure", extra="plots")
    order = np.argsort(-posterior.mean, kind="stable")[:_MOST_CLASSES]
    low, high = posterior.interval(level)
    place = np.arange(len(order))[::-1]

    figure = figures.Figure(figsize=(7, 1.2 + 0.22 * len(order)), layout="constrained")
    axes = figure.add_subplot()
    axes.hlines(place, low[order], high[order], color="tab:blue", linewidth=3, alpha=0.5)
    axes.plot(posterior.mean[order], place, "o", color="tab:blue", label="posterior mean")
    for marker, (name, shares) in zip(cycle("x+d^vs"), (others or {}).items(), strict=False):
        marked = np.asarray(shares, dtype=float)
        if marked.shape != (posterior.n_classes,):
            raise ValueError(f"{name!r} must hold a share for each class; got {marked.shape}")
        axes.plot(marked[order], place, marker, label=name, alpha=0.8)
    axes.set_yticks(place, [_plain(posterior.labels[i]) for i in order])
    axes.set_xlim(left=0)
    axes.set_xlabel(f"share of the target, with {100 * level:.3g} % intervals")
    if len(order) < posterior.n_classes:
        axes.set_title(f"the {len(order)} most frequent of {posterior.n_classes} classes")
    axes.legend(loc="lower right")
    axes.grid(axis="x", alpha=0.3)
    write_atomically(path, lambda file: figure.savefig(file, format=suffix[1:], dpi=150))


def _plain(label: Any) -> str:
    return str(label).replace("$", r"\$")  # a dollar would begin a formula
