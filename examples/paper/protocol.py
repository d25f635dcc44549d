"""The paper's protocol: shifted targets, every estimator, and what is measured of it.

Where the paper can be read in two ways, both are here:
- u_K in Dirichlet(alpha u_K) is (1, ..., K) as written ("ramp"), or ones;
- the target set is drawn with replacement, which 10,000 rows with these priors need, or without,
  and then is as large as the test split supports;
- errors are against the population's prior, and against what the drawn rows hold;
- BBSE is the raw solution, or its projection;
- what the classifier predicts is counted as it is, to see what any correction is worth;
- EM takes the classifier's probabilities as they are, or calibrated by BCTS (which is MLLS with
  soft scores); MLLS on hard predictions is beside it.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from outputs import Outputs

import gsb3se as gs
from gsb3se.support.errors import MissingExtra
from gsb3se.support.simplex import softmax

Vector = np.ndarray
Matrix = np.ndarray
ALPHA, EXPONENT = 0.05, 1.1
PRIORS = {"paper": gs.Prior(), "anchored": gs.Prior.anchored()}
_LEAST = 1e-12  # a share of exactly zero would forbid a class


def target_prior(shift: str, n_classes: int, seed: int) -> Vector:
    """The paper's q: "dirichlet ramp" or "dirichlet ones" (MNIST), "power law" (CIFAR)."""
    if shift == "power law":
        return gs.shifts.power_law(n_classes, EXPONENT)
    base = shift.rpartition(" ")[2]
    return gs.shifts.dirichlet(n_classes, ALPHA, seed, base)  # type: ignore[arg-type]


def label_graph(kind: str, outputs: Outputs, k: int, clip_weights: str) -> gs.LabelGraph | None:
    """Nearest neighbours between CLIP's embeddings of the names or between mean features."""
    if kind == "none":
        return None
    if kind == "clip":
        if outputs.names is None:
            raise ValueError("a graph of names needs an array 'names' beside the logits")
        graph = gs.LabelGraph.from_names(outputs.names, k=k, weights=clip_weights)
        return gs.LabelGraph.from_weights(graph.weights)  # classes go by their number here
    if outputs.class_means is not None:
        return gs.LabelGraph.knn(outputs.class_means, k=k, normalise=False)
    return gs.LabelGraph.from_class_means(outputs.logits_val, outputs.labels_val, k=k)


@dataclass(frozen=True, eq=False)
class Experiment:
    """A classifier with its label graph; calibration is done once."""

    outputs: Outputs
    graph: gs.LabelGraph | None

    @cached_property
    def source_prior(self) -> Vector:
        """(K,) the validation rows' shares, taken for the training's."""
        sizes = np.bincount(self.outputs.labels_val, minlength=self.outputs.n_classes)
        return sizes / sizes.sum()

    @cached_property
    def probabilities(self) -> Matrix:
        """(n, K) of the test rows, as the classifier gives them."""
        return softmax(self.outputs.logits_test, axis=1)

    @cached_property
    def calibrated(self) -> Matrix:
        """(n, K) of the test rows by BCTS, fitted to the validation rows."""
        calibrator = gs.baselines.calibrate(self.outputs.logits_val, self.outputs.labels_val)
        return calibrator(self.outputs.logits_test)

    @cached_property
    def predicted(self) -> Vector:
        """(n,) of the test rows."""
        return self.outputs.logits_test.argmax(axis=1)

    @cached_property
    def _all_counts(self) -> gs.ShiftCounts:
        return gs.ShiftCounts.from_predictions(
            self.outputs.labels_val,
            self.outputs.logits_val.argmax(axis=1),
            self.predicted,
            labels=range(self.outputs.n_classes),
        )

    def counts(self, rows: Vector) -> gs.ShiftCounts:
        """Validation counts, and target counts of these test rows."""
        target = np.bincount(self.predicted[rows], minlength=self.outputs.n_classes)
        return self._all_counts.with_target(target)

    def accuracy(self, rows: Vector, q: Vector | None = None) -> float:
        """Share of the rows that are right, after Saerens' correction for q if there is one."""
        probabilities = self.probabilities[rows]
        if q is not None:
            target = np.maximum(q, _LEAST)
            target /= target.sum()
            probabilities = gs.adaptation.correct(probabilities, self.source_prior, target)
        return float((probabilities.argmax(axis=1) == self.outputs.labels_test[rows]).mean())


def draw(
    experiment: Experiment, q: Vector, n: int, replace: bool, seed: int
) -> gs.shifts.TargetSet:
    """A target set; without replacement at most as large as the test split supports."""
    truth, classes = experiment.outputs.labels_test, range(len(q))
    rng = np.random.default_rng(seed)
    if not replace:
        n = min(n, gs.shifts.largest_target(truth, q, labels=classes))
    while True:
        try:
            return gs.shifts.draw_target(truth, q, n, rng, replace=replace, labels=classes)
        except ValueError:
            if replace or n < 2:
                raise
            n = int(0.95 * n)  # the draw fell on a class beyond its rows


POINT_ESTIMATES: dict[str, Callable[[Experiment, gs.ShiftCounts, Vector], Vector]] = {
    "as counted": lambda experiment, counts, rows: counts.target / counts.n_target,
    "BBSE, raw": lambda experiment, counts, rows: gs.baselines.bbse(counts, project=False),
    "BBSE": lambda experiment, counts, rows: gs.baselines.bbse(counts),
    "RLLS": lambda experiment, counts, rows: gs.baselines.rlls(counts),
    "MLLS": lambda experiment, counts, rows: gs.baselines.mlls(counts),
    "EM": lambda experiment, counts, rows: gs.baselines.em(
        experiment.probabilities[rows], experiment.source_prior
    ),
    "EM with BCTS": lambda experiment, counts, rows: gs.baselines.em(
        experiment.calibrated[rows], experiment.source_prior
    ),
}


def figures(
    experiment: Experiment, target: gs.shifts.TargetSet, population: Vector, q: Vector
) -> dict[str, float]:
    """Errors against both truths, and the accuracy after correction."""
    return {
        "l1_population": float(np.abs(q - population).sum()),
        "l1_realised": float(np.abs(q - target.realised).sum()),
        "accuracy": experiment.accuracy(target.indices, q),
    }


def point_rows(
    experiment: Experiment, target: gs.shifts.TargetSet, population: Vector
) -> Iterator[dict[str, object]]:
    """A row for each classical estimator, and one for the classifier as it is."""
    counts = experiment.counts(target.indices)
    before = experiment.accuracy(target.indices)
    yield {"method": "uncorrected", "accuracy": before}
    for name, estimator in POINT_ESTIMATES.items():
        began = time.perf_counter()
        q = estimator(experiment, counts, target.indices)
        taken = time.perf_counter() - began
        yield {"method": name, "seconds": taken} | figures(experiment, target, population, q)


def backend_row(
    experiment: Experiment,
    target: gs.shifts.TargetSet,
    population: Vector,
    prior: str,
    backend: str,
    seed: int,
) -> dict[str, object]:
    """The row of a backend, with how many of its 90 % intervals hold the population's share.

    One that fails says why, and the others go on.
    """
    counts, name = experiment.counts(target.indices), name_of(prior, backend)
    began = time.perf_counter()
    try:
        post = gs.estimate(
            counts, experiment.graph, prior=PRIORS[prior], backend=backend, seed=seed
        )
    except (ArithmeticError, ValueError, RuntimeError, MissingExtra) as error:
        return {"method": name, "status": f"failed: {error}"}
    taken = time.perf_counter() - began
    low, high = post.interval(0.9)
    about = {
        "method": name,
        "seconds": taken,
        "status": post.diagnostics.status.value,
        "covered": float(((low <= population) & (population <= high)).mean()),
    }
    return about | figures(experiment, target, population, post.mean)


def name_of(prior: str, backend: str) -> str:
    """What tables call a backend."""
    return f"GS-B3SE, {prior}, {backend}"


def resampled(
    experiment: Experiment,
    target: gs.shifts.TargetSet,
    population: Vector,
    bayesian: list[tuple[str, str]],
    resamples: int,
    seed: int,
    advance: Callable[[int], None],
) -> dict[str, dict[str, Vector]]:
    """Figures of every method on the same resamples of the target set: name -> figure -> (B,).

    Args:
        bayesian: priors and backends, of those that take many targets at once. The structured one
            goes without exact chains, which few validation rows would ask for in every resample.
        advance: told whenever a resample is done.
    """
    rng = np.random.default_rng(seed)
    n = len(target.indices)
    drawn = [target.indices[rng.integers(n, size=n)] for _ in range(resamples)]
    counts = [experiment.counts(rows) for rows in drawn]
    shares = {}
    for prior, backend in bayesian:
        posts = gs.estimate(
            counts[0],
            experiment.graph,
            prior=PRIORS[prior],
            backend=gs.Structured(refine=False) if backend == "structured" else backend,
            targets=[one.target for one in counts],
            seed=seed,
        )
        shares[name_of(prior, backend)] = [post.mean for post in posts]
    found: dict[str, list[dict[str, float]]] = {name: [] for name in (*POINT_ESTIMATES, *shares)}
    truth = experiment.outputs.labels_test
    for b, (rows, one) in enumerate(zip(drawn, counts, strict=True)):
        realised = np.bincount(truth[rows], minlength=one.n_classes) / n
        again = gs.shifts.TargetSet(rows, realised)
        for name in found:
            estimator = POINT_ESTIMATES.get(name)
            q = shares[name][b] if estimator is None else estimator(experiment, one, rows)
            found[name].append(figures(experiment, again, population, q))
        advance(1)
    return {
        name: {key: np.array([row[key] for row in rows]) for key in rows[0]}
        for name, rows in found.items()
    }
