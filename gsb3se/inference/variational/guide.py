"""The structured guide: a map from white noise to the whole posterior, fitted by its ELBO.

It starts where the structured backend ends
(:mod:`gsb3se.inference.structured.exact.coordinates`). Noise z = (levels, cells, strengths) is
shifted and stretched first, levels and strengths by full triangular matrices, and then becomes:

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

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import pyro
import torch
from pyro import distributions as dist
from torch import Tensor, nn
from torch.nn.functional import softplus

from gsb3se.inference.structured.exact.coordinates import PosteriorCoordinates
from gsb3se.inference.variational.pyro_program import Hierarchy
from gsb3se.inference.variational.row_equations import RowCells, RowEquations, solve_rows

_BEND, _SHARP = 0.5, 2.0  # where the levels bend, in their sds to both sides, and how sharply
_TINY_COUNT = 1e-3  # stands for none, in the pull of a row
_LEAST_AIM = 0.5  # predictions that a row without any aims at


class GuidePoint(NamedTuple):
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
    over z is known, so that the noise of that part is taken off its gradient.
    """

    def __init__(self, model: Hierarchy, coordinates: PosteriorCoordinates) -> None:
        super().__init__()
        n, self.model = model.n_classes, model
        self._unsolved = 0
        self.n_strengths = len(coordinates.strengths)
        self.size = n + n * n + self.n_strengths
        like = model.laplacian

        def fixed(values: Any) -> Tensor:
            return torch.as_tensor(np.asarray(values, dtype=float), dtype=like.dtype).to(
                like.device
            )

        def free(*shape: int) -> nn.Parameter:
            return nn.Parameter(like.new_zeros(*shape))

        shapes, answers = coordinates.shapes, coordinates.answers
        hinges = shapes.hinges
        self._wide, self._narrow, self._place, self._sharp = (
            fixed(part)[..., None] for part in hinges[1:]
        )
        self._pivot = fixed(shapes.pivot)[..., None]
        self._base = fixed(hinges.centre)[..., None] + self._pivot
        self._by_place, self._by_spread = fixed(shapes.by_place), fixed(shapes.by_spread)
        self._omega, self._modes = fixed(shapes.omega)[..., None], fixed(shapes.modes)
        self._log_rate, self._sensitivity = fixed(np.log(answers.rate)), fixed(answers.sensitivity)
        self._strengths, self._axes = fixed(coordinates.strengths)[:, None], fixed(coordinates.axes)
        self._centre, self._spread = fixed(coordinates.centre)[:, None], fixed(coordinates.spread)
        self._sd = self._spread.square().sum(1, keepdim=True).sqrt()
        self._log_constant = float(
            np.linalg.slogdet(coordinates.axes)[1]
            + np.linalg.slogdet(coordinates.spread)[1]
            + np.linalg.slogdet(shapes.modes)[1].sum()
        )

        self.level_shift, self.level_scale, self.level_ties = free(n, 1), free(n), free(n, n)
        self.level_below, self.level_above, self.level_place = (free(n, 1) for _ in range(3))
        n_s = self.n_strengths
        self.strength_shift, self.strength_scale = free(n_s, 1), free(n_s)
        self.strength_ties = free(n_s, n_s)
        self.follow = nn.Parameter(fixed(coordinates.follow).clone())
        self.cell_shift, self.cell_scale = free(n, n, 1), free(n, n, 1)
        # Of the hinges' slopes and places, by true class and by prediction.
        self.hinge_columns, self.hinge_rows = free(3, n, 1, 1), free(3, 1, n, 1)
        self.hold, self.pull, self.noise = (free(n, 1) for _ in range(3))
        self.aim = nn.Parameter(torch.log(model.target.clamp(min=_LEAST_AIM))[:, None])

    @contextmanager
    def counting_unsolved(self) -> Iterator[Callable[[], int]]:
        """Yields what tells how many rows' equations were not solved since."""
        before = self._unsolved
        yield lambda: self._unsolved - before

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
        if model.n_weights:
            values["weights"] = at.strengths[:, 1:]
        for name, value in values.items():
            density = volumes.get(name, torch.zeros_like(log_tau))
            pyro.sample(name, dist.Delta(value, density, event_dim=value.dim() - 1))
        pyro.sample("tau_q", model.tau_q_given(at.theta))
        if self.training:
            pyro.factor("known", -at.known, has_rsample=True)
        return values

    def place(self, z: Tensor) -> GuidePoint:
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
        return GuidePoint(
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
        cells = RowCells(
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
        )
        rows = RowEquations(cells, hold, pull, pull * self.aim + noise * u)
        with torch.no_grad():
            s, unsolved = solve_rows(rows, u)
        self._unsolved += unsolved
        there = rows.at(s)
        s = (
            s - there.excess / there.rise.detach()
        )  # Newton's: it carries the solution's derivatives
        there = rows.at(s)
        log_volume = torch.log(there.slope).sum((0, 1))
        log_volume = log_volume + (torch.log(noise) - torch.log(there.rise)).sum(0)
        return there.x, log_volume
