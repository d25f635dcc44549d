"""The options that say what is inferred: graph, prior, intervals, and how long HMC runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import click

from gsb3se.cli.console import ExistingFile, plain_speech
from gsb3se.counts import ShiftCounts
from gsb3se.estimate import BACKENDS, DEFAULT_BACKEND, Backend, as_backend
from gsb3se.graph import LabelGraph
from gsb3se.inference.hmc import HMC
from gsb3se.inference.structured import Structured
from gsb3se.labels import Label, same_names
from gsb3se.prior import Prior
from gsb3se_amortized import Amortized


def level_option(told: str = "Of the intervals.") -> Callable[..., Any]:
    """The option --level, with its help."""
    between = click.FloatRange(0, 1, min_open=True, max_open=True)
    return click.option("--level", type=between, default=0.9, show_default=True, help=told)


def model_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options; the command is given ``graph``, ``prior``, ``hmc`` and ``level``."""

    @wraps(command)
    def with_objects(
        chains: int,
        warmup: int,
        draws: int,
        prior: str,
        a_q: float,
        b_q: float,
        a_c: float,
        b_c: float,
        **others: Any,
    ) -> Any:
        with plain_speech():
            made = replace(Prior.of(prior), a_q=a_q, b_q=b_q, a_C=a_c, b_C=b_c)
            hmc = HMC(chains, warmup, draws)
        return command(prior=made, hmc=hmc, **others)

    options = (
        click.option(
            "--graph", type=ExistingFile, help="A saved label graph; without it, none is known."
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
    made: Callable[..., Any] = with_objects
    for option in reversed(options):
        made = option(made)
    return made


def checkpoint_file(backend: Backend) -> Path | None:
    """The file of weights that a backend reads, if there is one."""
    path = Path(getattr(backend, "checkpoint", ""))
    return path if path.is_file() else None


def backend_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that choose a backend; below :func:`model_options`, whose ``hmc`` it takes.

    The command is given ``backend``, the object.
    """

    @wraps(command)
    def with_backend(
        backend: str, checkpoint: str, refine: bool | None, hmc: HMC, **others: Any
    ) -> Any:
        known: dict[str, Backend] = {
            "hmc": hmc,
            "amortized": Amortized(checkpoint),
            "structured": Structured(refine=refine),
        }
        chosen = known[backend] if backend in known else as_backend(backend)
        return command(backend=chosen, **others)

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
            help="Of structured: exact chains always or never; by default where validation counts "
            "are small.",
        ),
    )
    made: Callable[..., Any] = with_backend
    for option in reversed(options):
        made = option(made)
    return made


def load_graph(path: Path, counts: ShiftCounts) -> LabelGraph:
    """The graph, in the order of the counts' labels where it names the same ones."""
    return in_order(LabelGraph.load(path), counts.labels)


def in_order(graph: LabelGraph, labels: tuple[Label, ...]) -> LabelGraph:
    """The graph in the order of the labels, where it names the same ones."""
    if graph.labels is not None and same_names(labels, graph.labels) is not None:
        return graph.reordered(labels)
    return graph
