"""Training: neural posterior estimation on simulated shifts that never end.

The loss is the negative log density of the true theta, divided by the number of classes, under the
posterior of the encoder given the simulated counts. The best fit within the family minimises it.
Two more terms fit the columns: the relative entropy of the true columns from their predicted mean,
minimal at E[C], and a scoring rule for their variance.

Everything random follows from the seed and the step, so that a run that was stopped goes on as if
it had not been, and as many processes as there are learn from the same global batches.
"""

from __future__ import annotations

import copy
import csv
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from gsb3se.support.errors import as_whole_number
from gsb3se.support.files import as_csv, whole, write_text
from gsb3se_amortized.checkpoint import (
    Checkpoint,
    check_device,
    part,
    read_tensors,
    write_tensors,
)
from gsb3se_amortized.encoder import Encoder
from gsb3se_amortized.familiarity import typical
from gsb3se_amortized.family import BentStudents
from gsb3se_amortized.objective import TrainingObjective, surprise_a_class
from gsb3se_amortized.padded_batch import Batch
from gsb3se_amortized.simulator import Progress, Ranges, Shifts

STATE, ENCODER, LOG = "training.safetensors", "encoder.safetensors", "log.csv"
_KIND = "gsb3se training"
_LARGEST_GRADIENT = 1.0
_VALIDATION = 1 << 40  # the step from which batches are for validation
_VALIDATION_BATCHES, _TYPICAL_BATCHES, _TEMPER_BATCHES, _DRAWS = 40, 400, 100, 200


@dataclass(frozen=True)
class TrainingPlan:
    """All that decides what is learned.

    Attributes:
        steps: optimiser steps; shards: batches of a step, shared out among the processes.
        learning_rate: its peak, reached after ``warmup`` steps and followed by a cosine to zero.
        averaging: of the weights that are kept, exponential.
        settings: of the encoder; ranges: of the simulator.
    """

    steps: int = 20_000
    shards: int = 2
    seed: int = 0
    learning_rate: float = 2e-3
    warmup: int = 300
    averaging: float = 0.999
    settings: dict[str, int] = field(default_factory=dict)
    ranges: Ranges = field(default_factory=Ranges)

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("shards", 1), ("seed", 0), ("warmup", 0)):
            as_whole_number(getattr(self, name), name, least)
        if not 0 < self.learning_rate < 1 or not 0 <= self.averaging < 1:
            raise ValueError("learning_rate must lie between 0 and 1, averaging in [0, 1)")

    def rate(self, step: int) -> float:
        """The learning rate of a step."""
        rising = min(1.0, (step + 1) / max(self.warmup, 1))
        return self.learning_rate * rising * (1 + math.cos(math.pi * step / self.steps)) / 2


@dataclass(frozen=True)
class Schedule:
    """When training saves, in seconds, and when it reports and validates, in steps."""

    save_seconds: float = 120.0
    report_every: int = 50
    validate_every: int = 1000


class Report(NamedTuple):
    """How training stands; the last three are of the latest validation."""

    step: int
    steps: int
    seconds: float
    loss: float
    columns: float
    learning_rate: float
    skipped: int
    validation: float
    coverage_50: float
    coverage_90: float


@dataclass
class _Run:
    """What changes while training, and where it runs."""

    plan: TrainingPlan
    device: torch.device
    rank: int
    world: int
    encoder: Encoder
    average: Encoder
    optimiser: torch.optim.AdamW
    step: int = 0
    seconds: float = 0.0
    skipped: int = 0


def train(
    folder: str | os.PathLike[str],
    plan: TrainingPlan | None = None,
    *,
    device: str = "cpu",
    workers: int = 0,
    schedule: Schedule | None = None,
    tell: Callable[[Report], None] = lambda report: None,
) -> Checkpoint | None:
    """Train an encoder, or go on with what stands in the folder.

    Args:
        folder: takes ``training.safetensors`` (the state, saved every few minutes), ``log.csv`` and
            at the end ``encoder.safetensors``.
        plan: None to go on with the folder's own; a folder that holds a run takes no other plan.
        workers: processes that simulate ahead.
        schedule: when to save, report and validate.
        tell: called with a :class:`Report` now and then.

    Under ``torchrun`` every process calls this; the first one writes and returns the checkpoint.
    """
    folder, chosen = Path(folder), check_device(device)
    state = folder / STATE
    if plan is None and not state.is_file():
        raise ValueError(f"{folder} holds no training to go on with: {STATE} is missing")
    with _processes(chosen) as (rank, world):
        if plan is None:
            plan = read_plan(state)
        elif state.is_file() and read_plan(state) != plan:
            raise ValueError(
                f"{folder} holds a training with another plan: resume that one, or take an empty "
                "folder"
            )
        if plan.shards % world:
            raise ValueError(
                f"{world} processes cannot share {plan.shards} shards evenly: take a multiple"
            )
        run = _start(plan, chosen, rank, world)
        if state.is_file():
            _restore(run, state)
        keeper = None
        if rank == 0:
            folder.mkdir(parents=True, exist_ok=True)
            _cut_log(folder / LOG, run.step)
            keeper = _Keeper(folder, schedule or Schedule(), tell)
        _loop(run, keeper, workers)
        if rank:
            return None
        finished = _finished(run)
        finished.save(folder / ENCODER)
        return finished


def _loop(run: _Run, keeper: _Keeper | None, workers: int) -> None:
    """All steps that are left; ``keeper`` of the first process alone."""
    plan = run.plan
    objective: nn.Module = TrainingObjective(run.encoder)
    if run.world > 1:
        objective = DistributedDataParallel(objective)
    start = Progress(run.step, plan.steps, plan.shards, run.rank, run.world)
    shifts = Shifts(plan.seed, start, plan.ranges)
    batches = iter(DataLoader(shifts, batch_size=None, num_workers=workers))
    began = time.perf_counter() - run.seconds
    while run.step < plan.steps:
        losses = _step(run, objective, batches)
        run.step += 1
        run.seconds = time.perf_counter() - began
        if keeper is not None:
            keeper.look(run, losses)


class _Keeper:
    """Validates, reports and saves now and then, and after the last step."""

    def __init__(self, folder: Path, schedule: Schedule, tell: Callable[[Report], None]) -> None:
        self.folder, self.schedule, self.tell = folder, schedule, tell
        self._losses: list[tuple[float, float]] = []
        self._validated = (math.nan, math.nan, math.nan)
        self._saved = time.perf_counter()

    def look(self, run: _Run, losses: tuple[float, float]) -> None:
        """Take a step's losses, and do what is due."""
        plan, schedule = run.plan, self.schedule
        self._losses.append(losses)
        last = run.step == plan.steps
        if run.step % schedule.validate_every == 0 or last:
            self._validated = validate(run.average, plan, run.device)
        if run.step % schedule.report_every == 0 or last:
            parts = zip(*self._losses, strict=True)
            surprise, columns = (sum(part) / len(self._losses) for part in parts)
            self._losses.clear()
            report = Report(
                run.step,
                plan.steps,
                run.seconds,
                surprise,
                columns,
                plan.rate(run.step - 1),
                run.skipped,
                *self._validated,
            )
            _append_log(self.folder / LOG, report)
            self.tell(report)
        if time.perf_counter() - self._saved > schedule.save_seconds or last:
            _save(run, self.folder / STATE)
            self._saved = time.perf_counter()


def _step(run: _Run, objective: nn.Module, batches: Iterator[Batch]) -> tuple[float, float]:
    """One optimiser step over this process's shards; the mean of both losses over all."""
    plan, device, world = run.plan, run.device, run.world
    mine = plan.shards // world
    losses = torch.zeros(2, device=device)
    for shard in range(mine):
        waiting = world > 1 and shard < mine - 1
        with objective.no_sync() if waiting else nullcontext():
            surprise, columns, importance = objective(next(batches).to(device))
            ((surprise + columns + importance) / mine).backward()
        losses += torch.stack([surprise.detach().float(), columns.detach().float()]) / mine
    if world > 1:
        distributed.all_reduce(losses)
        losses /= world
    norm = nn.utils.clip_grad_norm_(run.encoder.parameters(), _LARGEST_GRADIENT)
    for group in run.optimiser.param_groups:
        group["lr"] = plan.rate(run.step)
    if bool(torch.isfinite(norm)):
        run.optimiser.step()
    else:
        run.skipped += 1
    run.optimiser.zero_grad()
    kept = min(plan.averaging, (run.step + 1) / (run.step + 20))
    with torch.no_grad():
        torch._foreach_lerp_(
            list(run.average.parameters()), list(run.encoder.parameters()), 1 - kept
        )
    return float(losses[0]), float(losses[1])


@torch.no_grad()
def validate(
    encoder: Encoder, plan: TrainingPlan, device: torch.device
) -> tuple[float, float, float]:
    """Nats a class and coverage of the 50 % and 90 % intervals, on batches never trained on."""
    shifts = Shifts(plan.seed, ranges=plan.ranges)
    generator = torch.Generator(device).manual_seed(plan.seed)
    surprise, inside, weights = [], [], []
    for step in range(_VALIDATION_BATCHES):
        batch = shifts.batch(_VALIDATION + step, 0).to(device)
        posterior, _ = encoder(batch)
        assert batch.importance is not None
        nats = surprise_a_class(posterior, batch).mean(dim=1)
        surprise.append((nats * batch.importance).mean())
        rank = ranks_of_truth(posterior, batch, _DRAWS, generator)
        inside.append(torch.stack([(rank - 0.5).abs() < level / 2 for level in (0.5, 0.9)], -1))
        weights.append(batch.importance[:, None, None].expand(posterior.mask.shape)[posterior.mask])
    weight = torch.cat(weights)
    coverage = (torch.cat(inside) * weight[:, None]).sum(dim=0) / weight.sum()
    return float(torch.stack(surprise).mean()), float(coverage[0]), float(coverage[1])


def ranks_of_truth(
    posterior: BentStudents, batch: Batch, draws: int, generator: torch.Generator
) -> Tensor:
    """(N,) share of the draws below the true q, of every class of every window."""
    return ranks_among(posterior.sample(draws, generator), posterior, batch)[posterior.mask]


def ranks_among(x: Tensor, posterior: BentStudents, batch: Batch) -> Tensor:
    """(S, W, K) share of the draws x (n, S, W, K) of log q that are below the true one."""
    assert batch.theta is not None
    truth = torch.softmax(torch.where(posterior.mask, batch.theta, -torch.inf), dim=-1)
    return (torch.softmax(x, dim=-1) < truth).double().mean(dim=0)


@torch.no_grad()
def tempered(encoder: Encoder, plan: TrainingPlan, device: torch.device) -> float:
    """The factor by which its widths must change for intervals to cover what they say.

    Maximum likelihood sees to the tails of the errors before their middle, and leaves intervals a
    little too wide. On data sets whose hyper-parameters come from their priors, all of one weight:
    the factor at which coverage of 50 % and 90 % intervals are off by the least in sum.
    """
    generator = torch.Generator(device).manual_seed(plan.seed)
    factors = torch.linspace(0.8, 1.2, 21, dtype=torch.float64, device=device)
    levels = torch.tensor([0.5, 0.9], device=device)
    inside = []
    shifts = Shifts(plan.seed, ranges=plan.ranges, wide=False)
    for step in range(_TEMPER_BATCHES):
        batch = shifts.batch(3 * _VALIDATION + step, 0).to(device)
        posterior, _ = encoder(batch)
        x = posterior.sample(_DRAWS, generator)
        for factor in factors:
            moved = posterior.centre + factor * (x - posterior.centre)
            rank = ranks_among(moved, posterior, batch)
            covered = (rank - 0.5).abs()[..., None] < levels / 2
            covered = torch.where(posterior.mask[..., None], covered, False)
            inside.append(covered.sum(dim=-2) / batch.sizes[:, None, None])
    coverage = [
        torch.cat([part.flatten(0, 1) for part in inside[k :: len(factors)]]).mean(dim=0)
        for k in range(len(factors))
    ]
    off = (torch.stack(coverage) - levels).abs().sum(dim=-1)
    return float(factors[off.argmin()])


def read_plan(state: Path) -> TrainingPlan:
    """The plan of a training that stands in a file."""
    _, metadata = read_tensors(state, _KIND)
    with whole(state):
        parts = dict(metadata["plan"])
        parts["ranges"] = Ranges.of(parts["ranges"])
        return TrainingPlan(**parts)


def _start(plan: TrainingPlan, device: torch.device, rank: int, world: int) -> _Run:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(plan.seed)
        encoder = Encoder(**plan.settings).to(device)
    optimiser = torch.optim.AdamW(
        encoder.parameters(), plan.learning_rate, betas=(0.9, 0.98), weight_decay=1e-4
    )
    average = copy.deepcopy(encoder).requires_grad_(False)
    return _Run(plan, device, rank, world, encoder, average, optimiser)


def _save(run: _Run, path: Path) -> None:
    tensors = {f"encoder.{k}": v for k, v in run.encoder.state_dict().items()}
    tensors |= {f"average.{k}": v for k, v in run.average.state_dict().items()}
    for name, parameter in run.encoder.named_parameters():
        for moment, value in run.optimiser.state[parameter].items():
            tensors[f"optimiser.{moment}.{name}"] = value
    metadata = {
        "kind": _KIND,
        "plan": asdict(run.plan),
        "step": run.step,
        "seconds": run.seconds,
        "skipped": run.skipped,
    }
    write_tensors(path, tensors, metadata)


def _restore(run: _Run, path: Path) -> None:
    tensors, metadata = read_tensors(path, _KIND)
    with whole(path):
        run.encoder.load_state_dict(part(tensors, "encoder."))
        run.average.load_state_dict(part(tensors, "average."))
        for name, parameter in run.encoder.named_parameters():
            moments: dict[str, Any] = {
                moment: tensors[f"optimiser.{moment}.{name}"]
                for moment in ("step", "exp_avg", "exp_avg_sq")
            }
            run.optimiser.state[parameter] = {
                k: v if k == "step" else v.to(parameter.device) for k, v in moments.items()
            }
        run.step, run.seconds = int(metadata["step"]), float(metadata["seconds"])
        run.skipped = int(metadata["skipped"])


def _finished(run: _Run) -> Checkpoint:
    """The averaged encoder with what it needs to recognise unfamiliar counts."""
    plan, device = run.plan, run.device
    shifts = Shifts(plan.seed, ranges=plan.ranges)
    encoder = run.average.eval()
    encoder.temper.mul_(tempered(encoder, plan, device))
    simulated = (
        shifts.batch(2 * _VALIDATION + step, 0).to(device) for step in range(_TYPICAL_BATCHES)
    )
    reference = {k: v.cpu() for k, v in typical(encoder, simulated).items()}
    card = {"seed": plan.seed, "steps": plan.steps, "shards": plan.shards, "plan": asdict(plan)}
    card |= {"seconds": round(run.seconds), "skipped_steps": run.skipped}
    card |= {"temper": float(encoder.temper)}
    return Checkpoint(encoder.cpu(), plan.ranges, reference, card)


def _append_log(path: Path, report: Report) -> None:
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if new:
            writer.writerow(Report._fields)
        writer.writerow([f"{value:.6g}" for value in report])


def _cut_log(path: Path, step: int) -> None:
    """Forget what a stopped run logged after its last save."""
    if not path.exists():
        return
    with path.open(newline="") as file:
        header, *rows = csv.reader(file)
    write_text(path, as_csv(header, [row for row in rows if float(row[0]) <= step]))


@contextmanager
def _processes(device: torch.device) -> Iterator[tuple[int, int]]:
    """Rank and number of processes, as torchrun says; one if it does not."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield 0, 1
        return
    distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield distributed.get_rank(), world
    finally:
        distributed.destroy_process_group()
