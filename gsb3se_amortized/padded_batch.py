"""Batch: sources of different sizes, each with some windows, as padded tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from gsb3se.graph import LabelGraph
from gsb3se.support.simplex import Matrix


class SourceWindows(NamedTuple):
    """A classifier's validation counts and some targets it was used on.

    Attributes:
        confusion: (K, K) counts, predicted class by true class.
        graph: the label graph.
        anchored: which of the two priors.
        targets: (W, K) counts of predictions, a row a window.
    """

    confusion: sparse.csc_array
    graph: LabelGraph
    anchored: bool
    targets: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Batch:
    """S sources with W windows each, padded to K classes; what is sparse stays sparse.

    Attributes:
        sizes: (S,) classes of each source.
        anchored: (S,) one where the prior is the anchored one.
        cells: (2, M) row s K + j and column i of the confusion counts that are not zero.
        counts: (M,) those counts.
        edges: (2, E) nodes s K + i of similar labels, both ways; weights: (E,).
        ones: (S,) weight between every two labels, of an exchangeable graph.
        targets: (S, W, K) counts of predictions.
        theta: (S, W, K) the true log shares, centred; confusion: (S, K, K) the true columns;
            importance: (S,) weights of the sources; all three in training alone.
    """

    sizes: Tensor
    anchored: Tensor
    cells: Tensor
    counts: Tensor
    edges: Tensor
    weights: Tensor
    ones: Tensor
    targets: Tensor
    theta: Tensor | None = None
    confusion: Tensor | None = None
    importance: Tensor | None = None

    @classmethod
    def of(
        cls,
        sources: Sequence[SourceWindows],
        theta: Sequence[Matrix] | None = None,
        confusion: Sequence[Matrix] | None = None,
        importance: Sequence[float] | None = None,
    ) -> Batch:
        """Put sources with equally many windows together.

        Args:
            theta: (W, K) the truth of each source's windows; confusion: (K, K) of its columns;
                importance: its weight.
        """
        sizes = [source.confusion.shape[0] for source in sources]
        widest, windows = max(sizes), len(sources[0].targets)
        cells, counts, edges, weights, ones = [], [], [], [], []
        targets = np.zeros((len(sources), windows, widest))
        for s, source in enumerate(sources):
            entries = source.confusion.tocoo()
            cells.append(np.stack([s * widest + entries.coords[0], entries.coords[1]]))
            counts.append(entries.data)
            weights_of_source = source.graph.sparse_weights
            if weights_of_source is None:
                ones.append(1.0 / sizes[s])
            else:
                pairs = weights_of_source.tocoo()
                edges.append(s * widest + np.stack(pairs.coords))
                weights.append(pairs.data)
                ones.append(0.0)
            targets[s, :, : sizes[s]] = source.targets
        return cls(
            torch.tensor(sizes),
            torch.tensor([float(source.anchored) for source in sources]),
            torch.from_numpy(np.concatenate(cells, axis=1).astype(np.int64)),
            torch.from_numpy(np.concatenate(counts).astype(np.float32)),
            torch.from_numpy(np.concatenate([np.zeros((2, 0)), *edges], axis=1).astype(np.int64)),
            torch.from_numpy(np.concatenate([np.zeros(0), *weights]).astype(np.float32)),
            torch.tensor(ones, dtype=torch.float32),
            torch.from_numpy(targets),
            None if theta is None else _padded(theta, widest, last=1),
            None if confusion is None else _padded(confusion, widest, last=2),
            None if importance is None else torch.tensor(importance),
        )

    @property
    def n_sources(self) -> int:
        """S."""
        return len(self.sizes)

    @property
    def widest(self) -> int:
        """K of the widest source."""
        return self.targets.shape[-1]

    @property
    def mask(self) -> Tensor:
        """(S, K) whether there is a class."""
        places = torch.arange(self.widest, device=self.sizes.device)
        return places < self.sizes[:, None]

    def to(self, device: torch.device | str) -> Batch:
        """The batch on a device."""
        moved = {f.name: getattr(self, f.name) for f in fields(self)}
        return Batch(**{k: v if v is None else v.to(device) for k, v in moved.items()})


def _padded(arrays: Sequence[Matrix], widest: int, last: int) -> Tensor:
    """Stack arrays whose last one or two dimensions have a source's own size."""
    shape = [len(arrays), *arrays[0].shape[: arrays[0].ndim - last], *([widest] * last)]
    whole = torch.zeros(shape, dtype=torch.float64)
    for place, array in enumerate(arrays):
        n = array.shape[-1]
        part = torch.from_numpy(np.ascontiguousarray(array))
        if last == 1:
            whole[place, ..., :n] = part
        else:
            whole[place, ..., :n, :n] = part
    return whole
