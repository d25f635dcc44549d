"""The three figures of the benchmark on real classifiers."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from real_data import main_graph
from real_results import Findings, standard_error, title_of

from gsb3se.support.files import write_atomically

BLUE, LIGHT, ORANGE, GREY, GREEN, RED = (
    "#1f5fa8", "#7fb0e6", "#d9822b", "#8a9099", "#3c8d5a", "#c8553d",
)  # fmt: skip
LINES = {
    "counted": (GREY, ":"),
    "rlls": (GREY, "--"),
    "mlls": (GREY, "-"),
    "em": (GREEN, "--"),
    "em bcts": (GREEN, "-"),
    "paper plain": (ORANGE, "-"),
    "anchored plain": (BLUE, "-"),
    "anchored amortized": (LIGHT, "-"),
}
INTERVALS = {
    "bbse bootstrap": (GREY, "s"),
    "bayesian-cc": (GREEN, "D"),
    "paper plain": (ORANGE, "o"),
    "anchored plain": (BLUE, "o"),
    "anchored amortized": (LIGHT, "o"),
}
COMPARED = {
    "paper plain": ORANGE,
    "paper amortized": RED,
    "anchored plain": BLUE,
    "anchored amortized": LIGHT,
}
LABELS = 10
TICKS = (-5, 0, 5, 10, 20, 40)


def draw_all(found: Findings, folder: Path) -> None:
    """labels.png, coverage.png and graphs.png."""
    for name, figure in (
        ("labels", by_labels(found)),
        ("coverage", coverage(found)),
        ("graphs", graphs(found)),
    ):
        write_atomically(
            folder / f"{name}.png",
            lambda file, figure=figure: figure.savefig(file, format="png", dpi=110),
        )


def by_labels(found: Findings) -> Figure:
    """L1 by labels a class, a panel a data set."""
    data_sets = found.data_sets
    columns = 4
    rows = -(-(len(data_sets) + 1) // columns)
    figure = Figure(figsize=(11, 2.7 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False)
    for panel, data_set in zip(panels.flat, data_sets, strict=False):
        _plain(panel)
        highest = 0.0
        for method, (colour, style) in LINES.items():
            cells = [(n, found.mean_and_error(data_set, n, method)) for n in found.labels]
            known = [(n, *cell) for n, cell in cells if cell is not None]
            if known:
                n, mean, error = map(np.array, zip(*known, strict=True))
                panel.errorbar(
                    n, mean, error, color=colour, linestyle=style, marker="o", markersize=3,
                    label=title_of(method),
                )  # fmt: skip
                highest = max(highest, mean.max())
        panel.set_xscale("log")
        panel.set_xticks(found.labels, [str(n) for n in found.labels])
        panel.minorticks_off()
        panel.set_ylim(0, 1.05 * highest)
        panel.set_title(title_of(data_set), fontsize=9, loc="left")
    for panel in panels.flat[len(data_sets) :]:
        panel.set_axis_off()
    panels.flat[len(data_sets)].legend(
        *panels.flat[0].get_legend_handles_labels(), loc="center left", fontsize=8, frameon=False
    )
    figure.supxlabel("validation labels a class", fontsize=9)
    figure.supylabel("mean L1 against population shares", fontsize=9)
    return figure


def coverage(found: Findings) -> Figure:
    """How often 90 % intervals hold the population's share: all classes, and those present."""
    data_sets = found.data_sets
    figure = Figure(figsize=(10, 0.9 + 0.55 * len(data_sets)), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for panel, name, told in (
        (panels[0], "cover90_population", "all classes"),
        (panels[1], "cover90_present", "classes with a row in the target"),
    ):
        _plain(panel)
        for k, (method, (colour, mark)) in enumerate(INTERVALS.items()):
            for place, data_set in enumerate(reversed(data_sets)):
                cell = found.mean_and_error(data_set, LABELS, method, name)
                if cell is not None:
                    at = place + 0.3 - 0.15 * k
                    label = title_of(method) if place == len(data_sets) - 1 else None
                    panel.errorbar(
                        cell[0], at, xerr=2 * cell[1], fmt=mark, color=colour, ms=5, label=label
                    )
        panel.axvline(0.9, color="black", linewidth=0.8)
        panel.set_yticks(range(len(data_sets)), [title_of(x) for x in reversed(data_sets)])
        panel.set_title(told, fontsize=9, loc="left")
        panel.set_xlabel("share of 90 % intervals that hold the truth", fontsize=8)
    _legend_above(figure, panels[0], 3)
    return figure


def graphs(found: Findings) -> Figure:
    """Change of the mean L1 by a label graph, against none."""
    settings = [
        (data_set, graph)
        for data_set in found.data_sets
        for graph in (main_graph(data_set), "hierarchy", "shuffled")
    ]
    known: list[tuple[str, str, dict[str, np.ndarray]]] = []
    for data_set, graph in dict.fromkeys(settings):
        apart = {}
        for method in COMPARED:
            shifts = found.shifts_of(data_set, LABELS, method, graph="none")
            shifts = [shift for shift in shifts if shift != "graph-smooth"]
            base = found.repeats(data_set, LABELS, method, graph="none", shifts=shifts)
            other = found.repeats(data_set, LABELS, method, graph=graph, shifts=shifts)
            if base is not None and other is not None:
                apart[method] = (other - base) / base.mean()
        if apart:
            known.append((data_set, graph, apart))
    figure = Figure(figsize=(8, 1.2 + 0.5 * max(len(known), 1)), layout="constrained")
    panel = figure.subplots()
    _plain(panel)
    for place, (_, _, apart) in enumerate(reversed(known)):
        for k, (method, colour) in enumerate(COMPARED.items()):
            if method in apart:
                values = 100 * apart[method]
                label = title_of(method) if place == 0 else None
                at = place + 0.27 - 0.18 * k
                panel.errorbar(
                    values.mean(),
                    at,
                    xerr=2 * standard_error(values),
                    fmt="o",
                    color=colour,
                    ms=5,
                    label=label,
                )
    panel.axvline(0, color="black", linewidth=0.8)
    panel.set_xscale("symlog", linthresh=10)
    panel.set_xticks(TICKS, [str(tick) for tick in TICKS])
    panel.set_yticks(
        range(len(known)), [f"{title_of(d)}: {graph}" for d, graph, _ in reversed(known)]
    )
    told = "change of the mean L1 by the label graph, %, with two standard errors"
    panel.set_xlabel(told, fontsize=8)
    _legend_above(figure, panel, 2)
    return figure


def _plain(panel: Any) -> None:
    panel.spines[["top", "right"]].set_visible(False)
    panel.tick_params(labelsize=8)
    panel.grid(alpha=0.25)


def _legend_above(figure: Figure, panel: Any, columns: int) -> None:
    handles = panel.get_legend_handles_labels()
    if handles[0]:
        figure.legend(*handles, loc="outside upper left", ncols=columns, fontsize=8, frameon=False)
