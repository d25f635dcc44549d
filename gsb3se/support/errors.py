"""What the package says when something is missing or needs the user's attention."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from numbers import Integral
from types import ModuleType
from urllib.parse import unquote, urlsplit

_LONGEST_SHOWN = 80  # letters of an item in a message
MOST_IN_ALL = 2**53  # counts: up to here a float holds every whole number


class GSB3SEWarning(UserWarning):
    """A result was computed, but a limit of the data or of the solver affects its reliability."""


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
            f"run  {install_command(extra)}"
        ) from None


def install_command(extra: str) -> str:
    """What installs an extra, from where this package itself was installed.

    >>> install_command("plots").startswith("pip install ")
    True
    """
    try:
        content = distribution("gsb3se").read_text("direct_url.json")
    except PackageNotFoundError:
        content = None
    origin = json.loads(content) if content else {}
    url = origin.get("url", "")
    if "vcs_info" in origin:
        url = f"{origin['vcs_info']['vcs']}+{url}"
    if origin.get("dir_info", {}).get("editable"):
        return f"pip install -e '{unquote(urlsplit(url).path)}[{extra}]'"
    return f"pip install 'gsb3se[{extra}] @ {url}'" if url else f"pip install 'gsb3se[{extra}]'"


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
