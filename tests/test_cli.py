import json
import os
import subprocess
import sys
import warnings

import numpy as np
import pytest
from click import ClickException
from commands import failed_with, write_csv

from gsb3se import LabelGraph, ShiftCounts, baselines
from gsb3se.cli.console import plain_speech
from gsb3se.support.torchvision_ops import make_torchvision_importable

# baselines


@pytest.mark.parametrize("out", ["q.csv", "q.json"])
def test_baselines_from_csv(run, predictions, tmp_path, out):
    result = run("baselines", "--validation", "val.csv", "--target", "new.csv", "--out", out)
    assert result.exit_code == 0, result.output
    assert "ant" in result.output
    expected = {"bbse": baselines.bbse(predictions), "mlls": baselines.mlls(predictions)}
    if out == "q.json":
        found = json.loads((tmp_path / out).read_text())
        assert found["labels"] == ["ant", "bee", "cow"]
        columns = found["estimates"]
    else:
        header, *rows = [line.split(",") for line in (tmp_path / out).read_text().splitlines()]
        assert header == ["class", "n_validation", "n_target", "bbse", "bbse-raw", "rlls", "mlls"]
        columns = {name: [float(row[i]) for row in rows] for i, name in enumerate(header) if i > 2}
    for name, q in expected.items():
        np.testing.assert_allclose(columns[name], q)


def test_baselines_from_npz_with_scores_and_from_saved_counts(run, tmp_path):
    rng = np.random.default_rng(1)

    def scores(y):
        logits = rng.normal(size=(len(y), 3)) + 2 * np.eye(3)[y]
        return np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)

    truth, hidden = rng.integers(3, size=300), rng.choice(3, 400, p=[0.7, 0.2, 0.1])
    source, target = scores(truth), scores(hidden)
    np.savez("val.npz", label=truth, prediction=source.argmax(1), probabilities=source)
    np.savez("new.npz", prediction=target.argmax(1), probabilities=target)
    result = run("baselines", "--validation", "val.npz", "--target", "new.npz", "--out", "q.json")
    assert result.exit_code == 0, result.output
    estimates = json.loads((tmp_path / "q.json").read_text())["estimates"]
    calibrated = baselines.calibrate(np.log(source), truth)(np.log(target))
    expected = baselines.em(calibrated, np.bincount(truth) / 300)
    np.testing.assert_allclose(estimates["em"], expected, atol=1e-9)

    counts = ShiftCounts.from_predictions(truth, source.argmax(1), target.argmax(1))
    counts.save(tmp_path / "counts.npz")
    result = run("baselines", "--counts", "counts.npz", "--method", "mlls", "--out", "c.json")
    assert result.exit_code == 0, result.output
    saved = json.loads((tmp_path / "c.json").read_text())["estimates"]
    np.testing.assert_allclose(saved["mlls"], estimates["mlls"])


def test_integer_labels_in_csv_sort_as_numbers_and_other_columns_can_be_named(run, tmp_path):
    write_csv(tmp_path / "val.csv", y=[2, 10, 10, 2], said=[2, 10, 2, 2])
    write_csv(tmp_path / "new.csv", said=[10, 10, 2])
    columns = ["--label-column", "y", "--prediction-column", "said"]
    result = run(
        "baselines", "--validation", "val.csv", "--target", "new.csv", *columns, "--out", "q.json"
    )
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "q.json").read_text())["labels"] == [2, 10]
    (tmp_path / "labels.txt").write_text("10\n2\n7\n")
    result = run(
        "baselines", "--validation", "val.csv", "--target", "new.csv", *columns,
        "--labels", "labels.txt", "--out", "q.json",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "q.json").read_text())["labels"] == [10, 2, 7]
    assert "note" in result.output
    assert "without validation rows" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--validation", "val.csv"], "give --validation and --target, or --counts"),
        (["--validation", "val.csv", "--target", "absent.csv"], "'absent.csv' does not exist"),
        (
            ["--validation", "val.csv", "--target", "val.txt"],
            "expected a .csv, .parquet or .npz file",
        ),
        (
            ["--validation", "new.csv", "--target", "new.csv"],
            "has no column 'label'; it has 'prediction'",
        ),
        (
            ["--validation", "val.csv", "--target", "holes.csv"],
            "line 3: the column 'prediction' is empty",
        ),
        (
            ["--validation", "val.csv", "--target", "empty.csv"],
            "has no column 'prediction'; it has none",
        ),
        (["--validation", "val.csv", "--target", "header.csv"], "at least one target prediction"),
        (
            ["--validation", "val.csv", "--target", "new.csv", "--labels", "two.txt"],
            "holds 'cow', unknown",
        ),
        (
            ["--validation", "val.csv", "--target", "new.csv", "--out", "q.xlsx"],
            "must end in .csv or .json",
        ),
        (
            ["--validation", "val.csv", "--target", "new.csv", "--out", "no/q.csv"],
            "no does not exist",
        ),
        (["--validation", "val.csv", "--target", "new.csv", "--method", "em"], "em needs an array"),
        (
            ["--validation", "val.csv", "--target", "latin.csv"],
            "latin.csv is not UTF-8 text (byte 11)",
        ),
        (["--validation", "val.csv", "--target", "twice.csv"], "more than one column 'prediction'"),
        (["--counts", "val.txt"], "not an NPZ file"),
        (["--counts", "val.txt", "--target", "new.csv"], "not both"),
    ],
)
def test_baselines_say_what_is_wrong(run, predictions, tmp_path, arguments, message):
    (tmp_path / "val.txt").write_text("label,prediction\n")
    (tmp_path / "two.txt").write_text("ant\nbee\n")
    (tmp_path / "holes.csv").write_text("prediction,x\nant,1\n,2\n")
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "header.csv").write_text("prediction\n")
    (tmp_path / "latin.csv").write_bytes(b"prediction\n\xff\n")
    (tmp_path / "twice.csv").write_text("prediction,prediction\nant,bee\n")
    before = sorted(tmp_path.iterdir())
    assert failed_with(run("baselines", *arguments), message)
    assert sorted(tmp_path.iterdir()) == before


# graph


def test_graph_build_and_show(run, tmp_path):
    embeddings = np.random.default_rng(0).standard_normal((12, 5))
    np.savez("e.npz", embeddings=embeddings, labels=[f"l{i}" for i in range(12)])
    result = run("graph", "build", "e.npz", "--out", "g.npz", "-k", 3)
    assert result.exit_code == 0, result.output
    assert "algebraic connectivity" in result.output
    graph = LabelGraph.load(tmp_path / "g.npz")
    expected = LabelGraph.knn(embeddings, 3)
    np.testing.assert_allclose(graph.weights.toarray(), expected.weights.toarray())
    assert graph.labels[3] == "l3"
    assert "12 labels" in run("graph", "show", "g.npz").output


def test_graph_build_names_its_bridges(run, tmp_path):
    points = np.repeat(np.eye(3), 3, axis=0) + 0.01 * np.random.default_rng(0).uniform(size=(9, 3))
    np.save("e.npy", points)
    (tmp_path / "names.txt").write_text("\n".join("abcdefghi"))
    result = run("graph", "build", "e.npy", "--labels", "names.txt", "-k", 2, "--out", "g.npz")
    assert result.exit_code == 0, result.output
    assert result.output.count("bridge:") == 2


def test_graph_build_from_a_taxonomy(run, tmp_path):
    (tmp_path / "tree.json").write_text(
        json.dumps({"cat": "pet", "dog": "pet", "cow": "farm", "pig": "farm"})
    )
    result = run("graph", "build", "tree.json", "--out", "g.npz", "-k", 1)
    assert result.exit_code == 0, result.output
    assert LabelGraph.load(tmp_path / "g.npz").labels == ("cat", "dog", "cow", "pig")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["e.npz", "--out", "g.txt"], "--out must end in .npz"),
        (["x.npz", "--out", "g.npz"], "has no array 'embeddings'; it has 'other'"),
        (["bad.json", "--out", "g.npz"], "bad.json is not valid JSON"),
        (["bad.npy", "--out", "g.npz"], "bad.npy is not an NPY file of a plain array"),
        (["e.csv", "--out", "g.npz"], "expected a .txt, .json, .npy or .npz file"),
        (["e.npz", "--out", "g.npz", "-k", "0"], "k must be a whole number"),
    ],
)
def test_graph_build_says_what_is_wrong(run, tmp_path, arguments, message):
    np.savez("e.npz", embeddings=np.eye(4))
    np.savez("x.npz", other=np.eye(4))
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "bad.npy").write_text("?")
    (tmp_path / "e.csv").write_text("1,2")
    before = sorted(tmp_path.iterdir())
    assert failed_with(run("graph", "build", *arguments), message)
    assert sorted(tmp_path.iterdir()) == before


def test_graph_build_from_names_without_weights_says_how_to_get_them(run, tmp_path):
    pytest.importorskip("torch")
    make_torchvision_importable()
    pytest.importorskip("open_clip")
    (tmp_path / "names.txt").write_text("cat\ndog\n")
    result = run("graph", "build", "names.txt", "--out", "g.npz", "--weights", "none.pt")
    assert failed_with(result, "Give weights= the path")
    assert not (tmp_path / "g.npz").exists()


# demo


def test_demo_shows_every_baseline_and_repeats(run):
    pytest.importorskip("sklearn")
    one, other = run("demo"), run("demo")
    assert one.exit_code == 0, one.output
    assert one.output == other.output
    for name in ("BBSE", "RLLS", "MLLS", "EM + BCTS", "L1 error", "accuracy"):
        assert name in one.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--train", 3], "must cover all ten digits"),
        (["--validation", 900], "take fewer"),
        (["--alpha", 0], "alpha must be positive"),
    ],
)
def test_demo_says_what_is_wrong(run, arguments, message):
    pytest.importorskip("sklearn")
    assert failed_with(run("demo", *arguments), message)


def test_help_and_version(run):
    assert "baselines" in run("--help").output
    assert run("--version").exit_code == 0


# what labels, files and terminals may hold


def test_foreign_warnings_are_passed_on_and_do_not_hang():
    def misbehave():
        with plain_speech():
            warnings.warn("from elsewhere", RuntimeWarning, stacklevel=1)
            raise ValueError("and an error")

    with (
        pytest.warns(RuntimeWarning, match="from elsewhere"),
        pytest.raises(ClickException, match="and an error"),
    ):
        misbehave()


def test_labels_are_text_not_markup(run, tmp_path):
    names = ["[/b]", "[red]", "plain"]
    write_csv(tmp_path / "val.csv", label=names * 3, prediction=names * 3)
    write_csv(tmp_path / "new.csv", prediction=names)
    result = run("baselines", "--validation", "val.csv", "--target", "new.csv")
    assert result.exit_code == 0, result.output
    assert "[/b]" in result.output
    assert "[red]" in result.output


def test_integers_written_as_decimals_are_the_same_classes(run, tmp_path):
    write_csv(tmp_path / "val.csv", label=[2, 3, 2], prediction=["2.0", "3.0", "2.0"])
    write_csv(tmp_path / "new.csv", prediction=["2.0", "3.0"])
    result = run("baselines", "--validation", "val.csv", "--target", "new.csv", "--out", "q.json")
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "q.json").read_text())["labels"] == [2, 3]


def test_names_that_look_like_numbers_stay_names(run, tmp_path):
    write_csv(tmp_path / "val.csv", label=["007", "8"], prediction=["007", "8"])
    write_csv(tmp_path / "new.csv", prediction=["007"])
    result = run("baselines", "--validation", "val.csv", "--target", "new.csv", "--out", "q.json")
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "q.json").read_text())["labels"] == ["007", "8"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('prediction\n"ant\n', "line 2: unexpected end of data"),
        ("prediction\n" + "x" * 200_000 + "\n", "field larger than field limit"),
        ("prediction,day\n ,monday\n", "line 2: the column 'prediction' is empty"),
        ("prediction\n99999999999999999999\n", "holds '99999999999999999999', unknown"),
        ("prediction\n--1\n", "holds '--1', unknown"),
    ],
)
def test_odd_csv_files_are_named(run, predictions, tmp_path, text, message):
    (tmp_path / "odd.csv").write_text(text)
    (tmp_path / "all.txt").write_text("ant\nbee\ncow\n")
    arguments = ["--validation", "val.csv", "--target", "odd.csv", "--labels", "all.txt"]
    assert failed_with(run("baselines", *arguments), message)


@pytest.mark.parametrize(
    ("probabilities", "message"),
    [
        (np.log(np.full((4, 2), 0.5)), "finite and non-negative"),
        (np.full((3, 2), 0.5), "must be (4, 2) numbers"),
        (np.full((4, 3), 1 / 3), "must be (4, 2) numbers"),
        (np.full((4, 2), "x"), "must be (4, 2) numbers"),
    ],
)
@pytest.mark.parametrize("where", ["validation", "target"])
def test_scores_that_do_not_fit_are_named(run, probabilities, message, where):
    good = np.full((4, 2), 0.5)
    np.savez("val.npz", label=[0, 0, 1, 1], prediction=[0, 0, 1, 0],
             probabilities=probabilities if where == "validation" else good)  # fmt: skip
    np.savez("new.npz", prediction=[0, 1, 1, 1],
             probabilities=probabilities if where == "target" else good)  # fmt: skip
    assert failed_with(run("baselines", "--validation", "val.npz", "--target", "new.npz"), message)


def test_em_is_left_out_where_a_class_has_no_validation_rows(run):
    scores = np.full((4, 3), 1 / 3)
    np.savez("val.npz", label=[0, 0, 1, 1], prediction=[0, 2, 1, 0], probabilities=scores)
    np.savez("new.npz", prediction=[0, 1, 2, 1], probabilities=scores)
    result = run("baselines", "--validation", "val.npz", "--target", "new.npz")
    assert result.exit_code == 0, result.output
    assert "EM is left out" in result.output


def test_a_json_taxonomy_with_a_label_twice_is_refused(run, tmp_path):
    (tmp_path / "tree.json").write_text('{"cat": "pet", "cat": "wild", "dog": "pet"}')
    result = run("graph", "build", "tree.json", "--out", "g.npz")
    assert failed_with(result, "a key more than once: 'cat'")


def test_a_terminal_without_unicode_still_gets_its_file(tmp_path):
    write_csv(tmp_path / "val.csv", label=["日本", "b"], prediction=["日本", "b"])
    write_csv(tmp_path / "new.csv", prediction=["日本"])
    command = "from gsb3se.cli import main; main()"
    arguments = ["baselines", "--validation", "val.csv", "--target", "new.csv", "--out", "q.csv"]
    done = subprocess.run(
        [sys.executable, "-X", "utf8=0", "-c", command, *arguments],
        cwd=tmp_path, env=os.environ | {"PYTHONIOENCODING": "ascii", "LC_ALL": "C"},
        capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "日本" in (tmp_path / "q.csv").read_text(encoding="utf-8")
