"""Inferring the groups of a job, somewhere, and keeping what is finished."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, Protocol

from gsb3se.batch.groups import Groups
from gsb3se.batch.jobs import Chunk, Job, Window, chunks_of, unusable
from gsb3se.batch.journal import DamagedJournal, GroupResult, Journal
from gsb3se.batch.window_inference import Summary
from gsb3se.inference.contracts import Backend
from gsb3se.model.source_problem import SourceProblem

_SECONDS_A_COMMIT = 0.3


class Executor(Protocol):
    """Runs chunks; see :mod:`gsb3se.batch.processes` and :mod:`gsb3se.batch.dask_cluster`."""

    def prepare(self, problem: SourceProblem, backend: Backend) -> Any:
        """Work up a model's validation side, once; what tasks are given of it."""
        ...

    def submit(self, ready: Any, windows: list[Window], summary: Summary) -> Future[Any]:
        """Begin a chunk."""
        ...

    def most_running(self) -> int:
        """How many chunks to have under way."""
        ...


def infer_groups(
    job: Job,
    groups: Groups,
    journal: Journal,
    place: Executor,
    advance: Callable[[int], None] = lambda done: None,
) -> None:
    """Infer every group that the journal does not have yet, and keep it there.

    Args:
        advance: called with the number of groups finished since the last call.
    """
    finished = journal.finished()
    if not finished <= set(range(len(groups))):
        raise DamagedJournal(f"{journal.path} knows groups that do not exist: delete it")
    advance(len(finished))
    hopeless = {at: result for at, result in unusable(job, groups) if at not in finished}
    journal.keep(hopeless.items())
    advance(len(hopeless))
    kept: list[tuple[int, GroupResult]] = []
    committed = time.perf_counter()
    for results in _results(job, chunks_of(job, groups, finished), place):
        kept += results
        advance(len(results))
        if time.perf_counter() - committed > _SECONDS_A_COMMIT:
            journal.keep(kept)
            kept, committed = [], time.perf_counter()
    journal.keep(kept)


def _results(
    job: Job, chunks: Iterable[Chunk], place: Executor
) -> Iterator[list[tuple[int, GroupResult]]]:
    """Results of whole chunks as they come, a few chunks at a time."""
    running: dict[Future[Any], Chunk] = {}
    ready: dict[str, Any] = {}

    def landed() -> Iterator[list[tuple[int, GroupResult]]]:
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            places = [window.place for window in running.pop(future).windows]
            yield list(zip(places, future.result(), strict=True))

    for chunk in chunks:
        if chunk.model not in ready:
            ready = {chunk.model: place.prepare(job.problems[chunk.model], job.backend)}
        summary = Summary(job.source_priors[chunk.model], job.level, job.alert)
        running[place.submit(ready[chunk.model], chunk.windows, summary)] = chunk
        while len(running) >= place.most_running():
            yield from landed()
    while running:
        yield from landed()
