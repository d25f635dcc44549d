import json
import sys

import numpy as np
import polars
import pytest
from commands import failed_with, write_csv

import gsb3se as gs
from gsb3se import plots

SOURCES = ["--validation", "val.csv", "--target", "new.csv"]


def test_table_csv_json_posterior_and_picture(run, predictions, tmp_path):
    outputs = ["q.csv", "q.json", "q.npz"]
    result = run("estimate", *SOURCES, *(f"--out={o}" for o in outputs), "--plot", "q.png")
    assert result.exit_code == 0, result.output
    for said in ("ant", "90 % interval", "status: ok", "wrote q.csv", "wrote q.png"):
        assert said in result.output
    post = gs.Posterior.load("q.npz")
    expected = gs.estimate(predictions)
    np.testing.assert_allclose(post.mean, expected.mean)
    assert post.labels == ("ant", "bee", "cow")
    header, *rows = [line.split(",") for line in (tmp_path / "q.csv").read_text().splitlines()]
    assert header == ["class", "mean", "sd", "low", "high", "n_target", "status"]
    assert rows[1][0] == "bee"
    assert float(rows[1][1]) == expected.mean[1]
    assert rows[0][5:] == ["500", "ok"]
    found = json.loads((tmp_path / "q.json").read_text())
    assert found["status"] == "ok"
    assert found["classes"][2]["class"] == "cow"
    assert found["classes"][2]["high"] == expected.interval()[1][2]
    assert (tmp_path / "q.png").read_bytes().startswith(b"\x89PNG")


def test_csv_parquet_npz_and_counted_rows_agree(run, predictions, tmp_path):
    names = np.array(predictions.labels)
    confusion = predictions.confusion.tocoo()
    counted = {
        "label": names[confusion.coords[1]],
        "prediction": names[confusion.coords[0]],
        "n": confusion.data,
    }
    target = {"prediction": names, "n": predictions.target}
    for kind in ("csv", "parquet", "npz"):
        for stem, columns in (("counted", counted), ("aim", target)):
            path = tmp_path / f"{stem}.{kind}"
            if kind == "csv":
                write_csv(path, **columns)
            elif kind == "parquet":
                polars.DataFrame(columns).write_parquet(path)
            else:
                np.savez(path, **columns)
    for name in ("val", "new"):
        polars.read_csv(tmp_path / f"{name}.csv").write_parquet(tmp_path / f"{name}.parquet")
    predictions.save(tmp_path / "counts.npz")
    ways = [SOURCES, ["--validation", "val.parquet", "--target", "new.parquet"]]
    ways += [["--counts", "counts.npz"]]
    for kind in ("csv", "parquet", "npz"):
        files = ["--validation", f"counted.{kind}", "--target", f"aim.{kind}"]
        ways.append([*files, "--count-column", "n"])
    means = []
    for way in ways:
        result = run("estimate", *way, "--out", "q.npz")
        assert result.exit_code == 0, result.output
        means.append(gs.Posterior.load("q.npz").mean)
    for mean in means[1:]:
        np.testing.assert_array_equal(mean, means[0])


def test_hmc_with_a_graph_in_another_order_and_an_anchored_prior(run, predictions):
    weights = [[0, 0.9, 0.1], [0.9, 0, 0.1], [0.1, 0.1, 0]]
    gs.LabelGraph.from_weights(weights, labels=["cow", "ant", "bee"]).save("graph.npz")
    options = ["--backend", "hmc", "--prior", "anchored", "--graph", "graph.npz"]
    few = ["--chains", 2, "--warmup", 100, "--draws", 100]
    result = run("estimate", *SOURCES, *options, *few, "--a-q", 2, "--out", "q.npz")
    assert result.exit_code == 0, result.output
    assert "note: " in result.output
    assert "too few draws: " in " ".join(result.output.split())
    post = gs.Posterior.load("q.npz")
    assert post.form.q.shape == (2, 100, 3)
    assert "alpha" in post.form.others


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "q.xlsx"], "must end in .csv, .json or .npz"),
        (["--plot", "q.txt"], "must end in .png, .pdf or .svg"),
        (["--out", "absent/q.csv"], "the folder absent does not exist"),
        (["--level", "90"], "90.0 is not in the range 0<x<1"),
        (["--a-q", "-1"], "a_q must be a number from 1e-06 to 1e"),
        (["--backend", "magic"], "'magic' is not one of"),
        (["--backend", "hmc", "--chains", "0"], "chains must be a whole number"),
        (["--graph", "val.csv"], "is not an NPZ file"),
        (["--graph", "small.npz"], "3 classes and the graph 2"),
        (["--count-column", "n"], "has no column 'n'"),
        (["--count-column", "prediction"], "must name different columns"),
        (["--label-column", "prediction"], "must name different columns"),
        (["--count-column", "name"], "counts must be whole numbers"),
        (["--seed", "-1"], "-1 is not in the range"),
    ],
)
def test_bad_input_ends_with_one_sentence_and_writes_nothing(
    run, predictions, tmp_path, arguments, message
):
    gs.LabelGraph.exchangeable(2).save("small.npz")
    write_csv(tmp_path / "new.csv", prediction=["ant", "bee"], name=["ant", "cow"])
    if "name" in arguments:
        columns = {"label": ["ant"], "prediction": ["cow"], "name": ["x"]}
        write_csv(tmp_path / "val.csv", **columns)
    before = sorted(tmp_path.iterdir())
    assert failed_with(run("estimate", *SOURCES, *arguments), message)
    assert sorted(tmp_path.iterdir()) == before


def test_a_broken_parquet_file_is_named(run, predictions, tmp_path):
    (tmp_path / "bad.parquet").write_text("no parquet")
    polars.DataFrame({"prediction": ["ant", None]}).write_parquet(tmp_path / "holes.parquet")
    for file, message in (("bad", "is not a whole Parquet file"), ("holes", "is empty in 1 rows")):
        files = ["--validation", "val.csv", "--target", f"{file}.parquet"]
        assert failed_with(run("estimate", *files), message)


def test_counts_are_one_a_row(run, predictions):
    np.savez("aim.npz", prediction=["ant", "bee", "cow"], n=[7])
    np.savez("val.npz", label=["ant", "bee"], prediction=["ant", "cow"], n=[3, 4])
    files = ["--validation", "val.npz", "--target", "aim.npz", "--count-column", "n"]
    assert failed_with(run("estimate", *files), "expected 3 counts, one a row; got shape (1,)")


def test_strict_fails_where_the_status_is_not_ok(run, tmp_path):
    gs.ShiftCounts([[30, 30], [20, 20]], [60, 40]).save("counts.npz")
    result = run("estimate", "--counts", "counts.npz", "--strict", "--out", "q.csv")
    assert failed_with(result, "do not tell the classes apart")
    assert not (tmp_path / "q.csv").exists()
    result = run("estimate", "--counts", "counts.npz", "--out", "q.json")
    assert result.exit_code == 0
    assert "status: not identified" in result.output
    found = json.loads((tmp_path / "q.json").read_text())
    assert found["figures"]["prior_share"] > 0.9


def test_a_missing_backend_names_the_command(run, predictions, monkeypatch):
    monkeypatch.setitem(sys.modules, "numpyro", None)
    assert failed_with(run("estimate", *SOURCES, "--backend", "hmc"), "[hmc]'")


def test_many_classes_are_shown_in_part(run):
    rng = np.random.default_rng(0)
    confusion = np.diag(np.full(40, 30)) + rng.poisson(0.1, (40, 40))
    gs.ShiftCounts(confusion, np.arange(40) + 50).save("counts.npz")
    result = run("estimate", "--counts", "counts.npz", "--plot", "many.svg")
    assert result.exit_code == 0, result.output
    assert "the 25 most frequent of 40" in result.output


def test_pictures_of_many_classes_and_odd_names(tmp_path):
    rng = np.random.default_rng(0)
    names = [f"${i}^" for i in range(70)]
    post = gs.Posterior.from_draws(rng.dirichlet(np.ones(70), 50), labels=names)
    plots.intervals(post, tmp_path / "many.pdf", others={"truth": post.mean})
    assert (tmp_path / "many.pdf").read_bytes().startswith(b"%PDF")
    with pytest.raises(ValueError, match=r"ends in \.png"):
        plots.intervals(post, tmp_path / "many.gif")
