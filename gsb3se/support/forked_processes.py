"""Processes that were forked after a numerical library had started its threads in the parent.

torch and jax wait for their own threads. A fork does not copy threads, so a forked child would wait
forever. In the child this module therefore raises an error, or limits torch to one thread:

- this package ran the library in the parent: RuntimeError;
- somebody else had jax at work there: the same;
- somebody else had imported torch there, which may or may not have started its threads: the child
  runs torch on one thread, which waits for no other.

What happened before this package was imported in the parent is seen too; a parent that never
imports it is not.
"""

from __future__ import annotations

import os
import sys

_first_used: dict[str, int] = {}  # library to process
_imported_before_fork: set[str] = set()


def check_not_forked(library: str) -> None:
    """Raise RuntimeError in a process forked from one in which the library was at work."""
    if _first_used.setdefault(library, os.getpid()) != os.getpid():
        raise RuntimeError(
            f"this process was forked from one in which {library} had run, and would wait forever "
            "for threads that a fork leaves behind: start processes by "
            "multiprocessing.get_context('spawn')"
        )
    if library in _imported_before_fork:
        sys.modules[library].set_num_threads(1)
        _imported_before_fork.discard(library)


def _look_at_parent() -> None:
    """In a forked child: which libraries its parent had."""
    parent = os.getppid()
    if getattr(sys.modules.get("jax._src.xla_bridge"), "_backends", None):
        _first_used.setdefault("jax", parent)
    if "torch" in sys.modules and "torch" not in _first_used:
        _imported_before_fork.add("torch")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_look_at_parent)
