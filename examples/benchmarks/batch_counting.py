"""How fast is a large Parquet file counted, beside polars' own group-by?

python examples/benchmarks/batch_counting.py

A file of 20 million predictions, 1,000 windows of 100 classes by name, is counted as ``gsb3se
batch`` does (files checked, counts sorted, labels and groups told apart) and by a bare group-by of
polars, in turn. The peak memory of each is that of a process which does nothing else.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
import polars as pl

from gsb3se.batch import counting
from gsb3se.batch.counting import TargetColumns
from gsb3se.batch.groups import Groups
from gsb3se.support.table_files import table_files

COLUMNS = TargetColumns(keys=("window",))


@click.command()
@click.option("--rows", default=20_000_000, show_default=True)
@click.option("--windows", default=1000, show_default=True)
@click.option("--classes", default=100, show_default=True)
@click.option("--repeats", default=7, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--only", type=click.Choice(["ours", "bare"]), hidden=True)
@click.option("--file", type=click.Path(path_type=Path), hidden=True)
def main(
    rows: int,
    windows: int,
    classes: int,
    repeats: int,
    seed: int,
    only: str | None,
    file: Path | None,
) -> None:
    """Make the file, count it both ways, tell times, rates and memory."""
    names = tuple(f"class-{i:03d}" for i in range(classes))
    if only is not None and file is not None:
        _ = ours(file, names) if only == "ours" else bare(file)
        click.echo(peak_megabytes())
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "predictions.parquet"
        write(path, rows, windows, names, seed)
        n_groups = len(ours(path, names))
        bare(path)
        times = np.array(
            [(timed(lambda: ours(path, names)), timed(lambda: bare(path))) for _ in range(repeats)]
        )
        ratios = times[:, 0] / times[:, 1]
        click.echo(
            f"{rows:,} rows, {path.stat().st_size / 1e6:.0f} MB, {n_groups} groups: "
            f"{rows / np.median(times[:, 0]) / 1e6:.1f} million rows a second, bare group-by "
            f"{rows / np.median(times[:, 1]) / 1e6:.1f}; ratio of times {np.median(ratios):.2f} "
            f"({ratios.min():.2f} to {ratios.max():.2f})"
        )
        for which in ("ours", "bare"):
            command = [sys.executable, __file__, "--only", which, "--file", str(path)]
            command += ["--classes", str(classes)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            click.echo(f"peak memory, {which}: {done.stdout.strip()} MB")


def ours(path: Path, names: tuple[str, ...]) -> Groups:
    """What the command does before it infers."""
    return counting.count_predictions(table_files([path]), COLUMNS, names)


def bare(path: Path) -> pl.DataFrame:
    """polars alone."""
    scanned = pl.scan_parquet(path).group_by("window", "prediction").len()
    return scanned.collect(engine="streaming")


def timed(work: Callable[[], object]) -> float:
    """Seconds it takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def peak_megabytes() -> int:
    """Of this process so far; getrusage would tell of the process that started it."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) // 1024


def write(path: Path, rows: int, windows: int, names: tuple[str, ...], seed: int) -> None:
    """The file, made of parts so that it never is in memory whole."""
    import pyarrow.parquet as parquet

    rng = np.random.default_rng(seed)
    known, writer = pl.Series(names), None
    for start in range(0, rows, 1 << 20):
        n = min(1 << 20, rows - start)
        part = pl.DataFrame(
            {
                "window": rng.integers(windows, size=n),
                "score": rng.random(n),
                "prediction": known[rng.integers(len(names), size=n)],
            }
        ).to_arrow()
        writer = writer or parquet.ParquetWriter(path, part.schema)
        writer.write_table(part)
    assert writer is not None
    writer.close()


if __name__ == "__main__":
    main()
