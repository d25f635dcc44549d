"""The structured guide: a map from white noise to the whole posterior, fitted by its ELBO.

It starts where the structured backend ends (:mod:`gsb3se.inference.posterior_frame`) and goes, for
noise z = (levels, cells, strengths), all of it shifted and stretched first, levels and strengths by
full triangular matrices:

1. *Strengths* (log tau_C, alpha, beta) along their axes.
2. *Levels* log eta_i = log(n' q_i / Lambda_i): they follow the strengths, have the covariance of
   the structured target stage times a learned one, and a learned bend on either side.
3. *Columns* y_i = modes_i (1 + tau_C omega_i)^-1/2 z_i: the covariance (tau_C L + diag(pi_i))^-1
   that the label graph gives each of them, whatever tau_C is.
4. *Rows.* The target sees row j through mu_j = sum_i eta_i e^{x_ji} alone, and mu_j is known to
   1 / sqrt(n'_j). So the row's y move together along the direction l_j, of length 1, in which log
   mu_j answers to them, from u_j = l_j'y_j to the s_j that solves

       hold s_j + pull log mu_j(y_j + l_j (s_j - u_j)) = pull aim_j + noise u_j.

   It is what conditioning a Gaussian on the target would do, with the exact mu_j in place of its
   linearisation. This is how theta and the columns stay coupled. The left side rises in s_j, so
   that there is one solution, and ds_j / du_j = noise / (hold + pull dlog mu_j / ds_j).
5. *Cells* x = hinge(y): zero counts have a wall above and wide room below.

tau_q given theta has its exact Gamma law. In the end the exact posterior is nearly N(0, I) over z.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyro
import torch
from pyro import distributions as dist
from torch import Tensor, nn
from torch.nn.functional import softplus

from gsb3se.inference.posterior_frame import PosteriorFrame
from gsb3se.inference.pyro_model import Hierarchy

_BEND, _SHARP = 0.5, 2.0  # where the levels bend, in their sds to both sides, and how sharply
_TINY_COUNT = 1e-3  # stands for none, in the pull of a row
_LEAST_AIM = 0.5  # predictions that a row without any aims at
_EASY_STEPS, _MOST_STEPS = 6, 60  # to solve a row's equation: all rows, and the hard ones alone
_NEWTON_STEPS = 16  # those beyond halve its bracket
_SOLVED, _ROUNDING = 1e-7, 1000  # last step, or so many units of rounding if that is more
_LARGEST_STEP = 3.0  # the first one; later ones may be longer


class Point(NamedTuple):
    """Where the noise leads; C draws each.

    Attributes:
        theta: (C, K); columns: (C, K, K), a row a class; strengths: (C, S).
        log_volume: (C,) of the map from noise to (theta, columns, strengths).
        known: (C,) the guide's control variate, of mean 0.
    """

    theta: Tensor
    columns: Tensor
    strengths: Tensor
    log_volume: Tensor
    known: Tensor


class StructuredGuide(nn.Module):
    """The guide as a Pyro program with torch parameters.

    In training mode it adds a control variate: what the ELBO would be if the posterior were N(0, I)
    over z is known, so that the noise of that part is taken off its gradient. ``unsolved`` counts
    the rows whose equation was not solved, and may be set back.
    """

    def __init__(self, model: Hierarchy, frame: PosteriorFrame) -> None:
        super().__init__()
        n, self.model = model.n_classes, model
        self.unsolved = 0
        self.n_strengths = len(frame.strengths)
        self.size = n + n * n + self.n_strengths
        like = model.laplacian

        def fixed(values: Any) -> Tensor:
            return torch.as_tensor(np.asarray(values, dtype=float), dtype=like.dtype).to(
                like.device
            )

        def free(*shape: int) -> nn.Parameter:
            return nn.Parameter(like.new_zeros(*shape))

        hinges = frame.hinges
        self._wide, self._narrow, self._place, self._sharp = (
            fixed(part)[..., None] for part in hinges[1:]
        )
        self._pivot = fixed(frame.pivot)[..., None]
        self._base = fixed(hinges.centre)[..., None] + self._pivot
        self._by_place, self._by_spread = fixed(frame.by_place), fixed(frame.by_spread)
        self._omega, self._modes = fixed(frame.omega)[..., None], fixed(frame.modes)
        self._log_rate, self._sensitivity = fixed(np.log(frame.rate)), fixed(frame.sensitivity)
        self._strengths, self._axes = fixed(frame.strengths)[:, None], fixed(frame.axes)
        self._centre, self._spread = fixed(frame.centre)[:, None], fixed(frame.spread)
        self._sd = self._spread.square().sum(1, keepdim=True).sqrt()
        self._log_constant = float(
            np.linalg.slogdet(frame.axes)[1]
            + np.linalg.slogdet(frame.spread)[1]
            + np.linalg.slogdet(frame.modes)[1].sum()
        )

        self.level_shift, self.level_scale, self.level_ties = free(n, 1), free(n), free(n, n)
        self.level_below, self.level_above, self.level_place = (free(n, 1) for _ in range(3))
        n_s = self.n_strengths
        self.strength_shift, self.strength_scale = free(n_s, 1), free(n_s)
        self.strength_ties = free(n_s, n_s)
        self.follow = nn.Parameter(fixed(frame.follow).clone())
        self.cell_shift, self.cell_scale = free(n, n, 1), free(n, n, 1)
        # Of the hinges' slopes and places, by true class and by prediction.
        self.hinge_columns, self.hinge_rows = free(3, n, 1, 1), free(3, 1, n, 1)
        self.hold, self.pull, self.noise = (free(n, 1) for _ in range(3))
        self.aim = nn.Parameter(torch.log(model.target.clamp(min=_LEAST_AIM))[:, None])

    def forward(self) -> dict[str, Tensor]:
        """The Pyro program; within a plate of C draws."""
        like = self._centre
        white = dist.Normal(like.new_zeros(self.size), like.new_ones(self.size)).to_event(1)
        z = pyro.sample("z", white, infer={"is_auxiliary": True})
        at = self.place(z)
        model = self.model
        log_tau = at.strengths[:, 0]
        volumes = {"columns": -at.log_volume, "tau_C": -log_tau}
        values = {"columns": at.columns, "theta": at.theta, "tau_C": torch.exp(log_tau)}
        if model.prior.is_anchored:
            values["anchor"] = at.strengths[:, 1:]
        for name, value in values.items():
            density = volumes.get(name, torch.zeros_like(log_tau))
            pyro.sample(name, dist.Delta(value, density, event_dim=value.dim() - 1))
        pyro.sample("tau_q", model.tau_q_given(at.theta))
        if self.training:
            pyro.factor("known", -at.known, has_rsample=True)
        return values

    def place(self, z: Tensor) -> Point:
        """Where noise (C, D) leads."""
        n = self.model.n_classes
        parts = z.T.split([n, n * n, self.n_strengths])
        levels, cells, strengths, log_volume, known = self._stretched(*parts)

        moved = self._axes @ strengths
        log_tau = self._strengths[0] + moved[0]
        bent, slope = self._bend_levels(self._spread @ levels / self._sd)
        log_eta = self._centre + self._sd * bent + self.follow @ moved
        log_volume = log_volume + torch.log(slope).sum(0)

        shrink = torch.rsqrt(1 + torch.exp(log_tau) * self._omega)
        log_volume = log_volume + torch.log(shrink).sum((0, 1))
        scale = torch.exp(self._by_spread @ moved)  # its volume is undone where x is made
        y = torch.bmm(self._modes, shrink * cells) / scale
        x, row_volume = self._match_rows(y, scale, self._by_place @ moved, log_eta)
        log_volume = log_volume + row_volume
        theta = log_eta + torch.logsumexp(x, 1)
        return Point(
            theta.T,
            x.permute(2, 0, 1),
            (self._strengths + moved).T,
            log_volume + self._log_constant,
            known,
        )

    def _stretched(
        self, levels: Tensor, cells: Tensor, strengths: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Noise shifted and stretched, the log volume of that, and the control variate."""
        n = len(levels)
        by_level = torch.tril(self.level_ties, -1) + torch.diag(torch.exp(self.level_scale))
        by_strength = torch.tril(self.strength_ties, -1)
        by_strength = by_strength + torch.diag(torch.exp(self.strength_scale))
        by_cell = torch.exp(self.cell_scale)
        levels = self.level_shift + by_level @ levels
        strengths = self.strength_shift + by_strength @ strengths
        cells = self.cell_shift + by_cell * cells.reshape(n, n, -1)
        drawn = levels.square().sum(0) + strengths.square().sum(0) + cells.square().sum((0, 1))
        shifts = (self.level_shift, self.strength_shift, self.cell_shift)
        factors = (by_level, by_strength, by_cell)
        expected = sum(part.square().sum() for part in (*shifts, *factors))
        log_volume = self.level_scale.sum() + self.strength_scale.sum() + self.cell_scale.sum()
        return levels, cells, strengths, log_volume, (drawn - expected) / 2

    def _bend_levels(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Levels in their sds, bent on both sides, and the slope of that: always positive."""
        below, above = torch.expm1(self.level_below), torch.expm1(self.level_above)
        lower = _SHARP * (v - self.level_place + _BEND)
        upper = _SHARP * (v - self.level_place - _BEND)
        bent = v + (above * softplus(upper) - below * softplus(-lower)) / _SHARP
        return bent, 1 + below * torch.sigmoid(-lower) + above * torch.sigmoid(upper)

    def _match_rows(
        self, y: Tensor, scale: Tensor, offset: Tensor, log_eta: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Cells whose rows meet the target, and the log volume of y -> x."""
        share = torch.softmax(log_eta[:, None] + self._log_rate[..., None], 0)
        along = share * self._sensitivity[..., None]
        length = along.square().sum(0).sqrt()
        along = along / length
        u = (along * y).sum(0)
        rest = y - along * u
        counts = self.model.target[:, None]
        hold = torch.exp(self.hold)
        pull = (counts + _TINY_COUNT) * length * torch.exp(self.pull)
        noise = torch.sqrt(1 + counts * length.square()) * torch.exp(self.noise)
        adjusted = self.hinge_columns + self.hinge_rows
        rows = _Rows(
            rest,
            along,
            scale,
            self._base + offset,
            log_eta[:, None],
            self._pivot,
            self._wide * torch.exp(adjusted[0]),
            self._narrow * torch.exp(adjusted[1]),
            self._place + adjusted[2],
            self._sharp,
            hold,
            pull,
            pull * self.aim + noise * u,
        )
        with torch.no_grad():
            s, unsolved = _solve(rows, u)
        self.unsolved += unsolved
        excess, rise, _, _ = rows.at(s)
        s = s - excess / rise.detach()  # a Newton step carries the derivatives of the solution
        _, rise, x, slope = rows.at(s)
        log_volume = torch.log(slope).sum((0, 1)) + (torch.log(noise) - torch.log(rise)).sum(0)
        return x, log_volume


class _Rows(NamedTuple):
    """The rows' equations, hold s + pull log mu(rest + along s) = right.

    Cells are (true i, row), rows are one axis or several: (K, ...) and (...) each, or broadcast to.
    """

    rest: Tensor
    along: Tensor
    scale: Tensor
    base: Tensor
    log_eta: Tensor
    pivot: Tensor
    wide: Tensor
    narrow: Tensor
    place: Tensor
    sharp: Tensor
    hold: Tensor
    pull: Tensor
    right: Tensor

    def at(self, s: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Excess of the left side, its slope by s, the cells x, and their slopes by y."""
        y = self.rest + self.along * s
        turn, gap = self.sharp * (y - self.place), self.wide - self.narrow
        bent = self.narrow * y - gap / self.sharp * softplus(-turn)
        slope = self.narrow + gap * torch.sigmoid(-turn)
        x = self.base + self.scale * (bent - self.pivot)
        part = self.log_eta + x
        log_mu = torch.logsumexp(part, 0)
        answer = (torch.exp(part - log_mu) * self.scale * slope * self.along).sum(0)
        excess = self.hold * s + self.pull * log_mu - self.right
        return excess, self.hold + self.pull * answer, x, slope

    def some(self, which: Tensor) -> _Rows:
        """Only these rows, along one axis."""
        cells, rows = self.rest.shape, self.rest.shape[1:]
        return _Rows(
            *(part.expand(cells)[:, which] for part in self[:_CELL_PARTS]),
            *(part.expand(rows)[which] for part in self[_CELL_PARTS:]),
        )


_CELL_PARTS = 10  # of _Rows, the first ones


def _solve(rows: _Rows, start: Tensor) -> tuple[Tensor, int]:
    """Solutions of all rows, and how many were not found; few are hard, and go on by themselves."""
    s, left = _root(lambda s: rows.at(s)[:2], start, _EASY_STEPS)
    if not left.any():
        return s, 0
    hard = rows.some(left)
    s[left], still = _root(lambda s: hard.at(s)[:2], start[left], _MOST_STEPS)
    return s, int(still.sum())


def _root(function: Any, start: Tensor, most_steps: int) -> tuple[Tensor, Tensor]:
    """Where a rising function is 0, element by element, and where that was not found.

    Newton steps, kept within a bracket.
    """
    s, solved = start.clone(), max(_SOLVED, _ROUNDING * torch.finfo(start.dtype).eps)
    low, high = torch.full_like(s, -torch.inf), torch.full_like(s, torch.inf)
    left = torch.ones_like(s, dtype=torch.bool)
    for done in range(most_steps):
        value, slope = function(s)
        low, high = torch.where(value < 0, s, low), torch.where(value > 0, s, high)
        reach = (done + 1) * _LARGEST_STEP
        step = (value / slope).clamp(-reach, reach)
        left = ~(step.abs() < solved)
        moved, middle = s - step, (low + high) / 2
        poor = left & ((moved <= low) | (moved >= high) | (done >= _NEWTON_STEPS))
        s = torch.where(poor & torch.isfinite(middle), middle, moved)
        if not left.any():
            break
    return s, left
