"""Is a batch that was killed, and resumed, the same as one that was not?

python examples/benchmarks/batch_kills.py

``gsb3se batch`` runs once in peace. Then it is started again and again and killed (SIGKILL) at a
random moment, resumed to its end, and the bytes of the two files are compared. With --dask it runs
on a local cluster, one of whose workers is killed each time, and goes on by itself.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click
from cases import write_batch

from gsb3se.model.simulation import simulate_classifier


@click.command()
@click.option("--kills", default=10, show_default=True)
@click.option("--windows", default=200, show_default=True)
@click.option("--classes", default=30, show_default=True)
@click.option("--workers", default=2, show_default=True)
@click.option("--backend", default="structured", show_default=True)
@click.option("--dask", is_flag=True)
@click.option("--seed", default=0, show_default=True)
def main(
    kills: int, windows: int, classes: int, workers: int, backend: str, dask: bool, seed: int
) -> None:
    """Kill, resume, compare."""
    chooser = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_batch(folder, simulate_classifier(classes, 50, 1000, seed).counts, windows, 500, seed)
        command = [sys.executable, "-m", "gsb3se.cli", "batch", "logs.parquet", "--by", "window"]
        command += ["--validation", "val.csv", "--workers", str(workers), "--backend", backend]
        began = time.perf_counter()
        subprocess.run([*command, "--out", "whole.parquet"], cwd=folder, check=True, **QUIET)
        seconds = time.perf_counter() - began
        whole = (folder / "whole.parquet").read_bytes()
        equal = 0
        for kill in range(kills):
            at = chooser.uniform(0.05, 0.95) * seconds
            if dask:
                told = kill_a_worker(command, folder, at, workers)
            else:
                told = kill_the_run(command, folder, at)
            same = (folder / "out.parquet").read_bytes() == whole
            equal += same
            click.echo(f"kill {kill + 1} after {at:.2f} s, {told}: {'equal' if same else 'NOT'}")
            (folder / "out.parquet").unlink()
        click.echo(f"{equal} of {kills} equal the uninterrupted run ({seconds:.1f} s)")


QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def kill_the_run(command: list[str], folder: Path, at: float) -> str:
    """Kill the command after some seconds, then let --resume end it."""
    run = subprocess.Popen([*command, "--out", "out.parquet"], cwd=folder, **QUIET)
    time.sleep(at)
    run.send_signal(signal.SIGKILL)
    run.wait()
    unfinished = (folder / "out.parquet.unfinished").exists()
    resumed = [*command, "--out", "out.parquet", "--resume"]
    subprocess.run(resumed, cwd=folder, check=True, **QUIET)
    return "resumed" if unfinished else "before it had begun"


def kill_a_worker(command: list[str], folder: Path, at: float, workers: int) -> str:
    """Kill a worker of the cluster that the command uses after some seconds."""
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=workers, threads_per_worker=1, dashboard_address=None, silence_logs=50
    ) as cluster:
        where = ["--dask", cluster.scheduler_address, "--out", "out.parquet"]
        run = subprocess.Popen([*command, *where], cwd=folder, **QUIET)
        time.sleep(at)
        ended = run.poll() is not None
        os.kill(next(iter(cluster.workers.values())).pid, signal.SIGKILL)
        if run.wait() != 0:
            raise SystemExit("the run failed")
    return "a worker died" + (" after the end" if ended else "")


if __name__ == "__main__":
    main()
