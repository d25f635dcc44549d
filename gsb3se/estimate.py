"""estimate: counts, graph, prior and a backend in; the posterior of q out."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import ArrayLike

from gsb3se.graph import LabelGraph
from gsb3se.inference.contracts import (
    BACKENDS,
    DEFAULT_BACKEND,
    Backend,
    BatchBackend,
    PreparingBackend,
    as_backend,
    identity,
)
from gsb3se.model.counts import ShiftCounts
from gsb3se.model.prior import Prior
from gsb3se.model.problem import Problem
from gsb3se.posterior.posterior import Posterior
from gsb3se.posterior.status import Diagnostics
from gsb3se.support.errors import GSB3SEWarning

__all__ = ["BACKENDS", "DEFAULT_BACKEND", "InferenceError", "as_backend", "estimate", "identity"]

Name = TypeVar("Name")


class InferenceError(RuntimeError):
    """A strict estimate whose status is not ok; the result is in ``posterior``."""

    def __init__(self, posterior: Posterior) -> None:
        super().__init__(posterior.diagnostics.message)
        self.posterior = posterior


@overload
def estimate(
    counts: ShiftCounts,
    graph: LabelGraph | None = ...,
    *,
    targets: None = ...,
    prior: Prior | str | None = ...,
    backend: str | Backend = ...,
    seed: int | np.random.Generator = ...,
    strict: bool = ...,
) -> Posterior: ...


@overload
def estimate(
    counts: Sequence[ShiftCounts],
    graph: LabelGraph | Sequence[LabelGraph] | None = ...,
    *,
    targets: None = ...,
    prior: Prior | str | None = ...,
    backend: str | Backend = ...,
    seed: int | np.random.Generator = ...,
    strict: bool = ...,
) -> list[Posterior]: ...


@overload
def estimate(  # type: ignore[overload-overlap]  # a dict is also an iterable of its names
    counts: ShiftCounts,
    graph: LabelGraph | None = ...,
    *,
    targets: Mapping[Name, ArrayLike],
    prior: Prior | str | None = ...,
    backend: str | Backend = ...,
    seed: int | np.random.Generator = ...,
    strict: bool = ...,
) -> dict[Name, Posterior]: ...


@overload
def estimate(
    counts: ShiftCounts,
    graph: LabelGraph | None = ...,
    *,
    targets: Iterable[ArrayLike],
    prior: Prior | str | None = ...,
    backend: str | Backend = ...,
    seed: int | np.random.Generator = ...,
    strict: bool = ...,
) -> list[Posterior]: ...


def estimate(  # noqa: PLR0913
    counts: ShiftCounts | Sequence[ShiftCounts],
    graph: LabelGraph | Sequence[LabelGraph] | None = None,
    *,
    targets: Iterable[ArrayLike] | Mapping[Any, ArrayLike] | None = None,
    prior: Prior | str | None = None,
    backend: str | Backend = DEFAULT_BACKEND,
    seed: int | np.random.Generator = 0,
    strict: bool = False,
) -> Posterior | list[Posterior] | dict[Any, Posterior]:
    """Infer the target class prior q.

    Args:
        counts: validation confusion counts and target prediction counts; or a list of them, which
            ``backend="amortized"`` infers in one pass.
        graph: which labels are alike; None if nothing is known (the exchangeable graph). For a
            list of counts: one graph for all of them, or a list with one graph for each.
        targets: (K,) target counts, one vector a window, to be inferred in place of the counts'
            own; the work on the validation counts is done once where the backend can. A dict of
            them names the windows.
        prior: the hyper-priors, or "anchored" (as None) or "paper": ``Prior.anchored()``, whose
            columns are centred on a classifier that is mostly right, and ``Prior()``, the paper's.
        backend: a backend object such as ``gs.HMC(draws=2000)``, or a name: "structured", "hmc",
            "newton", "laplace", "variational", "amortized".
        seed: seed or generator, the only source of randomness.
        strict: raise InferenceError instead of a warning if the status is not ok.

    Returns:
        The posterior; what to know about it is in ``posterior.diagnostics``. With ``targets``, or
        for a list of counts, a list of them; for a dict of targets, a dict.

    >>> counts = ShiftCounts([[45, 5], [5, 45]], target=[700, 300], labels=["cat", "dog"])
    >>> post = estimate(counts)
    >>> bool(post.interval(0.9)[0][0] < 0.75 < post.interval(0.9)[1][0])
    True
    >>> windows = estimate(counts, targets={"monday": [700, 300], "tuesday": [200, 800]})
    >>> bool(windows["monday"].mean[0] > windows["tuesday"].mean[0])
    True
    """
    chosen, rng = as_backend(backend), np.random.default_rng(seed)
    if isinstance(counts, ShiftCounts) and not isinstance(graph, Sequence) and targets is None:
        problem = Problem(counts, graph, prior)
        posterior = _finished(chosen.infer(problem, rng), problem, strict)
        warn_of([posterior.diagnostics])
        return posterior
    names = list(targets) if isinstance(targets, Mapping) else None
    each = targets.values() if isinstance(targets, Mapping) else targets
    problems = _problems(counts, graph, prior, each)
    inferred = zip(
        _inferred(chosen, problems, rng, one_source=targets is not None), problems, strict=True
    )
    posteriors = [_finished(posterior, problem, strict) for posterior, problem in inferred]
    warn_of([posterior.diagnostics for posterior in posteriors])
    return posteriors if names is None else dict(zip(names, posteriors, strict=True))


def _problems(
    counts: ShiftCounts | Sequence[ShiftCounts],
    graph: LabelGraph | Sequence[LabelGraph] | None,
    prior: Prior | str | None,
    targets: Iterable[ArrayLike] | None,
) -> list[Problem]:
    """A problem for each window of one source, or for each of several counts."""
    if targets is not None and isinstance(counts, ShiftCounts) and not isinstance(graph, Sequence):
        source = Problem(counts, graph, prior)
        return [Problem.of(source, target) for target in targets]
    if isinstance(counts, ShiftCounts) or not isinstance(counts, Sequence) or targets is not None:
        raise TypeError(
            "counts must be ShiftCounts, or a list of them with one graph or as many and without "
            f"targets; got {type(counts).__name__} and {type(graph).__name__}"
        )
    graphs = list(graph) if isinstance(graph, Sequence) else [graph] * len(counts)
    if len(graphs) != len(counts):
        raise ValueError(
            f"got {len(counts)} counts and {len(graphs)} graphs: pass one graph for each"
        )
    return [Problem(one, its, prior) for one, its in zip(counts, graphs, strict=True)]


def _inferred(
    backend: Backend, problems: list[Problem], rng: np.random.Generator, one_source: bool
) -> Iterator[Posterior]:
    """The posteriors of many problems, with work that they share done once."""
    if isinstance(backend, BatchBackend):
        yield from backend.infer_many(problems, rng)
    elif one_source and problems and isinstance(backend, PreparingBackend):
        source = backend.prepared(problems[0])
        yield from (source.infer_problem(problem, rng) for problem in problems)
    else:
        yield from (backend.infer(problem, rng) for problem in problems)


def _finished(posterior: Posterior, problem: Problem, strict: bool) -> Posterior:
    counts = problem.counts
    if posterior.problem is not problem:
        posterior = replace(
            posterior, labels=counts.labels, n_target=counts.n_target, problem=problem
        )
    if strict and not posterior.diagnostics.status.is_ok:
        raise InferenceError(posterior)
    return posterior


def warn_of(diagnostics: Sequence[Diagnostics]) -> None:
    """Warn of statuses that are not ok: once, however many there are."""
    bad = [place for place, each in enumerate(diagnostics) if not each.status.is_ok]
    if not bad:
        return
    message = diagnostics[bad[0]].message
    if len(diagnostics) > 1:
        statuses = Counter(diagnostics[place].status.value for place in bad)
        counted = ", ".join(f"{n} {status}" for status, n in statuses.most_common())
        message = (
            f"of {len(diagnostics)} posteriors {counted}; the first of them, number {bad[0]}: "
            f"{message}"
        )
    warnings.warn(message, GSB3SEWarning, stacklevel=3)
