"""Problems of Gaussian classes and a nearest-mean classifier, from one that guesses to one that is
right 999 times in a thousand.

Class means are drawn in clusters of five, the centres' and the offsets' entries from N(0, .6^2), in
64 dimensions; the classifier takes the nearest of means that it knows up to noise of sd .05. The
sd of the inputs is set by bisection so that it is right as often as asked for. Target shares are a
power law, q_i ~ i^-1.1 in random order, and the graph ties each mean to its 8 nearest.
"""

from typing import NamedTuple

import numpy as np

import gsb3se as gs

_DIMENSIONS, _CLUSTER, _SPREAD, _PERTURBED, _POWER = 64, 5, 0.6, 0.05, 1.1
_PROBES, _BISECTIONS = 20_000, 12


class GaussianProblem(NamedTuple):
    """Counts, graph, the target's shares, and how often the classifier is right on even shares."""

    counts: gs.ShiftCounts
    graph: gs.LabelGraph
    q: np.ndarray
    accuracy: float


def gaussian_problem(
    n: int, accuracy: float, labels: int, n_target: int, seed: int
) -> GaussianProblem:
    """Labels validation rows a class, and n_target predictions."""
    rng = np.random.default_rng([seed, n, int(1000 * accuracy), labels, n_target])
    centres = rng.normal(0, _SPREAD, (-(-n // _CLUSTER), _DIMENSIONS))
    means = np.repeat(centres, _CLUSTER, axis=0)[:n] + rng.normal(0, _SPREAD, (n, _DIMENSIONS))
    known = means + rng.normal(0, _PERTURBED, means.shape)
    noise, reached = _noise_for(accuracy, means, known, rng)

    def predictions(truth: np.ndarray) -> np.ndarray:
        return _nearest(
            means[truth] + noise * rng.standard_normal((len(truth), _DIMENSIONS)), known
        )

    q = rng.permutation(np.arange(1, n + 1) ** -_POWER)
    q /= q.sum()
    held, drawn = np.repeat(np.arange(n), labels), rng.choice(n, n_target, p=q)
    counts = gs.ShiftCounts.from_predictions(
        held, predictions(held), predictions(drawn), labels=range(n)
    )
    return GaussianProblem(counts, gs.LabelGraph.knn(means, k=8), q, reached)


def _noise_for(
    accuracy: float, means: np.ndarray, known: np.ndarray, rng: np.random.Generator
) -> tuple[float, float]:
    """The inputs' sd at which the classifier is right so often, by bisection of its logarithm."""
    truth = np.arange(_PROBES) % len(means)
    unit = rng.standard_normal((_PROBES, _DIMENSIONS))
    low, high = np.log(0.05), np.log(50.0)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        right = float((_nearest(means[truth] + np.exp(middle) * unit, known) == truth).mean())
        low, high = (middle, high) if right > accuracy else (low, middle)
    return float(np.exp(middle)), right


def _nearest(inputs: np.ndarray, known: np.ndarray) -> np.ndarray:
    known = known.astype(np.float32)
    offset = (known**2).sum(axis=1) / 2
    blocks = np.array_split(inputs.astype(np.float32), -(-len(inputs) * len(known) // 20_000_000))
    return np.concatenate([(block @ known.T - offset).argmax(axis=1) for block in blocks])
