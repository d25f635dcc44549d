"""The family of posteriors: a Student t on the simplex's tangent, bent class by class.

A point of it is theta = P x, x_i = centre_i + scale_i bend_i(w_i), with w a multivariate Student t
of precision R on the hyperplane a'w = 0, a = R (1 / scale). Every bend is a sinh-arcsinh, rising,
with bend(0) = 0 and slope one there, so that a rare class can be skewed. With many degrees of
freedom and without bends theta is the logistic-normal of precision (1 / scale) R (1 / scale); with
two degrees it is the hierarchy's own prior, tau_q ~ Gamma(1, 1) integrated out.

The map is one to one between the hyperplane and the sum-zero space: what theta lacks is the common
level c of x, and sum_i a_i w_i(theta_i + c) rises in c, so that it has one root. Its density
follows from

    |dw / dtheta| = sqrt(K) |a| / (sum_i a_i / x_i') / prod_i x_i',   x_i' = dx_i / dw_i.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_ROOT_STEPS = 60


@dataclass(frozen=True, eq=False)
class BentStudents:
    """A batch of posteriors; classes beyond a problem's own are masked.

    Attributes:
        centre, scale: (..., K); scale positive.
        skew, tail: (..., K) of the bends; 0 and 1 bend nothing.
        factor: (..., K, K) lower Cholesky factor of R; the identity where there is no class.
        freedom: (...) degrees of freedom.
        mask: (..., K) whether there is a class.
    """

    centre: Tensor
    scale: Tensor
    skew: Tensor
    tail: Tensor
    factor: Tensor
    freedom: Tensor
    mask: Tensor

    @property
    def _pull(self) -> Tensor:
        """(..., K) a = R (1 / scale), zero where there is no class; positive by a floor.

        The hyperplane is ours to choose: with the Gaussian's own a the bent and the plain one
        agree, and a positive a is what makes the root unique.
        """
        inverse = torch.where(self.mask, 1 / self.scale, 0.0)[..., None]
        pull = (self.factor @ (self.factor.mT @ inverse))[..., 0]
        floor = 1e-6 * pull.abs().amax(dim=-1, keepdim=True)
        return torch.where(self.mask, torch.maximum(pull, floor), 0.0)

    def log_density(self, theta: Tensor) -> Tensor:
        """(...) log density of theta (..., K), by Lebesgue measure on the sum-zero space."""
        mask, pull = self.mask, self._pull
        n = mask.sum(dim=-1).to(self.factor.dtype)
        level = self._level(theta, pull)
        white, slope = self._straightened(theta + level[..., None])
        white = torch.where(mask, white, 0.0)
        log_slope = torch.where(mask, slope.log(), 0.0)
        turned = self.factor.mT @ white[..., None]
        root = torch.linalg.solve_triangular(self.factor, pull[..., None], upper=False)
        log_det = self.factor.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)
        share = torch.where(mask, pull / slope, 0.0).sum(dim=-1)
        freedom, dimensions = self.freedom, n - 1
        form = turned.square().sum(dim=(-2, -1))
        student = (
            torch.lgamma((freedom + dimensions) / 2)
            - torch.lgamma(freedom / 2)
            - dimensions / 2 * (freedom * math.pi).log()
            - (freedom + dimensions) / 2 * torch.log1p(form / freedom)
        )
        return (
            student
            + log_det
            + 0.5 * root.square().sum(dim=(-2, -1)).log()
            + 0.5 * n.log()
            - log_slope.sum(dim=-1)
            - share.log()
        )

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """(n, ..., K) draws of theta, plus a common level each."""
        white = torch.randn(
            (*self.factor.shape[:-1], n),
            dtype=self.factor.dtype,
            device=self.factor.device,
            generator=generator,
        )
        drawn = (self.draw_factor() @ white).movedim(-1, 0)
        half = (self.freedom / 2).expand(n, *self.freedom.shape).contiguous()
        chance = torch._standard_gamma(half, generator=generator) / half
        return self.bent(drawn * chance.rsqrt()[..., None])

    def draw_factor(self) -> Tensor:
        """(..., K, K) F such that F z, z ~ N(0, I), lies in the hyperplane; w is it, rescaled."""
        n = self.factor.shape[-1]
        identity = torch.eye(n, dtype=self.factor.dtype, device=self.factor.device)
        free = torch.linalg.solve_triangular(self.factor.mT, identity, upper=True)
        pull = self._pull[..., None]
        across = free @ (free.mT @ pull)  # Cov a
        along = (pull * across).sum(dim=-2, keepdim=True)
        return free - across @ (pull.mT @ free) / along

    def bent(self, white: Tensor) -> Tensor:
        """x of w, both (..., K)."""
        stretched = torch.sinh(self.tail * torch.asinh(white) + self.skew) - torch.sinh(self.skew)
        x = self.centre + self.scale * stretched / (self.tail * torch.cosh(self.skew))
        return torch.where(self.mask, x, -torch.inf)

    def _straightened(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """w of x, and dx / dw there."""
        steep = self.tail * torch.cosh(self.skew)
        y = (x - self.centre) / self.scale * steep + torch.sinh(self.skew)
        angle = (torch.asinh(y) - self.skew) / self.tail
        white = torch.sinh(angle)
        slope = self.scale / steep * self.tail * torch.sqrt(1 + y * y) / torch.cosh(angle)
        return white, slope

    def _level(self, theta: Tensor, pull: Tensor) -> Tensor:
        """(...) the common level c with sum_i a_i w_i(theta_i + c) = 0, with its gradient."""
        with torch.no_grad():
            gap = self.centre - theta
            low = torch.where(self.mask, gap, torch.inf).amin(dim=-1)
            high = torch.where(self.mask, gap, -torch.inf).amax(dim=-1)
            level = (low + high) / 2
            for _ in range(_ROOT_STEPS):
                white, slope = self._straightened(theta + level[..., None])
                value = torch.where(self.mask, pull * white, 0.0).sum(dim=-1)
                rise = torch.where(self.mask, pull / slope, 0.0).sum(dim=-1)
                low = torch.where(value < 0, level, low)
                high = torch.where(value > 0, level, high)
                step = level - value / rise
                # Newton where it stays between the ends, else halving.
                inside = (step > low) & (step < high)
                moved = torch.where(inside, step, (low + high) / 2)
                settled = (moved - level).abs() <= 1e-12 * (1 + level.abs())
                level = moved
                if bool(settled.all()):
                    break
        # One more Newton step, with gradients: dc = -dh / h'.
        white, slope = self._straightened(theta + level[..., None])
        value = torch.where(self.mask, pull * white, 0.0).sum(dim=-1)
        rise = torch.where(self.mask, pull / slope, 0.0).sum(dim=-1).detach()
        return level - value / rise
