"""A result as one HTML page to look at and pass on: no script, no network, light and dark."""

from __future__ import annotations

import html
import io
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gsb3se import __version__, figures
from gsb3se.counts import ShiftCounts
from gsb3se.errors import require, some_of
from gsb3se.figures import Drift, Shares
from gsb3se.files import write_text
from gsb3se.graph import LabelGraph
from gsb3se.journal import FAILED
from gsb3se.labels import Label, as_labels, as_text_labels, printable
from gsb3se.plots import shares_of
from gsb3se.posterior import Posterior
from gsb3se.simplex import Matrix
from gsb3se.status import Status

_NUMBERS = ("mean", "low", "high", "source", "shift", "shift_probability", "level", "alert")
_NEEDED = ("class", *_NUMBERS, "status", "message", "n_target")
_MOST_ROWS, _MOST_SERIES, _MOST_CONFUSIONS, _MOST_ALERTS = 2000, 4, 10, 20

_STYLE = """
:root { --paper: #ffffff; --ink: #23262b; --soft: #f2f4f7; --line: #d6dbe2; --ok: #2f7d4f;
  --warn: #b4541a; color-scheme: light dark; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #16181c; --ink: #e4e7eb; --soft: #22262c; --line: #3a4049; --ok: #6cc08b;
    --warn: #f0a35e; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 46rem; background: var(--paper);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; line-height: 1.2; margin: .5rem 0; }
h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; border-top: 1px solid var(--line);
  padding-top: 1rem; }
svg { width: 100%; max-width: 36rem; height: auto; display: block; margin: 0 auto; }
svg text { font-family: inherit !important; }
figure { margin: .5rem 0; }
figcaption { font-size: .85rem; opacity: .8; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .9rem;
  font-variant-numeric: tabular-nums; overflow-wrap: normal; }
th, td { text-align: right; padding: .25rem .5rem; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; }
thead th { background: var(--soft); }
.badge { display: inline-block; padding: .1rem .6rem; border-radius: 1rem; font-weight: 600;
  border: 2px solid; }
.ok { color: var(--ok); } .warn { color: var(--warn); }
summary { cursor: pointer; padding: .4rem 0; }
footer { margin-top: 2rem; font-size: .8rem; opacity: .7; }
"""


def of_posterior(
    posterior: Posterior,
    source_prior: ArrayLike | None = None,
    graph: LabelGraph | None = None,
    *,
    level: float = 0.9,
    title: str = "Class shares of the target",
) -> str:
    """The page of one posterior.

    Args:
        source_prior: (K,) what the shares are compared with; by default the shares of the
            validation labels, where the posterior knows its counts.
        graph: by default the one it was made with.
    """
    problem = posterior.problem
    if source_prior is None and problem is not None and problem.counts.n_validation:
        source_prior = problem.counts.validation_shares
    if graph is None and problem is not None:
        graph = problem.graph
    shares = shares_of(posterior, source_prior, level)
    page = _Page()
    status = posterior.diagnostics.status
    page.add(_badge(status.value, status.is_ok))
    told = f"{posterior.n_classes} classes, inferred by the backend {posterior.backend}"
    if posterior.n_target is not None:
        told = f"{posterior.n_target:,} predictions over {told}"
    page.paragraph(told + ".")
    if shares.source is not None:
        distance = posterior.l1_distance(shares.source)
        low, high = np.quantile(distance, [(1 - level) / 2, (1 + level) / 2])
        page.paragraph(
            f"The target is {distance.mean():.3f} from the source in L1 ({100 * level:.3g} % "
            f"interval {low:.3f} to {high:.3f}), of at most 2."
        )
    _add_shifts(page, shares)
    _add_graph(page, shares, graph)
    if posterior.confusion_mean is not None:
        _add_confusions(page, posterior.confusion_mean, posterior.labels)
    page.heading("Diagnostics in words")
    for sentence in in_words(posterior):
        page.paragraph(sentence)
    _add_all_classes(page, shares)
    return page.finished(title)


def in_words(posterior: Posterior) -> list[str]:
    """What a posterior says about itself, a sentence each."""
    found = posterior.diagnostics
    if found.status is Status.OK:
        said = ["The solver ended as it should, and the counts tell the classes apart."]
    else:
        parts = found.message.split("; ")
        said = [part[0].upper() + part[1:].rstrip(".") + "." for part in parts]
    by_flag: dict[str, list[Label]] = {}
    for label, flags in found.flags.items():
        for flag in flags:
            by_flag.setdefault(flag, []).append(label)
    for flag, labels in by_flag.items():
        if flag != "wide":
            said.append(f"{flag[0].upper()}{flag[1:]}: {some_of(labels, most=8)}.")
    if (share := found.figures.get("prior_share")) is not None:
        said.append(f"Of the spread of all shares {100 * share:.0f} % is the prior's.")
    if (draws := found.figures.get("effective_draws")) is not None:
        said.append(f"The worst class has {draws:.0f} effective draws.")
    if posterior.problem is not None:
        sizes = posterior.problem.counts.validation_sizes
        said.append(
            f"{sizes.sum():,} validation rows, {sizes.min()} to {sizes.max()} a class, "
            f"{np.median(sizes):g} in the median."
        )
    return said


@dataclass(frozen=True, eq=False)
class BatchTable:
    """The result of ``gsb3se batch``, group by group.

    Attributes:
        keys: names of the columns that tell groups apart; groups: their values, G of them.
        drift: all groups in order.
        status, message: of each group; n_target: its predictions.
    """

    keys: list[str]
    groups: list[tuple[Any, ...]]
    drift: Drift
    status: list[str]
    message: list[str]
    n_target: NDArray[np.int64]

    def part(self, places: NDArray[np.int64]) -> Drift:
        """Some of the windows, by the last of their keys."""
        names = [str(self.groups[place][-1]) if self.keys else "all" for place in places]
        by_window = ("shift", "flagged", "mean", "low", "high", "source")
        chosen = {name: getattr(self.drift, name)[places] for name in by_window}
        return replace(self.drift, names=names, **chosen)

    def name(self, place: int) -> str:
        """A group by its keys."""
        return self.drift.names[place]


def read_batch(path: str | os.PathLike[str], certainty: float = 0.95) -> BatchTable:
    """Read what ``gsb3se batch`` wrote."""
    polars = require("polars", extra="batch")
    suffix = Path(path).suffix.lower()
    # Types are declared by what gsb3se batch writes: the first rows of a file may tell others.
    read: dict[str, Callable[..., Any]] = {
        ".parquet": lambda: polars.read_parquet(path, glob=False),
        ".csv": lambda: polars.read_csv(path, infer_schema=False, glob=False),
        ".jsonl": lambda: polars.read_ndjson(path, infer_schema_length=None),
    }
    if suffix not in read:
        raise ValueError(f"{path}: expected a .parquet, .csv or .jsonl file of gsb3se batch")
    try:
        table = read[suffix]()
        if missing := [name for name in _NEEDED if name not in table.columns]:
            raise ValueError(f"{path} is no result of gsb3se batch: it lacks {some_of(missing)}")
        table = table.with_columns(
            *(polars.col(name).cast(polars.Float64) for name in _NUMBERS),
            *(polars.col(name).cast(polars.String) for name in ("status", "message")),
            polars.col("n_target").cast(polars.Int64),
        )
    except polars.exceptions.PolarsError as error:
        told = str(error).strip().splitlines()[0]
        raise ValueError(f"{path} cannot be read: {told}") from None
    keys = table.columns[: table.columns.index("class")]
    classes = table["class"].unique(maintain_order=True).to_list()
    n = len(classes)
    if table.height == 0:
        raise ValueError(f"{path} has no rows")
    if table["class"].to_list() != classes * (table.height // n):
        raise ValueError(
            f"{path} is no result of gsb3se batch: every group must have {n} rows, in the same "
            "order of the classes"
        )
    first = table.gather_every(n)
    _check_table(path, table, first, keys, n)

    def whole(name: str) -> Matrix:
        return table[name].to_numpy().reshape(-1, n)

    groups = first.select(keys).rows() if keys else [()]
    probability = first["shift_probability"].fill_null(0).to_numpy()
    drift = Drift(
        [", ".join(map(str, group)) or "all" for group in groups],
        first["shift"].to_numpy(),
        probability >= certainty,
        float(first["alert"][0]),
        whole("mean"),
        whole("low"),
        whole("high"),
        whole("source"),
        as_text_labels(classes) if suffix == ".csv" else as_labels(classes),
        float(first["level"][0]),
    )
    messages = [message or "" for message in first["message"].to_list()]
    n_target = first["n_target"].to_numpy()
    return BatchTable(keys, groups, drift, first["status"].to_list(), messages, n_target)


def _check_table(path: object, table: Any, first: Any, keys: list[str], n: int) -> None:
    """Raise ValueError where numbers of a batch's result cannot be such."""

    def check(fine: Any, told: str) -> None:
        if not np.all(fine):
            raise ValueError(f"{path} is no result of gsb3se batch: {told}")

    own = [*keys, "status", "shift", "shift_probability", "level", "alert", "n_target"]
    for name in own:
        fine = table[name].eq_missing(first[name].gather(np.arange(table.height) // n))
        check(fine.to_numpy(), f"{name!r} differs within a group")
    level, alert = first["level"].to_numpy(), first["alert"].to_numpy()
    check(first["status"].is_not_null().to_numpy(), "a status is missing")
    check((level == level[0]) & (alert == alert[0]), "levels or alerts differ between groups")
    check(0 < level[0] < 1 and 0 <= alert[0] <= 2, "level or alert is out of its range")
    check((first["n_target"].fill_null(-1) >= 0).to_numpy(), "'n_target' is missing or negative")
    usable = (table["status"] != FAILED).to_numpy()
    low, mean, high, source = (table[x].to_numpy() for x in ("low", "mean", "high", "source"))
    check(((low >= 0) & (low <= high) & (high <= 1))[usable], "an interval is none of a share")
    check(((mean >= 0) & (mean <= 1) & (source >= 0) & (source <= 1))[usable], "a share is none")
    shift = table["shift"].to_numpy()[usable]
    check((shift >= 0) & (shift <= 2.000001), "a shift is missing or out of its range")


def of_batch(
    table: BatchTable,
    graph: LabelGraph | None = None,
    validation: ShiftCounts | None = None,
    *,
    title: str = "Class shares over the windows",
) -> str:
    """The page of a batch's result.

    Args:
        graph: to draw changed classes in.
        validation: counts to sum up the confusion matrix from.
    """
    page, drift = _Page(), table.drift
    statuses = Counter(table.status)
    alerts = np.flatnonzero(drift.flagged)
    told = ", ".join(f"{n} {status}" for status, n in statuses.most_common())
    page.add(_badge(f"{len(alerts)} of {len(table.groups)} shifted", len(alerts) == 0))
    page.paragraph(f"Groups: {len(table.groups)}, of {len(drift.labels)} classes: {told}.")
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
        _add_shifts(page, shares, f"The farthest group: {table.name(farthest)}")
        _add_graph(page, shares, graph)
    if validation is not None:
        _add_confusions(page, validation.confusion_rates.toarray(), validation.labels)
    _add_alerts(page, table, alerts)
    page.heading("Diagnostics in words")
    _add_statuses(page, table)
    if usable.any():
        _add_all_classes(page, shares)
    return page.finished(title)


def save(page: str, path: str | os.PathLike[str]) -> None:
    """Write a page to a file, whole or not at all."""
    write_text(path, page)


class _Page:
    """Parts of a page, one after the other."""

    def __init__(self) -> None:
        self.parts: list[str] = []

    def add(self, markup: str) -> None:
        self.parts.append(markup)

    def heading(self, text: str) -> None:
        self.add(f"<h2>{_escaped(text)}</h2>")

    def paragraph(self, text: str) -> None:
        self.add(f"<p>{_escaped(text)}</p>")

    def figure(self, figure: Any, caption: str) -> None:
        number = sum(part.startswith("<figure") for part in self.parts)
        drawn = as_svg(figure, f"f{number}", caption)
        told = _escaped(caption)
        self.add(f"<figure>{drawn}<figcaption>{told}</figcaption></figure>")

    def table(self, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        head = "".join(f"<th>{_escaped(name)}</th>" for name in header)
        body = "".join(
            "<tr>" + "".join(f"<td>{_escaped(cell)}</td>" for cell in row) + "</tr>" for row in rows
        )
        self.add(
            f'<div class="wide"><table><thead><tr>{head}</tr></thead>'
            f"<tbody>{body}</tbody></table></div>"
        )

    def finished(self, title: str) -> str:
        name = _escaped(title)
        policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
            '<link rel="icon" href="data:,">'
            f"<title>{name}</title><style>{_STYLE}</style></head><body><h1>{name}</h1>\n"
            + "\n".join(self.parts)
            + f"\n<footer>made by gsb3se {__version__}</footer></body></html>\n"
        )


def as_svg(figure: Any, prefix: str, description: str) -> str:
    """A figure to stand in a page: its ids are its own, its ink is the page's."""
    matplotlib = require("matplotlib", extra="plots")
    text = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": prefix}):
        figures.write(figure, text, format="svg", transparent=True, metadata={"Date": None})
    drawn = text.getvalue()
    drawn = drawn[drawn.index("<svg") :]
    drawn = re.sub(r"<metadata>.*?</metadata>", "", drawn, flags=re.DOTALL)
    # Inside tags alone: what stands between them is text that people gave.
    drawn = re.sub(r"<[^>]*>", lambda tag: _as_ours(tag[0], prefix), drawn)
    described = _escaped(description)
    return drawn.replace("<svg ", f'<svg role="img" aria-label="{described}" ', 1)


def _as_ours(tag: str, prefix: str) -> str:
    """A tag of a drawing with the page's ink, and with ids of its own."""
    tag = tag.replace(figures.INK, "var(--ink)")
    tag = re.sub(r'\bid="', f'id="{prefix}-', tag)
    return re.sub(r'(url\(#|href="#)', rf"\1{prefix}-", tag)


def _escaped(text: str) -> str:
    """Text as it is shown, whatever it holds."""
    return html.escape(printable(text))


def _badge(text: str, good: bool) -> str:
    return f'<p><span class="badge {"ok" if good else "warn"}">{_escaped(text)}</span></p>'


def _add_shifts(page: _Page, shares: Shares, title: str | None = None) -> None:
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


def _add_graph(page: _Page, shares: Shares, graph: LabelGraph | None) -> None:
    if graph is None or shares.source is None or graph.is_exchangeable:
        return
    page.heading("Where in the label graph")
    page.figure(
        figures.graph_changes(graph, shares.mean - shares.source, shares.labels),
        "The classes that changed most, and labels similar to them; larger means a larger change",
    )


def _add_confusions(page: _Page, columns: Matrix, labels: Sequence[Label]) -> None:
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


def _add_all_classes(page: _Page, shares: Shares) -> None:
    order = shares.order[:_MOST_ROWS]
    some = "" if len(order) == len(shares.labels) else f", the first {len(order)}"
    page.add(f"<details><summary>All {len(shares.labels)} classes{some}</summary>")
    page.table(*_share_rows(shares, order))
    page.add("</details>")


def _add_drift(page: _Page, table: BatchTable, usable: NDArray[np.bool_]) -> None:
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


def _add_alerts(page: _Page, table: BatchTable, alerts: NDArray[np.int64]) -> None:
    page.heading("Groups with a detected shift")
    alert = f"{table.drift.alert:g}"
    if len(alerts) == 0:
        page.paragraph(f"None is farther than {alert} from the source prior with certainty.")
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


def _add_statuses(page: _Page, table: BatchTable) -> None:
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
