"""What the package says when something is missing or needs the user's attention."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from numbers import Integral
from types import ModuleType

_LONGEST_SHOWN = 80  # letters of an item in a message


class GSB3SEWarning(UserWarning):
    """A result was computed, but the data or the solver leave something to know about it."""


class NoSolution(ValueError):
    """A backend cannot solve this problem in the digits there are; the message names another."""


class MissingExtra(ImportError):
    """An optional dependency is not installed."""


def require(module: str, extra: str) -> ModuleType:
    """Import an optional dependency, or say which command installs it.

    >>> require("math", extra="plots").sqrt(4.0)
    2.0
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise  # the package is there; something inside it is broken, which the user must see
        raise MissingExtra(
            f"this needs the package {module.split('.')[0]!r}, which is not installed: "
            f"run  pip install 'gsb3se[{extra}]'"
        ) from None


def some_of(items: Sequence[object], most: int = 5) -> str:
    """The first few items for an error message: ``'a', 'b', 'c' and 7 more``.

    >>> some_of([3, 1, 4, 1, 5], most=3)
    '3, 1, 4 and 2 more'
    """
    shown = ", ".join(_shortened(repr(item)) for item in items[:most])
    return shown if len(items) <= most else f"{shown} and {len(items) - most} more"


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def as_whole_number(value: object, name: str, least: int) -> int:
    """Check that a value is a whole number of at least ``least``.

    >>> as_whole_number(3, "k", least=1)
    3
    """
    if isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least:
        return int(value)
    raise ValueError(f"{name} must be a whole number of at least {least}; got {value!r}")
