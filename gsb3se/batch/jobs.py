"""A job: what is to be inferred of every group, and in which chunks."""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gsb3se.batch.groups import Groups
from gsb3se.batch.journal import FAILED, GroupResult
from gsb3se.inference.contracts import Backend, BatchBackend
from gsb3se.model.source_problem import SourceProblem
from gsb3se.support.simplex import Vector

_MOST_AT_ONCE, _MOST_NUMBERS = 128, 1 << 22  # windows of a pass, and K^2 times their number


@dataclass(frozen=True, eq=False)
class Job:
    """What is to be inferred of every group.

    Attributes:
        problems: validation counts, graph and prior of each model, by its name; "" if there is one.
        source_priors: (K,) of each model, that shifts are measured from.
        backend: the backend object.
        level: of the intervals.
        alert: L1 distance to the source prior beyond which a shift raises an alert.
        seed: of all randomness; a group's own seed follows from it and from the group's key.
        by_model: whether the first of a group's keys is its model.
    """

    problems: Mapping[str, SourceProblem]
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


class Chunk(NamedTuple):
    """Windows of one model that are inferred together."""

    model: str
    windows: list[Window]


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
    words = "\0".join([str(seed), *map(str, values)])
    return int.from_bytes(hashlib.sha256(words.encode()).digest()[:16])
