"""Drawing from a fitted guide; imported where it runs.

*Hamiltonian layers.* A guide that is nearly right can be made longer: draw a momentum, follow the
posterior's own forces for a while, and let N(0, I) be the auxiliary law of the momentum at the end
(Salimans, Kingma and Welling, 2015). Motion preserves volume, so that each layer adds log N(end) -
log N(start) of its momentum to the log weight, and the mean of the log weights is a lower bound of
the evidence as before. Between kicks by what N(0, I) does not explain of the force, the motion is
N(0, I)'s own rotation (as in gsb3se.inference.hamiltonian, in torch). No draw depends on another;
a draw whose energy error in a layer is too large keeps its point from before the layer, and is
counted; with such draws the mean is only approximately a bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pyro import poutine
from pyro.infer.importance import vectorized_importance_weights
from pyro.ops.stats import fit_generalized_pareto
from torch import Tensor, nn

from gsb3se.inference.variational.fit import private_state
from gsb3se.inference.variational.pyro_program import Hierarchy
from gsb3se.support.errors import NoSolution

_KICKS, _ANGLE, _JITTER = 8, 0.2, (0.8, 1.2)  # of a layer
_THROWN = 20.0  # nats of energy gained or lost in a layer
_LEAST_TAIL = 10
_SITES = ("theta", "columns", "tau_q", "tau_C", "weights")


class GuideDraws(NamedTuple):
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
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> GuideDraws:
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
        if "weights" in values:
            drawn |= {"alpha": values["weights"][:, 0], "beta": values["weights"][:, 1]}
        fine = torch.isfinite(log_weights) & torch.isfinite(r.sum(-1))
        drawn["log_weights"] = log_weights
        parts.append({name: value[fine].double().cpu().numpy() for name, value in drawn.items()})
        confusion += torch.exp(log_c[fine]).sum(0).T.double().cpu().numpy()
        lost += size - int(fine.sum())
        done += size
        advance(done, draws)
    if lost == draws:
        raise NoSolution("no draw of the guide is finite: use backend='structured'")
    whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    q, r, weights = (whole.pop(name) for name in ("q", "r", "log_weights"))
    return GuideDraws(q, r, whole, confusion / confusion.sum(axis=0), weights, thrown, lost)


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
        # Log weights are relative to N(z): with its change this is the energy error.
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
