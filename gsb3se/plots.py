"""Pictures of a posterior; they need the extra ``plots``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gsb3se.drawing import figures
from gsb3se.graph import LabelGraph
from gsb3se.posterior.posterior import Posterior
from gsb3se.support.errors import require
from gsb3se.support.files import write_atomically
from gsb3se.support.simplex import as_distribution

_MOST_CLASSES = 60  # in one picture, the most frequent
LONGEST_NAME = 40
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
    check_suffix(path)
    matplotlib = require("matplotlib.figure", extra="plots")
    order = np.argsort(-posterior.mean, kind="stable")[:_MOST_CLASSES]
    low, high = posterior.interval(level)
    place = np.arange(len(order))[::-1]

    figure = matplotlib.Figure(figsize=(7, 1.2 + 0.22 * len(order)), layout="constrained")
    axes = figure.add_subplot()
    axes.hlines(place, low[order], high[order], color="tab:blue", linewidth=3, alpha=0.5)
    axes.plot(posterior.mean[order], place, "o", color="tab:blue", label="posterior mean")
    for marker, (name, shares) in zip(cycle("x+d^vs"), (others or {}).items(), strict=False):
        marked = np.asarray(shares, dtype=float)
        if marked.shape != (posterior.n_classes,):
            raise ValueError(f"{name!r} must hold a share for each class; got {marked.shape}")
        axes.plot(marked[order], place, marker, label=figures.name_of(name), alpha=0.8)
    axes.set_yticks(place, [figures.name_of(posterior.labels[i], LONGEST_NAME) for i in order])
    axes.set_xlim(left=0)
    axes.set_xlabel(f"share of the target, with {100 * level:.3g} % intervals")
    if len(order) < posterior.n_classes:
        axes.set_title(f"the {len(order)} most frequent of {posterior.n_classes} classes")
    axes.legend(loc="lower right")
    axes.grid(axis="x", alpha=0.3)
    write(figure, path)


def shifts(
    posterior: Posterior,
    source_prior: ArrayLike | None,
    path: str | os.PathLike[str],
    *,
    level: float = 0.9,
) -> None:
    """Draw the intervals beside the source prior, the largest shifts on top."""
    write(figures.shifts(shares_of(posterior, source_prior, level)), path)


def confusions(posterior: Posterior, path: str | os.PathLike[str]) -> None:
    """Draw how the classes that are mistaken most often are predicted."""
    if posterior.confusion_mean is None:
        raise ValueError(f"a posterior by {posterior.backend!r} has no mean confusion matrix")
    write(figures.confusions(posterior.confusion_mean, posterior.labels), path)


def graph_changes(
    posterior: Posterior,
    source_prior: ArrayLike,
    path: str | os.PathLike[str],
    graph: LabelGraph | None = None,
) -> None:
    """Draw the label graph around the classes that changed most.

    Args:
        graph: by default the one the posterior was made with.
    """
    if graph is None and posterior.problem is not None:
        graph = posterior.problem.graph
    if graph is None:
        raise ValueError("this posterior does not know its graph: give it as graph=")
    p = as_distribution(source_prior, "source_prior", posterior.n_classes)
    write(figures.graph_changes(graph, posterior.mean - p, posterior.labels), path)


def drift(drifting: figures.Drift, path: str | os.PathLike[str]) -> None:
    """Draw the shares that moved most over the windows of a batch; see gsb3se.report."""
    write(figures.drift_shares(drifting), path)


def drift_distance(drifting: figures.Drift, path: str | os.PathLike[str]) -> None:
    """Draw how far the windows of a batch are from the source prior."""
    write(figures.drift_distance(drifting), path)


def shares_of(
    posterior: Posterior, source_prior: ArrayLike | None, level: float = 0.9
) -> figures.Shares:
    """A posterior as it is drawn."""
    source = None
    if source_prior is not None:
        source = as_distribution(source_prior, "source_prior", posterior.n_classes)
    return figures.Shares(
        posterior.labels, posterior.mean, *posterior.interval(level), source, level
    )


def check_suffix(path: str | os.PathLike[str]) -> None:
    """Raise ValueError unless a picture can be written to this path."""
    if Path(path).suffix.lower() not in SUFFIXES:
        raise ValueError(f"a picture ends in .png, .pdf or .svg; got {path}")


def write(figure: Any, path: str | os.PathLike[str]) -> None:
    """Write a figure to a .png, .pdf or .svg file, whole or not at all."""
    check_suffix(path)
    form = Path(path).suffix.lower()[1:]
    write_atomically(path, lambda file: figures.write(figure, file, format=form, dpi=150))
