"""What a backend is, and what else it may offer.

A backend is a small frozen object with one method, ``infer``; everything else in its files is a
plain function that a test can call. No class needs to be inherited: having the methods is enough.
The evidence of the target is its counts of predictions, in a
:class:`~gsb3se.model.problem.Problem`.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from gsb3se.model.problem import Problem
from gsb3se.model.source_problem import SourceProblem
from gsb3se.posterior.posterior import Posterior

# Where each backend lives; it is imported when it is asked for.
BACKENDS = {
    "hmc": ("gsb3se.inference.hmc", "HMC"),
    "newton": ("gsb3se.inference.gaussian", "NewtonCG"),
    "laplace": ("gsb3se.inference.gaussian", "Laplace"),
    "structured": ("gsb3se.inference.structured", "Structured"),
    "variational": ("gsb3se.inference.variational", "Variational"),
    "amortized": ("gsb3se_amortized", "Amortized"),
}
DEFAULT_BACKEND = "structured"


class Backend(Protocol):
    """A frozen object with one method."""

    def infer(self, problem: Problem, rng: np.random.Generator) -> Posterior:
        """The posterior of a problem; all randomness comes from ``rng``."""
        ...


class PreparedSource(Protocol):
    """What a backend made of the validation counts."""

    def infer(self, target: ArrayLike, seed: int | np.random.Generator = 0) -> Posterior:
        """The posterior of one target from its (K,) counts of predictions."""
        ...

    def infer_problem(
        self, problem: Problem, rng: np.random.Generator, *, predicted: bool = True
    ) -> Posterior:
        """The posterior of a problem of this source.

        Args:
            predicted: whether its predicted shares C q and E[C] are needed too.
        """
        ...


@runtime_checkable
class PreparingBackend(Backend, Protocol):
    """A backend whose work on the validation counts serves many targets."""

    def prepared(self, source: SourceProblem) -> PreparedSource:
        """That work."""
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


def as_backend(backend: str | Backend) -> Backend:
    """A backend object from its name, or the object itself."""
    if isinstance(backend, str):
        if backend not in BACKENDS:
            names = ", ".join(repr(name) for name in BACKENDS)
            raise ValueError(f"unknown backend {backend!r}: expected one of {names}")
        module, name = BACKENDS[backend]
        return getattr(import_module(module), name)()
    if isinstance(backend, type) or not callable(getattr(backend, "infer", None)):
        raise TypeError(f"backend must be a name or an object such as gs.HMC(); got {backend!r}")
    return backend


def identity(backend: Backend) -> str:
    """The text that identifies a backend in stored results."""
    return backend.identity() if isinstance(backend, DependentBackend) else repr(backend)


def libraries_of(backend: Backend) -> tuple[str, ...]:
    """Numerical libraries with threads of their own that a backend says it uses, such as torch."""
    return getattr(backend, "libraries", ())
