"""The benchmark on real classifiers: its targets, its scores, its bookkeeping and its tables."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import real_data
import real_grids
import real_methods
import real_results
import real_scores
import real_tables
from classifier_files import write_folder
from hypothesis import given
from hypothesis import strategies as st
from quapy_peers import adjusted_count, bayesian_cc
from real import Results

import gsb3se as gs

BENCHMARKS = Path(__file__).parent.parent / "examples" / "benchmarks"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("outputs"))


@pytest.fixture
def repeat(folder):
    return real_data.Repeat(real_data.load("cifar10", folder), 3)


@pytest.fixture(params=["cifar10", "20news", "imagenet"])
def any_repeat(request, folder):
    return real_data.Repeat(real_data.load(request.param, folder), 3)


def run(script, *arguments):
    return subprocess.run(
        [sys.executable, BENCHMARKS / script, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )


# Targets


@given(st.lists(st.floats(1e-9, 1.0), min_size=2, max_size=12), st.integers(50, 900))
def test_shares_stay_within_the_pool_and_keep_their_order(weights, n):
    q = np.array(weights) / sum(weights)
    supply = np.full(len(q), 2 * n)  # more than enough in all, perhaps not of one class
    supply[0] = max(n // 4, 9)
    most = (supply - 2 * np.sqrt(supply)) / n
    shares = real_data.within_supply(q, supply, n)
    assert shares.sum() == pytest.approx(1)
    assert (shares <= most * (1 + 1e-9)).all()
    free = shares < most * (1 - 1e-9)
    scale = shares[free] / q[free]
    assert np.ptp(scale) <= 1e-9 * scale.max(initial=0)
    assert (scale >= 1 - 1e-9).all()
    if (q <= most).all():
        np.testing.assert_allclose(shares, q)


def test_a_pool_that_is_too_small_is_refused():
    with pytest.raises(ValueError, match="too small for a target of 100"):
        real_data.within_supply(np.array([0.5, 0.5]), np.array([30, 30]), 100)


def test_targets_and_validation_rows_are_apart_and_nested(any_repeat):
    outputs = any_repeat.outputs
    few, many = any_repeat.validation(5), any_repeat.validation(outputs.most_labels)
    assert set(few) <= set(many)
    n = outputs.n_classes
    np.testing.assert_array_equal(np.bincount(outputs.truth[few]), np.full(n, 5))
    for shift in real_data.SHIFTS:
        target = any_repeat.target(shift, 300)
        assert len(set(target.rows)) == 300
        assert not set(target.rows) & set(many)
        counted = np.bincount(outputs.truth[target.rows], minlength=n) / 300
        np.testing.assert_allclose(counted, target.realised)
        again = real_data.Repeat(outputs, 3).target(shift, 300)
        np.testing.assert_array_equal(target.rows, again.rows)
        other = real_data.Repeat(outputs, 4).target(shift, 300)
        assert not np.array_equal(target.rows, other.rows)


def test_cifar10s_own_validation_split_is_used(repeat):
    assert repeat.outputs.validation[repeat.validation(50)].all()
    assert not repeat.outputs.validation[repeat.target("dirichlet 1", 300).rows].any()


@pytest.mark.parametrize("name", real_data.DATA_SETS)
def test_every_data_set_loads(folder, name):
    outputs = real_data.load(name, folder)
    repeat = real_data.Repeat(outputs, 0)
    for graph in (*outputs.graphs, "main", "shuffled", "none"):
        assert repeat.graph(graph).n_classes == outputs.n_classes
    assert outputs.source_prior.sum() == pytest.approx(1)


def test_a_shuffled_graph_has_the_same_weights_elsewhere(repeat):
    main, shuffled = (repeat.graph(kind).weights for kind in ("main", "shuffled"))
    np.testing.assert_allclose(np.sort(main.data), np.sort(shuffled.data))
    assert (main != shuffled).nnz


# Methods and scores


def test_interval_score_is_a_pinball_loss_at_both_ends():
    rng = np.random.default_rng(0)
    low, width, truth = rng.random((3, 500))
    high, level = low + width, 0.8

    def pinball(end, p):
        return np.where(truth >= end, p * (truth - end), (1 - p) * (end - truth))

    expected = 2 / (1 - level) * (pinball(low, 0.1) + pinball(high, 0.9))
    found = real_scores.interval_score(low, high, truth, level)
    np.testing.assert_allclose(found, expected)


def test_accuracy_is_that_of_saerens_correction(repeat):
    outputs = repeat.outputs
    target = repeat.target("dirichlet 1", 300)
    q = np.random.default_rng(0).dirichlet(np.ones(10))
    scores, y = outputs.scores[target.rows], outputs.truth[target.rows]
    found = real_scores.scores_of(
        real_methods.Estimate(q, 0.0), target, outputs.source_prior, scores, y
    )
    corrected = gs.adaptation.correct(np.exp(scores), outputs.source_prior, q)
    assert found["accuracy"] == (corrected.argmax(axis=1) == y).mean()
    assert found["l1_realised"] == pytest.approx(np.abs(q - target.realised).sum())
    weights, truth = q / outputs.source_prior, target.population / outputs.source_prior
    assert found["weight_mse_population"] == pytest.approx(((weights - truth) ** 2).mean())


@pytest.mark.slow
def test_bayesian_cc_finds_a_lopsided_truth():
    confusion = np.array([[900, 300, 0], [50, 600, 100], [50, 100, 900]])
    q = np.array([0.6, 0.1, 0.3])
    counts = gs.ShiftCounts(confusion, (10_000 * confusion / 1000 @ q).astype(int))
    draws = bayesian_cc(counts, seed=0, warmup=200, draws=300)
    assert draws.shape == (300, 3)
    np.testing.assert_allclose(draws.mean(axis=0), q, atol=0.03)
    np.testing.assert_allclose(adjusted_count(counts), gs.baselines.bbse(counts), atol=1e-3)


def test_methods_give_what_the_package_and_peers_give(repeat):
    targets = [repeat.target(shift, 300) for shift in ("dirichlet 1", "power law")]
    task = real_methods.Task.of(repeat, 20, targets)
    for name in ("bbse", "rlls", "mlls"):
        found = real_methods.METHODS[name].run(task)
        for estimate, counts in zip(found, task.counts, strict=True):
            np.testing.assert_array_equal(estimate.q, getattr(gs.baselines, name)(counts))
    structured = real_methods.METHODS["anchored plain"].run(task)
    post = gs.estimate(
        task.counts[1],
        task.graph,
        prior=gs.Prior.anchored(),
        backend=gs.Structured(refine=False),
        seed=repeat.number,
    )
    np.testing.assert_allclose(structured[1].q, post.mean)
    np.testing.assert_allclose(structured[1].intervals[0.9], post.interval(0.9))
    bootstrap = real_methods.METHODS["bbse bootstrap"].run(task)[0]
    low, high = bootstrap.intervals[0.9]
    assert (low <= high).all()
    assert ((low <= bootstrap.q) & (bootstrap.q <= high)).mean() > 0.7
    adjusted = real_methods.METHODS["acc"].run(task)[0].q
    np.testing.assert_allclose(adjusted, gs.baselines.bbse(task.counts[0]), atol=0.02)
    for name in ("em", "em bcts", "unshifted", "counted"):
        assert real_methods.METHODS[name].run(task)[1].q.sum() == pytest.approx(1)


# Bookkeeping


def unit(method="counted", shifts=("power law",), repeat=0):
    return real_grids.Unit("mnist", 5, 100, repeat, "", method, shifts)


def rows_of(one):
    keys = [dict(zip(real_grids.KEY, key, strict=True)) for key in one.row_keys()]
    return [key | {"status": "ok", "l1_realised": 0.5} for key in keys]


def test_what_was_kept_is_not_run_again_even_after_a_kill(tmp_path):
    path = tmp_path / "real.parquet"
    results = Results(path)
    results.keep(rows_of(unit()))
    results.keep(rows_of(unit(repeat=1)))
    with results.journal.open("a") as file:
        file.write('{"data_set": "mnist", "lab')  # a kill in the middle of a line
    again = Results(path)
    assert not again.journal.exists()
    assert len(pl.read_parquet(path)) == 2
    wanted = [unit(), unit(shifts=("power law", "tweak one")), unit(repeat=1), unit("bbse")]
    left = list(again.missing(wanted))
    assert left == [unit(shifts=("tweak one",)), unit("bbse")]


def test_a_kill_before_the_first_whole_line_and_a_failure_leave_work_to_do(tmp_path):
    path = tmp_path / "real.parquet"
    path.with_name("real.parquet.journal").write_text('{"data_s')
    results = Results(path)
    assert results.rows == []
    failed = [row | {"status": "failed: why"} for row in rows_of(unit())]
    results.keep(failed + rows_of(unit(repeat=1)))
    results.finish()
    again = Results(path)
    assert list(again.missing([unit(), unit(repeat=1)])) == [unit()]
    again.keep(rows_of(unit()))
    again.finish()
    assert set(pl.read_parquet(path)["status"]) == {"ok"}


def test_a_plan_asks_for_nothing_that_is_not_there(folder):
    outputs = {name: real_data.load(name, folder) for name in real_data.DATA_SETS}
    for plan in real_grids.PLANS.values():
        for grid in plan:
            for one in grid.units(outputs):
                found = outputs[one.data_set]
                assert one.labels <= found.most_labels
                assert found.scores is not None or not one.method.startswith("em")
                assert one.graph in ("", "shuffled", "none", *found.graphs)
                assert (one.graph == "") == (not real_methods.METHODS[one.method].uses_graph)


def test_a_run_goes_on_and_its_tables_follow(folder, tmp_path):
    out = tmp_path / "real.parquet"
    common = ("--data", folder, "--out", out, "--plan", "reduced", "--data-set", "cifar10",
              "--labels", 10, "--repeats", 2, "--workers", 1)  # fmt: skip
    first = run("real.py", *common, "--method", "counted")
    assert first.returncode == 0, first.stderr
    assert "2 units, 2 of them to run" in first.stdout
    second = run("real.py", *common, "--method", "counted", "--method", "mlls")
    assert "4 units, 2 of them to run" in second.stdout
    frame = pl.read_parquet(out)
    assert len(frame) == 2 * 2 * len(real_data.SHIFTS)
    assert set(frame["status"]) == {"ok"}

    page, readme = tmp_path / "page.md", tmp_path / "README.md"
    page.write_text("before\n" + "\nold\n".join(real_tables.PAGE_MARKS) + "\nafter\n")
    readme.write_text("before\n" + "\nold\n".join(real_tables.README_MARKS) + "\nafter\n")
    files = ("--page", page, "--readme", readme)
    made = run("real_tables.py", out, "--out", tmp_path / "tables", *files)
    assert made.returncode == 0, made.stderr
    mlls = frame.filter(pl.col("method") == "mlls")
    text = page.read_text()
    assert f"{mlls['l1_population'].mean():.3f}" in readme.read_text()
    assert "old" not in readme.read_text()
    for truth in ("population", "realised"):
        assert f"{mlls[f'l1_{truth}'].mean():.3f}" in text
    means = mlls.group_by("repeat").agg(pl.mean("l1_population"))["l1_population"]
    told = (tmp_path / "tables" / "tables.md").read_text()
    assert f"{means.mean():.3f} ± {means.std() / np.sqrt(2):.3f}" in told
    assert "old" not in text
    assert text.startswith("before")
    assert text.endswith("after\n")
    for name in ("labels", "coverage", "graphs"):
        assert (tmp_path / "tables" / f"{name}.png").stat().st_size > 1000


def test_missing_files_and_bad_names_are_one_sentence(folder, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    common = ("--plan", "reduced", "--data-set", "cifar10")
    nothing = run("real.py", "--data", empty, "--out", tmp_path / "a.parquet", *common)
    assert nothing.returncode == 1
    assert "cifar10 needs" in nothing.stderr
    wrong = run("real.py", "--data", folder, "--out", tmp_path / "a.csv", *common)
    assert wrong.returncode == 1
    assert "--out must end in .parquet" in wrong.stderr
    nowhere = run("real.py", "--data", folder, "--out", tmp_path / "a.parquet", "--plan", "reduced",
                  "--data-set", "imagenet")  # fmt: skip
    assert nowhere.returncode == 1
    assert "has no such settings" in nowhere.stderr
    assert not list(tmp_path.glob("a.*"))


def test_cost_is_measured_in_a_process_of_its_own_and_stopped_in_time(folder, tmp_path):
    common = ("--data", folder, "--out", tmp_path / "cost.parquet")
    methods = ("--method", "mlls", "--method", "em bcts")
    done = run("real_cost.py", *common, "--data-set", "imagenet", *methods)
    assert done.returncode == 0, done.stderr
    frame = pl.read_parquet(tmp_path / "cost.parquet")
    assert frame["status"].to_list() == ["ok", "ok"]
    assert (frame["peak_gb"] > 0.05).all() and (frame["seconds"] > 0).all()
    stopped = run("real_cost.py", *common, "--method", "mlls", "--most-seconds", 0)
    assert "stopped after 0 s" in stopped.stdout


# Tables


def made_up(**differences):
    rows = []
    for method, shift_by in differences.items():
        for repeat in range(4):
            for k, shift in enumerate(("power law", "tweak one")):
                value = 0.1 * repeat + 0.01 * k + shift_by
                about = ("cifar10", 10, 1000, repeat, "", method, shift)
                row = dict(zip(real_grids.KEY, about, strict=True))
                rows.append(row | {"l1_population": value, "status": "ok"})
    return pl.DataFrame(rows)


def test_means_are_over_repeats_and_incomplete_cells_are_left_out():
    frame = made_up(mlls=0.0, rlls=0.2)
    found = real_results.Findings(frame)
    values = found.repeats("cifar10", 10, "mlls")
    np.testing.assert_allclose(values, 0.1 * np.arange(4) + 0.005)
    mean, error = found.mean_and_error("cifar10", 10, "mlls")
    assert mean == pytest.approx(0.155)
    assert error == pytest.approx(np.std(0.1 * np.arange(4), ddof=1) / 2)
    apart = found.repeats("cifar10", 10, "rlls") - values
    assert real_tables.standard_error(apart) == pytest.approx(0, abs=1e-12)  # paired
    lacks_repeat = (pl.col("method") == "rlls") & (pl.col("repeat") == 2)
    lacks_shift = (pl.col("method") == "rlls") & (pl.col("shift") == "tweak one")
    for lacking in (lacks_repeat, lacks_shift):
        less = real_results.Findings(frame.filter(~lacking))
        assert less.mean_and_error("cifar10", 10, "rlls") is None
        assert less.median("cifar10", 10, "rlls", "l1_population") is None
        assert less.median("cifar10", 10, "mlls", "l1_population") == pytest.approx(0.155)
    assert less.shifts_of("cifar10", 10, "rlls") == ["power law"]


@pytest.mark.slow
def test_the_reduced_grid_runs_from_end_to_end(folder, tmp_path):
    out = tmp_path / "real.parquet"
    done = run("real.py", "--data", folder, "--out", out, "--plan", "reduced")
    assert done.returncode == 0, done.stderr
    frame = pl.read_parquet(out)
    assert set(frame["data_set"]) == {"cifar10", "20news"}
    assert set(frame["repeat"]) == {0, 1, 2}
    assert not frame["status"].str.starts_with("failed").any()
    made = run("real_tables.py", out, "--out", tmp_path)
    assert made.returncode == 0, made.stderr
    found = real_results.Findings(frame)
    for method in real_results.METHODS:
        assert any(found.shifts_of(name, 10, method) for name in found.data_sets), method


def test_readme_and_tables_are_made_from_the_results_that_are_kept():
    folder = BENCHMARKS / "results"
    found = real_results.Findings(pl.read_parquet(folder / "real.parquet"))
    for path, (begin, end), table in (
        (folder / "real_classifiers.md", real_tables.PAGE_MARKS, real_tables.summary(found)),
        (
            BENCHMARKS.parent.parent / "README.md",
            real_tables.README_MARKS,
            real_tables.headline(found),
        ),
    ):
        assert path.read_text().split(begin)[1].split(end)[0].strip() == table
    costs = pl.read_parquet(folder / "cost.parquet")
    made = "\n".join(real_tables.all_tables(found, costs))
    assert made == (folder / "tables.md").read_text()
