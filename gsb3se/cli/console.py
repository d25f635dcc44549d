"""What commands share in how they speak: tables, notes, errors of one sentence."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from gsb3se.support.errors import GSB3SEWarning, MissingExtra
from gsb3se.support.labels import printable

File = click.Path(path_type=Path, dir_okay=False)
ExistingSource = click.Path(path_type=Path, exists=True)  # a file, or a folder of files
ExistingFile = click.Path(path_type=Path, exists=True, dir_okay=False)

# Labels and paths are text, never markup, and ":dog:" is no picture.
_PLAIN: dict[str, Any] = {"markup": False, "highlight": False, "emoji": False}
console = Console(**_PLAIN)
notes = Console(stderr=True, **_PLAIN)
_TRACEBACK = "GSB3SE_TRACEBACK"  # in the environment: show where an unexpected error came from


@contextmanager
def plain_speech() -> Iterator[None]:
    """Errors end the command with their message alone; the package's warnings become notes."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", GSB3SEWarning)
        show_others = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            if issubclass(category, GSB3SEWarning):
                notes.print(printable(f"note: {message}"), style="yellow")
            else:
                show_others(message, category, *where, **more)

        warnings.showwarning = show  # undone by catch_warnings
        try:
            yield
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            if os.environ.get(_TRACEBACK):
                raise
            raise click.ClickException(_one_sentence(error)) from error


def _one_sentence(error: Exception) -> str:
    """What went wrong, in one line that no file can fill with codes of a terminal."""
    if isinstance(error, MemoryError):
        return f"not enough memory: {error or 'use fewer classes or rows'}"
    if isinstance(error, OSError) and error.filename is not None:
        return printable(f"{error.filename}: {error.strerror}")
    message = printable(str(error).strip().replace("\n", " "))
    if isinstance(error, ValueError | ArithmeticError | OSError | RuntimeError | MissingExtra):
        return message or type(error).__name__
    return f"unexpected {type(error).__name__}: {message} (set {_TRACEBACK}=1 to see where)"


@contextmanager
def cleaning_up_on_sigterm() -> Iterator[None]:
    """A request to end is an exception, so that temporary files are removed on the way out."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    numbers = [signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def table(title: str, *columns: str) -> Table:
    """A table whose first column is text and whose others are numbers."""
    new = Table(title=title or None, title_justify="left", title_style="bold")
    for index, column in enumerate(columns):
        new.add_column(column, justify="left" if index == 0 else "right")
    return new
