"""Processes that were forked after a numerical library had started its threads in the parent.

torch and jax hold locks that their threads would release, and a forked child has none of these
threads: it waits forever. So the process that first ran a library is remembered, and a child of it
is told.
"""

from __future__ import annotations

import os

_first_used: dict[str, int] = {}  # library to process


def check_not_forked(library: str) -> None:
    """Raise RuntimeError in a process forked from one that this package ran the library in."""
    if _first_used.setdefault(library, os.getpid()) != os.getpid():
        raise RuntimeError(
            f"this process was forked from one in which {library} had run, and would wait forever "
            "for threads that a fork leaves behind: start processes by "
            "multiprocessing.get_context('spawn')"
        )
