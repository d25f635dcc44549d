"""The encoder's first half: validation counts to what is known of the columns.

Attention along similar labels and along the cells that were counted gives every label an embedding;
a small network on the cells then says what each one's share of its column is. Two rounds of it: the
second one sees what the first said of the cell's neighbours in the label graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch_geometric.nn import GATv2Conv

from gsb3se_amortized.padded_batch import Batch
from gsb3se_amortized.similarity import Similarity

_NODE_FEATURES = 9
_GLOBAL_FEATURES = 4
_CELL_FEATURES = 5
_EDGE_FEATURES = 6
HEADS = 4
_BLOCK = 1 << 18  # numbers


@dataclass(frozen=True, eq=False)
class Columns:
    """What the validation counts say about the columns.

    Attributes:
        mean: (S, K, K) E[c_ji], predicted class by true class.
        noise: (S, K) one over the effective size of each column: the part of its variance that is
            a multinomial's.
        excess: (S, K, K) variance of each cell beyond it.
        nodes: (S, K, H) embeddings of the labels; context: (S, H) of the sources.
    """

    mean: Tensor
    noise: Tensor
    excess: Tensor
    nodes: Tensor
    context: Tensor

    @cached_property
    def variance(self) -> Tensor:
        """(S, K, K) variance of each cell, were the column's sum free."""
        return self.mean * self.noise[:, None, :] + self.excess

    @cached_property
    def square(self) -> Tensor:
        """(S, K, K) squares of the means."""
        return self.mean.square()


class ColumnEncoder(nn.Module):
    """Validation counts, label graph and prior to :class:`Columns`."""

    def __init__(self, width: int, cell_width: int, layers: int = 2) -> None:
        super().__init__()
        self.enter = nn.Sequential(
            nn.Linear(3 * _NODE_FEATURES + _GLOBAL_FEATURES, 2 * width),
            nn.ReLU(),
            nn.Linear(2 * width, width),
        )
        self.attention = nn.ModuleList(
            GATv2Conv(width, width // HEADS, HEADS, edge_dim=_EDGE_FEATURES, add_self_loops=False)
            for _ in range(layers)
        )
        self.mix = nn.ModuleList(
            nn.Sequential(nn.Linear(3 * width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
            for _ in range(layers)
        )
        self.pool = nn.Linear(2 * width, width)
        self.first = CellNetwork(_CELL_FEATURES, width, cell_width, 1)
        self.second = CellNetwork(_CELL_FEATURES + 3, width, cell_width, 3)
        self.size = nn.Linear(width, 1)

    def forward(self, batch: Batch, similar: Similarity, cells: Tensor) -> Columns:
        """Columns from the counts ``cells`` (S, K, K), which are the batch's."""
        mask = batch.mask
        features, edges, edge_features = _describe(batch, similar, cells)
        h = self.enter(features) * mask[..., None]
        for attend, mix in zip(self.attention, self.mix, strict=True):
            outputs = attend(h.flatten(0, 1), edges, edge_features).reshape(h.shape)
            common = pooled(h, mask)[:, None].expand_as(h)
            h = (h + mix(torch.cat([h, outputs, common], dim=-1))) * mask[..., None]
        common = pooled(h, mask)
        spread = (pooled((h - common[:, None]).square(), mask) + 1e-6).sqrt()
        context = torch.relu(self.pool(torch.cat([common, spread], dim=-1)))

        described = _describe_cells(batch, similar, cells)
        base = -batch.sizes.log()[:, None, None]
        (change,) = self.first(described, h, context)
        level = base + change
        rate = (cells + level.clamp(-15, 8).exp()).log()
        around = (similar @ rate) / similar.degrees[..., None]
        seen = ((level - base) / 4, (rate - base) / 4, (around - rate) / 4)
        change, loss, wider = self.second((*described, *seen), h, context)
        kept = cells * torch.exp(-nn.functional.softplus(loss) / (cells + 1))
        rate = kept + (level + change).clamp(-15, 8).exp()
        rate = rate * mask[:, :, None] * mask[:, None, :]
        mean = rate / rate.sum(dim=1, keepdim=True).clamp_min(1e-30)
        sizes = cells.sum(dim=1)
        noise = self.size(h)[..., 0].clamp(-3, 3).exp() / (sizes + 1)
        excess = mean.square() * nn.functional.softplus(wider)
        return Columns(mean, noise, excess, h, context)


class CellNetwork(nn.Module):
    """One hidden layer over every cell; what its row and column bring is added, not concatenated.

    At K = 1,000 a cell's own embedding would be a million of them.
    """

    def __init__(self, features: int, width: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.own = nn.Linear(features, hidden)
        self.row = nn.Linear(width, hidden, bias=False)
        self.column = nn.Linear(width, hidden, bias=False)
        self.source = nn.Linear(width, hidden, bias=False)
        self.out = nn.Linear(hidden, outputs)

    def forward(
        self, cells: tuple[Tensor, ...], nodes: Tensor, context: Tensor
    ) -> tuple[Tensor, ...]:
        """Outputs (S, K, K) each, from as many features, the nodes (S, K, H) and context (S, H)."""
        # Channels first: features and outputs are whole planes, and none is interleaved.
        row = self.row(nodes).movedim(-1, 0)[..., None]
        column = self.column(nodes) + self.source(context)[:, None] + self.own.bias
        column = column.movedim(-1, 0)[:, :, None]
        if torch.is_grad_enabled():
            return self._told(torch.stack(cells), row, column).unbind()
        # Without gradients a few rows at a time, which stay in the processor's cache.
        few = max(1, _BLOCK // column.numel())
        outputs = cells[0].new_empty((self.out.out_features, *cells[0].shape))
        for start in range(0, row.shape[2], few):
            rows = slice(start, start + few)
            some = torch.stack([feature[:, rows] for feature in cells])
            outputs[:, :, rows] = self._told(some, row[:, :, rows], column)
        return outputs.unbind()

    def _told(self, cells: Tensor, row: Tensor, column: Tensor) -> Tensor:
        """Outputs first, from (F, S, R, K), (H, S, R, 1) and (H, S, 1, K)."""
        hidden = (row + column).flatten(1)
        hidden = hidden.addmm_(self.own.weight, cells.flatten(1)).relu_()
        out = torch.addmm(self.out.bias[:, None], self.out.weight, hidden)
        return out.reshape(-1, *cells.shape[1:])


def dense_counts(batch: Batch) -> Tensor:
    """(S, K, K) confusion counts, zeros included."""
    n = batch.widest
    dense = torch.zeros(
        (batch.n_sources * n, n), dtype=batch.counts.dtype, device=batch.counts.device
    )
    dense[batch.cells[0], batch.cells[1]] = batch.counts
    return dense.reshape(batch.n_sources, n, n)


def global_features(batch: Batch, sizes: Tensor) -> Tensor:
    """(S, 4): the number of classes, the labels a class, the prior, the kind of graph."""
    usual = sizes.sum(dim=1) / batch.sizes
    features = [batch.sizes.log() / 4, usual.log1p() / 4, batch.anchored, (batch.ones > 0).float()]
    return torch.stack(features, dim=-1)


def _describe(batch: Batch, similar: Similarity, cells: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Features of the labels (S, K, F), edges of both kinds (2, E), and theirs (E, 6)."""
    mask, n = batch.mask, batch.widest
    sizes, rows = cells.sum(dim=1), cells.sum(dim=2)
    right = cells.diagonal(dim1=1, dim2=2)
    block = batch.edges[0] // n
    column = batch.edges[1] % n
    between = cells.reshape(-1, n)[batch.edges[0], column] * batch.weights
    near = torch.zeros_like(sizes).index_put((block, column), between, accumulate=True)
    features = torch.stack(
        [
            sizes.log1p() / 4,
            rows.log1p() / 4,
            (right + 0.5) / (sizes + 1),
            (right + 0.5) / (rows + 1),
            (cells > 0).sum(dim=1).log1p() / 3,
            (cells == 1).sum(dim=1) / (sizes + 1),
            similar.degrees.log() / 2,
            (sizes == 0).float(),
            near / (sizes + 1),
        ],
        dim=-1,
    )
    common = pooled(features, mask)
    spread = pooled((features - common[:, None]).square(), mask).sqrt()
    whole = torch.cat([common, spread, global_features(batch, sizes)], dim=-1)[:, None]
    features = torch.cat([features, whole.expand(-1, n, -1)], dim=-1)
    predicted, truth = batch.cells[0], batch.cells[0] // n * n + batch.cells[1]
    log_count = batch.counts.log1p() / 4
    zero, one = torch.zeros_like(log_count), torch.ones_like(log_count)
    of_column = batch.counts / sizes.flatten()[truth]
    of_row = batch.counts / rows.flatten()[predicted]
    none, some = torch.zeros_like(batch.weights), torch.ones_like(batch.weights)
    edges = torch.cat(
        [batch.edges, torch.stack([predicted, truth]), torch.stack([truth, predicted])], dim=1
    )
    edge_features = torch.cat(
        [
            torch.stack([some, none, batch.weights, none, none, none], dim=-1),
            torch.stack([zero, one, zero, log_count, of_column, of_row], dim=-1),
            torch.stack([zero, -one, zero, log_count, of_column, of_row], dim=-1),
        ]
    )
    return features, edges, edge_features


def _describe_cells(batch: Batch, similar: Similarity, cells: Tensor) -> tuple[Tensor, ...]:
    """Five features of the cells, (S, K, K) each."""
    n = batch.widest
    own = torch.eye(n, dtype=cells.dtype, device=cells.device).expand_as(cells)
    weights = torch.zeros_like(cells).reshape(-1, n)
    weights[batch.edges[0], batch.edges[1] % n] = batch.weights
    around = (similar @ cells) / similar.degrees[..., None]
    return (
        cells.log1p() / 2,
        (cells > 0).to(cells.dtype),
        own,
        weights.reshape(cells.shape),
        (10 * around).log1p() / 3,
    )


def pooled(h: Tensor, mask: Tensor) -> Tensor:
    """Mean of h (S, K, ...) over a source's classes."""
    there = mask.reshape(*mask.shape, *[1] * (h.ndim - 2))
    return (h * there).sum(dim=1) / there.sum(dim=1)
