"""Amortized: the posterior of q by one forward pass of a trained encoder."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gsb3se.diagnostics import Diagnostics, Finding, Status, identifiability, weak_directions
from gsb3se.forms import BentStudent as BentForm
from gsb3se.inference.structured import Structured
from gsb3se.posterior import Posterior
from gsb3se.prior import Prior
from gsb3se.problem import Problem
from gsb3se_amortized.batch import Batch, SourceWindows
from gsb3se_amortized.checkpoint import DEFAULT, Checkpoint, load
from gsb3se_amortized.encoder import Source
from gsb3se_amortized.familiarity import strangeness, summaries
from gsb3se_amortized.family import BentStudent

_MOST_NUMBERS = 1 << 23  # in the matrices of a pass
_SPECTRUM = 200  # classes up to which singular values are looked at: beyond, they take longest
_ALIKE = 1.25  # sizes in a batch differ by at most such a factor
_PRIORS = (Prior(), Prior.anchored())  # the encoder knows these two


class Group(NamedTuple):
    """Problems with the same validation counts, graph and prior, by their places in a list."""

    problem: Problem
    places: list[int]


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

    checkpoint: str | os.PathLike[str] = DEFAULT
    device: str = "cpu"
    refine: Literal["structured"] | None = None

    def __post_init__(self) -> None:
        if self.refine not in (None, "structured"):
            raise ValueError(f"refine must be 'structured' or None; got {self.refine!r}")

    def infer(self, problem: Problem, rng: np.random.Generator) -> Posterior:
        """The posterior of one problem."""
        return self.infer_many([problem], rng)[0]

    def infer_many(self, problems: Sequence[Problem], rng: np.random.Generator) -> list[Posterior]:
        """The posteriors of many problems; of those that share a source it is encoded once."""
        began = time.perf_counter()
        trained = load(self.checkpoint, self.device)
        found: dict[int, Posterior] = {}
        for groups in batches_of(problems):
            for place, posterior in self._pass(trained, groups, problems):
                found[place] = posterior
        seconds = (time.perf_counter() - began) / max(len(problems), 1)
        for posterior in found.values():
            posterior.diagnostics.figures["seconds"] = seconds  # type: ignore[index]
        answers = [found[place] for place in range(len(problems))]
        return self._refined(problems, answers, rng) if self.refine else answers

    @torch.no_grad()
    def _pass(
        self, trained: Checkpoint, groups: list[Group], problems: Sequence[Problem]
    ) -> Iterator[tuple[int, Posterior]]:
        """One forward pass over sources of about one size with equally many windows."""
        batch = Batch.of(
            [
                SourceWindows(
                    group.problem.counts.confusion,
                    group.problem.graph,
                    group.problem.prior.is_anchored,
                    np.stack([problems[place].counts.target for place in group.places]),
                )
                for group in groups
            ]
        ).to(self.device)
        source = trained.encoder.encode(batch)
        posterior = trained.encoder.infer(source, batch.targets)
        strange = torch.zeros(batch.targets.shape[:2])
        if trained.typical:
            told = summaries(batch, source, posterior)
            strange = strangeness(told, batch.anchored, trained.typical)
        named = (posterior.centre, posterior.scale, posterior.skew, posterior.tail)
        vectors = [part.cpu().numpy() for part in named]
        factors = posterior.draw_factor().cpu().numpy()
        freedom = posterior.freedom.cpu().numpy()
        distances = strange.cpu().numpy()
        kept, row_sd = (part.cpu().numpy() for part in _rows_given(batch, source, posterior))
        means = source.columns.mean.double().cpu().numpy()
        for s, group in enumerate(groups):
            n = group.problem.n_classes
            mean = np.ascontiguousarray(means[s, :n, :n])
            mean /= mean.sum(axis=0)
            directions = _directions(group.problem)
            unknown = outside(trained, group.problem)
            for w, place in enumerate(group.places):
                centre, scale, skew, tail = (part[s, w, :n] for part in vectors)
                problem = problems[place]
                observed = problem.counts.target / problem.counts.n_target
                rows = (1 - kept[s, w, :n, None]) * mean + (kept[s, w, :n] * observed)[:, None]
                factor = factors[s, w, :n, :n]
                form = BentForm(
                    centre, scale, skew, tail, factor, freedom[s, w], rows, row_sd[s, w, :n]
                )
                findings = [*unknown, *_about_target(trained, problem)]
                figures: dict[str, Any] = {"strangeness": float(distances[s, w])}
                if distances[s, w] > 1:
                    told = (
                        "the counts are unlike the simulated ones (distance "
                        f"{distances[s, w]:.2g} of the limit)"
                    )
                    findings.append(Finding(Status.UNFAMILIAR, told))
                known = identifiability(problem.counts, directions, directions is not None)
                yield (
                    place,
                    Posterior(
                        form,
                        problem.counts.labels,
                        Diagnostics.of([*known.findings, *findings], figures | known.figures()),
                        "amortized",
                        mean,
                        problem.counts.n_target,
                        problem,
                    ),
                )

    def _refined(
        self, problems: Sequence[Problem], answers: list[Posterior], rng: np.random.Generator
    ) -> list[Posterior]:
        """The structured backend's posteriors, each started from the encoder's."""
        backend = Structured()
        refined: dict[int, Posterior] = {}
        for group in sources_of(problems):
            source = backend.prepared(group.problem)
            for place in group.places:
                target = problems[place].counts.target
                refined[place] = source.infer(target, rng, likely=answers[place].mean)
        return [refined[place] for place in range(len(problems))]


def _rows_given(batch: Batch, source: Source, posterior: BentStudent) -> tuple[Tensor, Tensor]:
    """(S, W, K) how far r follows the observed shares rather than E[C] q, and the sd of log r.

    With s_j the variance of r_j given q and r_j / n' that of its observation, r_j lies s / (s + r /
    n') of the way to what was observed.
    """
    columns = source.columns
    x = torch.where(posterior.mask, posterior.centre, -torch.inf).movedim(1, 2)
    q = torch.softmax(x, dim=1).to(columns.mean.dtype)
    r = (columns.mean @ q).clamp_min(1e-12)
    unsure = columns.variance @ q.square()
    seen = r / batch.targets.sum(dim=2)[:, None].clamp_min(1.0)
    kept = unsure / (unsure + seen)
    sd = (kept * seen).sqrt() / r
    return kept.movedim(1, 2), sd.clamp_max(1.0).movedim(1, 2)


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


def outside(trained: Checkpoint, problem: Problem) -> list[Finding]:
    """What of a source lies outside the trained ranges."""
    ranges, told = trained.ranges, []
    if problem.prior not in _PRIORS:
        told.append("it knows Prior() and Prior.anchored() with their defaults alone")
    low, high = ranges.classes
    if not low <= problem.n_classes <= high:
        told.append(f"it was trained on {low} to {high} classes, here are {problem.n_classes}")
    most = int(problem.counts.validation_sizes.max())
    if most > ranges.labels[1]:
        told.append(
            f"it was trained on up to {ranges.labels[1]} validation rows a class, here are {most}"
        )
    return [Finding(Status.UNFAMILIAR, sentence) for sentence in told]


def _about_target(trained: Checkpoint, problem: Problem) -> list[Finding]:
    low, high = trained.ranges.target
    n = problem.counts.n_target
    if low <= n <= high:
        return []
    told = f"it was trained on {low} to {high:,} target predictions, here are {n:,}"
    return [Finding(Status.UNFAMILIAR, told)]


def _directions(problem: Problem) -> Any:
    if problem.n_classes > _SPECTRUM or problem.counts.n_validation == 0:
        return None
    return weak_directions(problem.counts)
