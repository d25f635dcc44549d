"""Inferring chunks in this process, and in helper processes where the work is worth them."""

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
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count
from multiprocessing.connection import wait as wait_for_process
from pathlib import Path
from typing import Any

from gsb3se.batch.jobs import Window
from gsb3se.batch.journal import FAILED, GroupResult
from gsb3se.batch.window_inference import PreparedModel, Summary
from gsb3se.inference.contracts import Backend
from gsb3se.model.source_problem import SourceProblem
from gsb3se.support.machine import stay_on_one_thread

_WORTH_HELPERS = 4.0  # seconds of work left from which helper processes are started


def infer_chunk(
    ready: PreparedModel | str | StoredModel, windows: list[Window], summary: Summary
) -> list[GroupResult]:
    """One task, for a helper process or a worker of a cluster."""
    if isinstance(ready, StoredModel):
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
    _pool: ProcessPoolExecutor | None = None
    _folder: Path | None = None
    _shared: tuple[PreparedModel | str, StoredModel] | None = None
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

    def prepare(self, problem: SourceProblem, backend: Backend) -> PreparedModel | str:
        return PreparedModel.of(problem, backend)

    def submit(self, ready: Any, windows: list[Window], summary: Summary) -> Future[Any]:
        left = self.total - self._done
        if self._pool is None and self.workers > 1 and self._pace * left > _WORTH_HELPERS:
            self._start()
        if self._pool is not None:
            return self._pool.submit(infer_chunk, self._stored(ready), windows, summary)
        began = time.perf_counter()
        future: Future[Any] = Future()
        future.set_result(infer_chunk(ready, windows, summary))
        self._done += len(windows)
        self._spent += time.perf_counter() - began
        return future

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

    def _stored(self, ready: PreparedModel | str) -> StoredModel:
        """The file of a model; the one before is not needed by chunks to come."""
        assert self._folder is not None
        if self._shared is None or self._shared[0] is not ready:
            path = self._folder / f"{next(self._numbers)}.pickle"
            path.write_bytes(pickle.dumps(ready))
            self._shared = ready, StoredModel(path)
        return self._shared[1]


@dataclass(frozen=True)
class StoredModel:
    """What helpers share by a file of ours rather than by sending it with every task."""

    path: Path

    def load(self) -> PreparedModel | str:
        return _load(self.path)


@lru_cache(maxsize=2)
def _load(path: Path) -> PreparedModel | str:
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
