"""The losses that an encoder is trained by."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gsb3se_amortized.column_encoder import Columns
from gsb3se_amortized.encoder import Encoder
from gsb3se_amortized.family import BentStudents
from gsb3se_amortized.padded_batch import Batch

_VARIANCE_WEIGHT = 0.02
_LARGEST_LOSS = 30.0  # nats a class, beyond which a window teaches nothing
_EXPECTED = (-2.5, 1.5)  # of the log importance


class TrainingObjective(nn.Module):
    """An encoder and its three losses of a batch.

    Each source is weighted by its importance over the importance expected from its counts. Dividing
    by a function of the data alone changes no posterior, and without it useful classifiers, which
    are rare under the prior, would have little weight. The ratio differs from one only where few
    counts leave the hyper-parameters uncertain.
    """

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """The losses of the posterior, of the columns, and of the expected importance."""
        posterior, columns = self.encoder(batch)
        surprise = surprise_a_class(posterior, batch).clamp(max=_LARGEST_LOSS).mean(dim=1)
        assert batch.importance is not None
        expected = self.encoder.importance(columns.context.detach())[:, 0]
        weight = batch.importance / expected.detach().clamp(*_EXPECTED).exp()
        return (
            (weight * surprise).mean(),
            (weight * columns_loss(columns, batch)).mean(),
            (expected - batch.importance.log()).square().mean(),
        )


def surprise_a_class(posterior: BentStudents, batch: Batch) -> Tensor:
    """(S, W) negative log density of the truth, divided by K."""
    assert batch.theta is not None
    return -posterior.log_density(batch.theta) / batch.sizes[:, None]


def columns_loss(columns: Columns, batch: Batch) -> Tensor:
    """(S,) relative entropy of the columns from their mean, and a little of the variance's score.

    (c - m)^2 / v + log v is least where v is the expectation of (c - m)^2.
    """
    assert batch.confusion is not None
    mask = batch.mask
    truth = batch.confusion.to(columns.mean.dtype)
    entropy = truth * ((truth + 1e-12).log() - (columns.mean + 1e-12).log())
    mean = columns.mean.detach()
    variance = columns.variance.clamp_min(1e-12)
    score = mean * ((truth - mean).square() / variance + variance.log())
    cells = torch.where(mask[:, :, None] & mask[:, None, :], entropy + _VARIANCE_WEIGHT * score, 0)
    return cells.sum(dim=(1, 2)) / batch.sizes
