"""Peak memory of counting the predictions of a classifier with very many classes.

    python examples/benchmarks/counts_memory.py

The predictions themselves (three columns) are made first and reported apart.
"""

import resource
import time

import click
import numpy as np
from rich.console import Console

import gsb3se as gs


def peak_gigabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


@click.command()
@click.option("--classes", default=10_000, show_default=True)
@click.option("--predictions", default=5_000_000, show_default=True, help="Rows of each column.")
@click.option("--names/--integers", default=False, help="Label names instead of integers.")
@click.option("--seed", default=0, show_default=True)
def main(classes: int, predictions: int, names: bool, seed: int) -> None:
    console = Console()
    rng = np.random.default_rng(seed)
    truth = rng.integers(classes, size=predictions)
    wrong = rng.uniform(size=predictions) < 0.3
    predicted = np.where(wrong, rng.integers(classes, size=predictions), truth)
    target = rng.integers(classes, size=predictions)
    labels: list = list(range(classes))
    if names:
        labels = [f"class {i}" for i in range(classes)]
        truth, predicted, target = (np.array(labels)[x] for x in (truth, predicted, target))
    before = peak_gigabytes()
    start = time.perf_counter()
    counts = gs.ShiftCounts.from_predictions(truth, predicted, target, labels)
    console.print(counts)
    console.print(
        f"{counts.confusion.nnz} non-zero cells; {time.perf_counter() - start:.1f} s; peak "
        f"{peak_gigabytes():.2f} GB, of which {before:.2f} GB before counting began"
    )


if __name__ == "__main__":
    main()
