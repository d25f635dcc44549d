"""Does Newton-CG reach the mode from a cold start, and what does it cost?

python examples/benchmarks/newton_modes.py

Random problems from the hierarchy: K from 3 to 100, 2 to 200 validation labels a class, 50 to
10,000 target predictions, both priors in turn. The mode is sought at tau_q = 1, tau_C = 0.3, then
the whole backend with its own tau is run. At K = 300 the cost of one mode is given in gradients.
"""

import time

import click
import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

import gsb3se as gs
from gsb3se.inference.gaussian.mode_search import Mode, Work, cold_start, find_mode
from gsb3se.model.density import Strengths, log_joint_and_gradient

TAU = Strengths(1.0, 0.3)


@click.command()
@click.option("--problems", default=50, show_default=True)
@click.option("--most-classes", default=100, show_default=True)
@click.option("--large", default=300, show_default=True, help="Classes of the costed problem.")
@click.option("--seed", default=0, show_default=True)
def main(problems: int, most_classes: int, large: int, seed: int) -> None:
    """Count the modes reached and what they cost."""
    reached, decrements, steps, products, statuses = 0, [], [], [], {}
    for number in track(range(problems), description="random problems"):
        rng = np.random.default_rng([seed, number])
        n, labels, target = (
            int(np.exp(rng.uniform(*np.log(ends))))
            for ends in ((3, most_classes), (2, 200), (50, 10_000))
        )
        problem = simulated(n, labels, target, anchored=number % 2 == 1, rng=rng)
        mode, work, _ = cold_search(problem)
        reached += mode.converged
        decrements.append(mode.decrement)
        steps.append(work.newton_steps)
        products.append(work.hessian_products)
        status = gs.NewtonCG().infer(problem, rng).diagnostics.status.value
        statuses[status] = statuses.get(status, 0) + 1
    print(
        f"decrement below 1e-8 from a cold start: {reached} of {problems} (largest "
        f"{max(decrements):.1e}); Newton steps {min(steps)} to {max(steps)}, Hessian products "
        f"{min(products)} to {max(products)}"
    )
    print(f"statuses with marginal tau: {statuses}")

    table = Table("K", "prior", "steps", "gradients", "products", "s", "in gradients", "decrement")
    for prior in ("paper", "anchored"):
        rng = np.random.default_rng([seed, large])
        problem = simulated(large, 50, 10_000, anchored=prior == "anchored", rng=rng)
        cold_search(problem)
        mode, work, seconds = cold_search(problem)
        cost = seconds / seconds_a_gradient(problem, mode)
        table.add_row(
            str(large), prior, str(work.newton_steps), str(work.gradients),
            str(work.hessian_products), f"{seconds:.2f}", f"{cost:.0f}", f"{mode.decrement:.1e}",
        )  # fmt: skip
    Console(width=100).print(table)


def simulated(
    n: int, labels: int, target: int, anchored: bool, rng: np.random.Generator
) -> gs.Problem:
    """A problem drawn from the hierarchy."""
    graph = gs.LabelGraph.knn(rng.standard_normal((n, 8)), k=min(8, n - 1))
    prior = gs.Prior.anchored() if anchored else gs.Prior()
    return gs.Problem(gs.simulate(graph, prior, labels, target, rng).counts, graph, prior)


def cold_search(problem: gs.Problem) -> tuple[Mode, Work, float]:
    """The mode at fixed strengths, what it took, and the seconds."""
    work, began = Work(), time.perf_counter()
    mode = find_mode(problem, TAU, cold_start(problem), work=work)
    return mode, work, time.perf_counter() - began


def seconds_a_gradient(problem: gs.Problem, mode: Mode) -> float:
    """Median time of the log joint with its gradient."""
    taken = []
    for _ in range(20):
        began = time.perf_counter()
        log_joint_and_gradient(problem, mode.latents, TAU)
        taken.append(time.perf_counter() - began)
    return float(np.median(taken))


if __name__ == "__main__":
    main()
