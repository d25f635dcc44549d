"""gsb3se demo: a real label shift on scikit-learn's digits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

from gsb3se import baselines, plots, shifts
from gsb3se.cli.console import File, console, plain_speech, table
from gsb3se.estimate import BACKENDS, DEFAULT_BACKEND, estimate
from gsb3se.graph import LabelGraph
from gsb3se.model.adaptation import correct
from gsb3se.model.counts import ShiftCounts
from gsb3se.posterior.posterior import Posterior
from gsb3se.support.errors import MissingExtra, require
from gsb3se.support.files import check_output
from gsb3se.support.simplex import Matrix, Vector

_LEAST_LOG_PROBABILITY = -30.0  # naive Bayes is sure beyond all digits


@dataclass(frozen=True, eq=False)
class Experiment:
    """A classifier's output on validation and target rows, and the truth of the target."""

    counts: ShiftCounts
    graph: LabelGraph
    validation_logits: Matrix
    validation_truth: NDArray[np.int64]
    target_logits: Matrix
    target_truth: NDArray[np.int64]
    realised: Vector

    @property
    def source_prior(self) -> Vector:
        return self.counts.validation_shares

    @cached_property
    def target_probabilities(self) -> Matrix:
        """Calibrated by BCTS on the validation rows."""
        calibrator = baselines.calibrate(self.validation_logits, self.validation_truth)
        return calibrator(self.target_logits)


@click.command()
@click.option("--seed", default=0, show_default=True, help="Split, shift and target rows.")
@click.option("--train", default=300, show_default=True, help="Rows the classifier is trained on.")
@click.option(
    "--validation", default=40, show_default=True, help="Labelled validation rows a class."
)
@click.option(
    "--alpha", default=1.0, show_default=True, help="Dirichlet concentration of the shift."
)
@click.option(
    "--backend", type=click.Choice(list(BACKENDS)), default=DEFAULT_BACKEND, show_default=True
)
@click.option(
    "--plot",
    type=File,
    default=Path("gsb3se-demo.png"),
    show_default=True,
    help="Where the intervals are drawn.",
)
def demo(seed: int, train: int, validation: int, alpha: float, backend: str, plot: Path) -> None:
    """Train a small classifier on real digits, shift the classes, infer the shift.

    \b
    gsb3se demo
    gsb3se demo --alpha 0.3 --validation 20 --seed 1 --plot shift.png
    """
    with plain_speech():
        check_output(plot, "--plot", *plots.SUFFIXES)
        with console.status("training a classifier on scikit-learn's digits"):
            experiment = run_experiment(seed, train, validation, alpha)
        console.print(
            f"A naive Bayes classifier trained on {train} digits and validated on {validation} "
            f"labelled ones a class meets {experiment.counts.n_target} whose shares have shifted."
        )
        _show(experiment, _estimates(experiment))
        with console.status(f"inferring the posterior by {backend}"):
            posterior = estimate(experiment.counts, experiment.graph, backend=backend, seed=seed)
        _show_posterior(experiment, posterior)
        _draw(experiment, posterior, plot)


def run_experiment(seed: int, train: int, validation: int, alpha: float) -> Experiment:
    """Split the digits, train, and draw a shifted target set without replacement."""
    datasets = require("sklearn.datasets", extra="demo")
    naive_bayes = require("sklearn.naive_bayes", extra="demo")
    rng = np.random.default_rng(seed)
    digits = datasets.load_digits()
    images, truth = digits.data / 16.0, digits.target
    shuffled = rng.permutation(len(truth))
    fit, rest = shuffled[:train], shuffled[train:]
    if validation < 1 or np.bincount(truth[rest], minlength=10).min() <= validation:
        raise ValueError(
            f"digits has {len(truth)} rows, about 180 a class: take fewer --train and --validation "
            f"rows, at least one each; got {train} and {validation}"
        )
    if len(np.unique(truth[fit])) < 10:
        raise ValueError(f"--train must cover all ten digits; {train} rows do not")
    held = np.concatenate([rest[truth[rest] == digit][:validation] for digit in range(10)])
    pool = np.setdiff1d(rest, held)

    model = naive_bayes.GaussianNB(var_smoothing=1e-3).fit(images[fit], truth[fit])
    q = shifts.dirichlet(10, alpha, rng)
    size = max(1, int(0.75 * shifts.largest_target(truth[pool], q)))
    drawn = shifts.draw_target(truth[pool], q, size, rng)
    target = pool[drawn.indices]
    counts = ShiftCounts.from_predictions(
        truth[held], model.predict(images[held]), model.predict(images[target]), labels=range(10)
    )
    return Experiment(
        counts,
        LabelGraph.from_class_means(images[fit], truth[fit], k=4),
        np.maximum(model.predict_log_proba(images[held]), _LEAST_LOG_PROBABILITY),
        truth[held],
        np.maximum(model.predict_log_proba(images[target]), _LEAST_LOG_PROBABILITY),
        truth[target],
        drawn.realised,
    )


def _estimates(experiment: Experiment) -> dict[str, Vector]:
    return {
        "predicted": experiment.counts.target / experiment.counts.n_target,
        "BBSE": baselines.bbse(experiment.counts),
        "RLLS": baselines.rlls(experiment.counts),
        "MLLS": baselines.mlls(experiment.counts),
        "EM + BCTS": baselines.em(experiment.target_probabilities, experiment.source_prior),
    }


def _show(experiment: Experiment, estimates: dict[str, Vector]) -> None:
    shown = table("Share of each digit in the target", "digit", "truth", *estimates)
    for digit in range(10):
        shares = (f"{q[digit]:.3f}" for q in estimates.values())
        shown.add_row(str(digit), f"{experiment.realised[digit]:.3f}", *shares)
    shown.add_section()
    errors = (f"{np.abs(q - experiment.realised).sum():.3f}" for q in estimates.values())
    shown.add_row("L1 error", "", *errors)
    corrected = (
        correct(experiment.target_probabilities, experiment.source_prior, q)
        for q in (experiment.realised, *estimates.values())
    )
    shown.add_row("accuracy", *(_accuracy(probs, experiment) for probs in corrected))
    console.print(shown)
    console.print(
        "Accuracy is that of the calibrated classifier after Saerens' correction to each column; "
        f"without it, {_accuracy(experiment.target_probabilities, experiment)}."
    )


def _show_posterior(experiment: Experiment, posterior: Posterior) -> None:
    columns = ("digit", "truth", "predicted", "mean", "sd", "5 %", "95 %", "inside")
    shown = table("Posterior of each digit's share, anchored prior, graph of mean images", *columns)
    low, high = posterior.interval(0.9)
    inside = (low <= experiment.realised) & (experiment.realised <= high)
    for digit in range(10):
        shown.add_row(
            str(digit),
            f"{experiment.realised[digit]:.3f}",
            f"{experiment.counts.target[digit] / experiment.counts.n_target:.3f}",
            f"{posterior.mean[digit]:.3f}",
            f"{posterior.sd[digit]:.3f}",
            f"{low[digit]:.3f}",
            f"{high[digit]:.3f}",
            "yes" if inside[digit] else "no",
        )
    shown.add_section()
    shown.add_row("L1 error", "", "", f"{np.abs(posterior.mean - experiment.realised).sum():.3f}")
    console.print(shown)
    console.print(
        f"{inside.sum()} of 10 intervals (90 %) hold the share; status: "
        f"{posterior.diagnostics.status.value}"
    )


def _draw(experiment: Experiment, posterior: Posterior, path: Path) -> None:
    """The picture, or why there is none."""
    marked = {
        "truth": experiment.realised,
        "predicted": experiment.counts.target / experiment.counts.n_target,
    }
    try:
        plots.intervals(posterior, path, others=marked)
    except MissingExtra as missing:
        console.print(f"no picture: {missing}")
    else:
        console.print(f"wrote {path}")


def _accuracy(scores: Matrix, experiment: Experiment) -> str:
    return f"{np.mean(scores.argmax(axis=1) == experiment.target_truth):.3f}"
