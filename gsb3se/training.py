"""In a training loop: a metric that counts, a layer that corrects logits, weights for a loss.

They need torch, and the metric torchmetrics: the extra ``training``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from gsb3se.estimate import DEFAULT_BACKEND, Backend, estimate
from gsb3se.graph import LabelGraph
from gsb3se.model.counts import ShiftCounts
from gsb3se.model.prior import Prior
from gsb3se.posterior.posterior import Posterior
from gsb3se.support.errors import as_whole_number, require
from gsb3se.support.labels import Label, as_labels
from gsb3se.support.simplex import as_distribution
from gsb3se.support.torchvision_ops import make_torchvision_importable

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torchmetrics import Metric
else:
    torch = require("torch", extra="training")
    make_torchvision_importable()  # torchmetrics imports it where it finds it
    Metric = require("torchmetrics", extra="training").Metric
    Tensor, nn = torch.Tensor, torch.nn

_MOST_PENDING = 1 << 18  # cells that are kept one by one before they are summed


def _check_largest(logits: Tensor, largest: Tensor) -> None:
    """Raise ValueError where no class of a row, or more than one, is the most likely."""
    strange = ~largest.isfinite()
    if not strange.any():
        return
    at = strange.nonzero()[:, 0]
    sure = (largest[at] == torch.inf) & ((logits[at] == torch.inf).sum(dim=1) == 1)
    if not sure.all():
        row = int(at[~sure][0])
        raise ValueError(
            f"the largest logit of a row must be a number, or infinite once; row {row} of the "
            f"batch has {logits[row, :5].tolist()}{' ...' if logits.shape[1] > 5 else ''}"
        )


class LabelShiftMetric(Metric):
    """The posterior of the target's class shares, counted batch by batch.

    Rows with a target are validation rows, rows without one are target rows:

    >>> metric = LabelShiftMetric(2, labels=["cat", "dog"])
    >>> metric.update(torch.tensor([0, 0, 1, 1] * 20), torch.tensor([0, 0, 1, 0] * 20))
    >>> metric.update(torch.tensor([[2.0, -1.0]] * 30 + [[0.0, 3.0]] * 70))  # logits
    >>> metric.counts
    ShiftCounts(2 classes, 80 validation rows, 100 target predictions)
    >>> metric.compute().labels
    ('cat', 'dog')

    Args:
        num_classes: K.
        graph, prior, backend: as of :func:`gsb3se.estimate`.
        labels: the K names; 0..K-1 if not given.
        seed: of the inference.
        validate_args: whether every batch is checked, which waits for a GPU.
        kwargs: of torchmetrics.Metric.

    The counts are sums over all ranks when they are asked for under torch.distributed; they follow
    the input's device, are part of the ``state_dict``, and take memory for the confusions that
    occurred, not for K x K.
    """

    full_state_update = False
    target_counts: Tensor
    cells: list[Tensor] | Tensor
    times: list[Tensor] | Tensor

    def __init__(  # noqa: PLR0913
        self,
        num_classes: int,
        graph: LabelGraph | None = None,
        prior: Prior | str | None = None,
        backend: str | Backend = DEFAULT_BACKEND,
        labels: Iterable[Label] | None = None,
        *,
        seed: int = 0,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_classes = as_whole_number(num_classes, "num_classes", least=2)
        names = range(num_classes) if labels is None else labels
        self.labels = as_labels(names, self.num_classes)
        self.graph, self.prior, self.backend = graph, Prior.of(prior), backend
        self.seed, self.validate_args = seed, validate_args
        zeros = torch.zeros(self.num_classes, dtype=torch.int64)
        self.add_state("target_counts", zeros, dist_reduce_fx="sum", persistent=True)
        # Confusions that occurred, as predicted * K + true, and how often.
        self.add_state("cells", [], dist_reduce_fx="cat", persistent=True)
        self.add_state("times", [], dist_reduce_fx="cat", persistent=True)
        self._pending, self._most_pending = 0, _MOST_PENDING

    def update(self, predictions: Tensor, target: Tensor | None = None) -> None:
        """Count a batch.

        Args:
            predictions: (n,) predicted classes, or (n, K) logits or probabilities.
            target: (n,) true classes of validation rows; None for target rows.
        """
        predicted = self._as_classes(predictions, "predictions")
        if predicted.device != self.target_counts.device:
            self.to(predicted.device)
        if target is None:
            self.target_counts += torch.bincount(predicted, minlength=self.num_classes)
            return
        truth = self._as_classes(target, "target")
        if truth.shape != predicted.shape:
            raise ValueError(
                f"predictions and target must have as many rows; got {len(predicted)} and "
                f"{len(truth)}"
            )
        assert isinstance(self.cells, list) and isinstance(self.times, list)
        self.cells.append(predicted * self.num_classes + truth.to(predicted.device))
        self.times.append(torch.ones_like(predicted))
        self._pending += len(predicted)
        if self._pending > self._most_pending:
            self._compress()

    def _as_classes(self, values: Tensor, name: str) -> Tensor:
        values = torch.as_tensor(values)
        if values.ndim == 2 and name == "predictions":
            if values.shape[1] != self.num_classes:
                raise ValueError(
                    f"logits must be (n, {self.num_classes}), a column a class; got "
                    f"{tuple(values.shape)}"
                )
            if values.is_sparse or values.is_complex() or values.dtype == torch.bool:
                raise ValueError(
                    f"logits must be real numbers of a dense tensor; got {values.dtype}"
                    f"{' of a sparse one' if values.is_sparse else ''}"
                )
            if len(values) == 0:
                return values.new_zeros(0, dtype=torch.long)
            largest, classes = values.max(dim=1)
            if self.validate_args and values.is_floating_point():
                _check_largest(values, largest)
            return classes
        if values.ndim != 1 or values.is_floating_point() or values.dtype == torch.bool:
            expected = "(n,) classes or (n, K) logits" if name == "predictions" else "(n,) classes"
            raise ValueError(
                f"{name} must be {expected}; got {values.dtype} of shape {tuple(values.shape)}"
            )
        values = values.long()
        if self.validate_args and len(values):
            low, high = int(values.min()), int(values.max())
            if low < 0 or high >= self.num_classes:
                raise ValueError(
                    f"{name} must be classes from 0 to {self.num_classes - 1}; found "
                    f"{low if low < 0 else high}"
                )
        return values

    def _compress(self) -> None:
        """Sum the cells that are kept one by one."""
        cells, times = _joined(self.cells), _joined(self.times)
        if cells is None or times is None:
            empty = torch.empty(0, dtype=torch.int64, device=self.target_counts.device)
            cells, times = empty, empty
        distinct, place = torch.unique(cells, return_inverse=True)
        summed = torch.zeros_like(distinct).index_add_(0, place, times)
        self.cells, self.times = [distinct], [summed]
        # Compress a longer list less often, so that the cost per row stays constant.
        self._pending, self._most_pending = 0, max(_MOST_PENDING, len(distinct))

    @property
    def counts(self) -> ShiftCounts:
        """What this process has counted.

        Raises:
            ValueError: no validation row or no target row was counted.
        """
        target = self.target_counts.cpu().numpy()
        cells, times = _joined(self.cells), _joined(self.times)
        if cells is None or times is None or len(cells) == 0:
            raise ValueError(
                "no validation rows were counted: call update(predictions, target) with labelled "
                "ones first"
            )
        if target.sum() == 0:
            raise ValueError(
                "no target rows were counted: call update(predictions) with those of the target"
            )
        rows, columns = np.divmod(cells.cpu().numpy(), self.num_classes)
        shape = (self.num_classes, self.num_classes)
        confusion = sparse.coo_array((times.cpu().numpy(), (rows, columns)), shape=shape)
        return ShiftCounts(confusion, target, self.labels)

    def compute(self) -> Posterior:
        """The posterior of the target's class shares, from the counts of all ranks."""
        return estimate(
            self.counts, self.graph, prior=self.prior, backend=self.backend, seed=self.seed
        )

    def forward(self, predictions: Tensor, target: Tensor | None = None) -> None:
        """Count a batch, as :meth:`update`; a batch has no posterior of its own."""
        self.update(predictions, target)

    def reset(self) -> None:
        """Forget all counts."""
        super().reset()
        self._pending = 0

    def reset_target(self) -> None:
        """Forget the target rows, for the next window of the same classifier."""
        self.target_counts.zero_()

    # Overrides of torchmetrics' methods, needed for the sparse state and the Posterior result

    def _wrap_compute(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        """compute() over all ranks; torchmetrics' own would take a posterior for its tensors."""

        def over_ranks() -> Posterior:
            with self.sync_context(
                dist_sync_fn=self.dist_sync_fn,
                should_sync=self._to_sync,
                should_unsync=self._should_unsync,
            ):
                return compute()

        return over_ranks

    def _sync_dist(self, *how: Any, **more: Any) -> None:
        self._compress()  # a rank without rows has empty tensors then, of the right type
        super()._sync_dist(*how, **more)

    def state_dict(self, *where: Any, **how: Any) -> dict[str, Any]:
        """The counts, summed."""
        self._compress()
        return super().state_dict(*where, **how)


def _joined(parts: list[Tensor] | Tensor) -> Tensor | None:
    """One tensor of a state that is a list until ranks are gathered."""
    if isinstance(parts, list):
        return torch.cat(parts) if parts else None
    return parts


class LogitCorrection(nn.Module):
    """Adds log q - log p to logits: a classifier for p becomes one for q.

    >>> correction = LogitCorrection([0.5, 0.5], [0.8, 0.2])
    >>> correction(torch.zeros(1, 2)).softmax(dim=1)
    tensor([[0.8000, 0.2000]])

    Args:
        source_prior: (K,) p that the logits are right for, positive.
        target_prior: (K,) q, or a Posterior, whose mean is taken.

    Both are buffers: they move and are saved with the model. The logits should be calibrated.
    """

    log_source: Tensor
    log_target: Tensor

    def __init__(self, source_prior: ArrayLike, target_prior: ArrayLike | Posterior) -> None:
        super().__init__()
        p = as_distribution(_as_array(source_prior), "source_prior")
        if (p == 0).any():
            raise ValueError(
                f"source_prior is 0 for {int((p == 0).sum())} classes: no logit of theirs is right"
            )
        self.register_buffer("log_source", torch.as_tensor(np.log(p)))
        self.register_buffer("log_target", torch.zeros(len(p), dtype=torch.float64))
        self.set_prior(target_prior)

    def set_prior(self, target_prior: ArrayLike | Posterior) -> None:
        """Correct to another q from now on."""
        q = as_distribution(_as_array(target_prior), "target_prior", len(self.log_source))
        least = np.finfo(np.float32).tiny  # an impossible class keeps a finite logit
        self.log_target.copy_(torch.as_tensor(np.log(np.maximum(q, least))))

    def forward(self, logits: Tensor) -> Tensor:
        """(..., K) logits under the target prior."""
        if logits.shape[-1] != len(self.log_source):
            raise ValueError(
                f"logits must have {len(self.log_source)} columns, one a class; got "
                f"{tuple(logits.shape)}"
            )
        return logits + (self.log_target - self.log_source).to(logits.dtype)


def shift_weights(
    post: Posterior | ArrayLike,
    source_prior: ArrayLike,
    clip: float | tuple[float, float] | None = None,
    *,
    lower: float | None = None,
    rows: ArrayLike | None = None,
) -> Tensor:
    """Weights w_i = q_i / p_i that make source rows count as often as the target has them.

    Args:
        post: the posterior, or (K,) q.
        source_prior: (K,) p, shares of the classes among the rows to be weighted.
        clip: the largest weight, or the smallest and the largest.
        lower: a level such as 0.9: use the lower ends of its intervals instead of the means, so
            that classes whose increase is uncertain get less weight.
        rows: (n,) classes of rows, 0..K-1: their weights, one a row, for a sampler.

    Returns:
        (K,) float32 for ``weight=`` of a loss, with mean one over source rows; or (n,) float64 for
        ``torch.utils.data.WeightedRandomSampler``.

    >>> shift_weights([0.8, 0.2], [0.5, 0.5])
    tensor([1.6000, 0.4000])
    >>> shift_weights([0.8, 0.2], [0.5, 0.5], rows=[0, 1, 1]).tolist()
    [1.6, 0.4, 0.4]
    """
    if not isinstance(post, Posterior):
        if lower is not None:
            raise ValueError("lower= needs a posterior: shares alone have no intervals")
        post = Posterior.from_draws(as_distribution(_as_array(post), "post")[None])
    p = as_distribution(_as_array(source_prior), "source_prior", post.n_classes)
    summary = post.importance_weights(p) if lower is None else post.importance_weights(p, lower)
    weights = summary.mean if lower is None else summary.low
    if clip is not None:
        low, high = clip if isinstance(clip, tuple) else (0.0, clip)
        if not 0 <= low <= high or high == 0:
            raise ValueError(f"clip must be a positive number or (low, high); got {clip!r}")
        weights = np.clip(weights, low, high)
    total = float(weights @ p)
    if total == 0:
        raise ValueError("every weight is zero: take a smaller lower=")
    weights = weights / total
    if rows is None:
        return torch.as_tensor(weights, dtype=torch.float32)
    classes = np.asarray(_as_array(rows))
    is_codes = classes.ndim == 1 and classes.dtype.kind in "iu"
    if not is_codes or (classes.size and not 0 <= classes.min() <= classes.max() < len(weights)):
        raise ValueError(f"rows must be (n,) classes from 0 to {len(weights) - 1}")
    return torch.as_tensor(weights[classes], dtype=torch.float64)


def _as_array(values: Any) -> Any:
    """A posterior's mean, a tensor's numbers, or what was given."""
    if isinstance(values, Posterior):
        return values.mean
    return values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else values
