"""Where chunks of a batch are inferred: this process and its helpers, or a dask cluster."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import pickle
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count
from multiprocessing.connection import wait as wait_for_process
from pathlib import Path
from typing import Any

from gsb3se.batch import Ready, Summary, Window, stay_on_one_thread
from gsb3se.errors import require
from gsb3se.estimate import Backend
from gsb3se.journal import FAILED, GroupResult
from gsb3se.problem import Problem

_PATIENCE = 15.0  # seconds to wait for a scheduler
_WORTH_HELPERS = 4.0  # seconds of work left from which helper processes are started


def _infer_chunk(
    ready: Ready | str | Stored, windows: list[Window], summary: Summary
) -> list[GroupResult]:
    """One task, for a helper process or a worker of a cluster."""
    if isinstance(ready, Stored):
        ready = ready.load()
    if isinstance(ready, str):
        return [GroupResult(FAILED, ready)] * len(windows)
    return ready.infer(windows, summary)


@dataclass
class InProcess:
    """This process, and helpers if more than a few seconds of work are left.

    Args:
        workers: helper processes; 1 for none.
        total: windows there are.
    """

    workers: int
    total: int
    _stack: ExitStack = field(default_factory=ExitStack)
    _pool: Executor | None = None
    _folder: Path | None = None
    _shared: tuple[Ready | str, Stored] | None = None
    _numbers: Iterator[int] = field(default_factory=count)
    _spent: float = 0.0
    _done: int = 0

    def __enter__(self) -> InProcess:
        _keep_freed_memory()
        return self

    def __exit__(self, *problem: Any) -> None:
        if isinstance(self._pool, ProcessPoolExecutor):
            self._pool.shutdown(wait=problem[0] is None, cancel_futures=True)
        self._stack.close()

    def prepare(self, problem: Problem, backend: Backend) -> Ready | str:
        return Ready.of(problem, backend)

    def submit(self, ready: Any, windows: list[Window], summary: Summary) -> Future[Any]:
        left = self.total - self._done
        if self._pool is None and self.workers > 1 and self._pace * left > _WORTH_HELPERS:
            self._start()
        if self._pool is not None:
            return self._pool.submit(_infer_chunk, self._stored(ready), windows, summary)
        began = time.perf_counter()
        found: Future[Any] = Future()
        found.set_result(_infer_chunk(ready, windows, summary))
        self._done += len(windows)
        self._spent += time.perf_counter() - began
        return found

    @property
    def _pace(self) -> float:
        """Seconds a window took so far."""
        return self._spent / max(self._done, 1)

    def most_running(self) -> int:
        return 1 if self._pool is None else 3 * self.workers

    def _start(self) -> None:
        # A fresh interpreter for each: a fork would inherit locks of numerical libraries.
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(self.workers, context, _begin_helper)
        temporary = tempfile.TemporaryDirectory(prefix="gsb3se-")
        self._folder = Path(self._stack.enter_context(temporary))

    def _stored(self, ready: Ready | str) -> Stored:
        """The file of a model; the one before is not needed by chunks to come."""
        assert self._folder is not None
        if self._shared is None or self._shared[0] is not ready:
            path = self._folder / f"{next(self._numbers)}.pickle"
            path.write_bytes(pickle.dumps(ready))
            self._shared = ready, Stored(path)
        return self._shared[1]


@dataclass(frozen=True)
class Stored:
    """What helpers share by a file of ours rather than by sending it with every task."""

    path: Path

    def load(self) -> Ready | str:
        return _load(self.path)


@lru_cache(maxsize=2)
def _load(path: Path) -> Ready | str:
    return pickle.loads(path.read_bytes())  # written by this run, in a folder of its own


def _begin_helper() -> None:
    """Settings of a helper process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent tells what to do
    _keep_freed_memory()
    stay_on_one_thread()
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        """End when the parent was killed; else a helper would wait for work forever."""
        wait_for_process([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _keep_freed_memory() -> None:
    """Let glibc keep what numpy frees: handing it back and forth is a tenth of the time."""
    with suppress(OSError, AttributeError, TypeError):
        for option in (-1, -3):  # trim and mmap thresholds
            ctypes.CDLL(None).mallopt(option, 1 << 28)


class OnDask:
    """A dask.distributed cluster.

    Args:
        address: of its scheduler, or "local" for one on this machine.
        workers: of a local one.

    What a dead worker had is done again by another: tasks depend on what the client sent alone.
    """

    def __init__(self, address: str, workers: int) -> None:
        distributed = require("distributed", extra="batch")
        self._stack = ExitStack()
        try:
            if address == "local":
                local = distributed.LocalCluster(
                    n_workers=workers, threads_per_worker=1, dashboard_address=None
                )
                address = self._stack.enter_context(local)
            self.client = self._stack.enter_context(distributed.Client(address, timeout=_PATIENCE))
        except (OSError, ValueError, TypeError) as error:
            self._stack.close()
            raise ValueError(
                f"no dask scheduler answers at {address} ({error}): start one with  dask scheduler"
            ) from None
        self._executor = self.client.get_executor(retries=5, pure=False)
        self._check_versions()

    def _check_versions(self) -> None:
        """Every worker must have this package, in this version."""
        from gsb3se import __version__

        if not self.client.nthreads():
            raise ValueError("the dask cluster has no workers: start some with  dask worker")
        told = self.client.run(_version, on_error="return").values()
        if missing := [one for one in told if isinstance(one, ImportError)]:
            raise ValueError(f"the dask workers cannot import gsb3se: {missing[0]}")
        # What else goes wrong is a worker that dies just now, which is its own affair.
        if others := {one for one in told if isinstance(one, str)} - {__version__}:
            raise ValueError(f"dask workers have gsb3se {others}, and here it is {__version__}")

    def __enter__(self) -> OnDask:
        return self

    def __exit__(self, *problem: Any) -> None:
        self._stack.close()

    def prepare(self, problem: Problem, backend: Backend) -> Any:
        return self.client.submit(Ready.of, problem, backend, pure=False, retries=5)

    def submit(self, ready: Any, windows: list[Window], summary: Summary) -> Future[Any]:
        return self._executor.submit(_infer_chunk, ready, windows, summary)

    def most_running(self) -> int:
        return 3 * max(1, sum(self.client.nthreads().values()))


def _version() -> str:
    from gsb3se import __version__

    return __version__
