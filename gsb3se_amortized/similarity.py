"""Products with the label graphs of a batch, sparse, all sources at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gsb3se_amortized.padded_batch import Batch


@dataclass(frozen=True, eq=False)
class Similarity:
    """W of every source, block by block, plus a weight between any two labels.

    Attributes:
        weights: sparse (S K, S K).
        ones: (S, 1, 1) weight of an exchangeable graph, otherwise zero.
        mask: (S, K).
        degrees: (S, K) row sums of W; one where there is no class.
        exchangeable: whether any source's graph is.
    """

    weights: Tensor
    ones: Tensor
    mask: Tensor
    degrees: Tensor
    exchangeable: bool

    @classmethod
    def of(cls, batch: Batch) -> Similarity:
        """The graphs of a batch."""
        nodes = batch.mask.numel()
        weights = torch.sparse_coo_tensor(
            batch.edges, batch.weights, (nodes, nodes), check_invariants=False
        ).coalesce()
        mask = batch.mask
        degrees = torch.zeros(nodes, dtype=batch.weights.dtype, device=batch.weights.device)
        degrees = degrees.index_add(0, batch.edges[0], batch.weights).reshape(mask.shape)
        degrees = degrees + batch.ones[:, None] * (batch.sizes[:, None] - 1)
        degrees = torch.where(mask, degrees, torch.ones_like(degrees))
        exchangeable = bool((batch.ones > 0).any())
        return cls(weights, batch.ones[:, None, None], mask, degrees, exchangeable)

    def __matmul__(self, x: Tensor) -> Tensor:
        """W x for x (S, K, C), zero where there is no class."""
        product = torch.sparse.mm(self.weights, x.reshape(-1, x.shape[-1])).reshape(x.shape)
        if not self.exchangeable:
            return product
        there = self.mask[..., None]
        whole = torch.where(there, x, 0.0).sum(dim=1, keepdim=True) - x
        return torch.where(there, product + self.ones * whole, 0.0)

    def laplacian(self, x: Tensor) -> Tensor:
        """L x for x (S, K, C), zero where there is no class."""
        return torch.where(self.mask[..., None], self.degrees[..., None] * x, 0.0) - self @ x

    def dense_laplacian(self) -> Tensor:
        """(S, K, K) L, in double precision."""
        n_sources, n = self.mask.shape
        block, row = self.weights.indices()[0] // n, self.weights.indices()[0] % n
        dense = torch.zeros((n_sources, n, n), dtype=torch.float64, device=self.ones.device)
        dense[block, row, self.weights.indices()[1] % n] = -self.weights.values().double()
        if self.exchangeable:
            dense -= self.ones * (self.mask[:, :, None] & self.mask[:, None, :])
            dense.diagonal(dim1=1, dim2=2).zero_()
        dense.diagonal(dim1=1, dim2=2).copy_(-dense.sum(dim=2))
        return dense
