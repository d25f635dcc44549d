"""Inferring chunks on a dask.distributed cluster."""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any

from gsb3se.batch.jobs import Window
from gsb3se.batch.processes import infer_chunk
from gsb3se.batch.window_inference import PreparedModel, Summary
from gsb3se.inference.contracts import Backend
from gsb3se.model.source_problem import SourceProblem
from gsb3se.support.errors import require
from gsb3se.support.version import __version__

_PATIENCE = 15.0  # seconds to wait for a scheduler


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

        if not self.client.nthreads():
            raise ValueError("the dask cluster has no workers: start some with  dask worker")
        versions = self.client.run(_version, on_error="return").values()
        if missing := [one for one in versions if isinstance(one, ImportError)]:
            raise ValueError(f"the dask workers cannot import gsb3se: {missing[0]}")
        # What else goes wrong is a worker that dies just now, which is its own affair.
        if others := {one for one in versions if isinstance(one, str)} - {__version__}:
            raise ValueError(f"dask workers have gsb3se {others}, and here it is {__version__}")

    def __enter__(self) -> OnDask:
        return self

    def __exit__(self, *problem: Any) -> None:
        self._stack.close()

    def prepare(self, problem: SourceProblem, backend: Backend) -> Any:
        return self.client.submit(PreparedModel.of, problem, backend, pure=False, retries=5)

    def submit(self, ready: Any, windows: list[Window], summary: Summary) -> Future[Any]:
        return self._executor.submit(infer_chunk, ready, windows, summary)

    def most_running(self) -> int:
        return 3 * max(1, sum(self.client.nthreads().values()))


def _version() -> str:

    return __version__
