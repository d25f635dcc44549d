"""How fast is one forward pass? Ratios within one run, one thread, warm.

python examples/benchmarks/amortized_speed.py

HMC's time is that of its sampling, compilation and warm-up included, scaled to an effective sample
size of 400 in the worst share. The others are timed as a user calls them, means and 90 % intervals
of every class included, the best of some repeats; of many windows the posteriors alone are timed,
for one as for all. An encoder is loaded once, before.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import time
import warnings
from collections.abc import Callable

import click
import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import gsb3se as gs
from gsb3se.model.simulation import simulate_classifier


@click.command()
@click.option("--classes", default=100, show_default=True, help="Against HMC, and in windows.")
@click.option("--many", default=1000, show_default=True, help="Classes, against gs.Structured.")
@click.option("--windows", default=256, show_default=True)
@click.option("--labels", default=25, show_default=True, help="Validation rows a class.")
@click.option("--warmup", default=500, show_default=True)
@click.option("--draws", default=500, show_default=True)
@click.option("--repeats", default=5, show_default=True)
@click.option("--seed", default=0, show_default=True)
def main(
    classes: int,
    many: int,
    windows: int,
    labels: int,
    warmup: int,
    draws: int,
    repeats: int,
    seed: int,
) -> None:
    """Time the encoder against HMC, the structured backend, and itself."""
    warnings.simplefilter("ignore", gs.GSB3SEWarning)
    torch.set_num_threads(1)
    table = Table("comparison", "other", "amortized", "ratio")

    few = simulate_classifier(classes, labels, 20 * classes, seed)
    hmc = gs.HMC(chains=2, warmup=warmup, draws=draws, progress=False)
    began = time.perf_counter()
    reference = gs.estimate(few.counts, few.graph, prior="paper", backend=hmc)
    effective = reference.diagnostics.figures["bulk_ess_min"]
    sampled = (time.perf_counter() - began) * 400 / effective
    ours = best(lambda: summed_up(few), repeats)
    told = f"HMC to ESS 400 ({effective:.0f} reached), K = {classes}"
    table.add_row(told, f"{sampled:.1f} s", f"{1e3 * ours:.1f} ms", f"{sampled / ours:.0f}")

    large = simulate_classifier(many, labels, 20 * many, seed)
    structured = best(lambda: summed_up(large, "structured"), 2)
    ours = best(lambda: summed_up(large), repeats)
    told = f"structured, K = {many}"
    table.add_row(told, f"{structured:.2f} s", f"{1e3 * ours:.0f} ms", f"{structured / ours:.1f}")

    shares = few.counts.target / few.counts.n_target
    targets = np.random.default_rng(seed).multinomial(few.counts.n_target, shares, windows)
    one = best(lambda: infer(few), repeats)
    all_of_them = best(lambda: infer(few, targets), repeats)
    told = f"{windows} windows at once / one, K = {classes}"
    ratio = f"{all_of_them / one:.1f}"
    table.add_row(told, f"{1e3 * all_of_them:.0f} ms", f"{1e3 * one:.1f} ms", ratio)
    Console(width=110).print(table)


def best(call: Callable[[], object], repeats: int) -> float:
    """Seconds of the fastest of some calls, after one to warm up."""
    call()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return min(times)


def infer(case, targets=None, backend: str = "amortized") -> object:
    """The posterior, or those of many windows."""
    return gs.estimate(case.counts, case.graph, targets=targets, prior="paper", backend=backend)


def summed_up(case, backend: str = "amortized") -> object:
    """Means and intervals."""
    posterior = infer(case, backend=backend)
    return posterior.mean, posterior.interval(0.9)


if __name__ == "__main__":
    main()
