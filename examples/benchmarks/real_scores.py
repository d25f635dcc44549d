"""How good an estimate of the target shares is, against both kinds of truth.

*Population* is what the target set was drawn with and what the model's q means; *realised* is what
the drawn rows hold, which nothing that sees only them can know better.
"""

import numpy as np
from real_data import Target
from real_methods import Estimate

Vector = np.ndarray
Matrix = np.ndarray
_LEAST = 1e-12  # a share of exactly zero would forbid a class


def scores_of(
    estimate: Estimate, target: Target, source_prior: Vector, log_scores: Matrix | None, y: Vector
) -> dict[str, float]:
    """All figures of an estimate by name.

    Args:
        source_prior: (K,) p, for importance weights q / p and Saerens' correction.
        log_scores, y: (n', K) log-probabilities and (n',) classes of the target rows, for the
            accuracy after correction; None if there are only predictions.
    """
    found: dict[str, float] = {"seconds": estimate.seconds}
    for name, truth in (("population", target.population), ("realised", target.realised)):
        found[f"l1_{name}"] = float(np.abs(estimate.q - truth).sum())
        found[f"weight_mse_{name}"] = float((((estimate.q - truth) / source_prior) ** 2).mean())
        for level, ends in (estimate.intervals or {}).items():
            percent = f"{100 * level:.0f}_{name}"
            found[f"cover{percent}"] = float(covered(*ends, truth).mean())
            found[f"score{percent}"] = float(interval_score(*ends, truth, level).mean())
            if name == "realised" and (present := truth > 0).any():
                inside = covered(*ends, target.population)[present]
                found[f"cover{100 * level:.0f}_present"] = float(inside.mean())
    for level, (low, high) in (estimate.intervals or {}).items():
        found[f"width{100 * level:.0f}"] = float((high - low).mean())
    if log_scores is not None:
        weight = np.log(np.maximum(estimate.q, _LEAST)) - np.log(np.maximum(source_prior, _LEAST))
        before = float((log_scores.argmax(axis=1) == y).mean())
        after = float(((log_scores + weight).argmax(axis=1) == y).mean())
        found |= {"accuracy_before": before, "accuracy": after, "gain": after - before}
    return found


def covered(low: Vector, high: Vector, truth: Vector) -> Vector:
    """(K,) whether each interval holds its truth."""
    return (low <= truth) & (truth <= high)


def interval_score(low: Vector, high: Vector, truth: Vector, level: float) -> Vector:
    """(K,) width, and 2 / (1 - level) times the distance of a truth outside; less is better.

    The interval that minimises its expectation is the equal-tailed one (Gneiting and Raftery 2007).
    """
    missed = np.maximum(low - truth, 0) + np.maximum(truth - high, 0)
    return high - low + 2 / (1 - level) * missed
