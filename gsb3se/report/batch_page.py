"""The page of a batch: its drift over the windows, its alerts, its farthest group."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gsb3se.batch.journal import FAILED
from gsb3se.drawing import figures
from gsb3se.drawing.figures import Drift, Shares
from gsb3se.graph import LabelGraph
from gsb3se.model.counts import ConfusionCounts
from gsb3se.posterior.status import Status
from gsb3se.report.batch_table import BatchTable
from gsb3se.report.page import Page, badge
from gsb3se.report.sections import add_all_classes, add_confusions, add_graph, add_shifts

_MOST_SERIES, _MOST_ALERTS = 4, 20


def of_batch(
    table: BatchTable,
    graph: LabelGraph | None = None,
    validation: ConfusionCounts | None = None,
    *,
    title: str = "Class shares over the windows",
) -> str:
    """The page of a batch's result.

    Args:
        graph: to draw changed classes in.
        validation: counts to sum up the confusion matrix from.
    """
    page, drift = Page(), table.drift
    statuses = Counter(table.status)
    alerts = np.flatnonzero(drift.flagged)
    counted = ", ".join(f"{n} {status}" for status, n in statuses.most_common())
    page.add(badge(f"{len(alerts)} of {len(table.groups)} shifted", len(alerts) == 0))
    page.paragraph(f"Groups: {len(table.groups)}, of {len(drift.labels)} classes: {counted}.")
    usable = np.array([status != FAILED for status in table.status])
    _add_drift(page, table, usable)
    if usable.any():
        farthest = int(np.nanargmax(np.where(usable, drift.shift, -np.inf)))
        shares = Shares(
            drift.labels,
            drift.mean[farthest],
            drift.low[farthest],
            drift.high[farthest],
            drift.source[farthest],
            drift.level,
        )
        add_shifts(page, shares, f"The farthest group: {table.name(farthest)}")
        add_graph(page, shares, graph)
    if validation is not None:
        add_confusions(page, validation.confusion_rates.toarray(), validation.labels)
    _add_alerts(page, table, alerts)
    page.heading("Diagnostics in words")
    _add_statuses(page, table)
    if usable.any():
        add_all_classes(page, shares)
    return page.finished(title)


def _add_drift(page: Page, table: BatchTable, usable: NDArray[np.bool_]) -> None:
    """Distance and shares over the windows, for each value of the keys before the last."""
    series: dict[tuple[Any, ...], list[int]] = {}
    for place in np.flatnonzero(usable):
        series.setdefault(table.groups[place][:-1], []).append(int(place))
    for name, places in list(series.items())[:_MOST_SERIES]:
        if len(places) < 2:
            continue
        of = f": {', '.join(map(str, name))}" if name else ""
        page.heading(f"Drift over the windows{of}")
        part = table.part(np.array(places))
        page.figure(
            figures.drift_distance(part),
            f"Distance to the source prior in {len(places)} windows, posterior mean",
        )
        page.figure(
            figures.drift_shares(part),
            f"Shares that moved most, with {100 * part.level:.3g} % bands; orange: the source",
        )
    if len(series) > _MOST_SERIES:
        page.paragraph(f"{len(series) - _MOST_SERIES} more series are in the file.")


def _add_alerts(page: Page, table: BatchTable, alerts: NDArray[np.int64]) -> None:
    page.heading("Groups with a detected shift")
    alert = f"{table.drift.alert:g}"
    if len(alerts) == 0:
        page.paragraph(f"No group is flagged as farther than {alert} (L1) from the source prior.")
        return
    farthest = alerts[np.argsort(-table.drift.shift[alerts], kind="stable")][:_MOST_ALERTS]
    page.paragraph(f"Farther than {alert} (L1) from the source prior; the farthest first.")
    page.table(
        ["group", "predictions", "distance", "moved most"],
        (
            [
                table.name(place),
                f"{table.n_target[place]:,}",
                f"{table.drift.shift[place]:.3f}",
                _moved_most(table.drift, place),
            ]
            for place in farthest
        ),
    )


def _moved_most(drift: Drift, place: int) -> str:
    moved = drift.mean[place] - drift.source[place]
    i = int(np.argmax(np.abs(moved)))
    return f"{drift.labels[i]} {moved[i]:+.3f}"


def _add_statuses(page: Page, table: BatchTable) -> None:
    seen: set[str] = set()
    for place, (status, message) in enumerate(zip(table.status, table.message, strict=True)):
        if status == Status.OK.value or status in seen:
            continue
        seen.add(status)
        n = table.status.count(status)
        which = "1 group is" if n == 1 else f"{n} groups are"
        page.paragraph(f"{which} {status}; the first, {table.name(place)}: {message}.")
    if not seen:
        page.paragraph("Every group was inferred without complaint.")
