"""The default backend from classifiers that guess to very good ones, and from few labels to many.

python examples/benchmarks/accurate_classifiers.py --results accurate.jsonl
python examples/benchmarks/accurate_classifiers.py --results accurate.jsonl --tables

Every setting of the grid (Gaussian classes, see gaussian_classes.py) is run with both priors and
compared with maximum likelihood on the same counts (MLLS). A run is a line of the results, and
settings that have one are not run again: a killed benchmark goes on where it was. Then corners of
the grid at few classes are compared with exact chains from the same counts. Seconds are those of
computing (of all cores together) in warm runs, and are compared with those of the easy setting at
as many classes and predictions: accuracy .9, 20 labels, anchored prior.
"""

import json
import time
import warnings
from collections import defaultdict
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import click
import numpy as np
from gaussian_classes import gaussian_problem
from rich.console import Console
from rich.progress import track
from rich.table import Table

import gsb3se as gs

PRIORS = {"paper": gs.Prior(), "anchored": gs.Prior.anchored()}
SETTING = ("classes", "accuracy", "labels", "predictions", "prior")
EASY = (0.9, 20, "anchored")
CORNERS = tuple(
    (n, accuracy, labels, 1000 if n == 60 else 50_000)
    for n, accuracy, labels in product((60, 100), (0.7, 0.99), (5, 100))
)
_FINE, _AGREED = 1.02, 0.1


@click.command()
@click.option("--results", type=click.Path(path_type=Path, dir_okay=False), required=True)
@click.option("--classes", default=(100, 300, 1000, 2000), multiple=True, type=int)
@click.option("--accuracy", default=(0.3, 0.7, 0.9, 0.99, 0.999), multiple=True, type=float)
@click.option("--labels", default=(5, 20, 100), multiple=True, type=int, help="A class.")
@click.option("--predictions", default=(1000, 50_000), multiple=True, type=int)
@click.option("--first-seed", default=0, show_default=True)
@click.option("--seeds", default=3, show_default=True, help="How many.")
@click.option("--corners/--no-corners", default=True, help="Also against exact chains.")
@click.option("--tables", is_flag=True, help="Print what is there and run nothing.")
def main(
    results: Path,
    classes: tuple[int, ...],
    accuracy: tuple[float, ...],
    labels: tuple[int, ...],
    predictions: tuple[int, ...],
    first_seed: int,
    seeds: int,
    corners: bool,
    tables: bool,
) -> None:
    """Run what is missing and print the tables."""
    warnings.simplefilter("ignore", gs.GSB3SEWarning)
    rows = (
        [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    )
    if not tables:
        gs.estimate(gs.ShiftCounts(np.diag([9, 9]), [5, 5]))  # warm
        done = {(row["kind"], *(row[name] for name in SETTING), row["seed"]) for row in rows}
        wanted = [
            ("grid", *setting, prior, seed)
            for *setting, prior, seed in product(
                classes,
                accuracy,
                labels,
                predictions,
                PRIORS,
                range(first_seed, first_seed + seeds),
            )
        ]
        if corners:
            wanted += [("corner", *corner, prior, 0) for corner in CORNERS for prior in PRIORS]
        with results.open("a") as file:
            for key in track([key for key in wanted if key not in done], console=_progress()):
                kind, *setting = key
                rows.append({"kind": kind} | (_grid if kind == "grid" else _corner)(*setting))
                file.write(json.dumps(rows[-1]) + "\n")
                file.flush()
    _print_grid([row for row in rows if row["kind"] == "grid"])
    _print_corners([row for row in rows if row["kind"] == "corner"])


def _progress() -> Console:
    return Console(stderr=True)


def _grid(n: int, accuracy: float, labels: int, n_target: int, prior: str, seed: int) -> dict:
    """One run of the default backend, and MLLS."""
    made = gaussian_problem(n, accuracy, labels, n_target, seed)
    began = time.process_time()
    post = gs.estimate(made.counts, made.graph, prior=PRIORS[prior], seed=seed)
    seconds = time.process_time() - began
    figures = post.diagnostics.figures
    low, high = post.interval(0.9)
    held = (low <= made.q + 0.5 / n_target) & (made.q <= high)
    return _setting(n, accuracy, labels, n_target, prior, seed) | {
        "L1": float(np.abs(post.mean - made.q).sum()),
        "mlls": float(np.abs(gs.baselines.mlls(made.counts) - made.q).sum()),
        "covered": float(held.mean()),
        "accepted": figures["refinement_accepted"]
        if figures.get("refined")
        else figures["accepted"],
        "effective": figures["effective_draws"],
        "status": post.diagnostics.status.value,
        "seconds": seconds,
    }


def _corner(n: int, accuracy: float, labels: int, n_target: int, prior: str, seed: int) -> dict:
    """The default backend against exact chains from another seed."""
    made = gaussian_problem(n, accuracy, labels, n_target, seed)
    problem = gs.Problem(made.counts, made.graph, PRIORS[prior])
    post = gs.Structured().infer(problem, np.random.default_rng(seed))
    exact = gs.Structured(refine=True).infer(problem, np.random.default_rng(seed + 1))
    figures = exact.diagnostics.figures
    apart = np.abs(post.mean - exact.mean) / exact.sd
    return _setting(n, accuracy, labels, n_target, prior, seed) | {
        "apart": float(np.median(apart)),
        "apart_95": float(np.quantile(apart, 0.95)),
        "sd_ratio": float(np.median(post.sd / exact.sd)),
        "chains": bool(post.diagnostics.figures.get("refined", False)),
        "exact_accepted": figures["refinement_accepted"],
        "exact_drift": figures["refinement_drift"],
        "exact_L1": float(np.abs(exact.mean - made.q).sum()),
        "mlls": float(np.abs(gs.baselines.mlls(made.counts) - made.q).sum()),
        "exact_status": exact.diagnostics.status.value,
        "status": post.diagnostics.status.value,
    }


def _setting(*values: Any) -> dict:
    return dict(zip((*SETTING, "seed"), values, strict=True))


def _by_setting(rows: list[dict]) -> Iterator[tuple[tuple, list[dict]]]:
    groups = defaultdict(list)
    for row in rows:
        groups[tuple(row[name] for name in SETTING)].append(row)
    yield from sorted(groups.items())


def _print_grid(rows: list[dict]) -> None:
    groups = dict(_by_setting(rows))
    table = Table(
        *("K", "accuracy", "labels", "n'", "prior", "L1", "MLLS", "accepted", "covered"),
        *("s", "x easy", "statuses", "misses"),
        title="Default backend; L1 against the population's shares, means over seeds",
    )
    misses: dict[str, list[str]] = defaultdict(list)
    for (n, accuracy, labels, n_target, prior), group in groups.items():
        error, mlls = (np.array([row[name] for row in group]) for name in ("L1", "mlls"))
        apart = error - mlls
        allowed = (_FINE - 1) * mlls.mean()
        if len(apart) > 1:
            allowed += apart.std(ddof=1) / np.sqrt(len(apart))
        seconds = float(np.median([row["seconds"] for row in group]))
        easy = groups.get((n, EASY[0], EASY[1], n_target, EASY[2]))
        slower = seconds / np.median([row["seconds"] for row in easy]) if easy else np.nan
        accepted = min(row["accepted"] for row in group)
        silent = any(row["accepted"] <= 0.3 and row["status"] == "ok" for row in group)
        missed = [
            name
            for name, is_missed in (
                ("L1", apart.mean() > allowed),
                ("time", slower > 3),
                ("silent", silent),
            )
            if is_missed
        ]
        for name in missed:
            misses[name].append(f"K={n} {accuracy} {labels} {n_target} {prior}")
        table.add_row(
            str(n), str(accuracy), str(labels), str(n_target), prior,
            f"{error.mean():.3f}", f"{mlls.mean():.3f}", f"{accepted:.2f}",
            f"{np.mean([row['covered'] for row in group]):.2f}", f"{seconds:.2f}",
            f"{slower:.1f}", ", ".join(sorted({row["status"] for row in group})),
            ", ".join(missed),
        )  # fmt: skip
    Console(width=170).print(table)
    print(
        f"{len(groups)} settings; misses: " + "; ".join(f"{k} {len(v)}" for k, v in misses.items())
    )


def _print_corners(rows: list[dict]) -> None:
    table = Table(
        *("K", "accuracy", "labels", "n'", "prior", "median apart", "95 %", "sd ratio"),
        *("default uses chains", "chains accepted", "drift", "their L1", "MLLS", "their status"),
        title="Default backend against exact chains from another seed, in their sds",
    )
    for setting, (row, *_) in _by_setting(rows):
        table.add_row(
            *map(str, setting), f"{row['apart']:.3f}", f"{row['apart_95']:.3f}",
            f"{row['sd_ratio']:.2f}", str(row["chains"]), f"{row['exact_accepted']:.2f}",
            f"{row['exact_drift']:.2f}", f"{row['exact_L1']:.3f}", f"{row['mlls']:.3f}",
            row["exact_status"],
        )  # fmt: skip
    Console(width=170).print(table)
    near = sum(row["apart"] <= _AGREED for row in rows)
    print(f"{near} of {len(rows)} corners within {_AGREED} sd in the median")


if __name__ == "__main__":
    main()
