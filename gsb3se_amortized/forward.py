"""One pass of a trained encoder over sources of about one size, and what comes out of it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gsb3se.model.problem import Problem
from gsb3se.posterior.families import BentStudent as BentForm
from gsb3se.posterior.families import frozen
from gsb3se.support.simplex import Matrix, Vector
from gsb3se_amortized.checkpoint import load
from gsb3se_amortized.encoder import predicted_shares
from gsb3se_amortized.familiarity import strangeness, summaries
from gsb3se_amortized.grouping import Group
from gsb3se_amortized.padded_batch import Batch, SourceWindows
from gsb3se_amortized.simulator import Ranges


class Answer(NamedTuple):
    """What was found about a source's windows.

    Attributes:
        forms: the posteriors; strangeness: (W,) one at the limit of what is familiar.
        confusion_mean: (K, K) E[C] given the validation counts.
        ranges: what the encoder was trained on.
    """

    forms: list[BentForm]
    strangeness: Vector
    confusion_mean: Matrix
    ranges: Ranges


class ForwardPass:
    """A checkpoint on a device, ready to be called."""

    def __init__(self, checkpoint: str | os.PathLike[str], device: str) -> None:
        self.trained, self.device = load(checkpoint, device), device

    @torch.no_grad()
    def __call__(self, groups: Sequence[Group], problems: Sequence[Problem]) -> list[Answer]:
        """Answers for sources with equally many windows; ``places`` are those in ``problems``."""
        encoder, reference = self.trained.encoder, self.trained.typical
        batch = Batch.of([_windows(group, problems) for group in groups]).to(self.device)
        source = encoder.encode(batch)
        posterior = encoder.infer(source, batch.targets)
        strange = torch.zeros(batch.targets.shape[:2])
        predicted = predicted_shares(source.columns, posterior)
        if reference:
            figures = summaries(batch, source, *predicted)
            strange = strangeness(figures, batch.anchored, reference)
        kept, row_sd = (part.double() for part in rows_given(batch, *predicted))
        vectors = (posterior.centre, posterior.scale, posterior.skew, posterior.tail)
        freedom = posterior.freedom.cpu().numpy()
        factors = _fixed(posterior.factor)
        columns = _fixed(torch.stack([*vectors, kept, row_sd]))
        means = source.columns.mean.double().cpu().numpy()
        answers = []
        for s, group in enumerate(groups):
            n = group.problem.n_classes
            mean = np.ascontiguousarray(means[s, :n, :n])
            mean /= mean.sum(axis=0)
            mean = frozen(mean, "confusion_mean")  # shared by all windows
            forms = []
            for w, place in enumerate(group.places):
                centre, scale, skew, tail, follows, noise = columns[:, s, w, :n]
                counts = problems[place].counts
                shares = (follows, counts.target / counts.n_target, noise)
                factor = factors[s, w, :n, :n]
                forms.append(
                    BentForm(centre, scale, skew, tail, factor, freedom[s, w], mean, *shares)
                )
            distances = strange[s].cpu().numpy()
            answers.append(Answer(forms, distances, mean, self.trained.ranges))
        return answers


def _fixed(tensor: Tensor) -> NDArray[np.float64]:
    """A copy that cannot be changed, so that its parts need not be copied again."""
    array = np.array(tensor.cpu().numpy())
    array.flags.writeable = False
    return array


def _windows(group: Group, problems: Sequence[Problem]) -> SourceWindows:
    problem = group.problem
    targets = np.stack([problems[place].counts.target for place in group.places])
    return SourceWindows(
        problem.counts.confusion, problem.graph, problem.prior.is_anchored, targets
    )


def rows_given(batch: Batch, r: Tensor, unsure: Tensor) -> tuple[Tensor, Tensor]:
    """(S, W, K) how far r follows the observed shares rather than E[C] q, and the sd of log r.

    With s_j the variance of r_j given q and r_j / n' that of its observation, r_j lies s / (s + r /
    n') of the way to what was observed.

    Args:
        r, unsure: (S, K, W) predicted shares and their variance given q.
    """
    seen = r / batch.targets.sum(dim=2)[:, None].clamp_min(1.0)
    kept = unsure / (unsure + seen)
    sd = (kept * seen).sqrt() / r
    return kept.movedim(1, 2), sd.clamp_max(1.0).movedim(1, 2)
