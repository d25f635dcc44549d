"""What do many windows cost, beside one estimate? And how much memory?

python examples/benchmarks/batch_speed.py

Windows of one simulated classifier, 50 validation rows a class, are inferred as ``gsb3se batch``
does in process: validation side prepared once, helper processes started, every result kept on disk.
One estimate is timed as a user calls it, mean, sd and interval included: with the linear algebra's
own choice of threads, and on one thread, which is faster at such sizes. Memory is the peak of the
command's largest process.
"""

import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
from cases import write_batch
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits

import gsb3se as gs
from gsb3se.batch import counting
from gsb3se.batch.counting import TargetColumns
from gsb3se.batch.jobs import Job
from gsb3se.batch.journal import Journal
from gsb3se.batch.processes import InProcess
from gsb3se.batch.scheduling import infer_groups
from gsb3se.model.simulation import simulate_classifier
from gsb3se_amortized import Amortized


@click.command()
@click.option("--classes", default=100, show_default=True)
@click.option("--windows", default=1000, show_default=True)
@click.option("--more", default=10_000, show_default=True, help="Windows, for memory alone.")
@click.option("--predictions", default=2000, show_default=True, help="In a window.")
@click.option("--prior", type=click.Choice(["paper", "anchored"]), default="paper")
@click.option("--repeats", default=9, show_default=True, help="Of one estimate.")
@click.option("--memory-backend", default=["amortized"], multiple=True, show_default=True)
@click.option("--seed", default=0, show_default=True)
def main(
    classes: int,
    windows: int,
    more: int,
    predictions: int,
    prior: str,
    repeats: int,
    memory_backend: tuple[str, ...],
    seed: int,
) -> None:
    """Time windows against one estimate, then measure the command's memory."""
    warnings.simplefilter("ignore", gs.GSB3SEWarning)
    console = Console(width=120)
    chosen = gs.Prior.anchored() if prior == "anchored" else gs.Prior()
    made = simulate_classifier(classes, 50, predictions, seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_batch(folder, made.counts, windows, predictions, seed)

        def one() -> None:
            post = gs.estimate(made.counts, made.graph, prior=chosen)
            _ = post.mean, post.sd, post.interval()

        alone = seconds(one, repeats)
        with threadpool_limits(1):
            on_one_thread = seconds(one, repeats)
        cores = len(os.sched_getaffinity(0))
        table = Table("", "s", "times one estimate", "times one on one thread")
        table.add_row("one estimate, structured", f"{alone:.3f}", "1", "")
        table.add_row("the same on one thread", f"{on_one_thread:.3f}", "", "1")
        for backend, workers in ((gs.Structured(), cores), (gs.Structured(), 1), (Amortized(), 1)):
            spent = batch_seconds(folder, made, chosen, backend, workers)
            told = f"{windows} windows, {type(backend).__name__.lower()}, {workers} processes"
            ratios = (f"{spent / alone:.1f}", f"{spent / on_one_thread:.1f}")
            table.add_row(told, f"{spent:.2f}", *ratios)
        console.print(table)
        for backend in memory_backend:
            for n in (windows, more):
                write_batch(folder, made.counts, n, predictions, seed)
                megabytes = peak_memory(folder, backend)
                console.print(f"{n} windows by {backend}: peak {megabytes:.0f} MB")


def seconds(work: Callable[[], None], repeats: int) -> float:
    """The median time of some repeats, after a first that does not count."""
    work()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return float(np.median(times))


def batch_seconds(
    folder: Path, made: object, prior: gs.Prior, backend: object, workers: int
) -> float:
    """The time of a batch, counting included; libraries are loaded before."""
    counts, graph, _ = made  # type: ignore[misc]
    problem = gs.Problem(counts, graph, prior)
    job = Job({"": problem}, {"": counts.validation_shares}, backend)  # type: ignore[arg-type]
    gs.estimate(counts, graph, prior=prior, backend=backend)  # type: ignore[call-overload]
    began = time.perf_counter()
    columns = TargetColumns(keys=("window",))
    groups = counting.count_predictions([folder / "logs.parquet"], columns, counts.labels)
    with (
        Journal(folder / "journal", {}, resume=False) as journal,
        InProcess(workers, len(groups)) as place,
    ):
        infer_groups(job, groups, journal, place)
        journal.discard()
    return time.perf_counter() - began


def peak_memory(folder: Path, backend: str) -> float:
    """Megabytes of the command's largest process, measured from a process of its own."""
    command = [sys.executable, "-m", "gsb3se.cli", "batch", "logs.parquet"]
    command += ["--validation", "val.csv", "--by", "window", "--backend", backend]
    watch = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, "
        "stdout=subprocess.DEVNULL); "
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    done = subprocess.run(
        [sys.executable, "-c", watch, *command, "--out", "out.parquet"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout) / 1024


if __name__ == "__main__":
    main()
