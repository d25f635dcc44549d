"""What gsb3se batch makes of files: good ones of every kind, and bad ones."""

import numpy as np
import polars as pl
import pytest
from commands import failed_with, run_batch, write_csv

from gsb3se.batch import counting
from gsb3se.batch.counting import TargetColumns
from gsb3se.batch.groups import Groups
from gsb3se.support.table_files import table_files

NAMES = ["ant", "bee", "cow"]


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
    again = Groups.from_bytes(groups.to_bytes(), groups.labels)
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
        result = run_batch(run, "kinds.parquet", "--by", key, "--backend", "newton")
        assert result.exit_code == 0, result.output
        table = pl.read_parquet(tmp_path / "out.parquet")
        assert table[key].unique(maintain_order=True).to_list() == expected
    result = run_batch(run, "kinds.parquet", "--by", "kind", "--backend", "newton")
    assert result.exit_code == 0, result.output
    for day in range(2):
        folder = tmp_path / "parts" / f"week={day}"
        folder.mkdir(parents=True)
        logs.filter(pl.col("day") == day).write_parquet(folder / "part.parquet")
    result = run_batch(run, "parts", "--by", "week", "--backend", "newton", out="weeks.csv")
    assert result.exit_code == 0, result.output
    assert pl.read_csv(tmp_path / "weeks.csv")["week"].unique().sort().to_list() == [0, 1]


@pytest.mark.parametrize("dtype", [pl.UInt8, pl.Int64, pl.Float64, pl.String])
def test_labels_of_every_number_type(run, tmp_path, dtype):
    rng = np.random.default_rng(0)
    truth = rng.integers(3, size=90)
    pl.DataFrame({"label": truth, "prediction": truth}).write_csv(tmp_path / "val.csv")
    predicted = pl.Series("prediction", rng.integers(3, size=50)).cast(dtype)
    predicted.to_frame().write_parquet(tmp_path / "new.parquet")
    result = run_batch(run, "new.parquet", "--backend", "newton", out="out.csv")
    assert result.exit_code == 0, result.output
    assert pl.read_csv(tmp_path / "out.csv")["class"].to_list() == [0, 1, 2]


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
        ("negative.csv", ["--count-column", "times"], "none negative; found"),
        ("text-counts.csv", ["--count-column", "times"], "whole numbers"),
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
    assert failed_with(run_batch(run, file, *arguments), message)
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
    assert failed_with(run_batch(run, "logs.csv", "--by", "day"), message)
    assert not (tmp_path / "out.parquet").exists()


def test_names_with_glob_characters_are_the_files_they_name(run, logs, tmp_path):
    for suffix, write in (("csv", pl.DataFrame.write_csv), ("parquet", pl.DataFrame.write_parquet)):
        write(pl.DataFrame({"prediction": ["ant"] * 7}), tmp_path / f"log[1].{suffix}")
        write(pl.DataFrame({"prediction": ["bee"] * 90}), tmp_path / f"log1.{suffix}")
        files = table_files([str(tmp_path / f"log[1].{suffix}")])
        groups = counting.count_predictions(files, TargetColumns(), ("ant", "bee", "cow"))
        assert groups.target(0).tolist() == [7, 0, 0]


COUNTS = {
    "empty": pl.Series([None, 1]),
    "fractional": pl.Series([0.5, 1.0]),
    "negative": pl.Series([-1, 1]),
    "nan": pl.Series([float("nan"), 1.0]),
    "infinite": pl.Series([float("inf"), 1.0]),
    "true": pl.Series([True, False]),
    "date": pl.Series([1, 2]).cast(pl.Date),
    "duration": pl.Series([1, 2]).cast(pl.Duration),
    "huge": pl.Series([2**62, 2**62]),
    "text": pl.Series(["x", "1"]),
    "many": pl.Series([2**52, 2**52 + 2]),
}


@pytest.mark.parametrize("kind", COUNTS)
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("command", ["batch", "estimate"])
def test_counts_that_are_no_whole_numbers_are_refused(run, logs, tmp_path, command, suffix, kind):
    if suffix == "csv" and kind == "duration":
        pytest.skip("polars writes no durations as text")
    frame = pl.DataFrame({"prediction": ["ant", "ant"], "times": COUNTS[kind]})
    (frame.write_csv if suffix == "csv" else frame.write_parquet)(tmp_path / f"new.{suffix}")
    pl.read_csv(tmp_path / "val.csv").with_columns(times=1).write_csv(tmp_path / "val.csv")
    named = ("--validation", "val.csv", "--count-column", "times")
    new = (f"new.{suffix}",) if command == "batch" else ("--target", f"new.{suffix}")
    result = run(command, *new, *named, "--out", "out.csv")
    assert failed_with(result, "times" if command == "batch" else f"new.{suffix}")
    assert not (tmp_path / "out.csv").exists()


def test_counts_written_in_any_way_are_the_same(run, logs, tmp_path):
    pl.read_csv(tmp_path / "val.csv").with_columns(times=1).write_csv(tmp_path / "val.csv")
    tables = []
    for kind in (pl.UInt8, pl.Int64, pl.Float32, pl.String):
        times = pl.Series("times", [100, 20, 3]).cast(kind)
        frame = pl.DataFrame({"prediction": ["ant", "bee", "cow"], "times": times})
        frame.write_parquet(tmp_path / "new.parquet")
        result = run_batch(run, "new.parquet", "--count-column", "times", "--backend", "newton")
        assert result.exit_code == 0, result.output
        tables.append(pl.read_parquet(tmp_path / "out.parquet"))
    assert all(table.equals(tables[0]) for table in tables)


def test_blank_lines_are_no_rows(run, logs, tmp_path):
    write_csv(tmp_path / "plain.csv", prediction=NAMES * 9, day=range(27), times=[1] * 27)
    lines = (tmp_path / "plain.csv").read_text()
    (tmp_path / "blank.csv").write_text(lines + "\n , ,\n\n")
    for more in ([], ["--count-column", "times"], ["--by", "day"]):
        found = []
        for file in ("plain.csv", "blank.csv"):
            result = run_batch(run, file, "--backend", "newton", *more, out="out.csv")
            if "--count-column" not in more:
                assert result.exit_code == 0, result.output
            found.append((result.exit_code, result.output, (tmp_path / "out.csv").exists()))
        assert found[0] == found[1]


def test_a_row_without_a_prediction_is_not_blank(run, logs, tmp_path):
    write_csv(
        tmp_path / "gap.csv", prediction=["ant", "", "bee"], day=[1, 1, 1], note=["", "x", ""]
    )
    assert failed_with(run_batch(run, "gap.csv"), "1 of its 3 rows have no prediction")


def test_a_folder_with_brackets_is_that_folder(tmp_path):
    for folder, rows in (("x[1]", 2), ("x1", 5)):
        (tmp_path / folder).mkdir()
        write_csv(tmp_path / folder / "a.csv", prediction=["ant"] * rows)
    assert table_files([tmp_path / "x[1]" / "*.csv"]) == [tmp_path / "x[1]" / "a.csv"]


def test_keys_that_differ_as_text_stay_apart(run, logs, tmp_path):
    write_csv(tmp_path / "versions.csv", prediction=NAMES * 3, v=["1", "1.0", "2"] * 3)
    pl.read_csv(tmp_path / "versions.csv", infer_schema=False).write_parquet(
        tmp_path / "versions.parquet"
    )
    for file in ("versions.csv", "versions.parquet"):
        assert run_batch(run, file, "--by", "v", "--backend", "newton").exit_code == 0
        table = pl.read_parquet(tmp_path / "out.parquet")
        assert table["v"].unique(maintain_order=True).to_list() == ["1", "1.0", "2"]


@pytest.mark.parametrize(
    "key", [pl.Series([b"a", b"b"]), pl.Series([[1], [2]]), pl.Series([{"a": 1}, {"a": 2}])]
)
def test_keys_that_no_result_can_hold_are_refused_at_once(run, logs, tmp_path, key):
    pl.DataFrame({"prediction": ["ant", "bee"], "k": key}).write_parquet(tmp_path / "odd.parquet")
    assert failed_with(run_batch(run, "odd.parquet", "--by", "k"), "--by k must be text")


def test_a_column_that_is_there_twice_is_refused(run, logs, tmp_path):
    (tmp_path / "twice.csv").write_text("prediction,prediction\nant,bee\n")
    assert failed_with(run_batch(run, "twice.csv"), "more than one column 'prediction'")
