"""gsb3se batch: counting files, inferring groups, going on after a kill."""

import io
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from commands import failed_with, write_csv

import gsb3se as gs
from gsb3se import batch, counting
from gsb3se.batch_places import InProcess, OnDask
from gsb3se.counting import TargetColumns
from gsb3se.journal import GroupResult, Journal
from gsb3se.progress import progress_bar

NAMES = np.array(["ant", "bee", "cow"])
WINDOWS = 6


@pytest.fixture
def logs(tmp_path, predictions):
    """Six days of predictions, whose shares drift; val.csv lies beside."""
    rng = np.random.default_rng(1)
    days, predicted = [], []
    for day in range(WINDOWS):
        shares = np.array([0.2, 0.3, 0.5]) + np.array([1, 0, -1]) * 0.08 * day
        days += [day] * 120
        predicted += NAMES[rng.choice(3, 120, p=shares)].tolist()
    frame = pl.DataFrame({"day": days, "prediction": predicted})
    frame.write_parquet(tmp_path / "logs.parquet")
    frame.write_csv(tmp_path / "logs.csv")
    return frame


def call(run, *arguments, out="out.parquet"):
    return run("batch", *arguments, "--validation", "val.csv", "--out", out)


def confusion(counts):
    return gs.ShiftCounts(counts.confusion, [1, 1, 1], counts.labels)


def test_a_row_a_group_and_class_that_estimate_gives_too(run, logs, predictions, tmp_path):
    result = call(run, "logs.parquet", "--by", "day", "--prior", "anchored")
    assert result.exit_code == 0, result.output
    assert "6 groups of 3 classes: 6 ok" in result.output
    table = pl.read_parquet(tmp_path / "out.parquet")
    assert table.columns[:6] == ["day", "class", "mean", "sd", "low", "high"]
    assert table.height == WINDOWS * 3
    assert table["day"].to_list() == [day for day in range(WINDOWS) for _ in range(3)]
    assert table["class"].to_list() == [*predictions.labels] * WINDOWS
    assert set(table["n_target"]) == {120}
    assert table["n_validation"].to_list()[:3] == predictions.validation_sizes.tolist()
    source = predictions.validation_sizes / 200
    for day in range(WINDOWS):
        here = table.filter(pl.col("day") == day)
        counts = predictions.with_target(
            [(logs.filter(pl.col("day") == day)["prediction"] == name).sum() for name in NAMES]
        )
        post = gs.estimate(counts, prior=gs.Prior.anchored())
        noise = 6 * post.sd / np.sqrt(400)  # its draws have another seed
        np.testing.assert_allclose(here["mean"], post.mean, atol=noise.max())
        np.testing.assert_allclose(here["sd"], post.sd, rtol=0.2)
        assert (here["low"] < here["mean"]).all() and (here["mean"] < here["high"]).all()
        np.testing.assert_allclose(here["source"], source)
        mean, sd = here["mean"].to_numpy(), here["sd"].to_numpy()
        np.testing.assert_allclose(here["effective_n"], mean * (1 - mean) / sd**2)
        assert here["shift"][0] >= np.abs(mean - source).sum() - 1e-12  # of draws, by Jensen
    late, early = (table.filter(pl.col("day") == day)["mean"][0] for day in (5, 0))
    assert late > early


def test_csv_folder_and_glob_are_the_same_as_parquet(run, logs, tmp_path):
    parts = tmp_path / "parts"
    parts.mkdir()
    for number, part in enumerate(logs.iter_slices(200)):
        part.write_csv(parts / f"{number}.csv")
    (parts / "_SUCCESS").write_text("")
    (parts / ".hidden.csv").write_text("nothing")
    for name, source in {
        "a": "logs.parquet",
        "b": "logs.csv",
        "c": "parts",
        "d": "parts/*.csv",
    }.items():
        result = call(run, source, "--by", "day", "--backend", "newton", out=f"{name}.csv")
        assert result.exit_code == 0, result.output
    texts = {(tmp_path / f"{name}.csv").read_text() for name in "abcd"}
    assert len(texts) == 1


def test_formats_hold_the_same(run, logs, tmp_path):
    for suffix in ("parquet", "csv", "jsonl"):
        result = call(run, "logs.csv", "--by", "day", "--backend", "newton", out=f"out.{suffix}")
        assert result.exit_code == 0, result.output
    table = pl.read_parquet(tmp_path / "out.parquet")
    assert pl.read_csv(tmp_path / "out.csv").equals(table)
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert lines == table.to_dicts()


def test_without_a_key_all_rows_are_one_group(run, logs, tmp_path):
    assert call(run, "logs.csv", out="out.csv").exit_code == 0
    table = pl.read_csv(tmp_path / "out.csv")
    assert table.columns[0] == "class"
    assert table["n_target"].to_list() == [720] * 3


def test_counted_rows_stand_for_several(run, logs, tmp_path):
    counted = logs.group_by("day", "prediction").len("times")
    counted.write_csv(tmp_path / "counted.csv")
    pl.read_csv(tmp_path / "val.csv").with_columns(times=1).write_csv(tmp_path / "val.csv")
    arguments = ("--by", "day", "--backend", "newton")
    assert call(run, "logs.csv", *arguments, out="rows.csv").exit_code == 0
    result = call(run, "counted.csv", *arguments, "--count-column", "times", out="counted-out.csv")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "rows.csv").read_text() == (tmp_path / "counted-out.csv").read_text()


def test_models_have_their_own_validation(run, logs, tmp_path):
    validation = pl.read_csv(tmp_path / "val.csv")
    swapped = {"ant": "bee", "bee": "ant", "cow": "cow"}
    pl.concat(
        [
            validation.with_columns(model=pl.lit("good")),
            validation.with_columns(pl.col("prediction").replace(swapped), model=pl.lit("swaps")),
        ]
    ).write_csv(tmp_path / "val.csv")
    pl.concat(
        [
            logs.with_columns(model=pl.lit("good")),
            logs.with_columns(pl.col("prediction").replace(swapped), model=pl.lit("swaps")),
            logs.head(50).with_columns(model=pl.lit("stranger")),
        ]
    ).write_parquet(tmp_path / "both.parquet")
    arguments = ("--model-column", "model", "--by", "day", "--backend", "newton")
    result = call(run, "both.parquet", *arguments)
    assert result.exit_code == 0, result.output
    assert "no rows of the model 'stranger'" in result.output
    table = pl.read_parquet(tmp_path / "out.parquet")
    good, swaps, failed = (
        table.filter(pl.col("model") == name) for name in ("good", "swaps", "stranger")
    )
    np.testing.assert_allclose(good["mean"], swaps["mean"], atol=1e-6)
    assert set(failed["status"]) == {"failed"} and failed["mean"].null_count() == 3


def test_one_bad_group_does_not_stop_the_rest(run, logs, tmp_path):
    strange = logs.with_columns(
        pl.when((pl.col("day") == 2) & (pl.int_range(pl.len()) % 50 == 0))
        .then(pl.lit("gnu"))
        .when((pl.col("day") == 4) & (pl.int_range(pl.len()) % 40 == 0))
        .then(None)
        .otherwise("prediction")
        .alias("prediction")
    )
    strange.write_parquet(tmp_path / "strange.parquet")
    result = call(run, "strange.parquet", "--by", "day", "--backend", "newton")
    assert result.exit_code == 0, result.output
    assert "2 groups failed, the first because it has predictions 'gnu', unknown" in result.output
    table = pl.read_parquet(tmp_path / "out.parquet")
    failed = table.filter(pl.col("status") == "failed")
    assert failed["day"].unique().sort().to_list() == [2, 4]
    assert failed["mean"].null_count() == failed.height == 6
    assert "of its 120 rows have no prediction" in failed.filter(pl.col("day") == 4)["message"][0]
    assert table.filter(pl.col("status") == "ok").height == 4 * 3


class Stumbles:
    """A backend that cannot infer targets with an odd first count."""

    def infer(self, problem, rng):
        if problem.counts.target[0] % 2:
            raise ArithmeticError("odd")
        return gs.Posterior.from_draws(rng.dirichlet(np.ones(3), 50), labels=problem.counts.labels)


class StumblesTogether(Stumbles):
    def infer_many(self, problems, rng):
        return [self.infer(problem, rng) for problem in problems]


@pytest.mark.parametrize("backend", [Stumbles(), StumblesTogether()])
def test_a_failing_inference_fails_its_group_alone(tmp_path, predictions, backend):
    job, groups = tiny_job(predictions, backend, [[2, 5, 5], [3, 5, 5], [4, 5, 5]])
    with Journal(tmp_path / "journal", {}, resume=False) as journal:
        batch.run(job, groups, journal, InProcess(1, len(groups)))
        found = list(journal.results())
    assert [one.status for one in found] == ["ok", "failed", "ok"]
    assert found[1].message == "odd" and found[1].numbers is None


def tiny_job(predictions, backend, targets):
    problem = gs.Problem(confusion(predictions))
    prior = np.ones(3) / 3
    job = batch.Job({"": problem}, {"": prior}, backend)
    entries = [
        (day, name, times)
        for day, target in enumerate(targets)
        for name, times in zip(NAMES.tolist(), target, strict=True)
    ]
    return job, counted(entries, ("day",), predictions.labels)


def counted(entries, keys, labels):
    """Groups from rows of keys, a prediction and how often it occurs."""
    columns = TargetColumns(keys=keys, count="times")
    frame = pl.DataFrame(entries, schema=[*keys, "prediction", "times"], orient="row")
    with tempfile.NamedTemporaryFile(suffix=".parquet") as file:
        frame.write_parquet(file.name)
        return counting.count_predictions([Path(file.name)], columns, labels)


def test_probability_of_a_shift_is_that_of_the_draws(predictions):
    post = gs.Posterior.from_draws([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6], [0.3, 0.3, 0.4]])
    found = batch.summarise(post, batch.Summary(np.array([0.3, 0.3, 0.4]), 0.9, 0.35))
    assert found.shift == pytest.approx((0.4 + 0.4 + 0) / 3)
    assert found.probability == pytest.approx(2 / 3)


def test_alerts_are_listed_and_can_fail(run, logs, tmp_path):
    arguments = ("logs.csv", "--by", "day", "--alert", "0.3", "--certainty", "0.9")
    result = call(run, *arguments, out="out.csv")
    assert result.exit_code == 0 and "farther than 0.3 from the source prior" in result.output
    assert call(run, *arguments, "--fail-on-alert", out="out.csv").exit_code == 3
    calm = call(run, "logs.csv", "--by", "day", "--alert", "2", "--fail-on-alert", out="out.csv")
    assert calm.exit_code == 0 and "no group is farther than 2" in calm.output


def test_shifts_are_measured_from_a_given_prior(run, logs, tmp_path):
    write_csv(tmp_path / "p.csv", **{"class": ["cow", "ant", "bee"], "share": [0.5, 0.2, 0.3]})
    assert call(run, "logs.csv", "--source-prior", "p.csv", out="out.csv").exit_code == 0
    assert pl.read_csv(tmp_path / "out.csv")["source"].to_list() == [0.2, 0.3, 0.5]


def test_a_groups_draws_do_not_depend_on_the_others(run, logs, tmp_path):
    assert call(run, "logs.csv", "--by", "day", out="all.csv").exit_code == 0
    logs.filter(pl.col("day") > 2).write_csv(tmp_path / "late.csv")
    assert call(run, "late.csv", "--by", "day", out="some.csv").exit_code == 0
    late = pl.read_csv(tmp_path / "all.csv").filter(pl.col("day") > 2)
    assert pl.read_csv(tmp_path / "some.csv").equals(late)


# Going on


def start(tmp_path, *arguments):
    command = [sys.executable, "-m", "gsb3se.cli", "batch", *arguments]
    return subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_killed_run_goes_on_to_the_same_result(tmp_path, logs, workers):
    whole = pl.concat([logs.with_columns(day=pl.col("day") + 6 * k) for k in range(25)])
    whole.write_parquet(tmp_path / "many.parquet")
    arguments = ["many.parquet", "--validation", "val.csv", "--by", "day", "--workers", workers]
    began = time.perf_counter()
    done = start(tmp_path, *arguments, "--out", "whole.parquet")
    assert done.wait() == 0, done.stdout.read()
    seconds = time.perf_counter() - began
    expected = (tmp_path / "whole.parquet").read_bytes()
    chooser = random.Random(int(workers))
    for kill in range(3):
        run = start(tmp_path, *arguments, "--out", "out.parquet", *(["--resume"] if kill else []))
        time.sleep(chooser.uniform(0.3, 0.9) * seconds)
        run.send_signal(signal.SIGKILL)
        run.wait()
        assert run.returncode == -signal.SIGKILL or (tmp_path / "out.parquet").exists()
        if (tmp_path / "out.parquet").exists():
            break
    last = start(tmp_path, *arguments, "--out", "out.parquet", "--resume")
    assert last.wait() == 0, last.stdout.read()
    assert (tmp_path / "out.parquet").read_bytes() == expected
    left = sorted(path.name for path in tmp_path.iterdir() if "out.parquet" in path.name)
    assert left == ["out.parquet"]


def test_finished_groups_are_not_repeated(tmp_path, predictions):
    asked = []

    class Counting(Stumbles):
        def infer(self, problem, rng):
            asked.append(problem.counts.target[0])
            return super().infer(problem, rng)

    targets = [[2, 5, 5], [4, 5, 5], [6, 5, 5]]
    job, groups = tiny_job(predictions, Counting(), targets)
    with Journal(tmp_path / "journal", {"seed": "0"}, resume=False) as journal:
        journal.keep([(1, GroupResult("ok", ""))])
    with Journal(tmp_path / "journal", {"seed": "0"}, resume=True) as journal:
        batch.run(job, groups, journal, InProcess(1, 3))
        assert asked == [2, 6]
        assert len(list(journal.results())) == 3


def test_the_validation_side_is_prepared_once(tmp_path, predictions, monkeypatch):
    prepared = []
    real = gs.Structured.prepared
    monkeypatch.setattr(
        gs.Structured, "prepared", lambda self, p: prepared.append(p) or real(self, p)
    )
    job, groups = tiny_job(predictions, gs.Structured(), [[2, 5, 5], [4, 5, 5], [6, 5, 5]])
    with Journal(tmp_path / "journal", {}, resume=False) as journal:
        batch.run(job, groups, journal, InProcess(1, 3))
    assert len(prepared) == 1


def test_unfinished_work_is_neither_lost_nor_mixed_up(run, logs, tmp_path):
    arguments = ("logs.csv", "--by", "day", "--backend", "newton")
    with Journal(tmp_path / "out.parquet.unfinished", {"seed": "0"}, resume=False):
        assert failed_with(call(run, *arguments, "--resume"), "another run at work")
    assert failed_with(call(run, *arguments), "--resume goes on with it")
    failed_with(call(run, *arguments, "--resume", "--seed", "1"), "differs in")
    (tmp_path / "out.parquet.unfinished").write_text("something else")
    assert failed_with(call(run, *arguments, "--resume"), "holds no unfinished work")
    (tmp_path / "out.parquet.unfinished").unlink()
    assert call(run, *arguments, "--resume").exit_code == 0  # nothing to go on with: from the start


# Clusters


def test_a_dask_cluster_gives_the_same(run, logs, tmp_path):
    for backend in ("structured", "amortized"):
        arguments = ("logs.parquet", "--by", "day", "--backend", backend)
        assert call(run, *arguments).exit_code == 0
        result = call(run, *arguments, "--dask", "local", "--workers", "2", out="dask.parquet")
        assert result.exit_code == 0, result.output
        assert (tmp_path / "dask.parquet").read_bytes() == (tmp_path / "out.parquet").read_bytes()


class Lethal(gs.NewtonCG):
    """Kills the first worker that infers the second target."""

    def infer(self, problem, rng):
        mark = Path(os.environ["GSB3SE_TEST_MARK"])
        if problem.counts.target[0] == 4 and not mark.exists():
            mark.write_text("dead")
            os.kill(os.getpid(), signal.SIGKILL)
        return super().infer(problem, rng)


def test_a_dead_worker_loses_nothing(tmp_path, predictions, monkeypatch):
    distributed = pytest.importorskip("distributed")
    monkeypatch.setenv("GSB3SE_TEST_MARK", str(tmp_path / "mark"))
    targets = [[2, 5, 5], [4, 5, 5], [6, 5, 5], [8, 5, 5]]
    job, groups = tiny_job(predictions, gs.NewtonCG(), targets)
    with Journal(tmp_path / "here", {}, resume=False) as journal:
        batch.run(job, groups, journal, InProcess(1, 4))
        expected = list(journal.results())
    job, groups = tiny_job(predictions, Lethal(), targets)
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as dask,
        OnDask(dask.scheduler_address, 2) as place,
        Journal(tmp_path / "there", {}, resume=False) as journal,
    ):
        batch.run(job, groups, journal, place)
        found = list(journal.results())
    assert (tmp_path / "mark").exists()
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one.numbers, other.numbers)


def test_a_cluster_that_is_not_there(run, logs, monkeypatch):
    monkeypatch.setattr("gsb3se.batch_places._PATIENCE", 1.0)
    result = call(run, "logs.csv", "--by", "day", "--dask", "tcp://127.0.0.1:9")
    assert failed_with(result, "no dask scheduler answers")


# Bad files


@pytest.mark.parametrize(
    ("file", "arguments", "message"),
    [
        ("absent.csv", [], "no such file or folder"),
        ("empty.csv", [], "empty.csv is empty"),
        ("header.csv", [], "no rows"),
        ("truncated.parquet", [], "not a whole Parquet file"),
        ("logs.csv", ["--by", "week"], "no column 'week'"),
        ("logs.csv", ["--prediction-column", "guess"], "no column 'guess'"),
        ("strangers.csv", [], "no group could be inferred, the first because it has predictions"),
        ("numbers.parquet", [], "the predictions are"),
        ("floats.parquet", [], "must be text or whole numbers"),
        ("two-types", [], "not of the same type"),
        ("ragged.csv", [], "cannot be read"),
        ("nothing.csv", ["--count-column", "times"], "no target predictions"),
        ("negative.csv", ["--count-column", "times"], "below 0"),
        ("text-counts.csv", ["--count-column", "times"], "cannot be read"),
        ("logs.csv", ["--by", "prediction"], "must differ"),
        ("clash.csv", ["--by", "mean"], "two columns of the result"),
        ("no-files", [], "no .parquet or .csv file"),
        ("val.txt", [], "expected .parquet or .csv files"),
    ],
)
def test_bad_targets_are_refused_in_a_sentence(run, logs, tmp_path, file, arguments, message):
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "header.csv").write_text("day,prediction\n")
    (tmp_path / "truncated.parquet").write_bytes((tmp_path / "logs.parquet").read_bytes()[:-50])
    write_csv(tmp_path / "strangers.csv", prediction=["gnu", "yak"])
    pl.DataFrame({"prediction": [0, 1]}).write_parquet(tmp_path / "numbers.parquet")
    pl.DataFrame({"prediction": [0.5, 1.0]}).write_parquet(tmp_path / "floats.parquet")
    (tmp_path / "two-types").mkdir()
    pl.DataFrame({"prediction": [0, 1]}).write_parquet(tmp_path / "two-types" / "a.parquet")
    pl.DataFrame({"prediction": ["ant"]}).write_parquet(tmp_path / "two-types" / "b.parquet")
    (tmp_path / "ragged.csv").write_text("prediction\nant\nbee,cow,ant\n")
    for name, times in {"nothing": [0, 0], "negative": [-2, 5], "text-counts": ["x", 1]}.items():
        write_csv(tmp_path / f"{name}.csv", prediction=["ant", "bee"], times=times)
    write_csv(tmp_path / "clash.csv", prediction=["ant"], mean=[1])
    pl.read_csv(tmp_path / "val.csv").with_columns(times=1).write_csv(tmp_path / "val.csv")
    (tmp_path / "no-files").mkdir()
    (tmp_path / "val.txt").write_text("ant\n")
    assert failed_with(call(run, file, *arguments), message)
    assert not [path for path in tmp_path.iterdir() if "out.parquet" in path.name]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("label,prediction\n", "no rows"),
        ("label,guess\nant,ant\n", "no column 'prediction'"),
        ("label,prediction\nant,\n", "is empty"),
        ("label,prediction\nant,ant\n", "at least 2 classes"),
    ],
)
def test_bad_validation_files_are_refused(run, logs, tmp_path, content, message):
    (tmp_path / "val.csv").write_text(content)
    assert failed_with(call(run, "logs.csv", "--by", "day"), message)
    assert not (tmp_path / "out.parquet").exists()


def test_an_earlier_result_stays_when_nothing_could_be_done(run, logs, tmp_path):
    assert call(run, "logs.csv", "--by", "day", "--backend", "newton").exit_code == 0
    before = (tmp_path / "out.parquet").read_bytes()
    write_csv(tmp_path / "strangers.csv", prediction=["gnu", "yak"])
    assert call(run, "strangers.csv").exit_code == 1
    assert (tmp_path / "out.parquet").read_bytes() == before


@pytest.mark.parametrize("block", [3_000, 20_000, 1 << 22])
def test_a_large_file_is_counted_as_numpy_counts_it(tmp_path, monkeypatch, block):
    rng = np.random.default_rng(0)
    windows, predicted = rng.integers(50, size=100_000), rng.integers(20, size=100_000)
    frame = pl.DataFrame({"w": windows, "prediction": predicted})
    frame.write_parquet(tmp_path / "many.parquet", row_group_size=7_000)
    monkeypatch.setattr(counting, "_LEAST_ROWS", block)
    files, columns = [tmp_path / "many.parquet"], TargetColumns(keys=("w",))
    groups = counting.count_predictions(files, columns, tuple(range(20)))
    assert len(groups) == 50 and groups.starts[-1] == 50 * 20
    again = counting.Groups.from_bytes(groups.to_bytes(), groups.labels)
    assert again.keys.equals(groups.keys) and again.labels == groups.labels
    for place in range(50):
        expected = np.bincount(predicted[windows == groups.values(place)[0]], minlength=20)
        np.testing.assert_array_equal(groups.target(place), expected)
        np.testing.assert_array_equal(again.target(place), expected)
        assert groups.n_target(place) == expected.sum()


def test_whole_numbers_in_text_are_numbers_where_labels_are(tmp_path):
    write_csv(tmp_path / "a.csv", day=[10, 9, 9], prediction=["1", "2.0", " 1"])
    write_csv(tmp_path / "b.csv", day=["9 ", "10"], prediction=["2", "2"])
    files, columns = [tmp_path / "a.csv", tmp_path / "b.csv"], TargetColumns(keys=("day",))
    groups = counting.count_predictions(files, columns, (1, 2))
    assert groups.keys["day"].to_list() == [9, 10]  # in the order of numbers
    assert groups.target(0).tolist() == [1, 2] and groups.target(1).tolist() == [1, 1]


def test_helpers_give_each_model_its_own_source(tmp_path, monkeypatch):
    """Four models whose confusions differ, inferred here and by helper processes."""
    labels = ("ant", "bee", "cow")
    rng = np.random.default_rng(0)
    problems = {
        f"m{k}": gs.Problem(
            gs.ShiftCounts(np.roll(40 * np.eye(3) + 3, k, axis=0), [1, 1, 1], labels)
        )
        for k in range(4)
    }
    priors = dict.fromkeys(problems, np.ones(3) / 3)
    job = batch.Job(problems, priors, gs.Structured(refine=False), by_model=True)
    entries = [
        (model, day, name, int(rng.integers(20, 90)))
        for model in problems
        for day in range(2)
        for name in labels
    ]
    groups = counted(entries, ("model", "day"), labels)
    monkeypatch.setattr("gsb3se.batch_places._WORTH_HELPERS", 0.0)
    found = []
    for workers in (1, 2):
        with (
            Journal(tmp_path / f"journal{workers}", {}, resume=False) as journal,
            InProcess(workers, len(groups)) as place,
        ):
            batch.run(job, groups, journal, place)
            found.append([result.numbers for result in journal.results()])
    np.testing.assert_array_equal(*found)
    assert np.abs(found[0][0] - found[0][2]).max() > 0.05  # models do differ


def test_a_progress_bar_where_someone_looks(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    with progress_bar("8 groups", 8) as tell:
        for _ in range(4):
            tell(2)
            time.sleep(0.15)
    shown = sys.stderr.getvalue()
    assert "8 groups" in shown and "8/8" in shown and "/s" in shown
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with progress_bar("8 groups", 8) as tell:
        tell(8)
    assert sys.stderr.getvalue() == ""


def test_keys_of_every_kind(run, logs, tmp_path):
    """Dates, truth values, missing ones, categories, and folders that are a column."""
    frame = logs.with_columns(
        date=pl.date(2026, 11, 1) + pl.duration(days=pl.col("day")),
        odd=pl.col("day") % 2 == 1,
        site=pl.when(pl.col("day") < 3).then(pl.lit("north")),
        kind=pl.col("day").cast(pl.String).cast(pl.Categorical),
        prediction=pl.col("prediction").cast(pl.Categorical),
    )
    frame.write_parquet(tmp_path / "kinds.parquet")
    for key, expected in {
        "date": frame["date"].unique().sort().to_list(),
        "odd": [False, True],
        "site": ["north", None],
    }.items():
        result = call(run, "kinds.parquet", "--by", key, "--backend", "newton")
        assert result.exit_code == 0, result.output
        table = pl.read_parquet(tmp_path / "out.parquet")
        assert table[key].unique(maintain_order=True).to_list() == expected
    result = call(run, "kinds.parquet", "--by", "kind", "--backend", "newton")
    assert result.exit_code == 0, result.output
    for day in range(2):
        folder = tmp_path / "parts" / f"week={day}"
        folder.mkdir(parents=True)
        logs.filter(pl.col("day") == day).write_parquet(folder / "part.parquet")
    result = call(run, "parts", "--by", "week", "--backend", "newton", out="weeks.csv")
    assert result.exit_code == 0, result.output
    assert pl.read_csv(tmp_path / "weeks.csv")["week"].unique().sort().to_list() == [0, 1]


@pytest.mark.parametrize("dtype", [pl.UInt8, pl.Int64, pl.Float64, pl.String])
def test_labels_of_every_number_type(run, tmp_path, dtype):
    rng = np.random.default_rng(0)
    truth = rng.integers(3, size=90)
    pl.DataFrame({"label": truth, "prediction": truth}).write_csv(tmp_path / "val.csv")
    predicted = pl.Series("prediction", rng.integers(3, size=50)).cast(dtype)
    predicted.to_frame().write_parquet(tmp_path / "new.parquet")
    result = call(run, "new.parquet", "--backend", "newton", out="out.csv")
    assert result.exit_code == 0, result.output
    assert pl.read_csv(tmp_path / "out.csv")["class"].to_list() == [0, 1, 2]
