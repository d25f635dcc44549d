"""gs.batch.run, the Python twin of ``gsb3se batch``."""

import numpy as np
import polars as pl
import pytest

import gsb3se as gs


@pytest.fixture
def here(tmp_path, logs, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_writes_what_the_command_writes(here, run):
    arguments = ("--validation", "val.csv", "--by", "day", "--seed", "3", "--alert", "0.4")
    command = run("batch", "logs.parquet", *arguments, "--out", "command.csv")
    assert command.exit_code == 0, command.output
    outcome = gs.batch.run(
        "logs.parquet", validation="val.csv", by="day", seed=3, alert=0.4, out="python.csv"
    )
    assert (here / "python.csv").read_bytes() == (here / "command.csv").read_bytes()
    assert sum(outcome.statuses.values()) == len(outcome.groups) == 6
    assert outcome.path.name == "python.csv"


def test_objects_stand_for_files(here):
    graph = gs.LabelGraph.exchangeable(3, ["cow", "bee", "ant"])
    outcome = gs.batch.run(
        ["logs.csv"],
        validation="val.csv",
        by=["day"],
        graph=graph,
        labels=["ant", "bee", "cow"],
        source_prior=[0.2, 0.3, 0.5],
        backend=gs.NewtonCG(),
        out=here / "out.parquet",
    )
    table = pl.read_parquet(outcome.path)
    assert table["class"].to_list()[:3] == ["ant", "bee", "cow"]
    np.testing.assert_allclose(table["source"].to_list()[:3], [0.2, 0.3, 0.5])


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"levle": 0.9}, TypeError, "unknown options 'levle'"),
        ({"level": 1.5}, ValueError, "level must lie between 0 and 1"),
        ({"alert": -1}, ValueError, "alert must lie between 0 and 2"),
        ({"backend": "hcm"}, ValueError, "unknown backend 'hcm'"),
        ({"by": "mean"}, ValueError, "two columns of the result"),
        ({"by": "month"}, ValueError, "no column 'month'"),
        ({"source_prior": [0.5, 0.5]}, ValueError, "source_prior must be a vector of 3"),
        ({"validation": "nowhere.csv"}, (ValueError, OSError), "nowhere"),
        ({"out": "table.txt"}, ValueError, "must end in"),
    ],
)
def test_what_cannot_be_meant_is_said_and_nothing_is_left(here, options, error, message):
    given = {"validation": "val.csv", "by": "day", "out": "table.csv"} | options
    with pytest.raises(error, match=message):
        gs.batch.run("logs.csv", **given)
    assert not [path.name for path in here.iterdir() if path.name.startswith("table")]


def test_a_stopped_run_says_how_it_goes_on(here, monkeypatch):
    real = gs.Posterior.l1_distance
    calls = []

    def stop_at_the_third(self, prior):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(self, prior)

    monkeypatch.setattr(gs.Posterior, "l1_distance", stop_at_the_third)
    monkeypatch.setattr("gsb3se.batch.scheduling._SECONDS_A_COMMIT", 0.0)
    given = {"validation": "val.csv", "by": "day", "out": "table.csv", "workers": 1}
    with pytest.raises(KeyboardInterrupt) as stopped:
        gs.batch.run("logs.csv", **given)
    assert "goes on" in stopped.value.__notes__[0]
    with pytest.raises(ValueError, match="unfinished work"):
        gs.batch.run("logs.csv", **given)
    monkeypatch.setattr(gs.Posterior, "l1_distance", real)
    assert sum(gs.batch.run("logs.csv", resume=True, **given).statuses.values()) == 6
    assert not (here / "table.csv.unfinished").exists()
