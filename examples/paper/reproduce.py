r"""The paper's experiments: one command a data set.

python examples/paper/reproduce.py mnist --images DIR --out mnist
python examples/paper/reproduce.py cifar100 --images DIR --out cifar100 --clip-weights FILE
python examples/paper/reproduce.py cifar10 --logits outputs.npz --graph features --out cifar10
python examples/paper/reproduce.py digits --epochs 8 --batch-size 32 --train-rows 400 \
    --validation-rows 200 --n-target 500 --out digits

A ResNet-18 is trained on 10,000 images (or --logits FILE holds the outputs of any classifier:
logits_val, labels_val, logits_test, labels_test, perhaps names and class_means); 5,000 stratified
validation images give the confusion counts; target sets with the paper's priors are drawn from the
test split. Every estimator and every backend is measured against the population's prior and against
the drawn rows', over several draws and by 1,000 paired resamples of the first target set.
protocol.py says where the paper can be read in two ways. The folder --out gets the classifier's
outputs (logits.npz), every single figure (results.csv) and the tables that are shown (table.md).
"""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from outputs import Outputs
from protocol import (
    PRIORS,
    Experiment,
    backend_row,
    draw,
    label_graph,
    point_rows,
    resampled,
    target_prior,
)

import gsb3se as gs
from gsb3se.cli.console import console, plain_speech
from gsb3se.estimate import BACKENDS
from gsb3se.support.files import as_csv, write_text
from gsb3se.support.progress import progress_bar

DATA_SETS = ("mnist", "cifar10", "cifar100", "digits")
SAMPLINGS = ("with replacement", "without replacement")
OFTEN = ("structured", "amortized")  # fast enough for every draw and for resamples
PRINTED = {  # the paper's own table: L1 and accuracy
    "mnist": {"BBSE": (0.038, 0.942), "EM": (0.052, 0.935), "RLLS": (0.016, 0.959),
              "MLLS": (0.010, 0.963), "GS-B3SE, paper, hmc": (0.002, 0.986)},
    "cifar10": {"BBSE": (0.112, 0.781), "EM": (0.194, 0.732), "RLLS": (0.072, 0.803),
                "MLLS": (0.052, 0.812), "GS-B3SE, paper, hmc": (0.025, 0.844)},
    "cifar100": {"BBSE": (1.62, 0.690), "EM": (2.10, 0.632), "RLLS": (0.92, 0.712),
                 "MLLS": (0.71, 0.734), "GS-B3SE, paper, hmc": (0.22, 0.783)},
}  # fmt: skip
COLUMNS = (
    "sampling", "repeat", "n_target", "method", "l1_population", "l1_realised", "accuracy",
    "covered", "seconds", "status",
)  # fmt: skip


@click.command()
@click.argument("data_set", type=click.Choice(DATA_SETS))
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), required=True)
@click.option("--logits", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--images", type=click.Path(path_type=Path, file_okay=False), default="images")
@click.option("--epochs", default=100, show_default=True, type=click.IntRange(min=1))
@click.option("--train-rows", default=10_000, show_default=True, type=click.IntRange(min=1))
@click.option("--validation-rows", default=5_000, show_default=True, type=click.IntRange(min=1))
@click.option("--batch-size", default=128, show_default=True, type=click.IntRange(min=2))
@click.option("--learning-rate", default=0.1, show_default=True)
@click.option("--device", default="cpu", show_default=True)
@click.option("--shift", type=click.Choice(["dirichlet ramp", "dirichlet ones", "power law"]))
@click.option("--n-target", default=10_000, show_default=True, type=click.IntRange(min=1))
@click.option("--sampling", "samplings", multiple=True, type=click.Choice(SAMPLINGS))
@click.option("--graph", type=click.Choice(["clip", "features", "none"]))
@click.option("-k", "neighbours", type=click.IntRange(min=1), help="Of the graph.")
@click.option("--clip-weights", default="openai", show_default=True, help="A tag or a file.")
@click.option("--prior", "priors", multiple=True, type=click.Choice(list(PRIORS)))
@click.option("--backend", "backends", multiple=True, type=click.Choice([*BACKENDS, "none"]))
@click.option("--repeats", default=20, show_default=True, type=click.IntRange(min=1))
@click.option("--resamples", default=1000, show_default=True, type=click.IntRange(min=0))
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0))
def main(
    data_set: str,
    out: Path,
    logits: Path | None,
    images: Path,
    epochs: int,
    train_rows: int,
    validation_rows: int,
    batch_size: int,
    learning_rate: float,
    device: str,
    shift: str | None,
    n_target: int,
    samplings: tuple[str, ...],
    graph: str | None,
    neighbours: int | None,
    clip_weights: str,
    priors: tuple[str, ...],
    backends: tuple[str, ...],
    repeats: int,
    resamples: int,
    seed: int,
) -> None:
    """Train or load a classifier, shift its test split, estimate, and compare."""
    with plain_speech():
        out.mkdir(parents=True, exist_ok=True)
        if logits is not None:
            outputs = Outputs.load(logits, validation_rows, seed)
        else:
            from images import classifier_outputs

            sizes = (train_rows, validation_rows, epochs, batch_size)
            outputs = classifier_outputs(data_set, images, *sizes, learning_rate, device, seed)
            outputs.save(out / "logits.npz")
        digits = data_set in ("mnist", "digits")
        shift = shift or ("dirichlet ramp" if digits else "power law")
        kind = graph or ("features" if digits else "clip")
        k = neighbours or (4 if outputs.n_classes <= 10 else 8)
        experiment = Experiment(outputs, label_graph(kind, outputs, k, clip_weights))
        _ = experiment.calibrated  # fitted here, so that no estimate is charged for it
        accuracy = experiment.accuracy(np.arange(len(outputs.labels_test)))
        console.print(
            f"{data_set}: {len(outputs.labels_val)} validation rows, {len(outputs.labels_test)} "
            f"test rows, accuracy {accuracy:.3f}; {shift} shares, graph of {kind}"
        )
        chosen = [
            (prior, backend)
            for prior in priors or PRIORS
            for backend in ([] if "none" in backends else backends or BACKENDS)
        ]
        rows: list[dict[str, Any]] = []
        spread: dict[tuple[str, str], tuple[float, ...]] = {}
        for sampling in samplings or SAMPLINGS:
            replace = sampling == "with replacement"
            rows += measured(experiment, shift, n_target, replace, chosen, repeats, seed)
            if resamples:
                spread |= uncertainty(experiment, shift, n_target, replace, chosen, resamples, seed)
        write_text(
            out / "results.csv",
            as_csv(COLUMNS, ([row.get(c, "") for c in COLUMNS] for row in rows)),
        )
        table = as_tables(rows, spread, PRINTED.get(data_set, {}))
        write_text(out / "table.md", table)
        click.echo(table)
        console.print(f"wrote {out / 'results.csv'} and {out / 'table.md'}")


def measured(
    experiment: Experiment,
    shift: str,
    n_target: int,
    replace: bool,
    chosen: list[tuple[str, str]],
    repeats: int,
    seed: int,
) -> list[dict[str, Any]]:
    """Rows of all methods; the slower backends run on the first draw alone."""
    rows = []
    with progress_bar("target sets", repeats) as bar:
        for repeat in range(repeats):
            q, target = shifted(experiment, shift, n_target, replace, seed + repeat)
            found = list(point_rows(experiment, target, q))
            for prior, backend in chosen:
                if repeat == 0 or backend in OFTEN:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore", gs.GSB3SEWarning)  # the row has the status
                        row = backend_row(experiment, target, q, prior, backend, seed + repeat)
                    found.append(row)
            about = {
                "sampling": SAMPLINGS[not replace],
                "repeat": repeat,
                "n_target": len(target.indices),
            }
            rows += [about | row for row in found]
            bar.advance(1)
    return rows


def shifted(
    experiment: Experiment, shift: str, n_target: int, replace: bool, seed: int
) -> tuple[np.ndarray, gs.shifts.TargetSet]:
    """A population's prior and a target set of it."""
    q = target_prior(shift, experiment.outputs.n_classes, seed)
    return q, draw(experiment, q, n_target, replace, seed)


def uncertainty(
    experiment: Experiment,
    shift: str,
    n_target: int,
    replace: bool,
    chosen: list[tuple[str, str]],
    resamples: int,
    seed: int,
) -> dict[tuple[str, str], tuple[float, ...]]:
    """By sampling and method: bootstrap errors of L1 and accuracy, and how often L1 beats MLLS'."""
    q, target = shifted(experiment, shift, n_target, replace, seed)
    fast = [(prior, backend) for prior, backend in chosen if backend in OFTEN]
    with progress_bar("resamples", resamples) as bar, warnings.catch_warnings():
        warnings.simplefilter("ignore", gs.GSB3SEWarning)
        found = resampled(experiment, target, q, fast, resamples, seed, bar.advance)
    mlls = found["MLLS"]["l1_population"]
    return {
        (SAMPLINGS[not replace], name): (
            float(np.std(values["l1_population"])),
            float(np.std(values["accuracy"])),
            float(np.mean(values["l1_population"] < mlls)),
        )
        for name, values in found.items()
    }


def as_tables(
    rows: list[dict[str, Any]],
    spread: dict[tuple[str, str], tuple[float, ...]],
    printed: dict[str, tuple[float, float]],
) -> str:
    """For each sampling a table of the first target set, and one of the means over all of them."""
    parts = []
    for sampling in dict.fromkeys(row["sampling"] for row in rows):
        ours = [row for row in rows if row["sampling"] == sampling]
        first = [row for row in ours if row["repeat"] == 0]
        parts.append(f"The first target set, {first[0]['n_target']:,} rows {sampling}; ± by "
                     "resamples of it:\n")  # fmt: skip
        parts.append(first_table(first, sampling, spread, printed))
        if repeats := ours[-1]["repeat"]:
            sizes = sorted({row["n_target"] for row in ours})
            told = f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"
            parts.append(f"\nMeans over {repeats + 1} target sets of {told} rows, {sampling}; ± "
                         "their standard errors:\n")  # fmt: skip
            parts.append(means_table(ours, repeats + 1))
        parts.append("")
    return "\n".join(parts)


def first_table(
    rows: list[dict[str, Any]],
    sampling: str,
    spread: dict[tuple[str, str], tuple[float, ...]],
    printed: dict[str, tuple[float, float]],
) -> str:
    """Every method on one target set, and what the paper printed."""
    lines = []
    for row in rows:
        errors = spread.get((sampling, row["method"]))
        told = [row["method"]]
        for key, error in (("l1_population", 0), ("l1_realised", None), ("accuracy", 1)):
            with_error = errors is not None and error is not None
            told.append(_number(row.get(key)) + (f" ± {errors[error]:.4f}" if with_error else ""))
        told.append(_number(row.get("covered"), ".2f"))
        told.append("" if errors is None or row["method"] == "MLLS" else f"{100 * errors[2]:.0f} %")
        told += [_number(row.get("seconds"), ".3g"), str(row.get("status", ""))]
        told += [f"{value:.3f}" for value in printed.get(row["method"], ())] or ["", ""]
        lines.append(told)
    heads = (
        "method", "L1, population", "L1, realised", "accuracy", "90 % covers", "below MLLS' L1",
        "s", "status", "paper: L1", "paper: accuracy",
    )  # fmt: skip
    return _markdown(heads, lines)


def means_table(rows: list[dict[str, Any]], repeats: int) -> str:
    """The methods that ran on all target sets."""
    lines = []
    for method in dict.fromkeys(row["method"] for row in rows):
        mine = [row for row in rows if row["method"] == method]
        if len(mine) < repeats:
            continue
        told = [method]
        for key in ("l1_population", "l1_realised", "accuracy", "covered"):
            values = np.array([row[key] for row in mine if row.get(key) is not None])
            error = f" ± {values.std(ddof=1) / np.sqrt(len(values)):.4f}" if len(values) else ""
            told.append(_number(values.mean() if len(values) else None) + error)
        lines.append(told)
    return _markdown(("method", "L1, population", "L1, realised", "accuracy", "90 % covers"), lines)


def _number(value: float | None, form: str = ".4f") -> str:
    return "" if value is None else format(value, form)


def _markdown(heads: Sequence[str], lines: list[list[str]]) -> str:
    table = [list(heads), ["---"] * len(heads), *lines]
    return "\n".join("| " + " | ".join(line) + " |" for line in table)


if __name__ == "__main__":
    main()
