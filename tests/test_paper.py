"""The paper's protocol, on made-up outputs; tests/test_examples.py runs it with training."""

import warnings

import numpy as np
import pytest
import reproduce
from classifier_files import scores
from click.testing import CliRunner
from outputs import Outputs, stratified
from protocol import Experiment, draw, figures, label_graph, resampled, target_prior

import gsb3se as gs


@pytest.fixture
def outputs():
    rng = np.random.default_rng(0)
    held, test = np.repeat(np.arange(10), 30), np.repeat(np.arange(10), 120)
    return Outputs(scores(held, 10, rng), held, scores(test, 10, rng), test)


@pytest.fixture
def experiment(outputs):
    return Experiment(outputs, label_graph("features", outputs, 4, ""))


def test_every_stretch_of_stratified_rows_has_equal_classes():
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(4), 25))
    rows = stratified(labels, 80, seed=1)
    assert len(set(rows)) == 80
    for stretch in (rows[:40], rows[40:]):
        np.testing.assert_array_equal(np.bincount(labels[stretch]), np.full(4, 10))
    with pytest.raises(ValueError, match="the scarcest class has 25"):
        stratified(labels, 101, seed=1)


def test_the_papers_priors():
    q = target_prior("power law", 100, seed=0)
    assert q[0] / q[9] == pytest.approx(10**1.1)
    drawn = np.array([target_prior("dirichlet ramp", 10, seed) for seed in range(4000)])
    np.testing.assert_allclose(drawn.mean(axis=0), np.arange(1, 11) / 55, atol=0.02)
    ones = np.array([target_prior("dirichlet ones", 10, seed) for seed in range(4000)])
    np.testing.assert_allclose(ones.mean(axis=0), 0.1, atol=0.02)


def test_without_replacement_no_row_comes_twice_and_the_set_is_as_large_as_can_be(experiment):
    q = target_prior("power law", 10, seed=0)
    target = draw(experiment, q, 10_000, replace=False, seed=0)
    assert len(set(target.indices)) == len(target.indices)
    assert 0.7 * 120 / q[0] < len(target.indices) <= 120 / q[0]
    assert len(draw(experiment, q, 10_000, replace=True, seed=0).indices) == 10_000


def test_accuracy_is_after_saerens_correction(experiment):
    rows = np.arange(0, 1200, 3)
    q = np.random.default_rng(1).dirichlet(np.ones(10))
    p = experiment.source_prior
    right = experiment.probabilities[rows] * q / p
    truth = experiment.outputs.labels_test[rows]
    assert experiment.accuracy(rows, q) == (right.argmax(axis=1) == truth).mean()
    never = np.eye(10)[3]  # shares of zero rule nothing out for good
    assert 0 <= experiment.accuracy(rows, never) <= 1


def test_bootstrap_errors_are_the_binomials_and_paired(experiment):
    q = target_prior("dirichlet ones", 10, seed=3)
    target = draw(experiment, q, 400, replace=True, seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gs.GSB3SEWarning)  # some resamples leave classes alike
        found = resampled(
            experiment, target, q, [("anchored", "amortized")], 200, seed=0, advance=lambda n: None
        )
    assert set(found) >= {"BBSE", "MLLS", "GS-B3SE, anchored, amortized"}
    for values in found.values():
        a = values["accuracy"].mean()
        assert values["accuracy"].std() == pytest.approx(np.sqrt(a * (1 - a) / 400), rel=0.35)
    apart = found["MLLS"]["accuracy"] - found["RLLS"]["accuracy"]
    assert apart.std() < found["MLLS"]["accuracy"].std()  # the same rows for both
    whole = figures(experiment, target, q, gs.baselines.mlls(experiment.counts(target.indices)))
    assert abs(found["MLLS"]["l1_population"].mean() - whole["l1_population"]) < 0.1


def test_outputs_of_any_classifier_load(outputs, tmp_path):
    outputs.save(tmp_path / "own.npz")
    own = Outputs.load(tmp_path / "own.npz", 0, 0)
    np.testing.assert_array_equal(own.logits_test, outputs.logits_test)
    probs = np.exp(outputs.logits_test)
    probs /= probs.sum(axis=1, keepdims=True)
    np.savez(tmp_path / "test.npz", probs_test=probs, labels_test=outputs.labels_test)
    split = Outputs.load(tmp_path / "test.npz", 200, seed=0)
    np.testing.assert_array_equal(np.bincount(split.labels_val), np.full(10, 20))
    assert len(split.labels_test) == 1000


@pytest.mark.parametrize(
    ("arrays", "told"),
    [
        ({"logits_val": np.zeros((3, 2))}, "lacks labels_test and logits_test"),
        ({"logits_test": np.zeros((4, 2)), "labels_test": np.arange(4) % 3}, "classes 0..1"),
        ({"logits_test": np.full((4, 2), np.nan), "labels_test": np.arange(4) % 2}, "finite"),
        (
            {"logits_test": np.zeros((4, 2)), "labels_test": np.arange(6) % 2},
            "each of the 6 labels",
        ),
    ],
)
def test_bad_outputs_are_refused_in_one_sentence(arrays, told, tmp_path):
    np.savez(tmp_path / "bad.npz", **arrays)
    command = ["mnist", "--logits", str(tmp_path / "bad.npz"), "--out", str(tmp_path / "out"),
               "--validation-rows", "2"]  # fmt: skip
    done = CliRunner().invoke(reproduce.main, command)
    assert done.exit_code == 1
    assert told in done.output
    assert not list((tmp_path / "out").glob("*"))


def test_both_readings_are_measured_from_saved_outputs(outputs, tmp_path):
    outputs.save(tmp_path / "logits.npz")
    command = ["cifar10", "--logits", tmp_path / "logits.npz", "--out", tmp_path / "out", "--graph",
               "features", "--backend", "newton", "--n-target", 300, "--repeats", 2, "--resamples",
               10]  # fmt: skip
    done = CliRunner().invoke(reproduce.main, [str(word) for word in command])
    assert done.exit_code == 0, done.output
    rows = (tmp_path / "out" / "results.csv").read_text().splitlines()
    # 8 classical rows a draw, 2 priors in the first; with and without replacement
    assert len(rows) == 1 + 2 * (2 * 8 + 2)
    table = (tmp_path / "out" / "table.md").read_text()
    assert "without replacement" in table
    assert "0.112" in table  # what the paper printed for BBSE


def test_a_graph_of_names_says_what_it_needs(outputs):
    with pytest.raises(ValueError, match="array 'names'"):
        label_graph("clip", outputs, 4, "openai")
