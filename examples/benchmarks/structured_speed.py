"""How much faster than HMC is the structured backend?

python examples/benchmarks/structured_speed.py

A useful classifier over K classes, 50 labels a class unless --labels says otherwise, 10,000 target
predictions. HMC runs twice, to
be compiled the second time, with as many draws as give every share an effective sample size of
about 400; the structured backend three times, of which the median counts.
"""

import time
import warnings

import click
import numpy as np
from cases import PRIORS, simulated_classifier
from rich.console import Console
from rich.table import Table

import gsb3se as gs


@click.command()
@click.option("--classes", default=100, show_default=True)
@click.option("--labels", default=50, show_default=True, help="Validation rows a class.")
@click.option("--prior", "priors", default=tuple(PRIORS), multiple=True)
@click.option("--warmup", default=300, show_default=True)
@click.option("--draws", default=150, show_default=True, help="Of HMC, a chain of four.")
@click.option("--seed", default=0, show_default=True)
def main(
    classes: int, labels: int, priors: tuple[str, ...], warmup: int, draws: int, seed: int
) -> None:
    """Time both in one run."""
    warnings.simplefilter("ignore", gs.GSB3SEWarning)
    table = Table("prior", "HMC s", "its ESS", "structured s", "ratio", "ratio at ESS 400")
    for name in priors:
        problem = simulated_classifier(classes, labels, 10_000, PRIORS[name], seed).problem
        hmc = gs.HMC(warmup=warmup, draws=draws, progress=False)
        for _ in range(2):
            exact = hmc.infer(problem, np.random.default_rng(seed)).diagnostics.figures
        taken = []
        for _ in range(3):
            began = time.perf_counter()
            gs.Structured().infer(problem, np.random.default_rng(seed))
            taken.append(time.perf_counter() - began)
        ours = float(np.median(taken))
        # The warm-up is paid once; only the draws' share of the time goes with the sample size.
        share = draws / (warmup + draws)
        scaled = exact["seconds"] * (1 - share + share * 400 / exact["bulk_ess_min"])
        table.add_row(
            name, f"{exact['seconds']:.1f}", f"{exact['bulk_ess_min']:.0f}", f"{ours:.2f}",
            f"{exact['seconds'] / ours:.0f}", f"{scaled / ours:.0f}",
        )  # fmt: skip
        print(f"{name} done", flush=True)
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
