"""What any process needs to infer the windows of a model, and what is kept of each posterior."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gsb3se.batch.jobs import Window
from gsb3se.batch.journal import FAILED, GroupResult
from gsb3se.inference.contracts import (
    Backend,
    BatchBackend,
    PreparedSource,
    PreparingBackend,
    libraries_of,
)
from gsb3se.model.problem import Problem
from gsb3se.model.source_problem import SourceProblem
from gsb3se.posterior.posterior import Posterior
from gsb3se.support.errors import MissingExtra
from gsb3se.support.machine import one_thread
from gsb3se.support.simplex import Vector


class Summary(NamedTuple):
    """What results are summed up by: source prior, level of the intervals, alert."""

    source_prior: Vector
    level: float
    alert: float


@dataclass(frozen=True, eq=False)
class PreparedModel:
    """A model's validation side, worked up: what any process needs to infer its windows."""

    problem: SourceProblem
    backend: Backend
    source: PreparedSource | None = None

    @classmethod
    def of(cls, problem: SourceProblem, backend: Backend) -> PreparedModel | str:
        """The model worked up, or why it cannot be."""
        with one_thread(libraries_of(backend)):
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
        with one_thread(libraries_of(self.backend)):
            if isinstance(self.backend, BatchBackend) and len(windows) > 1:
                try:
                    return [summarise(each, summary) for each in self._together(windows)]
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
            problem = self._problem(window)
            if self.source is not None:
                posterior = self.source.infer_problem(problem, rng, predicted=False)
            else:
                posterior = self.backend.infer(problem, rng)
            return summarise(posterior, summary)
        except MissingExtra:
            raise
        except Exception as error:  # whatever it is, the other groups go on
            return GroupResult(FAILED, str(error) or type(error).__name__)

    def _problem(self, window: Window) -> Problem:
        return Problem.of(self.problem, window.target)


def summarise(posterior: Posterior, summary: Summary) -> GroupResult:
    """What is kept of a posterior."""
    distance = posterior.l1_distance(summary.source_prior)
    numbers = np.stack([posterior.mean, posterior.sd, *posterior.interval(summary.level)])
    diagnostics = posterior.diagnostics
    return GroupResult(
        diagnostics.status.value,
        "" if diagnostics.status.is_ok else diagnostics.message,
        float(distance.mean()),
        float((distance > summary.alert).mean()),
        numbers,
    )
