"""gsb3se.training: counting, correcting and weighting inside a training loop."""

import copy
import re
import subprocess
import sys

import numpy as np
import pytest

import gsb3se as gs

torch = pytest.importorskip("torch")
training = pytest.importorskip("gsb3se.training")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torchmetrics.classification import MulticlassConfusionMatrix  # noqa: E402

from gsb3se.model.adaptation import correct  # noqa: E402
from gsb3se.training import LabelShiftMetric, LogitCorrection, shift_weights  # noqa: E402


def batches(classes=4, n=60, seed=0):
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randint(classes, (n,), generator=generator)
    logits = torch.randn(n, classes, generator=generator) + 2 * torch.eye(classes)[truth]
    return logits, truth


def counted(classes=4, **options):
    metric = LabelShiftMetric(classes, **options)
    logits, truth = batches(classes)
    metric.update(logits, truth)
    metric.update(batches(classes, 80, seed=1)[0])
    return metric


def test_counts_are_torchmetrics_confusion_matrix():
    metric, theirs = LabelShiftMetric(5), MulticlassConfusionMatrix(5)
    for seed in range(4):
        logits, truth = batches(5, seed=seed)
        for metric_of in (metric, theirs):
            metric_of.update(logits, truth)
    metric.update(logits.argmax(dim=1))
    expected = theirs.compute().numpy().T  # theirs has the truth in rows
    np.testing.assert_array_equal(metric.counts.confusion.toarray(), expected)
    np.testing.assert_array_equal(
        metric.counts.target, np.bincount(logits.argmax(dim=1), minlength=5)
    )


def test_classes_and_logits_count_the_same():
    metric, other = LabelShiftMetric(4), LabelShiftMetric(4)
    logits, truth = batches()
    metric.update(logits, truth)
    metric.update(logits)
    other(logits.argmax(dim=1), truth)  # called, as modules are
    other(logits.argmax(dim=1).to(torch.int32))
    assert metric.counts == other.counts


def test_the_posterior_is_that_of_estimate():
    graph = gs.LabelGraph.from_weights(np.ones((4, 4)) - np.eye(4))
    metric = counted(graph=graph, prior=gs.Prior.anchored(), labels="abcd", seed=3)
    post = metric.compute()
    expected = gs.estimate(metric.counts, graph, prior=gs.Prior.anchored(), seed=3)
    assert post.labels == ("a", "b", "c", "d")
    np.testing.assert_array_equal(post.mean, expected.mean)
    assert metric.compute().mean.tolist() == post.mean.tolist()


@given(cells=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=200))
def test_sums_of_cells_keep_every_row(cells):
    predicted, truth = torch.tensor(cells).T
    metric = LabelShiftMetric(7)
    for start in range(0, len(cells), 9):
        metric.update(predicted[start : start + 9], truth[start : start + 9])
        metric._compress()
    metric.update(predicted)
    expected = gs.ShiftCounts.from_predictions(truth, predicted, predicted, labels=range(7))
    assert metric.counts == expected


def test_reset_forgets_and_reset_target_forgets_half():
    metric = counted()
    validation = metric.counts.confusion.toarray()
    metric.reset_target()
    with pytest.raises(ValueError, match="no target rows"):
        metric.compute()
    metric.update(torch.tensor([1, 1, 2]))
    assert metric.counts.target.tolist() == [0, 2, 1, 0]
    np.testing.assert_array_equal(metric.counts.confusion.toarray(), validation)
    metric.reset()
    with pytest.raises(ValueError, match="no validation rows"):
        _ = metric.counts


def test_states_merge_and_are_saved(tmp_path):
    metric, other = counted(), LabelShiftMetric(4)
    logits, truth = batches(seed=5)
    other.update(logits, truth)
    other.update(logits)
    expected = metric.counts + other.counts
    merged = copy.deepcopy(metric)
    merged.merge_state(other)
    assert merged.counts == expected
    torch.save(torch.nn.ModuleDict({"metric": merged}).state_dict(), tmp_path / "state.pt")
    fresh = torch.nn.ModuleDict({"metric": LabelShiftMetric(4)})
    fresh.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert fresh["metric"].counts == expected
    fresh["metric"].update(logits, truth)  # and counts on
    assert fresh["metric"].counts.n_validation == expected.n_validation + len(truth)


def test_memory_is_for_what_occurred():
    metric = LabelShiftMetric(20_000)
    for _ in range(40):
        metric.update(torch.randint(20_000, (8192,)), torch.randint(20_000, (8192,)))
    held = sum(part.nbytes for state in (metric.cells, metric.times) for part in state)
    assert held <= 16 * 40 * 8192
    repeated = LabelShiftMetric(20_000)
    for _ in range(100):
        repeated.update(torch.arange(8192), torch.arange(8192))
    held = sum(part.nbytes for state in (repeated.cells, repeated.times) for part in state)
    assert held <= 16 * (training._MOST_PENDING + 2 * 8192)
    repeated.update(torch.tensor([0]))
    assert repeated.counts.validation_sizes.max() == 100


@pytest.mark.parametrize(
    ("predictions", "target", "message"),
    [
        (torch.tensor([0, 4]), torch.tensor([0, 1]), "predictions must be classes from 0 to 3"),
        (torch.tensor([0, 1]), torch.tensor([0, -1]), "target must be classes from 0 to 3"),
        (torch.tensor([0, 1]), torch.tensor([0]), "as many rows"),
        (torch.zeros(3, 5), None, "a column a class"),
        (torch.zeros(3), None, "(n,) classes or (n, K) logits"),
        (torch.tensor([0, 1]), torch.zeros(2), "target must be (n,) classes"),
        (torch.tensor([True]), None, "predictions must be"),
    ],
)
def test_bad_batches_are_refused(predictions, target, message):
    metric = LabelShiftMetric(4)
    with pytest.raises(ValueError, match=re.escape(message)):
        metric.update(predictions, target)


RANK = """
import sys
from datetime import timedelta
import numpy as np, torch, torch.distributed as dist
from gsb3se.training import LabelShiftMetric
rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group(
    "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2,
    timeout=timedelta(seconds=60),
)
data = torch.load(f"{folder}/data.pt", weights_only=True)
metric = LabelShiftMetric(6)
for number, (logits, truth) in enumerate(zip(data["logits"], data["truth"])):
    if number % 2 == rank and sys.argv[3] == "shared" or rank == 1 and sys.argv[3] == "one":
        metric.update(logits, truth)
        metric.update(logits)
post = metric.compute()
own = metric.target_counts.sum().item()  # its own again
counts = post.problem.counts
np.savez(f"{folder}/rank{rank}.npz", mean=post.mean, own=own, target=counts.target,
         confusion=counts.confusion.toarray())
dist.destroy_process_group()
"""


@pytest.mark.parametrize("how", ["shared", "one"])
def test_two_processes_count_as_one(tmp_path, how):
    """Batches shared by two ranks; then all on one rank, while the other has seen none."""
    pairs = [batches(6, 50, seed) for seed in range(5)]
    logits, truth = [list(part) for part in zip(*pairs, strict=True)]
    torch.save({"logits": logits, "truth": truth}, tmp_path / "data.pt")
    alone = LabelShiftMetric(6)
    for one, true in pairs:
        alone.update(one, true)
        alone.update(one)
    ranks = [
        subprocess.Popen([sys.executable, "-c", RANK, str(rank), str(tmp_path), how])
        for rank in range(2)
    ]
    assert [process.wait(120) for process in ranks] == [0, 0]
    expected = alone.compute()
    own = 0
    for rank in range(2):
        with np.load(tmp_path / f"rank{rank}.npz") as found:
            np.testing.assert_array_equal(found["target"], alone.counts.target)
            np.testing.assert_array_equal(found["confusion"], alone.counts.confusion.toarray())
            np.testing.assert_array_equal(found["mean"], expected.mean)
            own += int(found["own"])
    assert own == alone.counts.n_target


# Correcting logits


def test_correction_is_saerens():
    logits, _ = batches()
    p, q = np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.4, 0.3, 0.2, 0.1])
    corrected = LogitCorrection(p, q)(logits.double()).softmax(dim=1)
    expected = correct(logits.double().softmax(dim=1).numpy(), p, q)
    np.testing.assert_allclose(corrected.numpy(), expected, atol=1e-12)


def test_correction_follows_a_posterior_and_is_saved_with_the_model():
    post = gs.Posterior.from_draws([[0.7, 0.3], [0.5, 0.5]])
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), LogitCorrection([0.5, 0.5], [0.5, 0.5]))
    rows = torch.randn(4, 3)
    before = model(rows)
    model[1].set_prior(post)
    shift = (model(rows) - before).detach().numpy()
    np.testing.assert_allclose(shift, np.log([[1.2, 0.8]] * 4), atol=1e-6)
    other = torch.nn.Sequential(torch.nn.Linear(3, 2), LogitCorrection([0.3, 0.7], [0.5, 0.5]))
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(other(rows), model(rows))
    assert model.half()(rows.half()).dtype == torch.float16
    model(rows.half()).sum().backward()  # the layer has no weights of its own
    assert [name for name, _ in model.named_parameters()] == ["0.weight", "0.bias"]


def test_correction_keeps_impossible_classes_finite_and_refuses_nonsense():
    assert torch.isfinite(LogitCorrection([0.5, 0.5], [1.0, 0.0])(torch.zeros(1, 2))).all()
    with pytest.raises(ValueError, match="source_prior is 0"):
        LogitCorrection([1.0, 0.0], [0.5, 0.5])
    with pytest.raises(ValueError, match="2 columns"):
        LogitCorrection([0.5, 0.5], [0.5, 0.5])(torch.zeros(1, 3))
    with pytest.raises(ValueError, match="target_prior"):
        LogitCorrection([0.5, 0.5], [0.5, 0.3, 0.2])


# Weights


def test_weights_make_the_source_look_like_the_target():
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])
    weights = shift_weights(q, p).numpy()
    np.testing.assert_allclose(p * weights, q, rtol=1e-6)
    rows = np.repeat([0, 1, 2], [500, 300, 200])
    each = shift_weights(q, torch.tensor(p), rows=torch.tensor(rows))
    assert each.dtype == torch.float64
    torch.manual_seed(0)
    drawn = rows[list(torch.utils.data.WeightedRandomSampler(each, 20_000))]
    np.testing.assert_allclose(np.bincount(drawn) / 20_000, q, atol=0.015)


def test_the_lower_end_leaves_uncertain_rises_alone():
    rng = np.random.default_rng(0)
    post = gs.Posterior.from_draws(rng.dirichlet([40, 30, 30], 2000))
    p = np.array([0.2, 0.4, 0.4])
    low, _ = post.interval(0.9)
    expected = low / p
    expected /= expected @ p
    np.testing.assert_allclose(shift_weights(post, p, lower=0.9), expected, rtol=1e-6)
    np.testing.assert_allclose(shift_weights(post, p), post.mean / p, rtol=1e-6)


def test_weights_are_clipped_and_average_one():
    p, q = np.array([0.98, 0.01, 0.01]), np.array([0.1, 0.6, 0.3])
    weights = shift_weights(q, p, clip=5).numpy()
    assert weights @ p == pytest.approx(1)
    assert weights[1] == weights[2]
    both = shift_weights(q, p, clip=(0.5, 5.0)).numpy()
    assert both[1] / both[0] == pytest.approx(10)


def test_bad_weights_are_refused():
    with pytest.raises(ValueError, match="clip"):
        shift_weights([0.5, 0.5], [0.5, 0.5], clip=(3, 1))
    with pytest.raises(ValueError, match="needs a posterior"):
        shift_weights([0.5, 0.5], [0.5, 0.5], lower=0.9)
    with pytest.raises(ValueError, match="no source row"):
        shift_weights([0.5, 0.5], [1.0, 0.0])
    with pytest.raises(ValueError, match="rows must be"):
        shift_weights([0.5, 0.5], [0.5, 0.5], rows=[0, 2])


@pytest.mark.parametrize("labelled", [True, False])
def test_logits_that_are_nan_are_no_class(labelled):
    metric = LabelShiftMetric(4)
    logits, truth = batches()
    logits[7, 2] = float("nan")
    with pytest.raises(ValueError, match="row 7 of the batch"):
        metric.update(logits, truth if labelled else None)
    assert metric.target_counts.sum() == 0 and not metric.cells
    quick = LabelShiftMetric(4, validate_args=False)  # which waits for no GPU
    quick.update(logits)


@pytest.mark.parametrize(
    "logits",
    [
        torch.full((1, 3), -torch.inf),
        torch.tensor([[1e5, 2e5, 3.0]]).half(),  # both too large for its range
        torch.eye(3).bool(),
        torch.eye(3) * 1j,
        torch.eye(3).to_sparse(),
    ],
)
def test_logits_that_name_no_class_are_refused(logits):
    metric = LabelShiftMetric(3)
    with pytest.raises(ValueError, match="logit"):
        metric.update(logits)
    assert metric.target_counts.sum() == 0


def test_one_infinite_logit_names_its_class():
    metric = LabelShiftMetric(3)
    metric.update(torch.tensor([[-torch.inf, torch.inf, 2.0]]))
    metric.update(torch.zeros(0, 3))
    assert metric.target_counts.tolist() == [0, 1, 0]
