"""One full Newton step of the target's posterior, and the Gaussian there.

With E = diag(r / n' + sum_i q_i^2 v_i), M = Q C'E^-1 C Q and N the columns' effective sizes, the
information on log q is A = (M^-1 - N^-1)^-1 = N (N - M)^-1 N - N: the columns' sums being one takes
the N^-1 from the noise. To it come tau_q L and a learned diagonal.

O(K^3) a window: a product, and two inversions by Cholesky. Uses double precision, except
for many classes without gradients: there it tries single precision first, in half the time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gsb3se.support.errors import NoSolution
from gsb3se.support.limits import AMORTIZED_SINGLE_PRECISION

_LARGEST_MOVE = 4.0  # in sds
_BLOCK = 1 << 18  # numbers in the matrices of the windows that are worked on together


@dataclass(frozen=True, eq=False)
class StepStart:
    """Where the step starts; (S, W, K) each but for tau.

    Attributes:
        x, q: log shares and shares; noise: variances of the predicted shares' observation.
        residual: observed minus predicted shares.
        stiffer: learned addition to the precision's diagonal, as a share of it.
        tau: (S, W, 1) strength tau_q.
    """

    x: Tensor
    q: Tensor
    noise: Tensor
    residual: Tensor
    stiffer: Tensor
    tau: Tensor


@dataclass(frozen=True, eq=False)
class Gaussian:
    """A Newton step and its Gaussian: x, move and sd (S, W, K), factor (S, W, K, K).

    ``factor`` is the Cholesky factor of the precision of (log q - x) / sd.
    """

    x: Tensor
    move: Tensor
    sd: Tensor
    factor: Tensor


class SourceMatrices(NamedTuple):
    """What a step needs of the sources.

    Attributes:
        mean: (S, K, K) E[C]; sizes: (S, K) effective sizes N of the columns.
        laplacian: (S, K, K) L; mask: (S, K) whether there is a class.
    """

    mean: Tensor
    sizes: Tensor
    laplacian: Tensor
    mask: Tensor


class Arithmetic(NamedTuple):
    """A precision, and the relative addition to noise and precision matrix that it needs."""

    dtype: torch.dtype
    jitter: float


_DOUBLE = Arithmetic(torch.float64, 1e-9)
_SINGLE = Arithmetic(torch.float32, 1e-5)
_CAREFUL = (Arithmetic(torch.float64, 1e-6), Arithmetic(torch.float64, 1e-3))


def newton_step(sources: SourceMatrices, start: StepStart) -> Gaussian:
    """The step for every window."""
    windows, n = start.x.shape[1:]
    if torch.is_grad_enabled():
        return _step(sources, start, _DOUBLE)
    few = max(1, _BLOCK // n**2)
    steps = []
    for first in range(0, windows, few):
        part = {name: values[:, first : first + few] for name, values in vars(start).items()}
        steps.append(_step_without_gradients(sources, StepStart(**part)))
    if len(steps) == 1:
        return steps[0]
    return Gaussian(*(torch.cat(part, dim=1) for part in zip(*map(_tensors, steps), strict=True)))


def _tensors(step: Gaussian) -> tuple[Tensor, ...]:
    return step.x, step.move, step.sd, step.factor


def _step_without_gradients(sources: SourceMatrices, start: StepStart) -> Gaussian:
    """The step in the first arithmetic that serves.

    Counts far beyond the trained ranges make matrices that are singular to the digits there are.
    """
    large = start.x.shape[-1] >= AMORTIZED_SINGLE_PRECISION
    for arithmetic in (*([_SINGLE] if large else []), _DOUBLE, *_CAREFUL):
        try:
            step = _step(sources, start, arithmetic)
        except torch.linalg.LinAlgError:
            continue
        if bool(torch.isfinite(step.sd).all()):
            return step
    raise NoSolution("the encoder's precision matrix is singular: use backend='structured'")


def _step(sources: SourceMatrices, start: StepStart, arithmetic: Arithmetic) -> Gaussian:
    dtype, jitter = arithmetic
    mean, sizes, laplacian = (part.to(dtype)[:, None] for part in sources[:3])  # beside the windows
    mask = sources.mask[:, None]
    start = StepStart(**{name: values.to(dtype) for name, values in vars(start).items()})
    # A little more noise than there is: N - M stays positive, and with it A.
    spread = (start.noise * (1 + jitter)).sqrt()
    x, tau, root = start.x, start.tau, sizes.sqrt()
    weighted = mean * ((start.q / root)[..., None, :] / spread[..., None])
    identity = torch.eye(x.shape[-1], dtype=dtype, device=x.device)
    inner = identity - weighted.mT @ weighted
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(inner))
    score = weighted.mT @ (start.residual / spread)[..., None]
    score = (inverse @ score)[..., 0] * root
    force = score - tau * (laplacian @ x[..., None])[..., 0]
    stiff = tau * laplacian.diagonal(dim1=-2, dim2=-1)
    diagonal = inverse.diagonal(dim1=-2, dim2=-1) * sizes - sizes + stiff
    added = (start.stiffer + jitter) * diagonal - sizes + 1e-6
    outer = root[..., None] * root[..., None, :]
    whole = torch.addcmul(tau[..., None] * laplacian, inverse, outer)
    whole = whole + torch.diag_embed(torch.where(mask, added, 1.0 - sizes))
    factor = torch.linalg.cholesky(whole)
    covariance = torch.cholesky_inverse(factor)
    move = (covariance @ torch.where(mask, force, 0.0)[..., None])[..., 0]
    ones = mask.to(dtype)[..., None]
    level = (ones * (whole @ ones)).sum(dim=-2)
    variance = covariance.diagonal(dim1=-2, dim2=-1) - 1 / level
    sd = torch.where(mask, variance.clamp_min(1e-10).sqrt(), 1.0)
    move = _LARGEST_MOVE * sd * torch.tanh(move / (_LARGEST_MOVE * sd))
    return Gaussian(x + move, move, sd, sd[..., None] * factor)
