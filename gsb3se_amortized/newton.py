"""One full Newton step of the target's posterior, and the Gaussian there.

With E = diag(r / n' + sum_i q_i^2 v_i), M = Q C'E^-1 C Q and N the columns' effective sizes, the
information on log q is A = (M^-1 - N^-1)^-1 = N (N - M)^-1 N - N: the columns' sums being one takes
the N^-1 from the noise. To it come tau_q L and a learned diagonal.

O(K^3) a window: a product, and two inversions by Cholesky. In double precision, but for many
classes without gradients, where single precision takes half the time and doubles up if it fails.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gsb3se.errors import NoSolution

_LARGEST_MOVE = 4.0  # in sds
_BLOCK = 1 << 18  # numbers in the matrices of the windows that are worked on together
_SINGLE = 500  # classes from which single precision is tried
_JITTER, _SINGLE_JITTER = 1e-9, 1e-5  # relative additions to noise and precision


@dataclass(frozen=True, eq=False)
class Place:
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


def newton_step(
    mean: Tensor, sizes: Tensor, laplacian: Tensor, mask: Tensor, place: Place
) -> Gaussian:
    """The step for every window.

    Args:
        mean: (S, K, K) E[C]; sizes: (S, K) effective sizes N of the columns.
        laplacian: (S, K, K) L; mask: (S, K) whether there is a class.
    """
    parts = vars(place)
    windows, n = place.x.shape[1:]
    if torch.is_grad_enabled():
        return _step(mean, sizes, laplacian, mask, place)
    few = max(1, _BLOCK // n**2)
    found = []
    for start in range(0, windows, few):
        some = Place(**{k: v[:, start : start + few] for k, v in parts.items()})
        found.append(_step_without_gradients(mean, sizes, laplacian, mask, some))
    if len(found) == 1:
        return found[0]
    return Gaussian(*(torch.cat(part, dim=1) for part in zip(*map(_tensors, found), strict=True)))


def _tensors(found: Gaussian) -> tuple[Tensor, ...]:
    return found.x, found.move, found.sd, found.factor


def _step_without_gradients(
    mean: Tensor, sizes: Tensor, laplacian: Tensor, mask: Tensor, place: Place
) -> Gaussian:
    """The step in the first precision, and with the first addition to the noise, that serves.

    Counts far beyond the trained ranges make matrices that are singular to the digits there are.
    """
    attempts = [(torch.float64, more) for more in (_JITTER, 1e-6, 1e-3)]
    if place.x.shape[-1] >= _SINGLE:
        attempts.insert(0, (torch.float32, _SINGLE_JITTER))
    for dtype, jitter in attempts:
        try:
            found = _step(mean, sizes, laplacian, mask, place, dtype, jitter)
        except torch.linalg.LinAlgError:
            continue
        if bool(torch.isfinite(found.sd).all()):
            return found
    raise NoSolution("the encoder's precision matrix is singular: use backend='structured'")


def _step(
    mean: Tensor,
    sizes: Tensor,
    laplacian: Tensor,
    mask: Tensor,
    place: Place,
    dtype: torch.dtype = torch.float64,
    jitter: float = _JITTER,
) -> Gaussian:
    mean, sizes, laplacian = (
        part.to(dtype)[:, None] for part in (mean, sizes, laplacian)
    )  # beside the windows
    mask = mask[:, None]
    place = Place(**{k: v.to(dtype) for k, v in vars(place).items()})
    # A little more noise than there is: N - M stays positive, and with it A.
    spread = (place.noise * (1 + jitter)).sqrt()
    x, tau, root = place.x, place.tau, sizes.sqrt()
    weighted = mean * ((place.q / root)[..., None, :] / spread[..., None])
    identity = torch.eye(x.shape[-1], dtype=dtype, device=x.device)
    inner = identity - weighted.mT @ weighted
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(inner))
    score = weighted.mT @ (place.residual / spread)[..., None]
    score = (inverse @ score)[..., 0] * root
    force = score - tau * (laplacian @ x[..., None])[..., 0]
    stiff = tau * laplacian.diagonal(dim1=-2, dim2=-1)
    diagonal = inverse.diagonal(dim1=-2, dim2=-1) * sizes - sizes + stiff
    added = (place.stiffer + jitter) * diagonal - sizes + 1e-6
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
