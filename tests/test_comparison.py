"""compare: measures, the cached reference, stops in the middle, and the command."""

import csv
import json
from dataclasses import dataclass, replace

import numpy as np
import pytest
from commands import failed_with
from scipy.stats import norm, wasserstein_distance

import gsb3se as gs
from gsb3se.compare import comparison
from gsb3se.model.content_hash import content_hash
from gsb3se.model.simulation import simulate_classifier
from gsb3se.model.source_problem import SourceProblem
from gsb3se.posterior.agreement import Agreement

FAST = gs.HMC(warmup=400, draws=1000, target_accept=0.98, progress=False)
COUNTS = gs.ShiftCounts([[40, 5, 3], [6, 42, 4], [2, 3, 50]], [120, 90, 40], labels=list("abc"))


@pytest.fixture
def runs(monkeypatch):
    """How often HMC ran, and with how many draws."""
    made, infer = [], gs.HMC.infer

    def counted(self, problem, rng):
        made.append(self.draws)
        return infer(self, problem, rng)

    monkeypatch.setattr(gs.HMC, "infer", counted)
    monkeypatch.setattr(comparison, "_load", lambda backend: 0.0)  # a small inference beforehand
    return made


# Measures


def test_agreement_is_in_units_of_the_references_sd():
    rng = np.random.default_rng(0)
    shares = rng.dirichlet([20, 30, 50], 40_000)
    exact = gs.Posterior.from_draws(shares)
    moved = shares - shares.mean(axis=0)
    step = np.array([0.01, -0.01, 0.0])
    other = gs.Posterior.from_draws(shares.mean(axis=0) + 0.8 * moved + step)
    found = Agreement.between(other, exact)
    np.testing.assert_allclose(found.mean, np.abs(step) / exact.sd, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(found.sd_ratio, 0.8, rtol=1e-6)
    expected = [
        wasserstein_distance(other.sample(40_000)[:, i], shares[:, i]) / exact.sd[i]
        for i in range(3)
    ]
    np.testing.assert_allclose(found.wasserstein, expected, rtol=0.03)
    np.testing.assert_allclose(found.high[2], 0.2 * norm.ppf(0.95), rtol=0.1)
    assert found.sd_within(0.79, 0.81) == 1.0
    with pytest.raises(ValueError, match="3 classes and the reference 2"):
        Agreement.between(exact, gs.Posterior.from_draws([[0.5, 0.5]] * 2))


def test_halves_tell_the_references_noise():
    rng = np.random.default_rng(0)
    exact = gs.Posterior.from_draws(rng.dirichlet([2, 3], (4, 2000)))
    assert 0 < Agreement.of_halves(exact).mean.max() < 0.1
    with pytest.raises(ValueError, match="only draws have halves"):
        Agreement.of_halves(gs.Posterior.gaussian([0.0, 0.0], np.eye(2)))


# The comparison


def test_every_estimator_has_its_row():
    seen, steps = [], []
    truth = np.array([0.5, 0.35, 0.15])
    found = gs.compare(
        COUNTS,
        backends={"structured": "structured", "mine": gs.NewtonCG()},
        reference=FAST,
        truth=truth,
        tell=seen.append,
        landed=lambda so_far: steps.append(len(so_far.rows)),
    )
    assert seen == ["hmc", "structured", "mine", "bbse", "rlls", "mlls"]
    assert [row.name for row in found.rows] == seen
    assert steps == [1, 2, 3, 6]
    row = found["structured"]
    assert row.figures["mean_error"] < 0.2
    assert 0.8 < row.figures["sd_ratio"] < 1.2
    assert row.speed_up == pytest.approx(found["hmc"].seconds / row.seconds)
    assert row.status == "ok"
    assert found["bbse"].figures["l1"] == np.abs(gs.baselines.bbse(COUNTS) - truth).sum()
    assert "sd_error" not in found["bbse"].figures
    assert found.complaints == ()
    assert found.posteriors["mine"].labels == ("a", "b", "c")
    with pytest.raises(KeyError, match="'laplace' was not compared"):
        found["laplace"]


@dataclass(frozen=True)
class Broken:
    def infer(self, problem, rng):
        raise ArithmeticError("no luck")


def test_a_backend_that_fails_does_not_stop_the_others():
    found = gs.compare(
        COUNTS, backends={"bad": Broken(), "newton": "newton"}, reference=FAST, point_estimates=()
    )
    assert found["bad"].status == "failed"
    assert found["bad"].message == "no luck"
    assert found["newton"].status == "ok"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"backends": "newton"}, "must be a list of names"),
        ({"backends": ["newton", "newton"]}, "named twice"),
        ({"backends": ["magic"]}, "unknown backend 'magic'"),
        ({"point_estimates": ["em"]}, "unknown point estimate 'em'"),
        ({"truth": [0.5, 0.5]}, "truth must be a vector of 3 probabilities"),
    ],
)
def test_wrong_arguments_are_named_before_the_work(arguments, message, runs):
    with pytest.raises(ValueError, match=message):
        gs.compare(COUNTS, **arguments)
    assert runs == []


# What is kept


def test_the_reference_is_kept_and_its_content_is_its_name(tmp_path, runs, monkeypatch):
    names = {"reference": FAST, "backends": ["newton"], "point_estimates": (), "cache": tmp_path}
    first = gs.compare(COUNTS, **names)
    again = gs.compare(COUNTS, **names)
    assert runs == [1000]
    np.testing.assert_array_equal(first.reference.form.q, again.reference.form.q)
    assert again["hmc"].seconds == first["hmc"].seconds
    assert again["newton"].seconds == first["newton"].seconds  # of when it was made
    renamed = gs.ShiftCounts(COUNTS.confusion, COUNTS.target, labels=list("xyz"))
    assert gs.compare(renamed, **names).reference.labels == ("x", "y", "z")
    assert runs == [1000]
    gs.compare(COUNTS, **(names | {"reference": replace(FAST, progress=None)}))
    assert runs == [1000]

    def stand_in(self, problem, rng):
        runs.append(self.draws)
        return first.reference

    monkeypatch.setattr(gs.HMC, "infer", stand_in)
    gs.compare(COUNTS, seed=1, **names)
    gs.compare(COUNTS, prior=gs.Prior(2, 1, 1, 1), **names)
    gs.compare(COUNTS.with_target([120, 90, 41]), **names)
    gs.compare(COUNTS, gs.LabelGraph.from_weights(np.ones((3, 3)) - np.eye(3)), **names)
    assert len(runs) == 5


def test_a_hash_tells_graphs_and_counts_apart():
    weights = np.array([[0, 0.5, 0.2], [0.5, 0, 0.3], [0.2, 0.3, 0]])
    graphs = [None, gs.LabelGraph.from_weights(weights), gs.LabelGraph.from_weights(2 * weights)]
    problems = [gs.Problem(COUNTS, graph) for graph in graphs]
    moved = gs.ShiftCounts(COUNTS.confusion.toarray().T, COUNTS.target)
    problems += [gs.Problem(moved), gs.Problem(COUNTS, None, gs.Prior())]
    hashes = {content_hash(problem, "x") for problem in problems}
    hashes.add(content_hash(problems[0], "y"))
    assert len(hashes) == 6
    assert content_hash(gs.Problem(COUNTS), "x") in hashes
    assert content_hash(SourceProblem(COUNTS), "x") not in hashes  # without its target


def test_a_hash_is_refused_of_evidence_it_does_not_know():
    class WithScores(gs.Problem):
        pass

    with pytest.raises(TypeError, match="WithScores"):
        content_hash(WithScores(COUNTS), "x")


def test_a_kept_reference_that_fails_its_checks_is_made_anew(tmp_path, runs):
    problem = gs.Problem(COUNTS)
    exact, _ = comparison.find_reference(problem, FAST, 0, tmp_path)
    (path,) = tmp_path.glob("hmc-*.npz")
    figures = dict(exact.diagnostics.figures)
    for spoilt in ({"r_hat_q": [1.0, 1.02, 1.0]}, {"tail_ess_min": 399.0}, {"divergences": 1}):
        about = gs.Diagnostics(gs.Status.OK, "ok", figures | spoilt)
        bad = replace(exact, diagnostics=about)
        assert len(comparison.complaints_about(bad)) == 1
        bad.save(path)
        before = len(runs)
        again, complaints = comparison.find_reference(problem, FAST, 0, tmp_path)
        assert len(runs) == before + 1
        assert complaints == ()
        assert comparison.complaints_about(gs.Posterior.load(path)) == ()
    path.write_text("damaged")
    again, complaints = comparison.find_reference(problem, FAST, 0, tmp_path)
    np.testing.assert_array_equal(again.form.q, exact.form.q)
    assert comparison.complaints_about(gs.Posterior.from_draws([[0.5, 0.5]])) != ()


def test_chains_that_fail_are_run_longer_and_told_and_never_kept(tmp_path, runs):
    short = gs.HMC(chains=2, warmup=20, draws=10, progress=False)
    names = {"reference": short, "backends": ["newton"], "point_estimates": (), "cache": tmp_path}
    found = gs.compare(COUNTS, **names)
    assert runs == [10, 40]
    assert found.complaints
    assert found["hmc"].status == "no reference"
    assert not list(tmp_path.glob("hmc-*.npz"))


def test_a_stop_loses_only_what_was_running(tmp_path, runs, monkeypatch):
    names = {"reference": FAST, "point_estimates": (), "cache": tmp_path}

    def stop(self, problem, rng):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(gs.Laplace, "infer", stop)
        with pytest.raises(KeyboardInterrupt):
            gs.compare(COUNTS, backends=["newton", "laplace"], **names)
    made = []
    infer = gs.NewtonCG.infer
    monkeypatch.setattr(
        gs.NewtonCG, "infer", lambda *given: made.append(1) or infer(*given), raising=True
    )
    found = gs.compare(COUNTS, backends=["newton", "laplace"], **names)
    assert runs == [1000]
    assert made == []
    assert {row.name for row in found.rows} == {"hmc", "newton", "laplace"}


# Files and the command


def test_rows_figure_and_files(tmp_path):
    found = gs.compare(
        COUNTS,
        backends={"newton": "newton", "bad": Broken()},
        reference=FAST,
        truth=[0.5, 0.4, 0.1],
    )
    for suffix in ("csv", "json", "png", "svg"):
        (found.plot if suffix in ("png", "svg") else found.save)(tmp_path / f"c.{suffix}")
    with (tmp_path / "c.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == [row.name for row in found.rows]
    assert float(rows[1]["mean_error"]) == found["newton"].figures["mean_error"]
    assert rows[2]["status"] == "failed"
    kept = json.loads((tmp_path / "c.json").read_text())
    assert kept["reference_checks"] == "passed"
    assert kept["rows"][2]["seconds"] is None
    assert kept["classes"]["newton"]["mean"] == found.posteriors["newton"].mean.tolist()
    assert kept["truth"] == [0.5, 0.4, 0.1]
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match=r"saved to \.csv or \.json"):
        found.save(tmp_path / "c.txt")
    with pytest.raises(ValueError, match=r"ends in \.png"):
        found.plot(tmp_path / "c.gif")


SHORT = ["--chains", 2, "--warmup", 300, "--draws", 1000]


def test_the_command_compares_files(run, predictions, tmp_path):
    sources = ["--validation", "val.csv", "--target", "new.csv"]
    options = ["--backend", "structured", "--backend", "newton", "--cache", "kept"]
    out = ["--out", "c.csv", "--out", "c.json", "--plot", "c.png"]
    result = run("compare", *sources, *SHORT, *options, *out)
    assert result.exit_code == 0, result.output
    for said in (
        "structured",
        "newton",
        "bbse",
        "speed-up",
        "hmc ...",
        "wrote c.csv",
        "wrote c.png",
    ):
        assert said in result.output
    assert "L1" not in result.output  # the truth is not known
    assert len(list((tmp_path / "kept").glob("*.npz"))) == 3
    rows = json.loads((tmp_path / "c.json").read_text())["rows"]
    assert [row["name"] for row in rows] == ["hmc", "structured", "newton", "bbse", "rlls", "mlls"]


def test_the_command_on_made_up_data(run, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    result = run("compare", "--simulate", 4, "--rows", 30, *SHORT, "--backend", "newton")
    assert result.exit_code == 0, result.output
    assert "ShiftCounts(4 classes, 120 validation rows, 5000 target" in result.output
    assert "L1" in result.output
    kept = tmp_path / "home" / "gsb3se" / "posteriors"
    assert len(list(kept.iterdir())) == 2


@pytest.mark.slow
def test_the_command_on_digits(run, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    few = ["--chains", 2, "--warmup", 60, "--draws", 60, "--backend", "newton", "--no-cache"]
    result = run("compare", "--digits", *few, "--prior", "anchored", "--baseline", "none")
    assert result.exit_code == 0, result.output
    assert "400 validation rows, 232 target" in result.output
    assert "no reference here" in " ".join(result.output.split())
    assert not list(tmp_path.rglob("*.npz"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give --validation and --target, or --counts"),
        (["--digits", "--simulate", 5], "one of the three"),
        (["--simulate", 5, "--counts", "counts.npz"], "one of the three"),
        (["--simulate", 1], "1 is not in the range"),
        (["--digits", "--out", "c.txt"], "must end in .json or .csv"),
        (["--digits", "--plot", "c.txt"], "must end in .png, .pdf or .svg"),
        (["--digits", "--backend", "hmc"], "'hmc' is not one of"),
        (["--digits", "--cache", "x", "--no-cache"], "not both"),
        (["--digits", "--draws", 1], "draws must be a whole number"),
        (["--simulate", 5, "--rows", 0], "labels must be a whole number of at least 1"),
    ],
)
def test_bad_input_to_the_command_ends_with_one_sentence(run, tmp_path, arguments, message):
    COUNTS.save(tmp_path / "counts.npz")
    before = sorted(tmp_path.iterdir())
    assert failed_with(run("compare", *arguments), message)
    assert sorted(tmp_path.iterdir()) == before


def test_a_made_up_classifier_is_useful_and_repeats():
    one, other = (simulate_classifier(20, 100, 5000, seed=3) for _ in range(2))
    np.testing.assert_array_equal(one.counts.target, other.counts.target)
    rates = one.counts.confusion_rates.toarray()
    assert 0.65 < np.diag(rates).mean() < 0.95
    np.testing.assert_allclose(one.counts.target / 5000, rates @ one.q, atol=0.03)
