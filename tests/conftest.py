"""Settings and fixtures that tests share."""

import os

os.environ.pop("COLUMNS", None)  # parallel test processes set it, and consoles would keep it
if "PYTEST_XDIST_WORKER" in os.environ:  # one process for each core: more threads are in the way
    for library in ("OMP", "OPENBLAS", "MKL"):
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")

import numpy as np
import pytest
from click.testing import CliRunner
from commands import write_csv
from hypothesis import HealthCheck, settings

from gsb3se import ShiftCounts
from gsb3se.cli import main

# The same examples every time: a failure in one run is a failure in the next.
settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("repeatable")


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments):
        return CliRunner().invoke(main, [str(argument) for argument in arguments])

    return call


@pytest.fixture
def predictions(tmp_path):
    """A validation and a target file, and the counts they hold."""
    rng = np.random.default_rng(0)
    names = np.array(["ant", "bee", "cow"])
    truth = rng.integers(3, size=200)
    predicted = np.where(rng.uniform(size=200) < 0.8, truth, rng.integers(3, size=200))
    target = rng.choice(3, 500, p=[0.6, 0.3, 0.1])
    write_csv(tmp_path / "val.csv", id=range(200), label=names[truth], prediction=names[predicted])
    write_csv(tmp_path / "new.csv", prediction=names[target])
    return ShiftCounts.from_predictions(names[truth], names[predicted], names[target])


@pytest.fixture
def logs(tmp_path, predictions):
    """Six days of predictions, whose shares drift; val.csv lies beside."""
    pl = pytest.importorskip("polars")
    names = np.array(["ant", "bee", "cow"])
    rng = np.random.default_rng(1)
    days, predicted = [], []
    for day in range(6):
        shares = np.array([0.2, 0.3, 0.5]) + np.array([1, 0, -1]) * 0.08 * day
        days += [day] * 120
        predicted += names[rng.choice(3, 120, p=shares)].tolist()
    frame = pl.DataFrame({"day": days, "prediction": predicted})
    frame.write_parquet(tmp_path / "logs.parquet")
    frame.write_csv(tmp_path / "logs.csv")
    return frame
