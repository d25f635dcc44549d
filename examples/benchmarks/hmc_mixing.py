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
from rich.console import Console
from rich.table import Table

import gsb3se as gs

PRIORS = {"paper": gs.Prior(), "anchored": gs.Prior.anchored()}


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
                show(table, f"simulated, K = {n}", name, seed, backend, simulated(n, prior, seed))
        if data is not None:
            show(table, "CIFAR-100", name, 0, backend, cifar100(data, prior))
    Console(width=140).print(table)


def simulated(n: int, prior: gs.Prior, seed: int) -> gs.Problem:
    """Parameters and counts from the hierarchy."""
    rng = np.random.default_rng([seed, n])
    graph = gs.LabelGraph.knn(rng.standard_normal((n, 16)), k=8)
    made = gs.simulate(graph, prior, n_source=50, n_target=5000, seed=rng)
    return gs.Problem(made.counts, graph, prior)


def cifar100(folder: Path, prior: gs.Prior) -> gs.Problem:
    """A real classifier's predictions, and a graph of its class names."""
    outputs = np.load(folder / "cifar100_wideresnet164.npz")
    names = np.load(folder / "label_embeddings_minilm_l6_v2.npz")["cifar100_name"]
    rng = np.random.default_rng(0)
    order = rng.permutation(len(outputs["labels_test"]))
    truth = outputs["labels_test"].astype(int).ravel()[order]
    predicted = outputs["probs_test"].argmax(axis=1)[order]
    held = np.concatenate([np.flatnonzero(truth == label)[:50] for label in range(100)])
    rest = np.setdiff1d(np.arange(len(truth)), held)
    shares = gs.shifts.dirichlet(100, 1.0, rng)[truth[rest]]
    target = rng.choice(rest, 2000, replace=False, p=shares / shares.sum())
    counts = gs.ShiftCounts.from_predictions(
        truth[held], predicted[held], predicted[target], labels=range(100)
    )
    return gs.Problem(counts, gs.LabelGraph.knn(names, k=8), prior)


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
