"""What the structured backend costs as the classes grow, and on ImageNet.

python examples/benchmarks/structured_scale.py --data DIR

Simulated: useful classifiers over 8-nearest-neighbour graphs, 20 labels a class, 10 target
predictions a class. The second window is another target of the same source. With --data, a folder
that holds imagenet_val_hardpreds.npz (labels, pred_timm_resnet34) and
label_embeddings_minilm_l6_v2.npz (imagenet1k_name), ImageNet follows: 25 validation images a class,
10,000 target images with Dirichlet(1) shares. Its cost is given in evaluations of the model's log
joint with gradient, timed in the same run, and its first 20 columns are compared with expectation
propagation by exact inverses at the same strengths. Memory is the peak of the process so far.
"""

import resource
import time
import warnings
from pathlib import Path

import click
import numpy as np
from rich.console import Console
from rich.table import Table
from scipy import sparse

import gsb3se as gs
from gsb3se.inference.structured.column_laws import ColumnOutput
from gsb3se.inference.structured.column_propagation import ColumnPropagation
from gsb3se.inference.structured.poisson_cells import empty_cell_table
from gsb3se.model.density import Latents, Strengths, log_joint_and_gradient


@click.command()
@click.option("--classes", default=(250, 500, 1000, 2000, 4000), multiple=True, type=int)
@click.option("--data", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--exchangeable", is_flag=True, help="Without a graph.")
@click.option("--second/--no-second", default=True, help="Also a second window of each source.")
@click.option("--seed", default=0, show_default=True)
def main(
    classes: tuple[int, ...], data: Path | None, exchangeable: bool, second: bool, seed: int
) -> None:
    """Print the tables."""
    warnings.simplefilter("ignore", gs.GSB3SEWarning)
    empty_cell_table()
    table = Table("K", "source s", "first target s", "whole s", "second window s", "of the whole",
                  "L1", "peak GB", "status")  # fmt: skip
    wholes = []
    for n in classes:
        counts, graph, q = simulated(n, seed)
        problem = gs.Problem(counts, None if exchangeable else graph, "paper")
        source, first, again, posterior = timed(problem, seed, second)
        wholes.append(source + first)
        table.add_row(
            str(n), f"{source:.2f}", f"{first:.2f}", f"{source + first:.2f}", f"{again:.2f}",
            f"{100 * again / (source + first):.0f} %", f"{np.abs(posterior.mean - q).sum():.3f}",
            f"{peak():.2f}", posterior.diagnostics.status.value,
        )  # fmt: skip
        print(f"K = {n}: {source + first:.1f} s", flush=True)
    Console(width=130).print(table)
    if len(classes) > 1:
        exponent = np.polyfit(np.log(classes), np.log(wholes), 1)[0]
        print(f"the whole grows as K^{exponent:.2f}")
    if data is not None:
        for name, prior in (("paper", gs.Prior()), ("anchored", gs.Prior.anchored())):
            imagenet(data, name, prior, seed)


def simulated(n: int, seed: int) -> tuple[gs.ShiftCounts, gs.LabelGraph, np.ndarray]:
    """80 % right, errors among neighbours; sparse throughout."""
    rng = np.random.default_rng([seed, n])
    graph = gs.LabelGraph.knn(rng.standard_normal((n, 16)), k=8)
    near = sparse.csc_array(graph.weights)
    q = gs.shifts.dirichlet(n, 1.0, rng)
    source, target = np.repeat(np.arange(n), 20), rng.choice(n, 10 * n, p=q)
    truth = np.concatenate([source, target])
    predicted = truth.copy()
    for row in np.flatnonzero(rng.uniform(size=len(truth)) > 0.8):
        column = slice(near.indptr[truth[row]], near.indptr[truth[row] + 1])
        if rng.uniform() < 0.25:
            predicted[row] = rng.integers(n)
        else:
            weight = near.data[column]
            predicted[row] = rng.choice(near.indices[column], p=weight / weight.sum())
    held = len(source)
    counts = gs.ShiftCounts.from_predictions(
        source, predicted[:held], predicted[held:], labels=range(n)
    )
    return counts, graph, q


def timed(
    problem: gs.Problem, seed: int, second: bool = True
) -> tuple[float, float, float, gs.Posterior]:
    """Seconds of the source, of its first and of a second target, and the first's posterior."""
    began = time.perf_counter()
    source = gs.Structured(progress=False).prepared(problem)
    prepared = time.perf_counter()
    posterior = source.infer(problem.counts.target, seed)
    first = time.perf_counter()
    if second:
        source.infer(np.roll(problem.counts.target, 1), seed)
    return prepared - began, first - prepared, time.perf_counter() - first, posterior


def peak() -> float:
    """Gigabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def imagenet(folder: Path, name: str, prior: gs.Prior, seed: int) -> None:
    """A real classifier over a thousand classes."""
    outputs = np.load(folder / "imagenet_val_hardpreds.npz")
    embeddings = np.load(folder / "label_embeddings_minilm_l6_v2.npz")["imagenet1k_name"]
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(outputs["labels"]))
    truth = outputs["labels"].astype(int)[order]
    predicted = outputs["pred_timm_resnet34"].astype(int)[order]
    held = np.concatenate([np.flatnonzero(truth == label)[:25] for label in range(1000)])
    rest = np.setdiff1d(np.arange(len(truth)), held)
    shares = gs.shifts.dirichlet(1000, 1.0, rng)[truth[rest]]
    target = rng.choice(rest, 10_000, replace=False, p=shares / shares.sum())
    counts = gs.ShiftCounts.from_predictions(
        truth[held], predicted[held], predicted[target], labels=range(1000)
    )
    problem = gs.Problem(counts, gs.LabelGraph.knn(embeddings, k=8), prior)
    latents = Latents(np.zeros(1000), rng.standard_normal((1000, 1000)))
    evaluations = []
    for _ in range(12):
        began = time.perf_counter()
        log_joint_and_gradient(problem, latents, Strengths(1.0, 0.1))
        evaluations.append(time.perf_counter() - began)
    one = float(np.median(evaluations))
    source, first, second, posterior = timed(problem, seed)
    realised = np.bincount(truth[target], minlength=1000) / len(target)
    print(
        f"ImageNet, {name}: {source + first:.1f} s (source {source:.1f}, target {first:.1f}) = "
        f"{(source + first) / one:.0f} evaluations of {1000 * one:.1f} ms; a second window "
        f"{second:.2f} s, {100 * second / (source + first):.0f} %; peak {peak():.2f} GB; "
        f"L1 {np.abs(posterior.mean - realised).sum():.3f} "
        f"(MLLS {np.abs(gs.baselines.mlls(counts) - realised).sum():.3f}); "
        f"status {posterior.diagnostics.status.value}"
    )
    prepared = gs.Structured(progress=False).prepared(problem)
    few = np.arange(20)
    rate, variance = np.empty((1000, 1000)), np.empty((1000, 1000))
    exact = ColumnPropagation(problem, exact=True)
    exact.run(prepared.columns.parameters, few, ColumnOutput(rate, variance))
    sizes = problem.column_sizes[few]
    mean = rate[:, few] / sizes
    sd = np.sqrt(np.maximum((variance[:, few] / sizes - mean**2) / (sizes + 1), 1e-12))
    gap = np.abs(prepared.columns.mean[:, few] - mean) / sd
    print(
        f"  first 20 columns against exact inverses, E[C] in its sd: median {np.median(gap):.4f}, "
        f"95 % {np.quantile(gap, 0.95):.4f}, largest {gap.max():.3f}"
    )


if __name__ == "__main__":
    main()
