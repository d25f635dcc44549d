"""What does LabelShiftMetric cost beside torchmetrics' confusion matrix, and how much memory?

python examples/benchmarks/metric_cost.py

Both count the same batches in turn, predictions as classes and as logits; mean times over all
updates, in which sums of the sparse counts fall in now and then. Then a million rows of 20,000
classes, drawn so that hardly any confusion occurs twice, the worst case for sparse counts.
"""

import subprocess
import sys
import time

import click
import torch

from gsb3se.training import LabelShiftMetric

from torchmetrics.classification import MulticlassConfusionMatrix  # isort: skip


@click.command()
@click.option("--classes", default=1000, show_default=True)
@click.option("--rows", default=8192, show_default=True)
@click.option("--batches", default=100, show_default=True)
@click.option("--many", default=20_000, show_default=True, help="Classes, for memory.")
@click.option("--many-rows", default=1_000_000, show_default=True)
@click.option("--seed", default=0, show_default=True)
def main(classes: int, rows: int, batches: int, many: int, many_rows: int, seed: int) -> None:
    """Time updates, then measure memory."""
    torch.manual_seed(seed)
    truth = [torch.randint(classes, (rows,)) for _ in range(4)]
    kinds = {
        "classes": [torch.randint(classes, (rows,)) for _ in range(4)],
        "logits": [torch.randn(rows, classes) for _ in range(4)],
    }
    for kind, predictions in kinds.items():
        metrics = (LabelShiftMetric(classes), MulticlassConfusionMatrix(classes))
        spent = [0.0, 0.0]
        for number in range(-1, batches):
            for which, metric in enumerate(metrics):
                began = time.perf_counter()
                metric.update(predictions[number % 4], truth[number % 4])
                spent[which] += (time.perf_counter() - began) * (number >= 0)
        ours, theirs = (1e3 * seconds / batches for seconds in spent)
        click.echo(
            f"{rows} rows of {kind}, K = {classes}: {ours:.2f} ms, {ours / theirs:.2f} times "
            f"torchmetrics' {theirs:.2f} ms"
        )
    command = [sys.executable, "-c", MEMORY, str(many), str(many_rows)]
    subprocess.run(command, check=True)


# In a process of its own, whose peak nothing else has raised.
MEMORY = """
import sys, torch
from pathlib import Path
from gsb3se.training import LabelShiftMetric

def megabytes():  # getrusage would tell of the process that started this one
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) // 1024

classes, rows = map(int, sys.argv[1:])
before = megabytes()
metric = LabelShiftMetric(classes)
for _ in range(0, rows, 8192):
    metric.update(torch.randint(classes, (8192,)), torch.randint(classes, (8192,)))
metric.update(torch.randint(classes, (8192,)))
counts = metric.counts
print(
    f"{counts.n_validation} rows, K = {classes}: {counts.confusion.nnz} different confusions; "
    f"the process peaks at {megabytes()} MB, {megabytes() - before} MB more than before"
)
"""


if __name__ == "__main__":
    main()
