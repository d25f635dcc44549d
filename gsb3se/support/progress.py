"""Every progress bar of the package; they go to standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class ProgressBar:
    """One bar. Its methods do nothing where no bar is shown."""

    def __init__(self, display: Any = None, task: Any = None) -> None:
        self._display, self._task = display, task

    def advance(self, more: int) -> None:
        """So many more are done."""
        if self._display is not None:
            self._display.advance(self._task, more)

    def update(self, done: int, total: int | None = None, description: str | None = None) -> None:
        """So many are done in all; ``total`` and ``description`` replace those of before."""
        if self._display is not None:
            changed = {"total": total, "description": description}
            changed = {name: value for name, value in changed.items() if value is not None}
            self._display.update(self._task, completed=done, **changed)


def someone_watches() -> bool:
    """Whether standard error is a terminal."""
    return sys.stderr.isatty()


@contextmanager
def progress_bars(
    shown: bool | None = None,
) -> Iterator[Callable[[str, int | None], ProgressBar]]:
    """Several bars below each other; yields a function that adds one.

    Args:
        shown: whether to show them; None: if standard error is a terminal.

    >>> with progress_bars(shown=False) as add:
    ...     add("windows", 10).advance(1)
    """
    if not (someone_watches() if shown is None else shown):
        yield lambda description, total: ProgressBar()
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(f"{task.speed:.3g}/s" if task.speed else "")

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Rate())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as display:
        yield lambda description, total: ProgressBar(
            display, display.add_task(description, total=total)
        )


@contextmanager
def progress_bar(
    description: str, total: int | None = None, shown: bool | None = None
) -> Iterator[ProgressBar]:
    """One bar with the rate and the time left, as :func:`progress_bars` shows it."""
    with progress_bars(shown) as add:
        yield add(description, total)
