"""What this machine and this process offer: cores, and how many threads libraries take."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from gsb3se.support.errors import require

_permanent: list[AbstractContextManager[Any]] = []  # limits that hold until the process ends


def available_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def one_thread(libraries: Collection[str] = ()) -> Iterator[None]:
    """Hold linear algebra to one thread; needs the extra ``batch``.

    Where many tasks run side by side each does best on one core, and results do not depend on the
    number of cores.

    Args:
        libraries: that the work is going to use. "torch" is imported now if it is named, for its
            number of threads can only be kept if it is known.
    """
    if "torch" in libraries:
        require("torch", extra="amortized")
    torch = sys.modules.get("torch")
    threads = torch.get_num_threads() if torch is not None else 1
    try:
        if torch is not None:
            torch.set_num_threads(1)
        with _one_blas_thread():
            yield
    finally:
        if torch is not None:
            torch.set_num_threads(threads)


def stay_on_one_thread() -> None:
    """For a process that does nothing else: a limit for every task takes a millisecond."""
    _permanent.append(_one_blas_thread())


def _one_blas_thread() -> AbstractContextManager[Any]:
    if _permanent:
        return nullcontext()
    return require("threadpoolctl", extra="batch").threadpool_limits(1)
