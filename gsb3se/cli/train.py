"""gsb3se train: an encoder for backend="amortized", from simulated shifts."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gsb3se.cli.console import console, notes, plain_speech
from gsb3se.support.progress import progress_bar
from gsb3se_amortized.backend import require_packages

if TYPE_CHECKING:
    from gsb3se_amortized.train import Report, TrainingPlan


@click.command()
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="A folder for the encoder, the log and the state to resume from.",
)
@click.option("--steps", type=click.IntRange(1), default=20_000, show_default=True)
@click.option("--shards", type=click.IntRange(1), default=2, show_default=True)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option("--learning-rate", type=float, default=2e-3, show_default=True)
@click.option("--warmup", type=click.IntRange(0), default=500, show_default=True)
@click.option("--averaging", type=float, default=0.9995, show_default=True, help="Of the weights.")
@click.option(
    "--classes", type=(int, int), default=(5, 300), show_default=True, help="Fewest and most."
)
@click.option(
    "--width", type=click.IntRange(4), default=40, show_default=True, help="A multiple of 4."
)
@click.option("--resume", is_flag=True, help="Go on with the training in --out, by its own plan.")
@click.option("--device", default="cpu", show_default=True)
@click.option(
    "--workers", type=click.IntRange(0), default=0, show_default=True, help="That simulate ahead."
)
@click.option("--save-every", default=120.0, show_default=True, help="Seconds between saves.")
@click.option("--report-every", type=click.IntRange(1), default=50, show_default=True)
@click.option("--validate-every", type=click.IntRange(1), default=1000, show_default=True)
def train(out: Path, resume: bool, device: str, workers: int, **given: Any) -> None:
    """Train an encoder for --backend amortized on simulated shifts.

    A step learns from --shards batches of 8 to 48 windows each (fewer with many classes). The
    state is saved every two minutes; after a stop, --resume goes on as if there had been none.
    Several processes share the shards and learn the same:

    \b
    gsb3se train --out encoder --steps 20000
    gsb3se train --out encoder --resume
    torchrun --nproc-per-node 2 --no-python gsb3se train --out encoder --steps 20000
    """
    with plain_speech():
        require_packages()
        from gsb3se_amortized.train import ENCODER, STATE, Schedule
        from gsb3se_amortized.train import train as run

        if not resume and ((out / STATE).exists() or (out / ENCODER).exists()):
            raise ValueError(
                f"{out} holds a training, or the encoder of one, already: go on with it by "
                "--resume, or take another folder"
            )
        plan = None if resume else _plan(given)
        first = int(os.environ.get("RANK", "0")) == 0
        schedule = Schedule(given["save_every"], given["report_every"], given["validate_every"])
        with _reports(first) as tell:
            finished = run(out, plan, device=device, workers=workers, schedule=schedule, tell=tell)
        if finished is not None:
            console.print(f"wrote {out / ENCODER}")


def _plan(given: dict[str, Any]) -> TrainingPlan:
    from gsb3se_amortized.simulator import Ranges
    from gsb3se_amortized.train import TrainingPlan

    return TrainingPlan(
        steps=given["steps"],
        shards=given["shards"],
        seed=given["seed"],
        learning_rate=given["learning_rate"],
        warmup=given["warmup"],
        averaging=given["averaging"],
        settings={"width": given["width"]},
        ranges=Ranges(classes=given["classes"]),
    )


@contextmanager
def _reports(shown: bool) -> Iterator[Callable[[Report], None]]:
    """A line that is kept up to date on a terminal, and a line a report elsewhere."""
    on_terminal = notes.is_terminal
    with progress_bar("simulating", shown=shown and on_terminal) as bar:

        def tell(report: Report) -> None:
            line = f"step {report.step}: {report.loss:.3f} nats a class"
            if not math.isnan(report.validation):
                line += (
                    f", {report.validation:.3f} in validation, 90 % intervals cover "
                    f"{100 * report.coverage_90:.1f} %"
                )
            if shown and not on_terminal:
                notes.print(line)
            bar.update(report.step, report.steps, line)

        yield tell
