"""Problems with a known truth, which the benchmarks share.

*Simulated classifiers* are right 80 % of the time on average, and err mostly towards similar
labels: an 8-nearest-neighbour graph of random points, Dirichlet(1) target shares. Problems *drawn
from the hierarchy* with its default hyper-priors are another kind: their classifiers mostly guess.
*CIFAR-100* takes a folder with cifar100_MODEL.npz (probs_test, labels_test) and
label_embeddings_minilm_l6_v2.npz (cifar100_name): rows are split by class into validation and pool,
and 2,000 target rows with Dirichlet(1) shares are drawn from the pool without replacement.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np

import gsb3se as gs
from gsb3se.model.simulation import simulate_classifier

PRIORS = {"paper": gs.Prior(), "anchored": gs.Prior.anchored()}


class Case(NamedTuple):
    """A problem and the target shares it was made with (for real data, those realised)."""

    problem: gs.Problem
    truth: np.ndarray


def random_graph(n: int, rng: np.random.Generator) -> gs.LabelGraph:
    """8 nearest neighbours among random points in 16 dimensions."""
    return gs.LabelGraph.knn(rng.standard_normal((n, 16)), k=8)


def simulated_classifier(n: int, labels: int, n_target: int, prior: gs.Prior, seed: int) -> Case:
    """A useful classifier, whose errors the graph explains in part."""
    rng = np.random.default_rng([seed, n, labels, n_target])
    made = simulate_classifier(n, labels, n_target, rng)
    return Case(gs.Problem(made.counts, made.graph, prior), made.q)


def drawn_from_hierarchy(n: int, labels: int, n_target: int, prior: gs.Prior, seed: int) -> Case:
    """Parameters and counts from the hierarchy itself."""
    rng = np.random.default_rng([seed, n])
    graph = random_graph(n, rng)
    made = gs.simulate(graph, prior, n_source=labels, n_target=n_target, seed=rng)
    return Case(gs.Problem(made.counts, graph, prior), made.q)


def cifar100(
    folder: Path, model: str, labels: int, prior: gs.Prior, seed: int, n_target: int = 2000
) -> Case:
    """A real classifier's predictions, and a graph of its class names."""
    outputs = np.load(folder / f"cifar100_{model}.npz")
    names = np.load(folder / "label_embeddings_minilm_l6_v2.npz")["cifar100_name"]
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(outputs["labels_test"]))
    truth = outputs["labels_test"].astype(int).ravel()[order]
    predicted = outputs["probs_test"].argmax(axis=1)[order]
    held = np.concatenate([np.flatnonzero(truth == label)[:labels] for label in range(100)])
    rest = np.setdiff1d(np.arange(len(truth)), held)
    shares = gs.shifts.dirichlet(100, 1.0, rng)[truth[rest]]
    target = rng.choice(rest, n_target, replace=False, p=shares / shares.sum())
    counts = gs.ShiftCounts.from_predictions(
        truth[held], predicted[held], predicted[target], labels=range(100)
    )
    realised = np.bincount(truth[target], minlength=100) / n_target
    return Case(gs.Problem(counts, gs.LabelGraph.knn(names, k=8), prior), realised)


def write_batch(folder: Path, counts: gs.ShiftCounts, n: int, predictions: int, seed: int) -> None:
    """val.csv, and logs.parquet with n windows whose shares are drawn from a flat Dirichlet."""
    import polars as pl

    cells = counts.confusion.tocoo()
    predicted, truth = (np.repeat(part, cells.data) for part in cells.coords)
    pl.DataFrame({"label": truth, "prediction": predicted}).write_csv(folder / "val.csv")
    rng = np.random.default_rng(seed)
    rates = counts.confusion_rates
    chosen = []
    for _ in range(n):
        r = rates @ rng.dirichlet(np.ones(counts.n_classes))
        chosen.append(rng.choice(counts.n_classes, predictions, p=r / r.sum()))
    windows = np.repeat(np.arange(n), predictions)
    pl.DataFrame({"window": windows, "prediction": np.concatenate(chosen)}).write_parquet(
        folder / "logs.parquet"
    )
