"""Does HMC mix at its default settings, and how long does it take?

python examples/benchmarks/hmc_mixing.py --data DIR

Simulated cases are drawn from the hierarchy: 50 validation labels a class, 5,000 target
predictions, 8-nearest-neighbour graphs of random points. With --data, a folder that holds
cifar100_wideresnet164.npz (probs_test, labels_test) and label_embeddings_minilm_l6_v2.npz
(cifar100_name), CIFAR-100 follows: 50 validation labels a class, 2,000 target rows with
Dirichlet(1) shares drawn without replacement.
"""

from pathlib import Path

import click
import numpy as np
from cases import PRIORS, cifar100, drawn_from_hierarchy
from rich.console import Console
from rich.table import Table

import gsb3se as gs


@click.command()
@click.option("--data", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--classes", default=(10, 30, 100), multiple=True, type=int)
@click.option("--repeats", default=3, show_default=True, help="Simulated cases a size, up to 30.")
@click.option("--warmup", default=gs.HMC.warmup, show_default=True)
@click.option("--draws", default=gs.HMC.draws, show_default=True)
def main(
    data: Path | None, classes: tuple[int, ...], repeats: int, warmup: int, draws: int
) -> None:
    """Sample each case at default settings and print what the diagnostics say."""
    table = Table(
        "case", "prior", "seed", "R-hat", "bulk ESS", "tail ESS", "ESS tau_q", "ESS tau_C",
        "divergences", "steps", "s", "status",
    )  # fmt: skip
    backend = gs.HMC(warmup=warmup, draws=draws)
    for name, prior in PRIORS.items():
        for n in classes:
            for seed in range(repeats if n <= 30 else 1):
                made = drawn_from_hierarchy(n, 50, 5000, prior, seed)
                show(table, f"simulated, K = {n}", name, seed, backend, made.problem)
        if data is not None:
            made = cifar100(data, "wideresnet164", 50, prior, 0)
            show(table, "CIFAR-100", name, 0, backend, made.problem)
    Console(width=140).print(table)


def show(
    table: Table, case: str, prior: str, seed: int, backend: gs.HMC, problem: gs.Problem
) -> None:
    """One row; R-hat is the worst of q and the strengths, ESS that of the worst class."""
    post = backend.infer(problem, np.random.default_rng(seed))
    found = post.diagnostics.figures
    table.add_row(
        case, prior, str(seed), f"{found['r_hat_max']:.4f}",
        *(f"{found[name]:.0f}" for name in
          ("bulk_ess_min", "tail_ess_min", "bulk_ess_tau_q", "bulk_ess_tau_C")),
        str(found["divergences"]), f"{found['mean_steps']:.0f}", f"{found['seconds']:.0f}",
        post.diagnostics.status.value,
    )  # fmt: skip
    print(f"{case}, {prior}, seed {seed}: {found['seconds']:.0f} s", flush=True)


if __name__ == "__main__":
    main()
