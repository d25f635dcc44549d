"""Fitting a guide to the hierarchy by its ELBO, and drawing from it; imported where it runs.

*Fitting.* Adam on Pyro's reparameterised ELBO until it is flat; then as many steps again with a
falling step size, whose iterates are averaged.

*Hamiltonian layers.* A guide that is nearly right can be made longer: draw a momentum, follow the
posterior's own forces for a while, and let N(0, I) be the auxiliary law of the momentum at the end
(Salimans, Kingma and Welling, 2015). Motion preserves volume, so that each layer adds log N(end) -
log N(start) of its momentum to the log weight, and the mean of the log weights is a lower bound of
the evidence as before. Between kicks by what N(0, I) does not explain of the force, the motion is
N(0, I)'s own rotation. No draw depends on another; one that is thrown out of a layer by a force too
steep for its kicks stays where it was before it, and is counted: with such draws the mean is a
bound only nearly.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyro
import torch
from numpy.typing import NDArray
from pyro import poutine
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoNormal, init_to_value
from pyro.infer.importance import vectorized_importance_weights
from pyro.ops.stats import fit_generalized_pareto
from torch import Tensor, nn

from gsb3se.errors import NoSolution
from gsb3se.inference.pyro_model import Hierarchy

_HOPELESS = 100  # steps without a finite ELBO, from the first, after which it gives up
_STEP_SIZE = 0.02
_RISING, _BLOCK = 20, 50  # steps over which the step size rises; between two looks at the ELBO
_FLAT = 0.1  # nats a block, beyond its noise
_LEAST_ANNEALED, _MOST_ANNEALED = 100, 400
_LAST_STEP_SIZE = 0.02  # of the first
_LARGEST_GRADIENT = 100.0  # norm in units of the square root of the parameters' number
_NOISE_DRAWS = 8
_KICKS, _ANGLE, _JITTER = 8, 0.2, (0.8, 1.2)  # of a layer
_THROWN = 20.0  # nats of energy gained or lost in a layer
_LEAST_TAIL = 10
_ONE_THREAD = 48  # classes up to which one thread is fastest
_turn = threading.RLock()
_SITES = ("theta", "columns", "tau_q", "tau_C", "anchor")


class Sample(NamedTuple):
    """Draws from a guide.

    Attributes:
        q, r: (n, K); others: tau_q, tau_C, alpha, beta, (n,) each; confusion: (K, K) mean of C.
        log_weights: (n,) log p - log q, constants included.
        thrown: how often a draw was thrown out of a layer; lost: draws that were not finite.
    """

    q: NDArray[np.float64]
    r: NDArray[np.float64]
    others: dict[str, NDArray[np.float64]]
    confusion: NDArray[np.float64]
    log_weights: NDArray[np.float64]
    thrown: int
    lost: int


@dataclass
class Fit:
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
        if n_classes <= _ONE_THREAD:
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
    tell: Callable[[int, int, float], None] = lambda done, total, elbo: None,
) -> Fit:
    """Raise the ELBO of a guide, in place.

    Args:
        particles: draws a step.
        max_steps: before it must be flat.
        tell: told the steps done, about how many there may be, and the ELBO.
    """
    found = Fit()
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
            found.skipped += 1
            if not found.elbo and found.skipped >= _HOPELESS:
                raise NoSolution(
                    f"the ELBO was not finite in any of {found.skipped} steps: these counts are "
                    "beyond what the variational backend can do; use backend='structured'"
                )
            return
        for group in optimiser.param_groups:
            group["lr"] = size
        optimiser.step()
        found.elbo.append(model.log_constant - loss.item())

    done = 0
    while not found.flat and done < max_steps:
        step(_STEP_SIZE * min(1.0, (done + 1) / _RISING))
        done += 1
        tell(done, max_steps, found.elbo[-1] if found.elbo else math.nan)
        if done % _BLOCK == 0 and len(found.elbo) >= 2 * _BLOCK:
            found.flat = is_flat(found.elbo)
    annealed = min(max(done, _LEAST_ANNEALED), _MOST_ANNEALED)
    averages = [p.detach().clone() for p in parameters]
    for k in range(1, annealed + 1):
        step(_STEP_SIZE * _LAST_STEP_SIZE ** (k / annealed))
        for average, parameter in zip(averages, parameters, strict=True):
            average.lerp_(parameter.detach(), 1 / k)
        tell(done + k, done + annealed, found.elbo[-1] if found.elbo else math.nan)
    with torch.no_grad():
        for average, parameter in zip(averages, parameters, strict=True):
            parameter.copy_(average)
    found.gradient, found.gradient_noise = _gradient_noise(elbo, model, guide, parameters)
    guide.eval()
    return found


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


def mean_elbo(model: Hierarchy, guide: nn.Module, draws: int, batch: int, seed: int) -> float:
    """The ELBO from so many draws; the same seed compares two guides draw by draw."""
    device = model.laplacian.device
    total = 0.0
    with private_state(seed, device, model.n_classes), torch.no_grad():
        for size in _batches(draws, batch):
            total += float(_weights(model, guide, size)[0].sum())
    return total / draws


def draw(
    model: Hierarchy,
    guide: nn.Module,
    draws: int,
    batch: int,
    layers: int = 0,
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> Sample:
    """Draws from a fitted guide, with Hamiltonian layers at its end if any are wanted."""
    parts: list[dict[str, NDArray[np.float64]]] = []
    confusion = np.zeros((model.n_classes, model.n_classes))
    for parameter in guide.parameters():
        parameter.requires_grad_(False)
    done, thrown, lost = 0, 0, 0
    for size in _batches(draws, batch):
        if layers:
            log_weights, values, out = _lengthened(model, guide, size, layers)
            thrown += out
        else:
            log_weights, values = _weights(model, guide, size)
        log_c = torch.log_softmax(values["columns"], -1)
        log_q = torch.log_softmax(values["theta"], -1)
        r = torch.exp(torch.logsumexp(log_q[..., None] + log_c, -2))
        drawn = {"q": torch.exp(log_q), "r": r, "tau_q": values["tau_q"], "tau_C": values["tau_C"]}
        if "anchor" in values:
            drawn |= {"alpha": values["anchor"][:, 0], "beta": values["anchor"][:, 1]}
        fine = torch.isfinite(log_weights) & torch.isfinite(r.sum(-1))
        drawn["log_weights"] = log_weights
        parts.append({name: value[fine].double().cpu().numpy() for name, value in drawn.items()})
        confusion += torch.exp(log_c[fine]).sum(0).T.double().cpu().numpy()
        lost += size - int(fine.sum())
        done += size
        tell(done, draws)
    if lost == draws:
        raise NoSolution("no draw of the guide is finite: use backend='structured'")
    whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    q, r, weights = (whole.pop(name) for name in ("q", "r", "log_weights"))
    return Sample(q, r, whole, confusion / confusion.sum(axis=0), weights, thrown, lost)


def pareto_k(log_weights: NDArray[np.float64]) -> float:
    """The tail index of importance weights: below 0.7 they could be relied on.

    Of the largest weights, min(n / 5, 3 sqrt(n)) of them, less the next; infinite if too few are
    left to tell (Vehtari et al., 2024).
    """
    ordered = np.sort(log_weights - log_weights.max())
    tail = math.ceil(min(0.2 * len(ordered), 3 * math.sqrt(len(ordered))))
    if tail < _LEAST_TAIL or tail >= len(ordered):
        return math.inf
    excess = np.exp(ordered[-tail:]) - np.exp(ordered[-tail - 1])
    if np.count_nonzero(excess > 0) < _LEAST_TAIL:
        return math.inf
    return float(fit_generalized_pareto(torch.as_tensor(excess[excess > 0]))[0])


def _batches(draws: int, batch: int) -> list[int]:
    return [min(batch, draws - done) for done in range(0, draws, batch)]


def _weights(model: Hierarchy, guide: Any, size: int) -> tuple[Tensor, dict[str, Tensor]]:
    """log p - log q of so many draws, and their values by site."""
    # Of a single draw Pyro gives the sum over its batch.
    log_weights, _, trace = vectorized_importance_weights(
        model, guide, num_samples=max(size, 2), max_plate_nesting=0
    )
    values = {
        name: trace.nodes[name]["value"].detach()[:size] for name in _SITES if name in trace.nodes
    }
    return log_weights[:size] + model.log_constant, values


def _lengthened(
    model: Hierarchy, guide: nn.Module, size: int, layers: int
) -> tuple[Tensor, dict[str, Tensor], int]:
    """Draws that went through layers, log weights and values; how often one was thrown out."""
    like, n_draws = model.laplacian, max(size, 2)

    def at(z: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Log weight of noise z, the force on it that N(0, I) does not explain, and the values."""
        z = z.detach().requires_grad_(True)
        log_weights, values = _weights(model, poutine.condition(guide, {"z": z}), n_draws)
        (force,) = torch.autograd.grad(log_weights.sum(), z)
        return log_weights.detach(), force, values

    z = torch.randn(n_draws, guide.size, dtype=like.dtype, device=like.device)
    here, force, values = at(z)
    log_weights, thrown = here, 0
    for _ in range(layers):
        first = (z, here, force, values)
        start = torch.randn_like(z)
        low, high = _JITTER
        angle = _ANGLE * (low + (high - low) * torch.rand_like(z[:, :1]))
        cosine, sine = torch.cos(angle), torch.sin(angle)
        momentum = start
        for _ in range(_KICKS):
            momentum = momentum + angle / 2 * force
            z, momentum = cosine * z + sine * momentum, cosine * momentum - sine * z
            here, force, values = at(z)
            momentum = momentum + angle / 2 * force
        # Log weights compare with N(z), which the motion leaves: energy is all but kept.
        squares = [part.square().sum(1) for part in (first[0], start, z, momentum)]
        change = here - first[1] + (squares[0] + squares[1] - squares[2] - squares[3]) / 2
        out = ~(change.abs() < _THROWN)
        thrown += int(out[:size].sum())
        log_weights = torch.where(out, log_weights, log_weights + change)
        z, here, force = (_chosen(out, a, b) for a, b in zip(first, (z, here, force), strict=False))
        values = {name: _chosen(out, first[3][name], value) for name, value in values.items()}
    return log_weights[:size], {name: value[:size] for name, value in values.items()}, thrown


def _chosen(where: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """Draws of the first where asked for, else of the second."""
    return torch.where(where.reshape(-1, *[1] * (one.dim() - 1)), one, other)


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
        "anchor": at.strengths[0, 1:],
    }
    guide = AutoNormal(model, init_loc_fn=init_to_value(values=values), init_scale=0.1)
    guide()  # its parameters come into being
    return guide
