"""What commands share in how they speak: tables, notes, errors of one sentence."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
    caught: list[warnings.WarningMessage] = []
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", GSB3SEWarning)
            yield
    except (ValueError, OSError, RuntimeError, MissingExtra) as error:
        raise click.ClickException(_one_sentence(error)) from error
    finally:
        for warning in caught:
            if issubclass(warning.category, GSB3SEWarning):
                notes.print(f"note: {warning.message}", style="yellow")
            else:
                warnings.showwarning(
                    warning.message, warning.category, warning.filename, warning.lineno
                )


def _one_sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def table(title: str, *columns: str) -> Table:
    """A table whose first column is text and whose others are numbers."""
    made = Table(title=title, title_justify="left", title_style="bold")
    for index, column in enumerate(columns):
        made.add_column(column, justify="left" if index == 0 else "right")
    return made
