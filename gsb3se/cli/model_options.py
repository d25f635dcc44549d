"""The options that say what is inferred: graph, prior, intervals, and how long HMC runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any

import click

from gsb3se.cli.console import ExistingFile, plain_speech
from gsb3se.graph import LabelGraph
from gsb3se.inference.contracts import BACKENDS, DEFAULT_BACKEND, Backend, as_backend
from gsb3se.inference.hmc import HMC
from gsb3se.inference.structured import Structured
from gsb3se.model.counts import ShiftCounts
from gsb3se.model.prior import Prior
from gsb3se.support.limits import EXACT_CHAINS_BY_DEFAULT
from gsb3se_amortized import Amortized


def level_option(text: str = "Of the intervals.") -> Callable[..., Any]:
    """The option --level, with its help."""
    between = click.FloatRange(0, 1, min_open=True, max_open=True)
    return click.option("--level", type=between, default=0.9, show_default=True, help=text)


@dataclass(frozen=True)
class ModelChoice:
    """What is inferred: a label graph's file, the prior, the level of the intervals, and HMC with
    its settings."""

    graph: Path | None
    prior: Prior
    level: float
    hmc: HMC

    def graph_for(self, counts: ShiftCounts) -> LabelGraph | None:
        """The graph, in the order of the counts' labels where it names the same ones."""
        return None if self.graph is None else LabelGraph.load(self.graph).aligned(counts.labels)


def model_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options; the command is given ``model``, a :class:`ModelChoice`."""

    @wraps(command)
    def with_objects(**given: Any) -> Any:
        with plain_speech():
            hyper = {name: given.pop(name.lower()) for name in ("a_q", "b_q", "a_C", "b_C")}
            hmc = HMC(*(given.pop(name) for name in ("chains", "warmup", "draws")))
            prior = replace(Prior.of(given.pop("prior")), **hyper)
            model = ModelChoice(given.pop("graph"), prior, given.pop("level"), hmc)
        return command(model=model, **given)

    options = (
        click.option(
            "--graph", type=ExistingFile, help="A saved label graph; default: all equally similar."
        ),
        click.option("--chains", default=HMC.chains, show_default=True, help="Of hmc."),
        click.option("--warmup", default=HMC.warmup, show_default=True, help="Of hmc."),
        click.option("--draws", default=HMC.draws, show_default=True, help="Of hmc, a chain."),
        click.option(
            "--prior",
            type=click.Choice(["paper", "anchored"]),
            default="anchored",
            show_default=True,
            help="anchored: a classifier is taken to be mostly right, and wrong most often among "
            "similar labels.",
        ),
        click.option("--a-q", default=1.0, show_default=True, help="Gamma shape of tau_q."),
        click.option("--b-q", default=1.0, show_default=True, help="Gamma rate of tau_q."),
        click.option("--a-c", default=1.0, show_default=True, help="Gamma shape of tau_C."),
        click.option("--b-c", default=1.0, show_default=True, help="Gamma rate of tau_C."),
        level_option(),
    )
    wrapped: Callable[..., Any] = with_objects
    for option in reversed(options):
        wrapped = option(wrapped)
    return wrapped


def checkpoint_file(backend: Backend) -> Path | None:
    """The file of weights that a backend reads, if there is one."""
    path = Path(getattr(backend, "checkpoint", ""))
    return path if path.is_file() else None


def backend_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that choose a backend; below :func:`model_options`.

    The command is given ``backend``, the object.
    """

    @wraps(command)
    def with_backend(
        model: ModelChoice, backend: str, checkpoint: str, refine: bool | None, **others: Any
    ) -> Any:
        configured: dict[str, Backend] = {
            "hmc": model.hmc,
            "amortized": Amortized(checkpoint),
            "structured": Structured(refine=refine),
        }
        chosen = configured[backend] if backend in configured else as_backend(backend)
        return command(model=model, backend=chosen, **others)

    options = (
        click.option(
            "--backend",
            type=click.Choice(list(BACKENDS)),
            default=DEFAULT_BACKEND,
            show_default=True,
        ),
        click.option(
            "--checkpoint",
            default="base",
            show_default=True,
            help="Of amortized: a name, or a file.",
        ),
        click.option(
            "--refine/--no-refine",
            default=None,
            help="Of structured: exact chains always or never; by default up to "
            f"{int(EXACT_CHAINS_BY_DEFAULT)} classes with small validation counts.",
        ),
    )
    wrapped: Callable[..., Any] = with_backend
    for option in reversed(options):
        wrapped = option(wrapped)
    return wrapped
