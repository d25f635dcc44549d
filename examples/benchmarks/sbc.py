"""Simulation-based calibration of HMC: does the truth fall evenly among the draws?

python examples/benchmarks/sbc.py

Parameters and counts are drawn from the hierarchy itself, so that the truth is one more draw of the
exact posterior: its rank among the sampler's draws is uniform if the sampler is right.
"""

import time

import click
import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

import gsb3se as gs
from gsb3se.diagnostics import rank_uniformity

RANKED = 99  # thinned draws the truth is ranked among


@click.command()
@click.option("--datasets", default=200, show_default=True)
@click.option("--classes", default=5, show_default=True)
@click.option("--labels", default=20, show_default=True, help="Validation labels a class.")
@click.option("--target", default=300, show_default=True, help="Target predictions.")
@click.option("--warmup", default=500, show_default=True)
@click.option("--draws", default=1000, show_default=True)
@click.option("--seed", default=0, show_default=True)
def main(
    datasets: int, classes: int, labels: int, target: int, warmup: int, draws: int, seed: int
) -> None:
    """Rank the truth of many simulated data sets, for both priors."""
    backend = gs.HMC(warmup=warmup, draws=draws, progress=False)
    table = Table("prior", "quantity", "p of uniform ranks", "mean rank", "within the 95 % band")
    for name, prior in {"paper": gs.Prior(), "anchored": gs.Prior.anchored()}.items():
        began = time.perf_counter()
        ranks, troubled = ranks_of_truth(prior, backend, datasets, classes, labels, target, seed)
        for quantity, found in ranks.items():
            p = rank_uniformity(found, RANKED)
            mean = f"{np.mean(found) / RANKED:.3f}"
            table.add_row(name, quantity, f"{p:.3f}", mean, "yes" if p >= 0.05 else "NO")
        print(
            f"{name}: {datasets} data sets in {time.perf_counter() - began:.0f} s; in "
            f"{troubled} of them R-hat exceeded 1.01 or draws diverged"
        )
    Console(width=100).print(table)


def ranks_of_truth(
    prior: gs.Prior,
    backend: gs.HMC,
    datasets: int,
    classes: int,
    labels: int,
    target: int,
    seed: int,
) -> tuple[dict[str, list[int]], int]:
    """Ranks of q, tau_q and tau_C, and how many runs had a sampler in trouble."""
    ranks: dict[str, list[int]] = {}
    troubled = 0
    for dataset in track(range(datasets), description="sampling"):
        rng = np.random.default_rng([seed, dataset])
        points = rng.standard_normal((classes, 4))
        graph = gs.LabelGraph.knn(points, k=min(3, classes - 1))
        made = gs.simulate(graph, prior, labels, target, rng)
        post = backend.infer(gs.Problem(made.counts, graph, prior), rng)
        truth = {f"q[{i}]": share for i, share in enumerate(made.q)}
        truth |= {"tau_q": made.tau.q, "tau_C": made.tau.C}
        draws = {f"q[{i}]": post.form.q[..., i] for i in range(classes)}
        draws |= {strength: post.form.others[strength] for strength in ("tau_q", "tau_C")}
        for quantity, values in draws.items():
            thinned = rng.permutation(values.ravel())[:RANKED]
            ranks.setdefault(quantity, []).append(int((thinned < truth[quantity]).sum()))
        figures = post.diagnostics.figures
        troubled += figures["r_hat_max"] > 1.01 or figures["divergences"] > 0
    return ranks, troubled


if __name__ == "__main__":
    main()
