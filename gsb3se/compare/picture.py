"""Every backend's intervals beside HMC's, in one picture."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from gsb3se.drawing import figures
from gsb3se.plots import LONGEST_NAME, check_suffix, write
from gsb3se.support.errors import require

if TYPE_CHECKING:
    from gsb3se.compare.comparison import Comparison

_MOST_COMPARED = 30  # classes in the picture, the most frequent


def draw(comparison: Comparison, path: str | os.PathLike[str]) -> None:
    """Draw every backend's intervals beside HMC's, class by class, and write it to a file.

    HMC's interval is a grey band with a line at its mean; the backends' lie in it, one below the
    other, in their own colours.
    """
    check_suffix(path)
    matplotlib = require("matplotlib.figure", extra="plots")
    reference, level = comparison.reference, comparison.level
    order = np.argsort(-reference.mean, kind="stable")[:_MOST_COMPARED]
    place = np.arange(len(order))[::-1].astype(float)
    n_backends = max(len(comparison.posteriors), 1)

    figure = matplotlib.Figure(
        figsize=(8, 1.8 + (0.2 + 0.1 * n_backends) * len(order)), layout="constrained"
    )
    axes = figure.add_subplot()
    low, high = reference.interval(level)
    axes.barh(place, (high - low)[order], left=low[order], height=0.84, color="0.88", label="HMC")
    axes.vlines(reference.mean[order], place - 0.42, place + 0.42, color="0.55", linewidth=1.2)
    for k, (name, posterior) in enumerate(comparison.posteriors.items()):
        at = place + 0.32 - 0.64 * (k / (n_backends - 1) if n_backends > 1 else 0.5)
        low, high = posterior.interval(level)
        axes.hlines(at, low[order], high[order], color=f"C{k}", linewidth=1.8)
        axes.plot(
            posterior.mean[order],
            at,
            "o",
            color=f"C{k}",
            markersize=3.5,
            label=figures.no_formula(name),
        )
    for marker, (name, shares) in zip("x+d", comparison.point_estimates.items(), strict=False):
        axes.plot(shares[order], place, marker, color="0.25", alpha=0.7, clip_on=False, label=name)
    if comparison.truth is not None:
        axes.plot(comparison.truth[order], place, "k|", markersize=14, label="truth")
    axes.set_yticks(place, [figures.name_of(reference.labels[i], LONGEST_NAME) for i in order])
    axes.set_ylim(-0.6, len(order) - 0.4)
    axes.set_xlim(left=0)
    axes.set_xlabel(f"share of the target: means and {100 * level:.3g} % intervals")
    title = "every backend beside HMC"
    if len(order) < reference.n_classes:
        title += f": the {len(order)} most frequent of {reference.n_classes} classes"
    if comparison.complaints:
        title += "\nnot a reference: " + "; ".join(comparison.complaints)
    figure.suptitle(title, fontsize="medium")
    figure.legend(loc="outside lower center", ncols=4, fontsize="small", frameon=False)
    axes.grid(axis="x", alpha=0.3)
    write(figure, path)
