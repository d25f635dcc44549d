"""What commands share in how they speak: tables, notes, errors of one sentence."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from gsb3se.errors import GSB3SEWarning, MissingExtra

File = click.Path(path_type=Path, dir_okay=False)
ExistingFile = click.Path(path_type=Path, exists=True, dir_okay=False)

# Labels and paths are text, never markup.
console = Console(markup=False, highlight=False)
notes = Console(stderr=True, markup=False, highlight=False)


@contextmanager
def plain_speech() -> Iterator[None]:
    """Errors end the command with their message alone; the package's warnings become notes."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", GSB3SEWarning)
        show_others = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            if issubclass(category, GSB3SEWarning):
                notes.print(f"note: {message}", style="yellow")
            else:
                show_others(message, category, *where, **more)

        warnings.showwarning = show  # undone by catch_warnings
        try:
            yield
        except (ValueError, ArithmeticError, OSError, RuntimeError, MissingExtra) as error:
            raise click.ClickException(_one_sentence(error)) from error


def _one_sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def check_output(
    path: Path | None, option: str, *suffixes: str, inputs: Iterable[Path | None] = ()
) -> None:
    """Say before the work what would keep its result from being written.

    Args:
        inputs: files that are read, none of which may be written over.
    """
    if path is None:
        return
    if path.suffix.lower() not in suffixes:
        expected = " or ".join(filter(None, (", ".join(suffixes[:-1]), suffixes[-1])))
        raise ValueError(f"{option} must end in {expected}; got {path}")
    if not path.parent.is_dir():
        raise ValueError(f"cannot write {path}: the folder {path.parent} does not exist")
    for source in inputs:
        if source is not None and path.exists() and source.exists() and path.samefile(source):
            raise ValueError(
                f"{option} {path} would overwrite the input {source}: give another name"
            )


def table(title: str, *columns: str) -> Table:
    """A table whose first column is text and whose others are numbers."""
    made = Table(title=title or None, title_justify="left", title_style="bold")
    for index, column in enumerate(columns):
        made.add_column(column, justify="left" if index == 0 else "right")
    return made
