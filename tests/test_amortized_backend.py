"""Amortized: the backend on one problem, on many, outside what it knows, and its checkpoints."""

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import gsb3se as gs
from gsb3se.model.simulation import simulate_classifier
from gsb3se_amortized import Amortized
from gsb3se_amortized import checkpoint as checkpoints
from gsb3se_amortized.checkpoint import WEIGHTS, _load, load, read_tensors, write_tensors
from gsb3se_amortized.grouping import batches_of, sources_of
from gsb3se_amortized.simulator import simulate_source


@pytest.fixture(scope="module")
def case():
    return simulate_classifier(12, labels=40, n_target=1500, seed=3)


def quietly(*arguments, **more):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gs.GSB3SEWarning)
        return gs.estimate(*arguments, backend=more.pop("backend", "amortized"), **more)


def test_it_is_near_the_structured_posterior(case):
    ours = quietly(case.counts, case.graph)
    exact = quietly(case.counts, case.graph, backend="structured")
    assert np.median(np.abs(ours.mean - exact.mean) / exact.sd) < 0.3
    assert 0.75 < np.median(ours.sd / exact.sd) < 1.33
    assert ours.backend == "amortized" and "unfamiliar" not in ours.diagnostics.message
    assert "seconds" in ours.diagnostics.figures
    np.testing.assert_allclose(ours.confusion_mean.sum(axis=0), 1)


def test_windows_and_lists_are_inferred_as_one_by_one(case):
    targets = np.random.default_rng(0).multinomial(800, np.full(12, 1 / 12), 5)
    windows = quietly(case.counts, case.graph, targets=targets)
    singly = [quietly(case.counts.with_target(target), case.graph) for target in targets]
    for one, other in zip(windows, singly, strict=True):
        np.testing.assert_allclose(one.mean, other.mean, atol=1e-5)
    cases = [simulate_classifier(n, 20, 400, seed=n) for n in (30, 7, 8, 12)]
    together = quietly([one.counts for one in cases], [one.graph for one in cases])
    for one, post in zip(cases, together, strict=True):
        np.testing.assert_allclose(quietly(one.counts, one.graph).mean, post.mean, atol=1e-5)
        assert post.n_classes == one.counts.n_classes


def test_a_list_works_for_any_backend_and_must_fit_its_graphs(case):
    both = quietly([case.counts, case.counts], case.graph, backend="newton")
    np.testing.assert_allclose(both[0].mean, both[1].mean)
    with pytest.raises(ValueError, match="one graph for each"):
        gs.estimate([case.counts], [case.graph, case.graph], backend="amortized")
    with pytest.raises(TypeError, match="without targets"):
        gs.estimate([case.counts], case.graph, targets=[[1]], backend="amortized")


def test_a_source_is_encoded_once_and_passes_hold_alike_sizes(case):
    windows = [
        gs.Problem(case.counts.with_target(np.full(12, k + 1)), case.graph) for k in range(4)
    ]
    others = [gs.Problem(simulate_classifier(n, 5, 50, 0).counts) for n in (10, 11, 60)]
    assert [len(group.places) for group in sources_of([*windows, *others])] == [4, 1, 1, 1]
    sizes = [
        [group.problem.n_classes for group in batch] for batch in batches_of([*windows, *others])
    ]
    assert sizes == [[12], [10, 11], [60]]


def test_relabelling_permutes_the_posterior(case):
    order = np.random.default_rng(1).permutation(12)
    confusion = case.counts.confusion.toarray()[order][:, order]
    counts = gs.ShiftCounts(confusion, case.counts.target[order])
    graph = gs.LabelGraph.from_weights(case.graph.weights.toarray()[order][:, order])
    one, other = quietly(case.counts, case.graph).form, quietly(counts, graph).form
    for name in ("centre", "scale", "skew", "tail"):
        np.testing.assert_allclose(getattr(one, name)[order], getattr(other, name), atol=1e-5)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"labels": 400}, "up to 300 validation rows"),
        ({"n_target": 200_000}, "100,000 target predictions"),
        ({"n_target": 10}, "20 to 100,000"),
        ({"n_classes": 350}, "5 to 300 classes"),
    ],
)
def test_outside_the_trained_ranges_it_says_so(change, told):
    made = simulate_classifier(
        change.get("n_classes", 12), change.get("labels", 40), change.get("n_target", 1500), 0
    )
    with pytest.warns(gs.GSB3SEWarning, match=told):
        post = gs.estimate(made.counts, made.graph, backend="amortized")
    assert "unfamiliar" in post.diagnostics.message
    assert "backend='structured'" in post.diagnostics.message


def test_another_prior_is_unfamiliar(case):
    with pytest.warns(gs.GSB3SEWarning, match="defaults alone"):
        gs.estimate(case.counts, case.graph, prior=gs.Prior(a_q=3), backend="amortized")


def test_counts_unlike_any_simulated_ones_are_unfamiliar():
    """Every prediction is wrong, and the target is of a class that was never predicted."""
    confusion = np.roll(np.diag(np.full(12, 200)), 1, axis=0)
    confusion[5] = 0
    target = np.zeros(12, dtype=int)
    target[5] = 5000
    post = quietly(gs.ShiftCounts(confusion, target))
    assert post.diagnostics.figures["strangeness"] > 1
    assert "unlike the simulated" in post.diagnostics.message


def test_simulated_counts_are_familiar():
    rng = np.random.default_rng(11)
    strange = []
    for _ in range(60):
        made = simulate_source(int(rng.integers(5, 40)), 1, rng)
        prior = gs.Prior.anchored() if made.source.anchored else gs.Prior()
        graph = made.source.graph
        counts = gs.ShiftCounts(made.source.confusion, made.source.targets[0], graph.labels)
        strange.append(quietly(counts, graph, prior=prior).diagnostics.figures["strangeness"])
    assert np.mean(np.array(strange) > 1) < 0.05


def test_each_window_is_told_its_own_findings(case):
    few, many = quietly(case.counts, case.graph, targets=[[1] + [0] * 11, [50] * 12])
    assert "1 target predictions are few for 12 classes" in few.diagnostics.message
    assert "fewer target predictions" not in many.diagnostics.message
    one = quietly(case.counts.with_target([1] + [0] * 11), case.graph)
    assert one.diagnostics.message == few.diagnostics.message


def test_refined_it_is_the_structured_posterior(case):
    refined = quietly(case.counts, case.graph, backend=Amortized(refine="structured"))
    exact = quietly(case.counts, case.graph, backend="structured")
    assert refined.backend == "structured"
    np.testing.assert_array_less(np.abs(refined.mean - exact.mean), 0.2 * exact.sd)
    windows = quietly(
        case.counts,
        case.graph,
        targets=[case.counts.target, case.counts.target[::-1]],
        backend=Amortized(refine="structured"),
    )
    assert [window.n_target for window in windows] == [1500, 1500]


def test_bad_settings_are_refused(case):
    with pytest.raises(ValueError, match="refine must be"):
        Amortized(refine="hmc")
    with pytest.raises(ValueError, match="ships with the package"):
        gs.estimate(case.counts, backend=Amortized(checkpoint="nosuch"))
    with pytest.raises(ValueError, match="CUDA"):
        gs.estimate(case.counts, backend=Amortized(device="cuda"))
    with pytest.raises(ValueError, match="device must be"):
        gs.estimate(case.counts, backend=Amortized(device="nowhere"))


def test_posteriors_are_saved_and_predict(case, tmp_path):
    post = quietly(case.counts, case.graph)
    post.save(tmp_path / "post.npz")
    again = gs.Posterior.load(tmp_path / "post.npz")
    np.testing.assert_array_equal(post.mean, again.mean)
    np.testing.assert_array_equal(post.predictive(50, 3, seed=1), again.predictive(50, 3, seed=1))
    # Replicated counts look like those that were seen.
    replicated = post.predictive(1500, 2000, seed=0)
    gap = np.abs(replicated.mean(axis=0) - case.counts.target)
    assert (gap < 3 * replicated.std(axis=0)).all()


def test_a_checkpoint_comes_back_as_it_was(tmp_path, case):
    shipped = load("base")
    shipped.save(tmp_path / "copy.safetensors")
    copy = load(tmp_path / "copy.safetensors")
    for one, other in zip(shipped.encoder.parameters(), copy.encoder.parameters(), strict=True):
        assert torch.equal(one, other)
    assert copy.ranges == shipped.ranges and copy.card == shipped.card
    by_path = quietly(case.counts, case.graph, backend=Amortized(tmp_path / "copy.safetensors"))
    np.testing.assert_array_equal(by_path.mean, quietly(case.counts, case.graph).mean)


def test_the_shipped_checkpoint_is_small_and_has_its_card():
    path = checkpoints.find("base")
    assert path.stat().st_size < 5 * 2**20
    card = load("base").card
    assert {"seed", "steps", "seconds", "plan"} <= set(card)
    assert path.with_suffix(".md").is_file()


def test_broken_checkpoints_are_told_in_a_sentence(tmp_path: Path):
    tensors = load_file(checkpoints.find("base"))
    broken = {
        "another kind": ({"gsb3se": json.dumps({"kind": "cake"})}, "holds no gsb3se encoder"),
        "nothing": ({}, "holds no gsb3se encoder"),
        "newer": (
            {"gsb3se": json.dumps({"kind": "gsb3se encoder", "version": 99})},
            "format version 99",
        ),
        "other weights": (
            {
                "gsb3se": json.dumps(
                    {"kind": "gsb3se encoder", "version": 1, "settings": {"width": 8}}
                )
            },
            "is damaged",
        ),
    }
    for name, (metadata, told) in broken.items():
        path = tmp_path / f"{name}.safetensors"
        save_file(tensors, path, metadata)
        with pytest.raises(ValueError, match=told):
            load(path)
    (tmp_path / "cut.safetensors").write_bytes(checkpoints.find("base").read_bytes()[:5000])
    with pytest.raises(ValueError, match="is damaged"):
        load(tmp_path / "cut.safetensors")


@pytest.mark.parametrize("prior", [gs.Prior(), gs.Prior.anchored()])
@pytest.mark.parametrize("n", [2, 10])
def test_counts_beyond_all_bounds_give_finite_answers(n, prior):
    target = np.zeros(n, dtype=int)
    target[0] = 10**10
    post = quietly(gs.ShiftCounts(10**9 * np.eye(n, dtype=int), target), prior=prior)
    assert np.isfinite([post.mean, post.sd]).all()
    assert post.mean[0] > 0.9
    assert "unfamiliar" in post.diagnostics.message


def test_loading_takes_no_random_number_of_the_users(tmp_path):
    _load.cache_clear()
    torch.manual_seed(5)
    first = torch.rand(2)
    torch.manual_seed(5)
    load("base")
    assert torch.equal(torch.rand(2), first)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("typical.limit", torch.full((2,), torch.nan, dtype=torch.float64), "finite"),
        ("typical.limit", -torch.ones(2, dtype=torch.float64), "positive"),
        ("typical.mean", None, "other shapes"),
        ("encoder.temper", torch.tensor(torch.nan), "finite"),
        ("encoder.temper", torch.ones(3), "not those of an encoder"),
    ],
)
def test_weights_that_cannot_be_meant_are_refused(tmp_path, name, value, message):
    tensors, metadata = read_tensors(WEIGHTS / "base.safetensors", "gsb3se encoder")
    tensors = {k: v for k, v in tensors.items() if k != name}
    write_tensors(
        tmp_path / "a.safetensors", tensors | ({} if value is None else {name: value}), metadata
    )
    with pytest.raises(ValueError, match=message):
        load(tmp_path / "a.safetensors")


def test_settings_far_beyond_the_weights_cost_nothing(tmp_path):
    tensors, metadata = read_tensors(WEIGHTS / "base.safetensors", "gsb3se encoder")
    for settings in ({"width": 4096, "cell_width": 4096}, {"before": 4096}):
        changed = metadata | {"settings": metadata["settings"] | settings}
        write_tensors(tmp_path / "a.safetensors", tensors, changed)
        with pytest.raises(ValueError, match="encoder of the settings"):
            load(tmp_path / "a.safetensors")


@pytest.mark.parametrize("n", [2, 3, 4])
def test_few_classes_are_familiar_and_their_intervals_hold(n):
    held, strange = [], 0
    for seed in range(120):
        made = simulate_classifier(n, labels=30, n_target=500, seed=seed)
        post = quietly(made.counts, made.graph)
        low, high = post.interval(0.9)
        held.append(((low <= made.q) & (made.q <= high)).mean())
        strange += post.diagnostics.status is gs.Status.UNFAMILIAR
    assert strange <= 3
    assert abs(np.mean(held) - 0.9) < 3 * np.std(held) / np.sqrt(len(held)) + 0.02
