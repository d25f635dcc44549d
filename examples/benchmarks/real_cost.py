"""Time and peak memory of every estimator on ImageNet's thousand classes.

python examples/benchmarks/real_cost.py --data DIR --out cost.parquet

Each runs in a process of its own on all cores, on the first repeat of the benchmark: 10 validation
images a class, 5,000 target images with Dirichlet(1) shares. The time is that of one estimate with
its intervals, imports excluded, compilation included; the memory is the process's peak, imports
included. ImageNet's file has no scores, so EM and its calibration, of which only the time is asked,
get made-up ones: the classifier's confidence in what it said, the rest in equal parts.
"""

import json
import os
import re
import subprocess
import sys
import threading
import time
import warnings
from dataclasses import replace
from pathlib import Path

import click
import numpy as np
from real_data import DATA_SETS, Outputs, Repeat, load
from real_methods import METHODS, PRIORS, Estimate, Task, of_posterior

import gsb3se as gs
from gsb3se.support.files import read_npz, write_atomically

SHIFT = "dirichlet 1"
MORE = ("paper newton", "paper laplace", "paper variational")  # backends real.py leaves out
LABELS = 10


@click.command()
@click.option(
    "--data", type=click.Path(path_type=Path, exists=True, file_okay=False), required=True
)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True)
@click.option("--data-set", default="imagenet", type=click.Choice(list(DATA_SETS)))
@click.option("--method", "methods", multiple=True, type=click.Choice([*METHODS, *MORE]))
@click.option("--most-seconds", default=600, show_default=True, help="Then a method is stopped.")
@click.option("--only", help="Run this one here and print its seconds.", hidden=True)
def main(
    data: Path,
    out: Path,
    data_set: str,
    methods: tuple[str, ...],
    most_seconds: int,
    only: str | None,
) -> None:
    """Run every method in a process of its own."""
    if only is not None:
        print(json.dumps(measured(only, data_set, data)))
        return
    import polars as pl

    load(data_set, data)  # what is missing is said here, and once
    rows = []
    for name in methods or (*METHODS, *MORE):
        row = {"method": name} | in_a_process(name, data, out, data_set, most_seconds)
        print(", ".join(f"{key}: {value}" for key, value in row.items()), flush=True)
        rows.append(row)
        frame = pl.DataFrame(rows, infer_schema_length=None)
        write_atomically(out, frame.write_parquet)


def in_a_process(
    name: str, data: Path, out: Path, data_set: str, most_seconds: int
) -> dict[str, object]:
    """Seconds, peak memory in GB, and whether it was stopped or failed."""
    command = [sys.executable, __file__, "--data", data, "--out", out, "--data-set", data_set]
    process = subprocess.Popen(
        [*map(str, command), "--only", name], stdout=subprocess.PIPE, text=True
    )
    too_long = threading.Event()

    def stop() -> None:
        too_long.set()
        process.kill()

    timer = threading.Timer(most_seconds, stop)
    timer.start()
    text = process.stdout.read() if process.stdout else ""
    _, code, used = os.wait4(process.pid, 0)
    timer.cancel()
    peak = {"peak_gb": used.ru_maxrss / 1e6}
    if too_long.is_set():
        return {"seconds": None, **peak, "status": f"stopped after {most_seconds} s"}
    if code:
        how = f"killed by signal {os.WTERMSIG(code)}" if os.WIFSIGNALED(code) else "failed"
        return {"seconds": None, **peak, "status": how}
    return peak | json.loads(text.splitlines()[-1])


def measured(name: str, data_set: str, data: Path) -> dict[str, object]:
    """One estimate, here."""
    outputs = load(data_set, data)
    if outputs.scores is None and name in METHODS and METHODS[name].needs_scores:
        outputs = with_made_up_scores(outputs, data)
    repeat = Repeat(outputs, 0)
    task = Task.of(repeat, LABELS, [repeat.target(SHIFT, outputs.n_target)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            estimates = METHODS[name].run(task) if name in METHODS else [run_backend(name, task)]
        except (ValueError, ArithmeticError, RuntimeError) as error:
            return {"seconds": None, "status": f"refused: {error}"}
    about = {"seconds": estimates[0].seconds, "status": estimates[0].status}
    return about | {"peak_gb": own_peak()}


def own_peak() -> float:
    """Largest memory of this program in GB; what wait4 tells begins with its parent's."""
    kilobytes = re.search(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text())
    assert kilobytes is not None
    return int(kilobytes[1]) / 1e6


def with_made_up_scores(outputs: Outputs, data: Path) -> Outputs:
    """Log-probabilities that say of the predicted class what the classifier said."""
    confidence = read_npz(data / "imagenet_val_hardpreds.npz")["conf_timm_resnet34"].astype(float)
    confidence = np.clip(confidence, 2 / outputs.n_classes, 1 - 1e-6)
    rest = np.log((1 - confidence) / (outputs.n_classes - 1))
    scores = np.repeat(rest[:, None], outputs.n_classes, axis=1).astype(np.float32)
    scores[np.arange(len(scores)), outputs.predicted] = np.log(confidence)
    return replace(outputs, scores=scores)


def run_backend(name: str, task: Task) -> Estimate:
    """A backend that the benchmark has no method for."""
    prior, _, backend = name.partition(" ")
    began = time.perf_counter()
    chosen = gs.estimate(task.counts[0], task.graph, prior=PRIORS[prior], backend=backend)
    return of_posterior(chosen, time.perf_counter() - began)


if __name__ == "__main__":
    main()
