"""An HTML page that opens anywhere: no script, no network, light and dark, on a phone too."""

from __future__ import annotations

import html
import io
import os
import re
from collections.abc import Iterable, Sequence
from typing import Any

from gsb3se.drawing import figures
from gsb3se.support.errors import require
from gsb3se.support.files import write_text
from gsb3se.support.labels import printable
from gsb3se.support.version import __version__

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


class Page:
    """Parts of a page, one after the other."""

    def __init__(self) -> None:
        self.parts: list[str] = []

    def add(self, markup: str) -> None:
        self.parts.append(markup)

    def heading(self, text: str) -> None:
        self.add(f"<h2>{escaped(text)}</h2>")

    def paragraph(self, text: str) -> None:
        self.add(f"<p>{escaped(text)}</p>")

    def figure(self, figure: Any, caption: str) -> None:
        number = sum(part.startswith("<figure") for part in self.parts)
        drawn = as_svg(figure, f"f{number}", caption)
        told = escaped(caption)
        self.add(f"<figure>{drawn}<figcaption>{told}</figcaption></figure>")

    def table(self, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        head = "".join(f"<th>{escaped(name)}</th>" for name in header)
        body = "".join(
            "<tr>" + "".join(f"<td>{escaped(cell)}</td>" for cell in row) + "</tr>" for row in rows
        )
        self.add(
            f'<div class="wide"><table><thead><tr>{head}</tr></thead>'
            f"<tbody>{body}</tbody></table></div>"
        )

    def finished(self, title: str) -> str:
        name = escaped(title)
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
    described = escaped(description)
    return drawn.replace("<svg ", f'<svg role="img" aria-label="{described}" ', 1)


def _as_ours(tag: str, prefix: str) -> str:
    """A tag of a drawing with the page's ink, and with ids of its own."""
    tag = tag.replace(figures.INK, "var(--ink)")
    tag = re.sub(r'\bid="', f'id="{prefix}-', tag)
    return re.sub(r'(url\(#|href="#)', rf"\1{prefix}-", tag)


def escaped(text: str) -> str:
    """Text as it is shown, whatever it holds."""
    return html.escape(printable(text))


def badge(text: str, good: bool) -> str:
    return f'<p><span class="badge {"ok" if good else "warn"}">{escaped(text)}</span></p>'


def save(page: str, path: str | os.PathLike[str]) -> None:
    """Write a page to a file, whole or not at all."""
    write_text(path, page)
