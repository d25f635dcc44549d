"""Which problems go through the encoder in one pass: those of one source, and sources of like size.

It needs no torch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from gsb3se.model.problem import Problem

_MOST_NUMBERS = 1 << 23  # in the matrices of a pass
_ALIKE = 1.25  # sizes in a batch differ by at most such a factor


class Group(NamedTuple):
    """Problems with the same validation counts, graph and prior, by their places in a list."""

    problem: Problem
    places: list[int]


def sources_of(problems: Sequence[Problem]) -> list[Group]:
    """Problems by their source: the same validation counts, graph and prior."""
    groups: dict[tuple[Any, ...], Group] = {}
    for place, problem in enumerate(problems):
        key = (id(problem.counts.confusion), id(problem.graph), problem.prior)
        groups.setdefault(key, Group(problem, [])).places.append(place)
    return list(groups.values())


def batches_of(problems: Sequence[Problem]) -> Iterator[list[Group]]:
    """Sources of similar size with equally many windows, no more than fit into a pass."""
    by_windows: dict[int, list[Group]] = defaultdict(list)
    for problem, places in sources_of(problems):
        most = max(1, _MOST_NUMBERS // problem.n_classes**2)
        for start in range(0, len(places), most):
            part = Group(problem, places[start : start + most])
            by_windows[len(part.places)].append(part)
    for windows, groups in by_windows.items():
        groups.sort(key=lambda group: group.problem.n_classes)
        batch: list[Group] = []
        for group in groups:
            n = group.problem.n_classes
            full = (len(batch) + 1) * windows * n**2 > _MOST_NUMBERS
            if batch and (full or n > _ALIKE * batch[0].problem.n_classes):
                yield batch
                batch = []
            batch.append(group)
        yield batch
