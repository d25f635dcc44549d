"""What one evaluation of the model costs, in units of the one product it cannot avoid.

    python examples/benchmarks/model_cost.py

Times the sparse product ``L @ phi``, the log joint with its gradient, an exact Hessian product and
a plain numpy version of the gradient in turn, so that all meet the same machine, and prints the
ratios' medians and quartiles.
"""

import time

import click
import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy.special import logsumexp

import gsb3se as gs
from gsb3se.model import Curvature, Latents, Strengths, log_joint_and_gradient
from gsb3se.problem import Problem


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


@click.command()
@click.option("--classes", default=1000, show_default=True)
@click.option("--repeats", default=60, show_default=True)
@click.option("--seed", default=0, show_default=True)
def main(classes: int, repeats: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = gs.LabelGraph.knn(rng.standard_normal((classes, 64)), k=8)
    tau = Strengths(1.0, 1.0)
    table = Table(title=f"K = {classes}, {graph.laplacian.nnz} entries of L, seed {seed}")
    for column in ("prior", "evaluation", "times L @ phi", "quartiles", "ms"):
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
        seconds = {job: [] for job in jobs}
        for _ in track(range(repeats + 3), description=f"timing, {name} prior"):
            for job, run in jobs.items():
                start = time.perf_counter()
                run()
                seconds[job].append(time.perf_counter() - start)
        base = np.array(seconds["L @ phi"][3:])  # the first few warm up
        for job in jobs:
            taken = np.array(seconds[job][3:])
            low, middle, high = np.percentile(taken / base, [25, 50, 75])
            table.add_row(
                name,
                job,
                f"{middle:.2f}",
                f"{low:.2f} to {high:.2f}",
                f"{1e3 * np.median(taken):.1f}",
            )
    Console().print(table)


if __name__ == "__main__":
    main()
