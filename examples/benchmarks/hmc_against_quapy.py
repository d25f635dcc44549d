"""Effective draws a second: HMC on the hierarchy against QuaPy's BayesianCC, side by side.

python examples/benchmarks/hmc_against_quapy.py

BayesianCC samples another, simpler model, with flat Dirichlet priors on the class shares and on
each row of the confusion matrix, and no graph: the figures compare samplers, not posteriors. Both
run at their own defaults (ours 4 chains of 500 + 1,000, theirs one), after a run that compiles; the
time is that of the second run, the effective sample size that of the worst class by arviz.
"""

import time
from collections.abc import Callable

import click
import numpy as np
from quapy_peers import bayesian_cc
from rich.console import Console
from rich.table import Table

import gsb3se as gs
from gsb3se.posterior.arviz_bridge import convergence


@click.command()
@click.option("--classes", default=(10, 50, 100), multiple=True, type=int)
@click.option("--warmup", default=500, show_default=True)
@click.option("--draws", default=1000, show_default=True)
@click.option("--seed", default=0, show_default=True)
def main(classes: tuple[int, ...], warmup: int, draws: int, seed: int) -> None:
    """Time both on the same counts."""
    table = Table("K", "sampler", "model", "s", "min bulk ESS", "ESS a second", "ratio")
    for n in classes:
        problem = good_classifier(n, seed)
        ours = timed(lambda s, p=problem: hierarchy(p, warmup, draws, s), seed)
        theirs = timed(lambda s, p=problem: bayesian_cc(p.counts, s, warmup, draws)[None], seed)
        rates = [ess / seconds for seconds, ess in (ours, theirs)]
        for name, model, (seconds, ess), rate, ratio in (
            ("gs.HMC", "the hierarchy", ours, rates[0], f"{rates[0] / rates[1]:.1f}"),
            ("BayesianCC", "flat Dirichlet", theirs, rates[1], "1"),
        ):
            table.add_row(str(n), name, model, f"{seconds:.1f}", f"{ess:.0f}", f"{rate:.2f}", ratio)
        print(f"K = {n} done", flush=True)
    Console(width=100).print(table)


def good_classifier(n: int, seed: int) -> gs.Problem:
    """80 % right, errors to a few neighbours; 50 labels a class, 10,000 shifted predictions."""
    rng = np.random.default_rng([seed, n])
    graph = gs.LabelGraph.knn(rng.standard_normal((n, 16)), k=8)
    near = graph.weights.toarray() ** 2
    confusion = 0.8 * np.eye(n) + 0.15 * near / near.sum(axis=0) + 0.05 / n
    q = gs.shifts.dirichlet(n, 1.0, rng)
    columns = np.column_stack([rng.multinomial(50, c) for c in confusion.T])
    return gs.Problem(
        gs.ShiftCounts(columns, rng.multinomial(10_000, confusion @ q)), graph, "paper"
    )


def timed(run: Callable[[int], np.ndarray], seed: int) -> tuple[float, float]:
    """Seconds of a warm run, and its smallest effective sample size."""
    run(seed)
    began = time.perf_counter()
    q = run(seed + 1)
    seconds = time.perf_counter() - began
    return seconds, float(convergence({"q": q}).bulk_ess["q"].min())


def hierarchy(problem: gs.Problem, warmup: int, draws: int, seed: int) -> np.ndarray:
    """(chains, draws, K) by gs.HMC."""
    backend = gs.HMC(warmup=warmup, draws=draws, progress=False)
    return backend.infer(problem, np.random.default_rng(seed)).form.q


if __name__ == "__main__":
    main()
