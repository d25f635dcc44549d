"""Many groups of target predictions at once: what is done with each, and in which order."""

from __future__ import annotations

import hashlib
import sys
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from gsb3se.counting import Groups
from gsb3se.errors import MissingExtra, require
from gsb3se.estimate import Backend, BatchBackend, PreparedSource, PreparingBackend
from gsb3se.journal import FAILED, DamagedJournal, GroupResult, Journal
from gsb3se.posterior import Posterior
from gsb3se.problem import Problem
from gsb3se.simplex import Vector

_MOST_AT_ONCE, _MOST_NUMBERS = 128, 1 << 22  # windows of a pass, and K^2 times their number
_SECONDS_A_COMMIT = 0.3
_WITH_TORCH = ("gsb3se_amortized.backend", "gsb3se.inference.variational")
_alone: list[AbstractContextManager[Any]] = []  # limits that stay


@dataclass(frozen=True, eq=False)
class Job:
    """What is to be inferred of every group.

    Attributes:
        problems: validation counts, graph and prior of each model, by its name; "" if there is one.
        source_priors: (K,) of each model, that shifts are measured from.
        backend: the backend object.
        level: of the intervals.
        alert: L1 distance to the source prior above which a shift counts as one.
        seed: of all randomness; a group's draws depend on it and on the group's own key alone.
        by_model: whether the first of a group's keys is its model.
    """

    problems: Mapping[str, Problem]
    source_priors: Mapping[str, Vector]
    backend: Backend
    level: float = 0.9
    alert: float = 0.5
    seed: int = 0
    by_model: bool = False

    @property
    def labels(self) -> tuple[Any, ...]:
        """The classes, the same for all models."""
        return next(iter(self.problems.values())).counts.labels

    def model_of(self, groups: Groups, place: int) -> str:
        """The name of a group's model."""
        return str(groups.values(place)[0]) if self.by_model else ""


class Window(NamedTuple):
    """A group that is ready to be inferred: its (K,) counts, and a seed of its own."""

    place: int
    target: NDArray[np.int64]
    seed: int


class Summary(NamedTuple):
    """What results are summed up by: source prior, level of the intervals, alert."""

    source_prior: Vector
    level: float
    alert: float


class Chunk(NamedTuple):
    """Windows of one model that are inferred together."""

    model: str
    windows: list[Window]


@dataclass(frozen=True, eq=False)
class Ready:
    """A model's validation side, worked up: what any process needs to infer its windows."""

    problem: Problem
    backend: Backend
    source: PreparedSource | None = None

    @classmethod
    def of(cls, problem: Problem, backend: Backend) -> Ready | str:
        """Ready, or why it cannot be."""
        with one_thread(backend):
            try:
                if isinstance(backend, PreparingBackend):
                    return cls(problem, backend, backend.prepared(problem))
                return cls(problem, backend)
            except MissingExtra:
                raise
            except Exception as error:
                return f"{type(error).__name__}: {error}"

    def infer(self, windows: Sequence[Window], summary: Summary) -> list[GroupResult]:
        """The result of every window; one that fails says why."""
        with one_thread(self.backend):
            if isinstance(self.backend, BatchBackend) and len(windows) > 1:
                try:
                    return [summarise(found, summary) for found in self._together(windows)]
                except MissingExtra:
                    raise
                except Exception:
                    pass  # one by one, then, to tell which it is
            return [self._alone(window, summary) for window in windows]

    def _together(self, windows: Sequence[Window]) -> list[Posterior]:
        assert isinstance(self.backend, BatchBackend)
        rng = np.random.default_rng(windows[0].seed)
        return self.backend.infer_many([self._problem(window) for window in windows], rng)

    def _alone(self, window: Window, summary: Summary) -> GroupResult:
        rng = np.random.default_rng(window.seed)
        try:
            if self.source is not None:
                posterior = self.source.infer(window.target, rng, predicted=False)
            else:
                posterior = self.backend.infer(self._problem(window), rng)
            return summarise(posterior, summary)
        except MissingExtra:
            raise
        except Exception as error:  # whatever it is, the other groups go on
            return GroupResult(FAILED, str(error) or type(error).__name__)

    def _problem(self, window: Window) -> Problem:
        counts = self.problem.counts.with_target(window.target)
        return Problem(counts, self.problem.graph, self.problem.prior)


def summarise(posterior: Posterior, summary: Summary) -> GroupResult:
    """What is kept of a posterior."""
    distance = posterior.l1_distance(summary.source_prior)
    numbers = np.stack([posterior.mean, posterior.sd, *posterior.interval(summary.level)])
    found = posterior.diagnostics
    return GroupResult(
        found.status.value,
        "" if found.status.is_ok else found.message,
        float(distance.mean()),
        float((distance > summary.alert).mean()),
        numbers,
    )


@contextmanager
def one_thread(backend: Backend | None = None) -> Iterator[None]:
    """Linear algebra on one thread.

    Groups are what runs side by side, and results are the same whatever the number of cores.
    """
    if type(backend).__module__ in _WITH_TORCH:
        require("torch", extra="amortized")  # before its threads are counted, not in between
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


def _one_blas_thread() -> AbstractContextManager[Any]:
    if _alone:
        return nullcontext()
    return require("threadpoolctl", extra="batch").threadpool_limits(1)


def stay_on_one_thread() -> None:
    """In a process that does nothing else: to limit threads for every group takes a millisecond."""
    _alone.append(_one_blas_thread())


class Place(Protocol):
    """Somewhere chunks can be sent to; see :mod:`gsb3se.batch_places`."""

    def prepare(self, problem: Problem, backend: Backend) -> Any:
        """Work up a model's validation side, once; what tasks are given of it."""
        ...

    def submit(self, ready: Any, windows: list[Window], summary: Summary) -> Future[Any]:
        """Begin a chunk."""
        ...

    def most_running(self) -> int:
        """How many chunks to have under way."""
        ...


def run(
    job: Job,
    groups: Groups,
    journal: Journal,
    place: Place,
    tell: Callable[[int], None] = lambda done: None,
) -> None:
    """Infer every group that the journal does not have yet, and keep it there.

    Args:
        tell: is told how many more groups are done.
    """
    finished = journal.finished()
    if not finished <= set(range(len(groups))):
        raise DamagedJournal(f"{journal.path} knows groups that do not exist: delete it")
    tell(len(finished))
    hopeless = {place: found for place, found in unusable(job, groups) if place not in finished}
    journal.keep(hopeless.items())
    tell(len(hopeless))
    kept: list[tuple[int, GroupResult]] = []
    committed = time.perf_counter()
    for results in _results(job, chunks_of(job, groups, finished), place):
        kept += results
        tell(len(results))
        if time.perf_counter() - committed > _SECONDS_A_COMMIT:
            journal.keep(kept)
            kept, committed = [], time.perf_counter()
    journal.keep(kept)


def _results(
    job: Job, chunks: Iterable[Chunk], place: Place
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


def chunks_of(job: Job, groups: Groups, finished: Container[int] = ()) -> Iterator[Chunk]:
    """The groups that are left, in chunks.

    Where a backend infers several at once, the same ones are always together: what rounding makes
    of a group may depend on its company.
    """
    size = 1
    if isinstance(job.backend, BatchBackend):
        size = max(1, min(_MOST_AT_ONCE, _MOST_NUMBERS // len(job.labels) ** 2))
    for model, places in groupby(range(len(groups)), lambda place: job.model_of(groups, place)):
        windows = (_window(job, groups, place) for place in places)
        usable = (window for window in windows if isinstance(window, Window))
        while chunk := list(islice(usable, size)):
            if any(window.place not in finished for window in chunk):
                yield Chunk(model, chunk)


def unusable(job: Job, groups: Groups) -> Iterator[tuple[int, GroupResult]]:
    """Groups that cannot be inferred, and why."""
    for place in range(len(groups)):
        if isinstance(window := _window(job, groups, place), str):
            yield place, GroupResult(FAILED, window)


def _window(job: Job, groups: Groups, place: int) -> Window | str:
    """A group made ready, or why it cannot be."""
    if (model := job.model_of(groups, place)) not in job.problems:
        return f"the validation file has no rows of the model {model!r}"
    try:
        return Window(place, groups.target(place), _seed(job.seed, groups.values(place)))
    except ValueError as error:
        return str(error)


def _seed(seed: int, values: tuple[Any, ...]) -> int:
    """A group's own seed, from what it is called and not from where it stands."""
    told = "\0".join([str(seed), *map(str, values)])
    return int.from_bytes(hashlib.sha256(told.encode()).digest()[:16])


@dataclass
class Outcome:
    """A batch in a few figures: groups by status, and those whose shift is an alert."""

    statuses: Counter[str] = field(default_factory=Counter)
    alerts: list[tuple[int, GroupResult]] = field(default_factory=list)
    first_failure: str = ""

    def add(self, place: int, found: GroupResult, certainty: float) -> None:
        """Take one more group into account."""
        self.statuses[found.status] += 1
        if found.status == FAILED and not self.first_failure:
            self.first_failure = found.message
        if found.probability is not None and found.probability >= certainty:
            self.alerts.append((place, found._replace(numbers=None)))
