"""Label-shift estimators on real classifiers.

python examples/benchmarks/real.py --data DIR --out real.parquet

DIR holds classifier outputs (real_data.py says which files). Every estimator (real_methods.py)
meets the same validation rows and the same shifted targets, drawn without replacement; figures
against the truth (real_scores.py) go into one Parquet file, a row a data set, labels a class,
shift, repeat, label graph and method. What the file holds already is not run again, so that a run
that was stopped, even killed, goes on where it was. --plan chooses which settings (real_grids.py);
the other options narrow it. real_tables.py makes tables and figures of the file.
"""

import json
import os
import warnings
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import click
import numpy as np
from real_data import DATA_SETS, SHIFTS, Repeat, load
from real_grids import FAILED, KEY, LABELS, PLANS, Unit, narrowed
from real_methods import METHODS, Task
from real_scores import scores_of

from gsb3se.cli.console import plain_speech
from gsb3se.support.errors import require
from gsb3se.support.files import write_atomically
from gsb3se.support.progress import progress_bar

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@click.command()
@click.option(
    "--data", type=click.Path(path_type=Path, exists=True, file_okay=False), required=True
)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True)
@click.option("--plan", type=click.Choice(list(PLANS)), default="readme", show_default=True)
@click.option("--data-set", "data_sets", multiple=True, type=click.Choice(list(DATA_SETS)))
@click.option("--labels", multiple=True, type=click.Choice([str(n) for n in LABELS]))
@click.option("--shift", "shifts", multiple=True, type=click.Choice(SHIFTS))
@click.option("--method", "methods", multiple=True, type=click.Choice(list(METHODS)))
@click.option("--repeats", type=click.IntRange(min=1), help="Instead of the plan's.")
@click.option("--workers", default=2, show_default=True, type=click.IntRange(min=1))
def main(
    data: Path,
    out: Path,
    plan: str,
    data_sets: tuple[str, ...],
    labels: tuple[str, ...],
    shifts: tuple[str, ...],
    methods: tuple[str, ...],
    repeats: int | None,
    workers: int,
) -> None:
    """Run what is missing and write the results."""
    if out.suffix != ".parquet":
        raise click.ClickException(f"--out must end in .parquet; got {out}")
    if not out.parent.is_dir():
        raise click.ClickException(f"cannot write {out}: the folder {out.parent} does not exist")
    chosen = narrowed(PLANS[plan], data_sets, [int(n) for n in labels], shifts, methods, repeats)
    if not chosen:
        raise click.ClickException(f"the plan {plan} has no such settings: choose fewer or another")
    if {"acc", "bayesian-cc"} & {name for grid in chosen for name in grid.methods}:
        with plain_speech():
            require("quapy", extra="dev")
    wanted = {name for grid in chosen for name in grid.data_sets}
    outputs = {}
    for name in DATA_SETS:
        if name in wanted:
            try:
                outputs[name] = load(name, data)
            except FileNotFoundError as missing:
                raise click.ClickException(
                    f"{name} needs {missing.filename}; leave it out with --data-set"
                ) from None
    results = Results(out)
    units = [unit for grid in chosen for unit in grid.units(outputs)]
    left = list(results.missing(units))
    print(f"{len(units)} units, {len(left)} of them to run", flush=True)
    if left:
        for name in THREADS:  # workers inherit it: one core each
            os.environ.setdefault(name, "1")
        try:
            run_all(left, data, results, workers)
        finally:
            results.finish()
    print(f"wrote {out}: {len(results.rows)} rows")


def run_all(units: list[Unit], data: Path, results: "Results", workers: int) -> None:
    """Run units in processes of their own and keep each as soon as it is done."""
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"))
    with pool, progress_bar("units", len(units)) as bar:
        futures = [pool.submit(run, unit, data) for unit in units]
        try:
            for future in as_completed(futures):
                results.keep(future.result())
                bar.advance(1)
        except BrokenProcessPool:
            raise click.ClickException(
                "a worker was killed, perhaps for want of memory: run the same command to go on"
            ) from None
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


@lru_cache(maxsize=8)
def _repeat(data_set: str, number: int, data: Path) -> Repeat:
    return Repeat(load(data_set, data), number)


def run(unit: Unit, data: Path) -> list[dict[str, Any]]:
    """The rows of a unit; a method that fails says why in them."""
    repeat = _repeat(unit.data_set, unit.repeat, data)
    outputs = repeat.outputs
    targets = [repeat.target(shift, unit.n_target) for shift in unit.shifts]
    task = Task.of(repeat, unit.labels, targets, unit.graph or "none")
    rows: list[dict[str, Any]] = [dict(zip(KEY, key, strict=True)) for key in unit.row_keys()]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a posterior has it in its status
            estimates = METHODS[unit.method].run(task)
    except (ValueError, ArithmeticError, RuntimeError) as error:
        return [row | {"status": f"{FAILED}: {error}"} for row in rows]
    soft = task.target_scores or [None] * len(targets)
    for row, estimate, target, scores in zip(rows, estimates, targets, soft, strict=True):
        row["n_classes"] = outputs.n_classes
        row["shift_size"] = float(np.abs(target.population - outputs.source_prior).sum())
        truth = outputs.truth[target.rows]
        row |= scores_of(estimate, target, outputs.source_prior, scores, truth)
        row["status"] = estimate.status
    return rows


class Results:
    """Rows in a Parquet file, and beside it those that came since, a line of JSON each.

    A line that a kill cut short is dropped; :meth:`finish` makes one file of both.
    """

    def __init__(self, path: Path) -> None:
        import polars as pl

        self.path, self.journal = path, path.with_name(path.name + ".journal")
        self.rows = pl.read_parquet(path).to_dicts() if path.exists() else []
        if self.journal.exists():
            for line in self.journal.read_text().splitlines():
                try:
                    self.rows.append(json.loads(line))
                except json.JSONDecodeError:
                    break
            self.finish()

    def missing(self, units: Iterable[Unit]) -> Iterable[Unit]:
        """What is left of the units, without rows that are there or that another unit makes."""
        done = (row for row in self.rows if not row["status"].startswith(FAILED))
        known = {tuple(row[name] for name in KEY) for row in done}
        for unit in units:
            keys = dict(zip(unit.shifts, unit.row_keys(), strict=True))
            left = tuple(shift for shift, key in keys.items() if key not in known)
            known.update(keys.values())
            if left:
                yield replace(unit, shifts=left)

    def keep(self, rows: list[dict[str, Any]]) -> None:
        """Add the rows of a unit."""
        with self.journal.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
        self.rows += rows

    def finish(self) -> None:
        """Write the Parquet file, in an order that does not depend on who was first."""
        import polars as pl

        if not self.rows:
            self.journal.unlink(missing_ok=True)
            return
        frame = pl.DataFrame(self.rows, infer_schema_length=None)
        frame = frame.unique(KEY, keep="last").sort(KEY)
        frame = frame.cast({pl.Float64: pl.Float32})  # as many digits as anyone will read
        self.rows = frame.to_dicts()
        write_atomically(self.path, lambda file: frame.write_parquet(file, compression="zstd"))
        self.journal.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
