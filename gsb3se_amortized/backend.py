"""Amortized: the posterior of q by one forward pass of a trained encoder."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from gsb3se.inference.structured import Structured
from gsb3se.model.prior import Prior
from gsb3se.model.problem import Problem
from gsb3se.posterior.identifiability import identified
from gsb3se.posterior.posterior import Posterior
from gsb3se.posterior.status import Diagnostics, Finding, Status
from gsb3se.support.errors import require
from gsb3se.support.forked_processes import check_not_forked
from gsb3se.support.limits import AMORTIZED_FEWEST
from gsb3se.support.simplex import softmax
from gsb3se_amortized.grouping import Group, batches_of, sources_of

if TYPE_CHECKING:
    from gsb3se_amortized.simulator import Ranges

DEFAULT = "base"  # the checkpoint that ships with the package
_PRIORS = (Prior(), Prior.anchored())  # the encoder knows these two


@dataclass(frozen=True)
class Amortized:
    """The posterior of q by one pass of a network that was trained on simulated shifts.

    Args:
        checkpoint: the name of one that ships with the package, or the path of one that
            ``gsb3se train`` wrote.
        device: where it runs, for instance "cuda".
        refine: "structured" to let the structured backend start from the answer and give its own.

    Milliseconds for a hundred classes, and far less for each of many windows of one classifier. A
    problem outside what the encoder was trained on gets the status "unfamiliar".

    >>> Amortized()
    Amortized(checkpoint='base', device='cpu', refine=None)
    """

    libraries: ClassVar[tuple[str, ...]] = ("torch",)

    checkpoint: str | os.PathLike[str] = DEFAULT
    device: str = "cpu"
    refine: Literal["structured"] | None = None

    def __post_init__(self) -> None:
        if self.refine not in (None, "structured"):
            raise ValueError(f"refine must be 'structured' or None; got {self.refine!r}")

    def identity(self) -> str:
        """The settings and the content of the checkpoint, which may have been replaced."""
        require_packages()
        from gsb3se_amortized.checkpoint import content_hash

        return f"{self!r} of {content_hash(self.checkpoint)}"

    def infer(self, problem: Problem, rng: np.random.Generator) -> Posterior:
        """The posterior of one problem."""
        return self.infer_many([problem], rng)[0]

    def infer_many(self, problems: Sequence[Problem], rng: np.random.Generator) -> list[Posterior]:
        """The posteriors of many problems; of those that share a source it is encoded once."""
        require_packages()
        check_not_forked("torch")
        from gsb3se_amortized.forward import ForwardPass

        began = time.perf_counter()
        forward = ForwardPass(self.checkpoint, self.device)
        by_place: dict[int, Posterior] = {}
        for groups in batches_of(problems):
            by_place |= dict(self._posteriors(forward, groups, problems))
        seconds = (time.perf_counter() - began) / max(len(problems), 1)
        answers = [_timed(by_place[place], seconds) for place in range(len(problems))]
        return self._refined(problems, answers, rng) if self.refine else answers

    def _posteriors(
        self, forward: Any, groups: list[Group], problems: Sequence[Problem]
    ) -> Iterator[tuple[int, Posterior]]:
        """The posteriors of one pass, by their places."""
        for answer, group in zip(forward(groups, problems), groups, strict=True):
            fewest = (
                int(AMORTIZED_FEWEST) if self.checkpoint == DEFAULT else answer.ranges.classes[0]
            )
            of_source = outside(answer.ranges, group.problem, fewest)
            for place, form, strange in zip(
                group.places, answer.forms, answer.strangeness, strict=True
            ):
                problem = problems[place]
                findings = [*of_source, *_about_target(answer.ranges, problem)]
                if strange > 1:
                    sentence = (
                        "the counts are unlike the simulated ones (distance "
                        f"{strange:.2g} of the limit)"
                    )
                    findings.append(Finding(Status.UNFAMILIAR, sentence))
                posterior = Posterior(
                    form,
                    problem.counts.labels,
                    Diagnostics.of(findings, {"strangeness": float(strange)}),
                    "amortized",
                    answer.confusion_mean,
                    problem.counts.n_target,
                    problem,
                )
                yield place, identified(posterior, softmax(form.centre))

    def _refined(
        self, problems: Sequence[Problem], answers: list[Posterior], rng: np.random.Generator
    ) -> list[Posterior]:
        """The structured backend's posteriors, each started from the encoder's."""
        backend = Structured()
        refined: dict[int, Posterior] = {}
        for group in sources_of(problems):
            source = backend.prepared(group.problem)
            for place in group.places:
                likely = answers[place].mean
                refined[place] = source.infer_problem(problems[place], rng, likely)
        return [refined[place] for place in range(len(problems))]


def _timed(posterior: Posterior, seconds: float) -> Posterior:
    diagnostics = posterior.diagnostics.and_also(figures={"seconds": seconds}, seconds=seconds)
    return replace(posterior, diagnostics=diagnostics)


def require_packages() -> None:
    """Say which command installs what is missing."""
    for module in ("torch", "torch_geometric", "safetensors"):
        require(module, extra="amortized")


def outside(ranges: Ranges, problem: Problem, fewest: int) -> list[Finding]:
    """What of a source lies outside the trained ranges.

    Args:
        fewest: classes from which the encoder serves.
    """
    sentences = []
    if problem.prior not in _PRIORS:
        sentences.append("it knows Prior() and Prior.anchored() with their defaults alone")
    high = ranges.classes[1]
    if not fewest <= problem.n_classes <= high:
        sentences.append(
            f"it was trained on {ranges.classes[0]} to {high} classes, here are {problem.n_classes}"
        )
    most = int(problem.counts.validation_sizes.max())
    if most > ranges.labels[1]:
        sentences.append(
            f"it was trained on up to {ranges.labels[1]} validation rows a class, here are {most}"
        )
    return [Finding(Status.UNFAMILIAR, sentence) for sentence in sentences]


def _about_target(ranges: Ranges, problem: Problem) -> list[Finding]:
    low, high = ranges.target
    n = problem.counts.n_target
    if low <= n <= high:
        return []
    sentence = f"it was trained on {low} to {high:,} target predictions, here are {n:,}"
    return [Finding(Status.UNFAMILIAR, sentence)]
