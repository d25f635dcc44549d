"""gsb3se train: an encoder for backend="amortized", from simulated shifts."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gsb3se.cli.console import console, notes, plain_speech
from gsb3se_amortized.backend import require_packages

if TYPE_CHECKING:
    from gsb3se_amortized.train import Report


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
def train(
    out: Path,
    steps: int,
    shards: int,
    seed: int,
    learning_rate: float,
    warmup: int,
    averaging: float,
    classes: tuple[int, int],
    width: int,
    resume: bool,
    device: str,
    workers: int,
    save_every: float,
    report_every: int,
    validate_every: int,
) -> None:
    """Train an encoder for --backend amortized on simulated shifts.

    A step learns from --shards batches of some 40 windows each, with about 5 to 300 classes. The
    state is saved every two minutes; after a stop, --resume goes on as if there had been none.
    Several processes share the shards and learn the same:

    \b
    gsb3se train --out encoder --steps 20000
    gsb3se train --out encoder --resume
    torchrun --nproc-per-node 2 --no-python gsb3se train --out encoder --steps 20000
    """
    with plain_speech():
        require_packages()
        from gsb3se_amortized.simulator import Ranges
        from gsb3se_amortized.train import ENCODER, STATE, Plan
        from gsb3se_amortized.train import train as run

        plan = None
        if not resume:
            if (out / STATE).exists() or (out / ENCODER).exists():
                raise ValueError(
                    f"{out} holds a training, or the encoder of one, already: go on with it by "
                    "--resume, or take another folder"
                )
            ranges = Ranges(classes=classes)
            settings = {"width": width}
            plan = Plan(steps, shards, seed, learning_rate, warmup, averaging, settings, ranges)
        first = int(os.environ.get("RANK", "0")) == 0
        with _Progress(first) as tell:
            finished = run(
                out,
                plan,
                device=device,
                workers=workers,
                save_seconds=save_every,
                report_every=report_every,
                validate_every=validate_every,
                tell=tell,
            )
        if finished is not None:
            console.print(f"wrote {out / ENCODER}")


class _Progress:
    """A line that is kept up to date on a terminal, and one a report elsewhere."""

    def __init__(self, shown: bool) -> None:
        self.shown = shown and notes.is_terminal
        self.said = shown and not notes.is_terminal

    def __enter__(self) -> _Progress:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        told = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
        self.bar = Progress(*told, console=notes, disable=not self.shown)
        self.task = self.bar.add_task("simulating", total=None)
        self.bar.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self.bar.stop()

    def __call__(self, report: Report) -> None:
        line = f"step {report.step}: {report.loss:.3f} nats a class"
        if not math.isnan(report.validation):
            line += (
                f", {report.validation:.3f} in validation, 90 % intervals cover "
                f"{100 * report.coverage_90:.1f} %"
            )
        if self.said:
            notes.print(line)
        self.bar.update(self.task, description=line, completed=report.step, total=report.steps)
