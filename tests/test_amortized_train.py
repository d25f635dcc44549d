"""Training: it learns, goes on after a stop as if there had been none, and shares its work."""

import copy
import csv
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from commands import failed_with

import gsb3se as gs
from gsb3se_amortized.checkpoint import Checkpoint, load
from gsb3se_amortized.column_encoder import Columns
from gsb3se_amortized.encoder import Encoder
from gsb3se_amortized.objective import columns_loss
from gsb3se_amortized.padded_batch import Batch
from gsb3se_amortized.simulator import Ranges
from gsb3se_amortized.train import (
    ENCODER,
    LOG,
    STATE,
    Report,
    Schedule,
    TrainingPlan,
    tempered,
    train,
)

SMALL = TrainingPlan(
    steps=6,
    warmup=2,
    settings={"width": 8, "cell_width": 4, "before": 1, "after": 1},
    ranges=Ranges(classes=(5, 8), target=(20, 2000)),
)


@pytest.fixture(autouse=True)
def little_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Validation and familiarity from a few batches."""
    for name in ("_VALIDATION_BATCHES", "_TYPICAL_BATCHES", "_TEMPER_BATCHES"):
        monkeypatch.setattr(f"gsb3se_amortized.train.{name}", 4)


def trained(folder: Path, plan: TrainingPlan | None = SMALL, **more: object) -> Checkpoint:
    more.setdefault("schedule", Schedule(120.0, 1, 3))
    finished = train(folder, plan, **more)  # type: ignore[arg-type]
    assert finished is not None
    return finished


def losses(folder: Path) -> list[float]:
    with (folder / LOG).open(newline="") as file:
        return [float(row["loss"]) for row in csv.DictReader(file)]


def weights(checkpoint: Checkpoint) -> torch.Tensor:
    return torch.cat([p.flatten() for p in checkpoint.encoder.parameters()])


def test_training_lowers_the_loss(tmp_path: Path) -> None:
    reports: list[Report] = []
    plan = replace(SMALL, steps=60, learning_rate=5e-3, averaging=0.9)
    train(tmp_path, plan, schedule=Schedule(120.0, 1, 10), tell=reports.append)
    assert reports[-1].validation < reports[9].validation
    assert 0 < reports[-1].coverage_50 < reports[-1].coverage_90 <= 1
    assert [report.step for report in reports] == list(range(1, 61))


def test_a_stopped_run_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole")

    def stop(report: Report) -> None:
        if report.step == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "stopped", schedule=Schedule(0.0, 1, 3), tell=stop)
    assert (tmp_path / "stopped" / STATE).exists()
    assert not (tmp_path / "stopped" / ENCODER).exists()
    resumed = trained(tmp_path / "stopped", plan=None)
    assert torch.equal(weights(whole), weights(resumed))
    assert losses(tmp_path / "stopped") == losses(tmp_path / "whole")


def test_two_processes_learn_what_one_does(tmp_path: Path) -> None:
    """The same global batches under torchrun with gloo."""
    alone = trained(tmp_path / "one")
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "from test_amortized_train import SMALL, train\n"
        "import gsb3se_amortized.train as module\n"
        "module._VALIDATION_BATCHES = module._TYPICAL_BATCHES = module._TEMPER_BATCHES = 4\n"
        "if __name__ == '__main__':\n"
        "    train(sys.argv[1], SMALL, schedule=module.Schedule(120.0, 1, 3))\n"
    )
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parent), os.environ.get("PYTHONPATH", "")])
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
         str(script), str(tmp_path / "two")],
        check=True, timeout=300, capture_output=True,
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-3)
    shared = weights(load(tmp_path / "two" / ENCODER))
    assert torch.allclose(shared, weights(alone), atol=1e-3)


def test_workers_change_nothing(tmp_path: Path) -> None:
    plan = replace(SMALL, steps=3)
    one, other = trained(tmp_path / "a", plan), trained(tmp_path / "b", plan, workers=2)
    assert torch.equal(weights(one), weights(other))


def test_a_folder_keeps_to_its_plan(tmp_path: Path) -> None:
    trained(tmp_path, replace(SMALL, steps=1))
    with pytest.raises(ValueError, match="another plan"):
        trained(tmp_path, SMALL)
    with pytest.raises(ValueError, match="no training"):
        train(tmp_path / "nowhere", None)
    with pytest.raises(ValueError, match="CUDA"):
        train(tmp_path / "new", SMALL, device="cuda")


@pytest.mark.parametrize("change", [{"steps": 0}, {"learning_rate": 2.0}, {"averaging": 1.0}])
def test_bad_plans_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        replace(SMALL, **change)  # type: ignore[arg-type]


def test_the_rate_rises_and_falls() -> None:
    plan = TrainingPlan(steps=100, warmup=10, learning_rate=0.1)
    rates = [plan.rate(step) for step in range(100)]
    assert rates[0] < rates[9] and rates[9] == pytest.approx(max(rates), rel=0.03)
    assert rates[-1] < 1e-3


def test_the_columns_loss_is_least_at_their_posterior_mean() -> None:
    """Over draws of a column, the mean of the draws beats anything else; so does their variance."""
    draws = torch.distributions.Dirichlet(torch.tensor([2.0, 1.0, 0.5])).sample((4000,))
    n = len(draws)
    batch = Batch(*(torch.zeros(0) for _ in range(7)), torch.zeros(n, 1, 3))
    batch = replace(batch, sizes=torch.full((n,), 3), confusion=draws[:, :, None].expand(-1, -1, 3))

    def loss(mean: torch.Tensor, variance: torch.Tensor) -> float:
        columns = Columns(
            mean[None, :, None].expand(n, 3, 3),
            torch.zeros(n, 3),
            variance[None, :, None].expand(n, 3, 3),
            torch.zeros(n, 3, 1),
            torch.zeros(n, 1),
        )
        return float(columns_loss(columns, batch).mean())

    mean, variance = draws.mean(dim=0), draws.var(dim=0)
    best = loss(mean, variance)
    for shift in (0.03, -0.03):
        assert loss(mean + torch.tensor([shift, -shift, 0.0]), variance) > best
        assert loss(mean, variance * (1 + 5 * shift)) > best


def test_steps_that_are_not_finite_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "gsb3se_amortized.objective.surprise_a_class",
        lambda posterior, batch: posterior.centre.mean(dim=-1) * float("nan"),
    )
    reports: list[Report] = []
    finished = train(
        tmp_path, replace(SMALL, steps=2), schedule=Schedule(120.0, 1), tell=reports.append
    )
    assert finished is not None and reports[-1].skipped == 2
    assert torch.isfinite(weights(finished)).all()


def test_an_encoder_says_what_it_was_made_with() -> None:
    assert Encoder(**SMALL.settings).settings == SMALL.settings
    with pytest.raises(ValueError, match="multiple"):
        Encoder(width=7)


SMALL_COMMAND = [
    "train", "--out", "encoder", "--steps", "4", "--width", "8", "--classes", "5", "8",
    "--warmup", "1", "--report-every", "1", "--validate-every", "2", "--save-every", "0",
]  # fmt: skip


def test_the_command_trains_resumes_and_is_used(run, tmp_path):
    result = run(*SMALL_COMMAND)
    assert result.exit_code == 0, result.output
    assert "in validation" in result.output and "wrote encoder" in result.output
    assert failed_with(run(*SMALL_COMMAND), "--resume")
    again = run("train", "--out", "encoder", "--resume")
    assert again.exit_code == 0, again.output
    found = load(tmp_path / "encoder" / ENCODER)
    assert found.card["steps"] == 4 and found.ranges.classes == (5, 8)
    counts = gs.ShiftCounts([[9, 1], [1, 9]], [30, 20], labels=["ant", "bee"])
    counts.save(tmp_path / "counts.npz")
    used = run(
        "estimate", "--counts", "counts.npz", "--backend", "amortized",
        "--checkpoint", "encoder/encoder.safetensors",
    )  # fmt: skip
    assert used.exit_code == 0, used.output
    assert "5 to 8 classes, here are 2" in " ".join(used.output.split())


def test_the_command_says_what_is_missing(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_geometric", None)
    result = run("train", "--out", "x")
    assert failed_with(result, "[amortized]'")


def test_the_command_says_what_is_wrong(run):
    assert failed_with(run("train", "--out", "x", "--resume"), "no training to go on")
    assert failed_with(run("train", "--out", "x", "--width", "6"), "multiple of 4")
    assert failed_with(run("train", "--out", "x", "--device", "cuda"), "CUDA")
    assert failed_with(run("train", "--out", "x", "--classes", "9", "3"), "classes")


def test_widths_that_are_off_are_tempered(monkeypatch):
    monkeypatch.setattr("gsb3se_amortized.train._TEMPER_BATCHES", 12)
    plan, cpu = TrainingPlan(seed=5, ranges=Ranges(classes=(5, 20))), torch.device("cpu")
    encoder = copy.deepcopy(load("base").encoder)
    right = tempered(encoder, plan, cpu)
    encoder.temper.mul_(1.15)
    assert tempered(encoder, plan, cpu) == pytest.approx(right / 1.15, abs=0.05)
