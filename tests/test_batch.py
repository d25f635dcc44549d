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
from commands import failed_with, run_batch, write_csv

import gsb3se as gs
from gsb3se.batch import counting
from gsb3se.batch.counting import TargetColumns
from gsb3se.batch.dask_cluster import OnDask
from gsb3se.batch.jobs import Job
from gsb3se.batch.journal import GroupResult, Journal, file_stamp
from gsb3se.batch.processes import InProcess
from gsb3se.batch.scheduling import infer_groups
from gsb3se.batch.window_inference import Summary, summarise
from gsb3se.estimate import identity
from gsb3se.report import read_batch
from gsb3se.support.progress import progress_bar
from gsb3se_amortized import Amortized

NAMES = np.array(["ant", "bee", "cow"])
WINDOWS = 6  # of the fixture logs


def confusion(counts):
    return gs.ShiftCounts(counts.confusion, [1, 1, 1], counts.labels)


def test_a_row_a_group_and_class_that_estimate_gives_too(run, logs, predictions, tmp_path):
    result = run_batch(run, "logs.parquet", "--by", "day", "--prior", "anchored")
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
        result = run_batch(run, source, "--by", "day", "--backend", "newton", out=f"{name}.csv")
        assert result.exit_code == 0, result.output
    texts = {(tmp_path / f"{name}.csv").read_text() for name in "abcd"}
    assert len(texts) == 1


def test_formats_hold_the_same(run, logs, tmp_path):
    for suffix in ("parquet", "csv", "jsonl"):
        result = run_batch(
            run, "logs.csv", "--by", "day", "--backend", "newton", out=f"out.{suffix}"
        )
        assert result.exit_code == 0, result.output
    table = pl.read_parquet(tmp_path / "out.parquet")
    assert pl.read_csv(tmp_path / "out.csv").equals(table)
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert lines == table.to_dicts()


def test_without_a_key_all_rows_are_one_group(run, logs, tmp_path):
    assert run_batch(run, "logs.csv", out="out.csv").exit_code == 0
    table = pl.read_csv(tmp_path / "out.csv")
    assert table.columns[0] == "class"
    assert table["n_target"].to_list() == [720] * 3


def test_counted_rows_stand_for_several(run, logs, tmp_path):
    counted = logs.group_by("day", "prediction").len("times")
    counted.write_csv(tmp_path / "counted.csv")
    pl.read_csv(tmp_path / "val.csv").with_columns(times=1).write_csv(tmp_path / "val.csv")
    arguments = ("--by", "day", "--backend", "newton")
    assert run_batch(run, "logs.csv", *arguments, out="rows.csv").exit_code == 0
    result = run_batch(
        run, "counted.csv", *arguments, "--count-column", "times", out="counted-out.csv"
    )
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
    # Only the paper's prior does not care which class is called which.
    result = run_batch(run, "both.parquet", *arguments, "--prior", "paper")
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
    result = run_batch(run, "strange.parquet", "--by", "day", "--backend", "newton")
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
        infer_groups(job, groups, journal, InProcess(1, len(groups)))
        found = list(journal.results())
    assert [one.status for one in found] == ["ok", "failed", "ok"]
    assert found[1].message == "odd" and found[1].numbers is None


def tiny_job(predictions, backend, targets):
    problem = gs.Problem(confusion(predictions))
    prior = np.ones(3) / 3
    job = Job({"": problem}, {"": prior}, backend)
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
    found = summarise(post, Summary(np.array([0.3, 0.3, 0.4]), 0.9, 0.35))
    assert found.shift == pytest.approx((0.4 + 0.4 + 0) / 3)
    assert found.probability == pytest.approx(2 / 3)


def test_alerts_are_listed_and_can_fail(run, logs, tmp_path):
    arguments = ("logs.csv", "--by", "day", "--alert", "0.3", "--certainty", "0.9")
    result = run_batch(run, *arguments, out="out.csv")
    assert result.exit_code == 0 and "farther than 0.3 from the source prior" in result.output
    assert run_batch(run, *arguments, "--fail-on-alert", out="out.csv").exit_code == 3
    calm = run_batch(
        run, "logs.csv", "--by", "day", "--alert", "2", "--fail-on-alert", out="out.csv"
    )
    assert calm.exit_code == 0 and "no group is farther than 2" in calm.output


def test_shifts_are_measured_from_a_given_prior(run, logs, tmp_path):
    write_csv(tmp_path / "p.csv", **{"class": ["cow", "ant", "bee"], "share": [0.5, 0.2, 0.3]})
    assert run_batch(run, "logs.csv", "--source-prior", "p.csv", out="out.csv").exit_code == 0
    assert pl.read_csv(tmp_path / "out.csv")["source"].to_list() == [0.2, 0.3, 0.5]


def test_a_groups_draws_do_not_depend_on_the_others(run, logs, tmp_path):
    assert run_batch(run, "logs.csv", "--by", "day", out="all.csv").exit_code == 0
    logs.filter(pl.col("day") > 2).write_csv(tmp_path / "late.csv")
    assert run_batch(run, "late.csv", "--by", "day", out="some.csv").exit_code == 0
    late = pl.read_csv(tmp_path / "all.csv").filter(pl.col("day") > 2)
    assert pl.read_csv(tmp_path / "some.csv").equals(late)


# Going on


def start(tmp_path, *arguments):
    command = [sys.executable, "-m", "gsb3se.cli", "batch", *arguments]
    return subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_a_killed_run_goes_on_to_the_same_result(tmp_path, logs, workers):
    whole = pl.concat([logs.with_columns(day=pl.col("day") + 6 * k) for k in range(8)])
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
        infer_groups(job, groups, journal, InProcess(1, 3))
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
        infer_groups(job, groups, journal, InProcess(1, 3))
    assert len(prepared) == 1


def test_unfinished_work_is_neither_lost_nor_mixed_up(run, logs, tmp_path):
    arguments = ("logs.csv", "--by", "day", "--backend", "newton")
    with Journal(tmp_path / "out.parquet.unfinished", {"seed": "0"}, resume=False):
        assert failed_with(run_batch(run, *arguments, "--resume"), "another run is at work")
    assert failed_with(run_batch(run, *arguments), "--resume goes on with it")
    failed_with(run_batch(run, *arguments, "--resume", "--seed", "1"), "differs in")
    (tmp_path / "out.parquet.unfinished").write_text("something else")
    assert failed_with(run_batch(run, *arguments, "--resume"), "holds no unfinished work")
    (tmp_path / "out.parquet.unfinished").unlink()
    assert (
        run_batch(run, *arguments, "--resume").exit_code == 0
    )  # nothing to go on with: from the start


# Clusters


def test_a_dask_cluster_gives_the_same(run, logs, tmp_path):
    for backend in ("structured", "amortized"):
        arguments = ("logs.parquet", "--by", "day", "--backend", backend)
        assert run_batch(run, *arguments).exit_code == 0
        result = run_batch(run, *arguments, "--dask", "local", "--workers", "2", out="dask.parquet")
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
        infer_groups(job, groups, journal, InProcess(1, 4))
        expected = list(journal.results())
    job, groups = tiny_job(predictions, Lethal(), targets)
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as dask,
        OnDask(dask.scheduler_address, 2) as place,
        Journal(tmp_path / "there", {}, resume=False) as journal,
    ):
        infer_groups(job, groups, journal, place)
        found = list(journal.results())
    assert (tmp_path / "mark").exists()
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one.numbers, other.numbers)


def test_a_cluster_that_is_not_there(run, logs, monkeypatch):
    monkeypatch.setattr("gsb3se.batch.dask_cluster._PATIENCE", 1.0)
    result = run_batch(run, "logs.csv", "--by", "day", "--dask", "tcp://127.0.0.1:9")
    assert failed_with(result, "no dask scheduler answers")


def test_an_earlier_result_stays_when_nothing_could_be_done(run, logs, tmp_path):
    assert run_batch(run, "logs.csv", "--by", "day", "--backend", "newton").exit_code == 0
    before = (tmp_path / "out.parquet").read_bytes()
    write_csv(tmp_path / "strangers.csv", prediction=["gnu", "yak"])
    assert run_batch(run, "strangers.csv").exit_code == 1
    assert (tmp_path / "out.parquet").read_bytes() == before


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
    job = Job(problems, priors, gs.Structured(refine=False), by_model=True)
    entries = [
        (model, day, name, int(rng.integers(20, 90)))
        for model in problems
        for day in range(2)
        for name in labels
    ]
    groups = counted(entries, ("model", "day"), labels)
    monkeypatch.setattr("gsb3se.batch.processes._WORTH_HELPERS", 0.0)
    found = []
    for workers in (1, 2):
        with (
            Journal(tmp_path / f"journal{workers}", {}, resume=False) as journal,
            InProcess(workers, len(groups)) as place,
        ):
            infer_groups(job, groups, journal, place)
            found.append([result.numbers for result in journal.results()])
    np.testing.assert_array_equal(*found)
    assert np.abs(found[0][0] - found[0][2]).max() > 0.05  # models do differ


def test_a_progress_bar_where_someone_looks(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    with progress_bar("8 groups", 8) as bar:
        for _ in range(4):
            bar.advance(2)
            time.sleep(0.15)
    shown = sys.stderr.getvalue()
    assert "8 groups" in shown and "8/8" in shown and "/s" in shown
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with progress_bar("8 groups", 8) as bar:
        bar.advance(8)
    assert sys.stderr.getvalue() == ""


# What would be wrong without a word


def test_several_models_are_not_pooled_unless_asked_for(run, logs, tmp_path):
    validation = pl.read_csv(tmp_path / "val.csv")
    halves = validation.with_columns(model=pl.Series(["a", "b"] * 100))
    halves.write_csv(tmp_path / "val.csv")
    logs.with_columns(model=pl.lit("a")).write_parquet(tmp_path / "logs.parquet")
    arguments = ("logs.parquet", "--by", "day", "--backend", "newton")
    assert failed_with(run_batch(run, *arguments), "--model-column model")
    assert run_batch(run, *arguments, "--pool-models").exit_code == 0
    assert run_batch(run, *arguments, "--model-column", "model").exit_code == 0
    halves.with_columns(model=pl.lit("a")).write_csv(tmp_path / "val.csv")
    assert run_batch(run, *arguments).exit_code == 0  # of one model there is nothing to pool


@pytest.mark.parametrize("out", ["logs.parquet", "sub/../logs.parquet", "link.parquet"])
def test_an_input_is_never_written_over(run, logs, tmp_path, out):
    (tmp_path / "sub").mkdir()
    (tmp_path / "link.parquet").symlink_to(tmp_path / "logs.parquet")
    before = (tmp_path / "logs.parquet").read_bytes()
    result = run_batch(run, "logs.parquet", "--by", "day", out=out)
    assert failed_with(result, "would overwrite the input")
    assert (tmp_path / "logs.parquet").read_bytes() == before


@pytest.mark.parametrize(
    "arguments",
    [
        ("estimate", "--validation", "val.csv", "--target", "new.csv", "--out", "val.csv"),
        ("estimate", "--validation", "val.csv", "--target", "new.csv", "--out", "./new.csv"),
        ("estimate", "--counts", "counts.npz", "--out", "counts.npz"),
        ("estimate", "--counts", "counts.npz", "--graph", "graph.npz", "--out", "graph.npz"),
        ("compare", "--validation", "val.csv", "--target", "new.csv", "--out", "val.csv"),
        ("baselines", "--validation", "val.csv", "--target", "new.csv", "--out", "new.csv"),
        ("graph", "build", "names.npz", "--out", "names.npz"),
        ("report", "page.html", "--out", "page.html"),
    ],
)
def test_other_commands_do_not_write_over_their_inputs_either(
    run, predictions, tmp_path, arguments
):
    predictions.save(tmp_path / "counts.npz")
    gs.LabelGraph.exchangeable(3, predictions.labels).save(tmp_path / "graph.npz")
    np.savez(tmp_path / "names.npz", embeddings=np.eye(3))
    (tmp_path / "page.html").write_text("kept")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert failed_with(run(*arguments), "would overwrite the input")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_replaced_checkpoint_is_another_backend(tmp_path):
    weights = Path(gs.__file__).parents[1] / "gsb3se_amortized" / "weights" / "base.safetensors"
    path = tmp_path / "encoder.safetensors"
    path.write_bytes(weights.read_bytes())
    backend = Amortized(checkpoint=str(path))
    before, stamp = identity(backend), path.stat()
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert identity(backend) != before
    assert identity(gs.NewtonCG()) == repr(gs.NewtonCG())


@pytest.mark.parametrize("labels", [["001", "002", "01"], ["True", "False", "None"]])
def test_the_report_reads_what_batch_wrote(run, tmp_path, labels):
    rng = np.random.default_rng(0)
    names = np.array(labels)
    truth = rng.integers(3, size=90)
    write_csv(tmp_path / "val.csv", label=names[truth], prediction=names[truth])
    days = np.repeat(["1", "2", "x"], 200)
    write_csv(tmp_path / "new.csv", day=days, prediction=names[rng.integers(3, size=600)])
    for suffix in ("parquet", "csv", "jsonl"):
        out = f"out.{suffix}"
        result = run_batch(run, "new.csv", "--by", "day", "--backend", "newton", out=out)
        assert result.exit_code == 0, result.output
        assert set(read_batch(tmp_path / out).drift.labels) == set(labels)
        result = run("report", out, "--out", "page.html")
        assert result.exit_code == 0, result.output


@pytest.mark.parametrize("column", ["model", "Model", " MODEL "])
def test_another_model_is_noticed_wherever_it_is(run, logs, tmp_path, column):
    validation = pl.read_csv(tmp_path / "val.csv")
    validation.with_columns(model=pl.lit("a")).write_csv(tmp_path / "val.csv")
    logs.with_columns(pl.lit("b").alias(column)).write_parquet(tmp_path / "logs.parquet")
    result = run_batch(run, "logs.parquet", "--backend", "newton")
    assert failed_with(result, "--pool-models to take them for one classifier")
    folder = tmp_path / "hive" / "model=b"
    folder.mkdir(parents=True)
    logs.write_parquet(folder / "part.parquet")
    assert failed_with(run_batch(run, "hive", "--backend", "newton"), "with 'a' in val.csv")
    empty = logs.with_columns(pl.lit(None, pl.String).alias(column))
    empty.write_parquet(tmp_path / "logs.parquet")
    assert run_batch(run, "logs.parquet", "--backend", "newton").exit_code == 0


def test_validation_labels_in_another_spelling_are_refused(run, logs, tmp_path):
    validation = pl.read_csv(tmp_path / "val.csv")
    upper = validation.with_columns(pl.col("prediction").str.to_uppercase())
    upper.write_csv(tmp_path / "val.csv")
    assert failed_with(run_batch(run, "logs.parquet"), "have no class in common")


def test_validation_counts_of_zero_are_no_rows(run, logs, tmp_path):
    write_csv(tmp_path / "val.csv", label=["ant", "bee"], prediction=["ant", "bee"], n=[0, 0])
    write_csv(tmp_path / "new.csv", prediction=["ant", "bee"], n=[3, 4])
    result = run_batch(run, "new.csv", "--count-column", "n")
    assert failed_with(result, "val.csv has no validation rows")


@pytest.mark.parametrize(
    ("more", "message"), [("ant,.1\n", "more than one share of 'ant'"), ("zebra,.1\n", "'zebra'")]
)
def test_a_source_prior_names_each_class_once(run, logs, tmp_path, more, message):
    (tmp_path / "prior.csv").write_text("class,share\nant,.4\nbee,.3\ncow,.3\n" + more)
    result = run_batch(run, "logs.parquet", "--source-prior", "prior.csv")
    assert failed_with(result, message)


def test_nothing_is_written_into_a_folder_that_is_read(run, logs, tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "val.csv").rename(tmp_path / "kept" / "val.csv")
    for name in ("val.csv", "new.csv"):
        out = ("--out", f"kept/../kept/{name}")
        result = run("batch", "logs.parquet", "--validation", "kept", *out)
        assert failed_with(result, "lies in the input")


def test_a_replaced_file_of_the_same_size_and_time_is_another(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("one")
    before, times = file_stamp(path), path.stat()
    (tmp_path / "b").write_text("two")
    (tmp_path / "b").replace(path)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert file_stamp(path) != before


def test_whole_numbers_meet_a_graph_whose_names_are_text(run, tmp_path):
    rng = np.random.default_rng(0)
    truth = rng.integers(3, size=90)
    write_csv(tmp_path / "val.csv", label=truth, prediction=truth)
    write_csv(tmp_path / "new.csv", prediction=rng.integers(3, size=50))
    for names in (["2", "0", "1"], ["cat", "dog", "elk"]):
        graph = gs.LabelGraph.from_weights(np.ones((3, 3)), labels=names)
        graph.save(tmp_path / "graph.npz")
        result = run_batch(run, "new.csv", "--graph", "graph.npz", "--backend", "newton")
        assert result.exit_code == 0, result.output
        assert set(pl.read_parquet(tmp_path / "out.parquet")["class"].cast(int)) == {0, 1, 2}
