"""Is a problem like those the encoder was trained on?

A few figures sum a problem up: how often the classifier is right and how unequally so over the
classes, how many cells it spreads over, whether it errs towards similar labels, and how well the
posterior explains the target counts. Their mean and covariance over simulated problems are
stored for each prior; a problem farther from the mean than 99.9 % of these is unfamiliar.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from gsb3se_amortized.encoder import EncodedSource, Encoder, predicted_shares
from gsb3se_amortized.padded_batch import Batch

_FIGURES = 9
SHAPES = {  # of what is known of simulated problems, a row a prior
    "mean": (2, _FIGURES),
    "whitening": (2, _FIGURES, _FIGURES),
    "limit": (2,),
}
_LEVEL = 0.999  # of the simulated problems are no farther out than the limit


def summaries(batch: Batch, source: EncodedSource, r: Tensor, unsure: Tensor) -> Tensor:
    """(S, W, 9) figures of every window.

    Args:
        r, unsure: (S, K, W) predicted shares and their variance given q.
    """
    cells = source.cells
    sizes, right = cells.sum(dim=1), cells.diagonal(dim1=1, dim2=2)
    mask = batch.mask
    seen = (sizes > 0) & mask
    n_seen = seen.sum(dim=1).clamp_min(1)
    share = torch.where(seen, (right + 0.5) / (sizes + 1), 0.0)
    usual = share.sum(dim=1) / n_seen
    spread = torch.where(seen, (share - usual[:, None]).square(), 0.0).sum(dim=1) / n_seen
    wrong = (sizes - right).sum(dim=1)
    n = batch.widest
    beside = cells.reshape(-1, n)[batch.edges[0], batch.edges[1] % n]
    near = torch.zeros_like(wrong).index_add(0, batch.edges[0] // n, beside)
    filled = (cells > 0).sum(dim=(1, 2)) / n_seen
    labels = sizes.sum(dim=1) / batch.sizes
    of_source = torch.stack(
        [
            torch.logit(usual.clamp(1e-3, 1 - 1e-3)),
            (spread + 1e-3).log(),
            torch.logit((near + 0.5) / (wrong + 1)),
            filled.log1p(),
            labels.log1p(),
            batch.sizes.log(),
        ],
        dim=-1,
    )
    counts = batch.targets.movedim(1, 2).to(r.dtype)
    total = counts.sum(dim=1, keepdim=True).clamp_min(1.0)
    noise = r / total + unsure + total**-2.0
    misfit = torch.where(mask[..., None], (counts / total - r).square() / noise, 0.0)
    of_window = torch.stack(
        [
            (misfit.sum(dim=1) / batch.sizes[:, None] + 1e-2).log(),
            misfit.amax(dim=1).log1p(),
            total[:, 0].log(),
        ],
        dim=-1,
    )
    windows = of_window.shape[1]
    return torch.cat([of_source[:, None].expand(-1, windows, -1), of_window], dim=-1)


@torch.no_grad()
def typical(encoder: Encoder, batches: Iterable[Batch]) -> dict[str, Tensor]:
    """Mean, whitening and limit of the summaries of simulated batches, a row a prior."""
    by_prior: list[list[Tensor]] = [[], []]
    for batch in batches:
        source = encoder.encode(batch)
        posterior = encoder.infer(source, batch.targets)
        figures = summaries(batch, source, *predicted_shares(source.columns, posterior))
        for anchored, one in zip(batch.anchored.tolist(), figures, strict=True):
            by_prior[int(anchored)].append(one)
    means, whitenings, limits = [], [], []
    for rows in by_prior:
        every = torch.cat(rows).double()
        mean = every.mean(dim=0)
        covariance = torch.cov(every.T) + 1e-4 * torch.eye(every.shape[1], dtype=every.dtype)
        whitening = torch.linalg.inv(torch.linalg.cholesky(covariance))
        distance = ((every - mean) @ whitening.T).square().sum(dim=-1)
        means.append(mean)
        whitenings.append(whitening)
        limits.append(torch.quantile(distance, _LEVEL))
    return {
        "mean": torch.stack(means),
        "whitening": torch.stack(whitenings),
        "limit": torch.stack(limits),
    }


def strangeness(figures: Tensor, anchored: Tensor, reference: Mapping[str, Tensor]) -> Tensor:
    """(S, W) distance of summaries from the simulated ones, one at the limit."""
    which = anchored.long()
    gap = figures.double() - reference["mean"][which][:, None]
    white = torch.einsum("sij,swj->swi", reference["whitening"][which], gap)
    return (white.square().sum(dim=-1) / reference["limit"][which][:, None]).sqrt()
