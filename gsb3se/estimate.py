"""estimate: counts, graph, prior and a backend in; the posterior of q out."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Protocol, overload, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from gsb3se.counts import ShiftCounts
from gsb3se.errors import GSB3SEWarning
from gsb3se.graph import LabelGraph
from gsb3se.posterior import Posterior
from gsb3se.prior import Prior
from gsb3se.problem import Problem
from gsb3se.status import Diagnostics

# Where each backend lives; it is imported when it is asked for.
BACKENDS = {
    "hmc": ("gsb3se.inference.hmc", "HMC"),
    "newton": ("gsb3se.inference.newton", "NewtonCG"),
    "laplace": ("gsb3se.inference.laplace", "Laplace"),
    "structured": ("gsb3se.inference.structured", "Structured"),
    "variational": ("gsb3se.inference.variational", "Variational"),
    "amortized": ("gsb3se_amortized.backend", "Amortized"),
}
DEFAULT_BACKEND = "structured"


class Backend(Protocol):
    """A frozen object with one method."""

    def infer(self, problem: Problem, rng: np.random.Generator) -> Posterior:
        """The posterior of a problem; all randomness comes from ``rng``."""
        ...


class PreparedSource(Protocol):
    """What a backend made of the validation counts."""

    def infer(
        self, target: ArrayLike, seed: int | np.random.Generator = 0, *, predicted: bool = True
    ) -> Posterior:
        """The posterior of one target; without its predicted shares if those are not needed."""
        ...


@runtime_checkable
class PreparingBackend(Backend, Protocol):
    """A backend whose work on the validation counts serves many targets."""

    def prepared(self, problem: Problem) -> PreparedSource:
        """That work; the problem's own target is not looked at."""
        ...


@runtime_checkable
class BatchBackend(Backend, Protocol):
    """A backend that infers many problems at once."""

    def infer_many(self, problems: Sequence[Problem], rng: np.random.Generator) -> list[Posterior]:
        """The posteriors of all problems, in their order."""
        ...


@runtime_checkable
class DependentBackend(Backend, Protocol):
    """A backend whose answers depend on more than its settings, such as the content of a file."""

    def identity(self) -> str:
        """A text that differs wherever answers may."""
        ...


def identity(backend: Backend) -> str:
    """What a kept result of a backend is known by."""
    return backend.identity() if isinstance(backend, DependentBackend) else repr(backend)


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


def estimate(
    counts: ShiftCounts | Sequence[ShiftCounts],
    graph: LabelGraph | Sequence[LabelGraph] | None = None,
    *,
    targets: Iterable[ArrayLike] | None = None,
    prior: Prior | str | None = None,
    backend: str | Backend = DEFAULT_BACKEND,
    seed: int | np.random.Generator = 0,
    strict: bool = False,
) -> Posterior | list[Posterior]:
    """Infer the target class prior q.

    Args:
        counts: validation confusion counts and target prediction counts; or a list of them, which
            ``backend="amortized"`` infers in one pass.
        graph: which labels are alike; None if nothing is known (the exchangeable graph). For a
            list of counts one for all, or as many.
        targets: (K,) target counts, one vector a window, to be inferred in place of the counts'
            own; the work on the validation counts is done once where the backend can.
        prior: the hyper-priors, or "anchored" (as None) or "paper": ``Prior.anchored()``, whose
            columns are centred on a classifier that is mostly right, and ``Prior()``, the paper's.
        backend: a backend object such as ``gs.HMC(draws=2000)``, or a name: "structured", "hmc",
            "newton", "laplace", "variational", "amortized".
        seed: seed or generator, the only source of randomness.
        strict: raise InferenceError instead of a warning if the status is not ok.

    Returns:
        The posterior; what to know about it is in ``posterior.diagnostics``. With ``targets``, or
        for a list of counts, a list of them.

    >>> counts = ShiftCounts([[45, 5], [5, 45]], target=[700, 300], labels=["cat", "dog"])
    >>> post = estimate(counts)
    >>> bool(post.interval(0.9)[0][0] < 0.75 < post.interval(0.9)[1][0])
    True
    >>> windows = estimate(counts, targets=[[700, 300], [200, 800]])
    >>> bool(windows[0].mean[0] > windows[1].mean[0])
    True
    """
    chosen, rng = as_backend(backend), np.random.default_rng(seed)
    problem = None
    if isinstance(counts, ShiftCounts) and not isinstance(graph, Sequence):
        problem = Problem(counts, graph, prior)
        if targets is None:
            posterior = _finished(chosen.infer(problem, rng), problem, strict)
            warn_of([posterior.diagnostics])
            return posterior
        problems = [
            Problem(problem.counts.with_target(target), problem.graph, problem.prior)
            for target in targets
        ]
    else:
        problems = _problems(counts, graph, prior, targets)
    found: Iterable[Posterior]
    if isinstance(chosen, BatchBackend):
        found = chosen.infer_many(problems, rng)
    elif problem is not None and isinstance(chosen, PreparingBackend):
        source = chosen.prepared(problem)
        found = (source.infer(window.counts.target, rng) for window in problems)
    else:
        found = (chosen.infer(one, rng) for one in problems)
    posteriors = [_finished(post, one, strict) for post, one in zip(found, problems, strict=True)]
    warn_of([posterior.diagnostics for posterior in posteriors])
    return posteriors


def _problems(
    counts: ShiftCounts | Sequence[ShiftCounts],
    graph: LabelGraph | Sequence[LabelGraph] | None,
    prior: Prior | str | None,
    targets: Iterable[ArrayLike] | None,
) -> list[Problem]:
    """A problem for each of several counts."""
    if isinstance(counts, ShiftCounts) or not isinstance(counts, Sequence) or targets is not None:
        raise TypeError(
            "counts must be ShiftCounts, or a list of them with one graph or as many and without "
            f"targets; got {type(counts).__name__} and {type(graph).__name__}"
        )
    graphs = list(graph) if isinstance(graph, Sequence) else [graph] * len(counts)
    if len(graphs) != len(counts):
        raise ValueError(f"got {len(counts)} counts and {len(graphs)} graphs: as many are needed")
    return [Problem(one, its, prior) for one, its in zip(counts, graphs, strict=True)]


def _finished(posterior: Posterior, problem: Problem, strict: bool) -> Posterior:
    counts = problem.counts
    if posterior.problem is not problem:
        posterior = replace(
            posterior, labels=counts.labels, n_target=counts.n_target, problem=problem
        )
    if strict and not posterior.diagnostics.status.is_ok:
        raise InferenceError(posterior)
    return posterior


def as_backend(backend: str | Backend) -> Backend:
    """A backend object from its name, or the object itself."""
    if isinstance(backend, str):
        if backend not in BACKENDS:
            known = ", ".join(repr(name) for name in BACKENDS)
            raise ValueError(f"unknown backend {backend!r}: expected one of {known}")
        module, name = BACKENDS[backend]
        return getattr(import_module(module), name)()
    if isinstance(backend, type) or not callable(getattr(backend, "infer", None)):
        raise TypeError(f"backend must be a name or an object such as gs.HMC(); got {backend!r}")
    return backend


def warn_of(found: Sequence[Diagnostics]) -> None:
    """Warn of statuses that are not ok: once, however many there are."""
    bad = [place for place, each in enumerate(found) if not each.status.is_ok]
    if not bad:
        return
    message = found[bad[0]].message
    if len(found) > 1:
        statuses = Counter(found[place].status.value for place in bad)
        told = ", ".join(f"{n} {status}" for status, n in statuses.most_common())
        message = (
            f"of {len(found)} posteriors {told}; the first of them, number {bad[0]}: {message}"
        )
    warnings.warn(message, GSB3SEWarning, stacklevel=3)
