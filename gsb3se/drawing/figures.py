"""What plots and reports draw, as matplotlib figures that fit a phone and need no window.

All lines and letters that shall follow a page's colours are of one colour, INK.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gsb3se.graph import LabelGraph
from gsb3se.support.errors import require
from gsb3se.support.labels import Label, printable
from gsb3se.support.simplex import Matrix, Vector

INK = "#3b3f46"
BLUE, ORANGE, GREY = "#3d7dca", "#d9822b", "#9aa0a8"
RISE, FALL = "#c8553d", "#3d7dca"
_WIDTH = 4.2  # inches: letters stay readable on a phone
MOST_SHIFTS, _MOST_NODES, _MOST_CONFUSED, _MOST_LINES = 25, 45, 16, 6
_MOST_MARKS = 500
_LONGEST_NAME = 22


@dataclass(frozen=True, eq=False)
class Shares:
    """Shares of the classes in a target beside the source's; (K,) each."""

    labels: tuple[Label, ...]
    mean: Vector
    low: Vector
    high: Vector
    source: Vector | None
    level: float

    @property
    def order(self) -> NDArray[np.int64]:
        """Classes by how far they are from the source; by size if it is not known."""
        far = self.mean if self.source is None else np.abs(self.mean - self.source)
        return np.argsort(-far, kind="stable")


def shifts(shares: Shares) -> Any:
    """Intervals beside the source prior, the largest shifts on top."""
    order = shares.order[:MOST_SHIFTS]
    place = np.arange(len(order))[::-1]
    figure, axes = _figure(0.9 + 0.21 * len(order))
    axes.hlines(place, shares.low[order], shares.high[order], color=BLUE, linewidth=4, alpha=0.45)
    axes.plot(
        shares.mean[order], place, "o", color=BLUE, markersize=4, label="target, posterior mean"
    )
    if shares.source is not None:
        axes.plot(
            shares.source[order], place, "|", color=ORANGE, markersize=9, mew=2, label="source"
        )
    axes.set_yticks(place, [name_of(shares.labels[i]) for i in order])
    axes.set_ylim(-0.7, len(order) - 0.3)
    axes.set_xlim(left=0)
    axes.set_xlabel(f"share, with {100 * shares.level:.3g} % intervals")
    axes.grid(axis="x", alpha=0.25)
    _legend(figure)
    return figure


def confusions(columns: Matrix, labels: Sequence[Label]) -> Any:
    """How the classes that are mistaken most often are predicted: (K, K), columns of sum one."""
    wrong = 1 - np.diag(columns)
    chosen = np.sort(np.argsort(-wrong, kind="stable")[:_MOST_CONFUSED])
    part = columns[np.ix_(chosen, chosen)]
    figure, axes = _figure(_WIDTH * 0.92)
    axes.imshow(np.ma.masked_less(part, 0.005), cmap="Blues", vmin=0, vmax=1)
    size = 7 if len(chosen) <= 12 else 5
    for j, i in np.argwhere(part >= 0.01):
        dark = part[j, i] > 0.55
        axes.text(
            i,
            j,
            f"{100 * part[j, i]:.0f}",
            ha="center",
            va="center",
            fontsize=size,
            color="white" if dark else "#20344d",
        )
    names = [name_of(labels[i], 12) for i in chosen]
    axes.set_xticks(range(len(chosen)), names, rotation=90, fontsize=7)
    axes.set_yticks(range(len(chosen)), names, fontsize=7)
    axes.set_xlabel("true class")
    axes.set_ylabel("predicted, % of the true class")
    return figure


def graph_changes(graph: LabelGraph, change: Vector, labels: Sequence[Label]) -> Any:
    """The part of the label graph around the classes that changed most.

    Args:
        change: (K,) target share minus source share.
    """
    nodes = around(graph, change)
    weights = graph.sparse_weights
    assert weights is not None
    part = weights[nodes][:, nodes].toarray()
    at = layout(part)
    figure, axes = _figure(_WIDTH * 0.85)
    largest = part.max() or 1.0
    for i, j in np.argwhere(np.triu(part) > 0):
        axes.plot(
            *at[[i, j]].T, color=GREY, alpha=0.5, linewidth=0.3 + part[i, j] / largest, zorder=1
        )
    moved = change[nodes]
    reach = np.abs(moved).max() or 1.0
    strength = np.abs(moved) / reach
    colours = [RISE if value > 0 else FALL for value in moved]
    axes.scatter(*at.T, s=18 + 260 * strength, c=colours, alpha=0.85, linewidths=0, zorder=2)
    for place, node, size in zip(at, nodes, strength, strict=True):
        if size > 0.12 or len(nodes) <= 20:
            text = name_of(labels[node], 14)
            axes.annotate(
                text,
                place,
                xytext=(0, 6 + 4 * size),
                textcoords="offset points",
                fontsize=7,
                ha="center",
                color=INK,
                zorder=3,
            )
    axes.plot([], [], "o", color=RISE, label="more frequent than in the source")
    axes.plot([], [], "o", color=FALL, label="less frequent")
    axes.set_axis_off()
    axes.margins(0.12)
    _legend(figure)
    return figure


def around(graph: LabelGraph, change: Vector) -> NDArray[np.int64]:
    """The classes that changed most and their neighbours, as many as a picture holds."""
    weights = graph.sparse_weights
    if weights is None:
        raise ValueError("an exchangeable graph has no similar labels to draw")
    chosen: dict[int, None] = {}
    for node in np.argsort(-np.abs(change), kind="stable"):
        neighbours = weights.indices[weights.indptr[node] : weights.indptr[node + 1]]
        for one in (int(node), *map(int, neighbours)):
            if len(chosen) < _MOST_NODES:
                chosen.setdefault(one)
        if len(chosen) == _MOST_NODES:
            break
    return np.array(sorted(chosen))


def layout(weights: Matrix, rounds: int = 400) -> Matrix:
    """Places (n, 2) for nodes: neighbours attract, all repel (Fruchterman and Reingold)."""
    n = len(weights)
    turn = np.arange(n) * np.pi * (3 - np.sqrt(5))
    at = np.sqrt(np.arange(n) + 0.5)[:, None] * np.column_stack([np.cos(turn), np.sin(turn)])
    at /= np.abs(at).max()
    ideal = 1.6 / np.sqrt(n)
    tie = weights / (weights.max() or 1.0)
    for step in range(rounds):
        apart = at[:, None] - at
        distance = np.maximum(np.sqrt((apart**2).sum(axis=2)), 1e-6)
        push = (ideal / distance) ** 2 - tie * distance / ideal
        np.fill_diagonal(push, 0.0)
        force = (push[:, :, None] * apart).sum(axis=1) - 0.3 * at
        length = np.maximum(np.sqrt((force**2).sum(axis=1, keepdims=True)), 1e-9)
        at += force / length * np.minimum(length, 0.1 * (1 - step / rounds))
    return at


@dataclass(frozen=True, eq=False)
class Drift:
    """Windows one after the other.

    Attributes:
        names: of the W windows.
        shift: (W,) L1 distance to the source prior; flagged: (W,) whether it is an alert.
        alert: the smallest distance that can raise an alert.
        mean, low, high, source: (W, K).
        labels: the K classes; level: of the intervals.
    """

    names: list[str]
    shift: Vector
    flagged: NDArray[np.bool_]
    alert: float
    mean: Matrix
    low: Matrix
    high: Matrix
    source: Matrix
    labels: tuple[Label, ...]
    level: float


def drift_distance(drift: Drift) -> Any:
    """The distance to the source prior over the windows; alerts stand out."""
    figure, axes = _figure(2.4)
    at = np.arange(len(drift.names))
    axes.plot(at, drift.shift, "-", color=BLUE, linewidth=1.2)
    size = 4 if len(at) <= 100 else 1.5
    if len(at) <= _MOST_MARKS:
        axes.plot(at, drift.shift, "o", color=BLUE, markersize=size)
    axes.plot(
        at[drift.flagged],
        drift.shift[drift.flagged],
        "o",
        color=RISE,
        markersize=size + 1,
        label="shift detected",
    )
    axes.axhline(drift.alert, color=ORANGE, linewidth=1, linestyle="--", label="alert")
    axes.set_ylim(bottom=0)
    axes.set_ylabel("L1 distance to source")
    _window_ticks(axes, drift.names)
    axes.grid(axis="y", alpha=0.25)
    _legend(figure)
    return figure


def drift_shares(drift: Drift) -> Any:
    """The shares of the classes that moved most over the windows, with bands."""
    span = np.nanmax(drift.mean, axis=0) - np.nanmin(drift.mean, axis=0)
    chosen = np.argsort(-span, kind="stable")[:_MOST_LINES]
    rows = -(-len(chosen) // 2)
    figures = require("matplotlib.figure", extra="plots")
    figure = figures.Figure(figsize=(_WIDTH, 0.6 + 1.25 * rows), layout="constrained")
    panels = figure.subplots(rows, 2, sharex=True, squeeze=False)
    at = np.arange(len(drift.names))
    for panel, i in zip(panels.flat, chosen, strict=False):
        _dress(panel)
        panel.fill_between(
            at, drift.low[:, i], drift.high[:, i], color=BLUE, alpha=0.3, linewidth=0
        )
        panel.plot(at, drift.mean[:, i], "-", color=BLUE, linewidth=1.2)
        panel.plot(at, drift.source[:, i], "-", color=ORANGE, linewidth=1)
        panel.set_title(name_of(drift.labels[i]), fontsize=8, color=INK, loc="left")
        panel.set_ylim(bottom=0)
    for panel in panels.flat[len(chosen) :]:
        panel.set_axis_off()
    for panel in panels[-1]:
        _window_ticks(panel, drift.names, most=2)
    return figure


def write(figure: Any, file: Any, **settings: Any) -> None:
    """Write a figure; letters that no font of this machine has become boxes without a word."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        figure.savefig(file, **settings)


def name_of(label: Label, longest: int = _LONGEST_NAME) -> str:
    """A label as matplotlib shall show it: not too long, and no formula."""
    text = printable(label)
    if len(text) > longest:
        text = text[: longest - 1] + "…"
    return no_formula(text)


def no_formula(label: Label) -> str:
    """A label as text in which matplotlib sees no formula, and which no legend leaves out."""
    text = printable(label).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def _window_ticks(axes: Any, names: list[str], most: int = 5) -> None:
    step = max(1, -(-len(names) // most))
    at = list(range(0, len(names), step))
    axes.set_xticks(at, [name_of(names[i], 12) for i in at])


def _figure(height: float) -> tuple[Any, Any]:
    figures = require("matplotlib.figure", extra="plots")
    figure = figures.Figure(figsize=(_WIDTH, height), layout="constrained")
    axes = figure.add_subplot()
    _dress(axes)
    return figure, axes


def _dress(axes: Any) -> None:
    axes.patch.set_alpha(0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(INK)
    axes.tick_params(colors=INK, labelsize=8)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set_color(INK)
        label.set_fontsize(8)


def _legend(figure: Any) -> None:
    figure.legend(loc="outside upper left", ncols=2, fontsize=8, frameon=False, labelcolor=INK)
