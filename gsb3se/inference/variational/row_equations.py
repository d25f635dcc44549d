"""The equations that make a row of cells meet the target, and their solution.

Row j moves along its direction by the s that solves

    hold s + pull log mu(rest + along s) = right,   mu(y) = sum_i eta_i exp(x_i(y_i)),

x being the cells' hinges. The left side rises in s, so that there is one solution.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

_EASY_STEPS, _MOST_STEPS = 6, 60  # to solve a row's equation: all rows, and the hard ones alone
_NEWTON_STEPS = 16  # those beyond halve its bracket
_SOLVED, _ROUNDING = 1e-7, 1000  # last step, or so many units of rounding if that is more
_LARGEST_STEP = 3.0  # the first one; later ones may be longer


class RowCells(NamedTuple):
    """The cells of the rows, (true i, row), or what broadcasts to it; rows are one axis or several.

    Attributes:
        rest, along: y = rest + along s; scale, base: x = base + scale (bent y - pivot).
        log_eta: of the levels; pivot, wide, narrow, place, sharp: of the hinges.
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


class RowsAt(NamedTuple):
    """The rows at some s: excess of the left side, its slope by s, the cells x, and their slopes
    by y."""

    excess: Tensor
    rise: Tensor
    x: Tensor
    slope: Tensor


class RowEquations(NamedTuple):
    """The equations of many rows, one number a row each."""

    cells: RowCells
    hold: Tensor
    pull: Tensor
    right: Tensor

    def at(self, s: Tensor) -> RowsAt:
        """Evaluate all of them."""
        cells = self.cells
        y = cells.rest + cells.along * s
        turn, gap = cells.sharp * (y - cells.place), cells.wide - cells.narrow
        bent = cells.narrow * y - gap / cells.sharp * softplus(-turn)
        slope = cells.narrow + gap * torch.sigmoid(-turn)
        x = cells.base + cells.scale * (bent - cells.pivot)
        part = cells.log_eta + x
        log_mu = torch.logsumexp(part, 0)
        answer = (torch.exp(part - log_mu) * cells.scale * slope * cells.along).sum(0)
        excess = self.hold * s + self.pull * log_mu - self.right
        return RowsAt(excess, self.hold + self.pull * answer, x, slope)

    def some(self, which: Tensor) -> RowEquations:
        """Only these rows, along one axis."""
        shape = self.cells.rest.shape
        cells = RowCells(*(part.expand(shape)[:, which] for part in self.cells))
        numbers = (self.hold, self.pull, self.right)
        return RowEquations(cells, *(part.expand(shape[1:])[which] for part in numbers))


def solve_rows(rows: RowEquations, start: Tensor) -> tuple[Tensor, int]:
    """Solutions of all rows, and how many were not found; few are hard, and go on by themselves."""
    s, left = rising_root(lambda s: rows.at(s)[:2], start, _EASY_STEPS)
    if not left.any():
        return s, 0
    hard = rows.some(left)
    s[left], still = rising_root(lambda s: hard.at(s)[:2], start[left], _MOST_STEPS)
    return s, int(still.sum())


def rising_root(
    function: Callable[[Tensor], tuple[Tensor, Tensor]], start: Tensor, most_steps: int
) -> tuple[Tensor, Tensor]:
    """Where a rising function is 0, element by element, and where that was not found.

    Newton steps, kept within a bracket.

    Args:
        function: gives value and slope.
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
