"""Is the encoder's mean as near to the truth as HMC's?

python examples/benchmarks/amortized_truth.py --cache DIR

Simulated classifiers with 30 classes (as in agreement.py, with other seeds): both priors, 10 and 50
validation rows a class, 1,000 and 10,000 target predictions. HMC's posteriors, short runs that are
long enough for a mean, are kept in the cache folder.
"""

from pathlib import Path

import click
import numpy as np
from cases import PRIORS, simulated_classifier
from rich.console import Console
from rich.progress import track
from rich.table import Table

import gsb3se as gs
from gsb3se.estimate import as_backend

FIRST_SEED = 1000


@click.command()
@click.option("--cache", type=click.Path(path_type=Path), required=True)
@click.option("--classes", default=30, show_default=True)
@click.option("--seeds", default=25, show_default=True, help="Eight data sets each.")
@click.option("--warmup", default=300, show_default=True)
@click.option("--draws", default=400, show_default=True)
@click.option("--backend", default="amortized", show_default=True)
def main(cache: Path, classes: int, seeds: int, warmup: int, draws: int, backend: str) -> None:
    """L1 errors of both, and their ratio."""
    cache.mkdir(parents=True, exist_ok=True)
    hmc = gs.HMC(chains=2, warmup=warmup, draws=draws, progress=False)
    kinds = [(p, m, n) for p in PRIORS for m in (10, 50) for n in (1000, 10_000)]
    found: dict[tuple, list[tuple[float, float]]] = {kind: [] for kind in kinds}
    for seed in track(range(FIRST_SEED, FIRST_SEED + seeds)):
        for prior, labels, n_target in kinds:
            case = simulated_classifier(classes, labels, n_target, PRIORS[prior], seed)
            name = f"simulated K={classes} {labels} a class n'={n_target} {prior} seed {seed}.npz"
            if not (cache / name).exists():
                hmc.infer(case.problem, np.random.default_rng(0)).save(cache / name)
            exact = gs.Posterior.load(cache / name)
            ours = as_backend(backend).infer(case.problem, np.random.default_rng(seed))
            found[prior, labels, n_target].append(
                tuple(float(np.abs(post.mean - case.truth).sum()) for post in (ours, exact))
            )
    table = Table(
        "prior", "rows a class", "n'", "data sets", f"L1 of {backend}", "L1 of HMC", "ratio"
    )
    for (prior, labels, n_target), errors in found.items():
        table.add_row(prior, str(labels), str(n_target), str(len(errors)), *summed_up(errors))
    every = [error for errors in found.values() for error in errors]
    table.add_row("all", "", "", str(len(every)), *summed_up(every))
    Console(width=110).print(table)


def summed_up(errors: list[tuple[float, float]]) -> list[str]:
    """Mean errors, and the ratio of the means with its standard error by the delta method."""
    ours, exact = np.array(errors).T
    ratio = ours.mean() / exact.mean()
    noise = np.std(ours - ratio * exact) / exact.mean() / np.sqrt(len(ours))
    return [f"{ours.mean():.4f}", f"{exact.mean():.4f}", f"{ratio:.3f} ± {noise:.3f}"]


if __name__ == "__main__":
    main()
