"""Sections that pages of posteriors and of batches share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from gsb3se.drawing import figures
from gsb3se.drawing.figures import Shares
from gsb3se.graph import LabelGraph
from gsb3se.report.page import Page
from gsb3se.support.labels import Label
from gsb3se.support.simplex import Matrix

_MOST_ROWS, _MOST_CONFUSIONS = 2000, 10


def add_shifts(page: Page, shares: Shares, title: str | None = None) -> None:
    page.heading(title or ("What changed" if shares.source is not None else "The shares"))
    shown, n = min(len(shares.order), figures.MOST_SHIFTS), len(shares.labels)
    what = "largest shifts first" if shares.source is not None else "largest shares first"
    counted = f"{n} classes" if shown == n else f"{shown} of {n} classes"
    page.figure(figures.shifts(shares), f"{counted}, {what}")
    page.table(*_share_rows(shares, shares.order[:10]))


def _share_rows(shares: Shares, places: Iterable[int]) -> tuple[list[str], list[list[str]]]:
    header = ["class", *([] if shares.source is None else ["source"]), "target", "interval"]
    rows = []
    for i in places:
        source = [] if shares.source is None else [f"{shares.source[i]:.4f}"]
        interval = f"{shares.low[i]:.4f} to {shares.high[i]:.4f}"
        rows.append([str(shares.labels[i]), *source, f"{shares.mean[i]:.4f}", interval])
    return header, rows


def add_graph(page: Page, shares: Shares, graph: LabelGraph | None) -> None:
    if graph is None or shares.source is None or graph.is_exchangeable:
        return
    page.heading("Where in the label graph")
    page.figure(
        figures.graph_changes(graph, shares.mean - shares.source, shares.labels),
        "The classes that changed most, and labels similar to them; larger means a larger change",
    )


def add_confusions(page: Page, columns: Matrix, labels: Sequence[Label]) -> None:
    page.heading("Which classes are mistaken")
    right = float(np.diag(columns).mean())
    page.paragraph(f"A class is predicted as itself {100 * right:.1f} % of the time on average.")
    page.figure(
        figures.confusions(columns, labels), "The classes that are mistaken most often, in %"
    )
    wrong = columns - np.diag(np.diag(columns))
    worst = np.argsort(-wrong, axis=None, kind="stable")[:_MOST_CONFUSIONS]
    rows = []
    for j, i in zip(*np.unravel_index(worst, wrong.shape), strict=True):
        rows.append([str(labels[i]), str(labels[j]), f"{100 * wrong[j, i]:.1f} %"])
    page.table(["true class", "predicted as", "how often"], rows)


def add_all_classes(page: Page, shares: Shares) -> None:
    order = shares.order[:_MOST_ROWS]
    some = "" if len(order) == len(shares.labels) else f", the first {len(order)}"
    page.add(f"<details><summary>All {len(shares.labels)} classes{some}</summary>")
    page.table(*_share_rows(shares, order))
    page.add("</details>")
