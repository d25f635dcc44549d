"""Fitting a guide to the hierarchy by its ELBO; imported where it runs.

Adam on Pyro's reparameterised ELBO until it is flat; then as many steps again with a falling step
size, whose iterates are averaged.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyro
import torch
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoNormal, init_to_value
from torch import nn

from gsb3se.inference.variational.pyro_program import Hierarchy
from gsb3se.support.errors import NoSolution
from gsb3se.support.limits import VARIATIONAL_ONE_THREAD

_HOPELESS = 100  # steps without a finite ELBO, from the first, after which it gives up
_STEP_SIZE = 0.02
_RISING, _BLOCK = 20, 50  # steps over which the step size rises; between two looks at the ELBO
_FLAT = 0.1  # nats a block, beyond its noise
_LEAST_ANNEALED, _MOST_ANNEALED = 100, 400
_LAST_STEP_SIZE = 0.02  # of the first
_LARGEST_GRADIENT = 100.0  # norm in units of the square root of the parameters' number
_NOISE_DRAWS = 8
_turn = threading.RLock()


@dataclass
class GuideFit:
    """How a fit went.

    Attributes:
        elbo: a value a step, noisy; flat: whether it became so before the last step allowed.
        skipped: steps whose ELBO or gradient was not finite.
        gradient, gradient_noise: root mean square over the parameters of the gradient at the end,
            and of its standard deviation from step to step.
    """

    elbo: list[float] = field(default_factory=list)
    flat: bool = False
    skipped: int = 0
    gradient: float = 0.0
    gradient_noise: float = 0.0


@contextmanager
def private_state(seed: int, device: torch.device, n_classes: int) -> Iterator[None]:
    """Seeds, Pyro's parameters and checks, and the number of threads are this block's own.

    They are global to the process: blocks in other threads wait for their turn. Of few classes the
    arrays are so small that threads only wait for each other.
    """
    with _turn:
        yield from _private_state(seed, device, n_classes)


def _private_state(seed: int, device: torch.device, n_classes: int) -> Iterator[None]:
    devices, threads = [device] if device.type == "cuda" else [], torch.get_num_threads()
    with (
        torch.random.fork_rng(devices),
        pyro.get_param_store().scope(),
        pyro.validation_enabled(False),
    ):
        torch.manual_seed(seed)
        if n_classes <= VARIATIONAL_ONE_THREAD:
            torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def fit(
    model: Hierarchy,
    guide: nn.Module,
    particles: int,
    max_steps: int,
    advance: Callable[[int, int, float], None] = lambda done, total, elbo: None,
) -> GuideFit:
    """Raise the ELBO of a guide, in place.

    Args:
        particles: draws a step.
        max_steps: before it must be flat.
        advance: is told the steps done, about how many there may be, and the ELBO.
    """
    result = GuideFit()
    elbo = _elbo(particles)
    guide.train()
    optimiser = torch.optim.Adam(guide.parameters(), lr=_STEP_SIZE, betas=(0.9, 0.99))
    parameters = list(guide.parameters())
    largest = _LARGEST_GRADIENT * math.sqrt(sum(p.numel() for p in parameters))

    def step(size: float) -> None:
        optimiser.zero_grad()
        loss = elbo.differentiable_loss(model, guide)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(parameters, largest)
        if not (torch.isfinite(loss) and torch.isfinite(norm)):
            result.skipped += 1
            if not result.elbo and result.skipped >= _HOPELESS:
                raise NoSolution(
                    f"the ELBO was not finite in any of {result.skipped} steps: these counts are "
                    "beyond what the variational backend can do; use backend='structured'"
                )
            return
        for group in optimiser.param_groups:
            group["lr"] = size
        optimiser.step()
        result.elbo.append(model.log_constant - loss.item())

    done = 0
    while not result.flat and done < max_steps:
        step(_STEP_SIZE * min(1.0, (done + 1) / _RISING))
        done += 1
        advance(done, max_steps, result.elbo[-1] if result.elbo else math.nan)
        if done % _BLOCK == 0 and len(result.elbo) >= 2 * _BLOCK:
            result.flat = is_flat(result.elbo)
    annealed = min(max(done, _LEAST_ANNEALED), _MOST_ANNEALED)
    averages = [p.detach().clone() for p in parameters]
    for k in range(1, annealed + 1):
        step(_STEP_SIZE * _LAST_STEP_SIZE ** (k / annealed))
        for average, parameter in zip(averages, parameters, strict=True):
            average.lerp_(parameter.detach(), 1 / k)
        advance(done + k, done + annealed, result.elbo[-1] if result.elbo else math.nan)
    with torch.no_grad():
        for average, parameter in zip(averages, parameters, strict=True):
            parameter.copy_(average)
    result.gradient, result.gradient_noise = _gradient_noise(elbo, model, guide, parameters)
    guide.eval()
    return result


def _elbo(particles: int) -> Trace_ELBO:
    """Pyro's estimator of the ELBO from so many draws side by side."""
    return Trace_ELBO(num_particles=particles, vectorize_particles=True, max_plate_nesting=0)


def is_flat(elbo: list[float]) -> bool:
    """Whether the last block of steps gained nothing over the one before but noise."""
    before, last = np.array(elbo[-2 * _BLOCK : -_BLOCK]), np.array(elbo[-_BLOCK:])
    error = math.sqrt((before.var() + last.var()) / _BLOCK)
    return bool(last.mean() - before.mean() < 2 * error + _FLAT)


def _gradient_noise(
    elbo: Trace_ELBO, model: Hierarchy, guide: nn.Module, parameters: list[nn.Parameter]
) -> tuple[float, float]:
    """Root mean square over the parameters of the mean gradient, and of its sd a step."""
    square, size = 0.0, sum(p.numel() for p in parameters)
    sums = [torch.zeros_like(p) for p in parameters]
    for _ in range(_NOISE_DRAWS):
        loss = elbo.differentiable_loss(model, guide)
        slopes = torch.autograd.grad(loss, parameters)
        for whole, slope in zip(sums, slopes, strict=True):
            whole += slope
            square += float(slope.square().sum())
    total = sum(float(whole.square().sum()) for whole in sums) / _NOISE_DRAWS**2
    noise = max(square / _NOISE_DRAWS - total, 0.0) * _NOISE_DRAWS / (_NOISE_DRAWS - 1)
    return math.sqrt(total / size), math.sqrt(noise / size)


def seconds_a_step(model: Hierarchy, guide: nn.Module, particles: int) -> float:
    """Time of one gradient of the ELBO."""
    elbo = _elbo(particles)
    began = time.perf_counter()
    torch.autograd.grad(elbo.differentiable_loss(model, guide), list(guide.parameters()))
    return time.perf_counter() - began


def mean_field(model: Hierarchy, structured: Any) -> nn.Module:
    """Pyro's independent normals over every site, started at the structured guide's middle."""
    with torch.no_grad():
        at = structured.place(structured.level_shift.new_zeros(1, structured.size))
    values = {
        "theta": at.theta[0],
        "columns": at.columns[0],
        "tau_C": torch.exp(at.strengths[0, 0]),
        "tau_q": model.tau_q_given(at.theta[0]).mean,
        "weights": at.strengths[0, 1:],
    }
    guide = AutoNormal(model, init_loc_fn=init_to_value(values=values), init_scale=0.1)
    guide()  # its parameters come into being
    return guide
