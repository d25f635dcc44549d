"""What one evaluation of the model costs, in units of the one product it cannot avoid.

    python examples/benchmarks/model_cost.py

Each round times the sparse product ``L @ phi``, the log joint with its gradient, an exact Hessian
product and a plain numpy version of the gradient, each in a run of its own with warm caches and
memory, and takes the medians' ratios; the median and the range of the rounds are printed.
"""

import time

import click
import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy.special import logsumexp

import gsb3se as gs
from gsb3se.model.density import Curvature, Latents, Strengths, log_joint_and_gradient
from gsb3se.model.problem import Problem


def plain_gradient(problem: Problem, latents: Latents, tau: Strengths):
    """The textbook formulas, one numpy expression each, for the paper's hierarchy."""
    theta, phi, laplacian = latents.theta, latents.phi, problem.graph.laplacian
    counts = problem.counts.confusion.toarray()
    q = np.exp(theta - logsumexp(theta))
    log_confusion = phi - logsumexp(phi, axis=0)
    confusion = np.exp(log_confusion)
    r = confusion @ q
    nu = problem.target / r
    w = confusion.T @ nu
    l_theta, l_phi = laplacian @ theta, laplacian @ phi
    value = (counts * log_confusion).sum() + problem.target @ np.log(r)
    value -= (tau.q * theta @ l_theta + tau.C * (phi * l_phi).sum()) / 2
    d_theta = q * (w - problem.target.sum()) - tau.q * l_theta
    d_phi = counts - problem.column_sizes * confusion
    d_phi += q * confusion * (nu[:, None] - w) - tau.C * l_phi
    return value, d_theta, d_phi


def median_seconds(run, repeats: int) -> float:
    """Of a few runs in a row, after two that warm up."""
    taken = []
    for _ in range(repeats + 2):
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return float(np.median(taken[2:]))


@click.command()
@click.option("--classes", default=1000, show_default=True)
@click.option("--rounds", default=9, show_default=True)
@click.option("--repeats", default=15, show_default=True, help="Runs of each in a round.")
@click.option("--seed", default=0, show_default=True)
def main(classes: int, rounds: int, repeats: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = gs.LabelGraph.knn(rng.standard_normal((classes, 64)), k=8)
    tau = Strengths(1.0, 1.0)
    table = Table(title=f"K = {classes}, {graph.laplacian.nnz} entries of L, seed {seed}")
    for column in ("prior", "evaluation", "times L @ phi", "range", "ms"):
        table.add_column(column)

    for name, prior in (("paper", gs.Prior()), ("anchored", gs.Prior.anchored())):
        simulated = gs.simulate(graph, prior, n_source=25, n_target=10 * classes, seed=seed)
        problem, latents = Problem(simulated.counts, graph, prior), simulated.latents
        curvature = Curvature(problem, latents, tau)
        jobs = {
            "L @ phi": lambda phi=latents.phi: graph.laplacian @ phi,
            "log joint and gradient": lambda p=problem, x=latents: log_joint_and_gradient(
                p, x, tau
            ),
            "exact Hessian product": lambda c=curvature, x=latents: c.product(x),
        }
        if name == "paper":
            jobs["plain numpy gradient"] = lambda p=problem, x=latents: plain_gradient(p, x, tau)
        seconds = np.array(
            [
                [median_seconds(run, repeats) for run in jobs.values()]
                for _ in track(range(rounds), description=f"timing, {name} prior")
            ]
        )
        ratios = seconds / seconds[:, :1]
        for job, ratio, taken in zip(jobs, ratios.T, seconds.T, strict=True):
            table.add_row(
                name,
                job,
                f"{np.median(ratio):.2f}",
                f"{ratio.min():.2f} to {ratio.max():.2f}",
                f"{1e3 * np.median(taken):.1f}",
            )
    Console().print(table)


if __name__ == "__main__":
    main()
