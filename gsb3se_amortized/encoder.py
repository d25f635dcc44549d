"""The encoder: validation counts, label graph and target counts to a posterior, in one pass.

After the columns (:mod:`gsb3se_amortized.column_encoder`) every window is solved by layers that
know the problem. Each computes at the present x = log q the predicted shares r = C q, the residual
of the target counts, its projection back to the classes and the force of the Laplacian, which
together are the natural gradient of the hierarchy's log density, and moves x along it by a learned
step, with hidden messages along the same ways. Between two groups of layers stands one full Newton
step in double precision, whose matrix becomes the posterior's precision; the last layers say how
the posterior differs from that Gaussian.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from gsb3se_amortized.column_encoder import (
    HEADS,
    ColumnEncoder,
    Columns,
    dense_counts,
    global_features,
    pooled,
)
from gsb3se_amortized.family import BentStudents
from gsb3se_amortized.newton_step import Gaussian, SourceMatrices, StepStart, newton_step
from gsb3se_amortized.padded_batch import Batch
from gsb3se_amortized.similarity import Similarity

_STATE_FEATURES = 12
_MESSAGES = 8
_EM_STEPS = 12
_LARGEST_STEP = 3.0  # of x in a layer
_LEAST_PRECISION = 0.05
_LEAST_NOISE = 1e-18  # below what counts within the ranges give


@dataclass(frozen=True, eq=False)
class EncodedSource:
    """A batch's sources, encoded: all that its windows need to know of them.

    Attributes:
        columns: what is known of them; similar: the label graphs.
        laplacian: (S, K, K) in double precision.
        known: (S, 4) sizes and kinds; cells: (S, K, K) the confusion counts.
    """

    columns: Columns
    similar: Similarity
    laplacian: Tensor
    known: Tensor
    cells: Tensor


@dataclass(frozen=True, eq=False)
class State:
    """The present answer for every window: x and hidden state, (S, K, W) and (S, K, W, H)."""

    x: Tensor
    hidden: Tensor
    log_tau: Tensor


@dataclass(frozen=True, eq=False)
class Physics:
    """The hierarchy at x, each (S, K, W): shares, information, forces and features of them."""

    q: Tensor
    r: Tensor
    noise: Tensor
    force: Tensor
    precision: Tensor
    features: Tensor


class Encoder(nn.Module):
    """Counts and label graph to :class:`BentStudents` posteriors of every window.

    Args:
        width: of the labels' embeddings and hidden states.
        cell_width: of the network over the cells.
        before, after: layers before and after the Newton step.
    """

    def __init__(
        self, width: int = 40, cell_width: int = 24, before: int = 3, after: int = 3
    ) -> None:
        super().__init__()
        if width % HEADS:
            raise ValueError(f"width must be a multiple of {HEADS}; got {width}")
        self.settings = {
            "width": width,
            "cell_width": cell_width,
            "before": before,
            "after": after,
        }
        self.columns = ColumnEncoder(width, cell_width)
        self.before = nn.ModuleList(Layer(width, 0) for _ in range(before))
        self.after = nn.ModuleList(Layer(width, 2) for _ in range(after))
        self.enter = nn.Linear(width, width)
        self.strength = nn.Linear(width, 1)
        self.precision = nn.Linear(width, 2)
        self.head = nn.Linear(width, 4)
        self.freedom = nn.Linear(width, 1)
        self.register_buffer("temper", torch.ones(()))  # of the widths, set after training
        self.importance = nn.Linear(width, 1)  # for training alone: the expected log weight
        nn.init.zeros_(self.freedom.weight)
        nn.init.constant_(self.freedom.bias, 5.0)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, batch: Batch) -> tuple[BentStudents, Columns]:
        """Posteriors (S, W, K) of a batch, and what was found about its columns."""
        source = self.encode(batch)
        return self.infer(source, batch.targets), source.columns

    def encode(self, batch: Batch) -> EncodedSource:
        """The first half, which does not look at targets."""
        similar, cells = Similarity.of(batch), dense_counts(batch)
        return EncodedSource(
            self.columns(batch, similar, cells),
            similar,
            similar.dense_laplacian(),
            global_features(batch, cells.sum(dim=1)),
            cells,
        )

    def infer(self, source: EncodedSource, targets: Tensor) -> BentStudents:
        """The posteriors of targets (S, W, K)."""
        mask = source.similar.mask[:, :, None]
        counts = targets.movedim(1, 2).to(source.columns.mean.dtype)
        x = likely_log_shares(source.columns.mean.detach(), counts, mask)
        hidden = self.enter(source.columns.nodes)[:, :, None].expand(*x.shape, -1)
        quadratic = (x * source.similar.laplacian(x)).sum(dim=1)
        n = mask.sum(dim=1)
        log_tau = ((1 + (n - 1) / 2) / (1 + quadratic / 2)).log()
        state = State(x, hidden, log_tau)
        for layer in self.before:
            state = layer(source, counts, state)
        stronger = self.strength(pooled(state.hidden, source.similar.mask))[..., 0]
        state = State(state.x, state.hidden, state.log_tau + stronger.clamp(-3, 3))
        gaussian = self._newton(source, counts, state)
        x, move, sd = (
            part.movedim(1, 2).to(state.x.dtype)
            for part in (gaussian.x, gaussian.move, gaussian.sd)
        )
        state = State(x, state.hidden, state.log_tau)
        extra = torch.stack([sd.log() / 2, move / sd], dim=-1)
        for layer in self.after:
            state = layer(source, counts, state, extra)
        return self._posterior(state, gaussian, mask)

    def _posterior(self, state: State, gaussian: Gaussian, mask: Tensor) -> BentStudents:
        outputs = self.head(state.hidden).double()
        sd = gaussian.sd.movedim(1, 2).double()
        centre = state.x.double() + sd * 2 * torch.tanh(outputs[..., 0])
        scale = self.temper * sd * torch.exp(1.5 * torch.tanh(outputs[..., 1]))
        skew = 1.5 * torch.tanh(outputs[..., 2])
        tail = torch.exp(0.7 * torch.tanh(outputs[..., 3]))
        freedom = self.freedom(pooled(state.hidden, mask[..., 0]))[..., 0].double()
        freedom = 1.5 + freedom.clamp(-3, 8).exp()
        there = mask.movedim(1, 2).expand(*sd.movedim(1, 2).shape)
        centre, scale, skew, tail = (p.movedim(1, 2) for p in (centre, scale, skew, tail))
        return BentStudents(centre, scale, skew, tail, gaussian.factor.double(), freedom, there)

    def _newton(self, source: EncodedSource, counts: Tensor, state: State) -> Gaussian:
        """The step from the present state, with what is learned of noise and precision."""
        local = physics(source, counts, state)
        noisier, stiffer = softplus(self.precision(state.hidden) - 4).unbind(dim=-1)
        total = counts.sum(dim=1, keepdim=True).clamp_min(1.0)
        noise = local.noise * (1 + noisier)
        x, q, noise, residual, stiffer = (
            part.movedim(1, 2)
            for part in (state.x, local.q, noise, counts / total - local.r, stiffer)
        )
        start = StepStart(x, q, noise, residual, stiffer, state.log_tau.exp()[..., None])
        columns = source.columns
        matrices = SourceMatrices(
            columns.mean, columns.noise.reciprocal(), source.laplacian, source.similar.mask
        )
        return newton_step(matrices, start)


class Layer(nn.Module):
    """One step of the learned flow."""

    def __init__(self, width: int, extra: int) -> None:
        super().__init__()
        self.send = nn.Linear(width, 3 * _MESSAGES)
        self.own = nn.Linear(width + _STATE_FEATURES + extra + 3 * _MESSAGES, 2 * width)
        self.node = nn.Linear(width, 2 * width, bias=False)
        self.window = nn.Linear(3 * width + 6, 2 * width, bias=False)
        self.out = nn.Linear(2 * width, width)
        self.step = nn.Linear(width, 3)
        nn.init.zeros_(self.step.weight)
        nn.init.zeros_(self.step.bias)

    def forward(
        self, source: EncodedSource, counts: Tensor, state: State, extra: Tensor | None = None
    ) -> State:
        local = physics(source, counts, state)
        mask = source.similar.mask[:, :, None, None]
        mean = source.columns.mean
        back, forth, beside = self.send(state.hidden).split(_MESSAGES, dim=-1)
        q, r = local.q[..., None], local.r[..., None]
        messages_read = [
            _along(mean.mT, back),
            _along(mean, q * forth) / r,
            _beside(source.similar, beside),
        ]
        parts = [state.hidden, local.features, *messages_read]
        own = self.own(torch.cat(parts if extra is None else [*parts, extra], dim=-1))
        plain = pooled(state.hidden, source.similar.mask)
        weighted = (state.hidden * q).sum(dim=1)
        windows = plain.shape[1]
        of_source = torch.cat([source.columns.context, source.known], dim=-1)
        of_source = of_source[:, None].expand(-1, windows, -1)
        size = counts.sum(dim=1)[..., None].log1p() / 8
        strength = state.log_tau[..., None] / 3
        context = self.window(torch.cat([plain, weighted, of_source, size, strength], dim=-1))
        node = self.node(source.columns.nodes)[:, :, None]
        moved = self.out(own.add_(node).add_(context[:, None]).relu_())
        hidden = moved.add_(state.hidden).mul_(mask)
        gate, shift, tighter = self.step(hidden).unbind(dim=-1)
        step = torch.sigmoid(gate) * local.force / local.precision
        step = step + 2 * torch.tanh(shift) * local.precision.rsqrt()
        x = state.x + step.clamp(-_LARGEST_STEP, _LARGEST_STEP)
        change = pooled(tighter, source.similar.mask)
        return State(x, hidden, state.log_tau + change.clamp(-2, 2))


def physics(source: EncodedSource, counts: Tensor, state: State) -> Physics:
    """The hierarchy's forces at x, the columns by their mean and variance."""
    columns, similar, x = source.columns, source.similar, state.x
    mask = similar.mask[:, :, None]
    q = torch.softmax(torch.where(mask, x, -torch.inf), dim=1)
    total = counts.sum(dim=1, keepdim=True).clamp_min(1.0)
    r = (columns.mean @ q).clamp_min(1e-12)
    noise = (r / total + columns.variance @ q.square()).clamp_min(_LEAST_NOISE)
    z = (counts / total - r) / noise
    score = q * (columns.mean.mT @ z)
    score = score - q * score.sum(dim=1, keepdim=True)
    information = q.square() * (columns.square.mT @ noise.reciprocal())
    # The noise depends on q too: what log N(residual; 0, noise) gains by moving it.
    wider = q.square() * (columns.variance.mT @ (z.square() - noise.reciprocal()))
    tau = state.log_tau.exp()[:, None]
    pull = tau * similar.laplacian(x)
    stiffness = tau * similar.degrees[..., None]
    precision = information + stiffness + _LEAST_PRECISION
    force = score - pull
    root = precision.sqrt()
    features = torch.stack(
        [
            (total * q).clamp_min(1e-3).log() / 4,
            _tamed(force / root),
            _tamed(score / root),
            _tamed(pull / root),
            _tamed(wider / root),
            precision.log() / 4,
            (information / precision),
            _tamed(z * noise.sqrt()),
            counts.log1p() / 4,
            (total * r).log1p() / 4,
            (noise * total / r).log() / 3,
            _tamed(pull / stiffness),
        ],
        dim=-1,
    )
    return Physics(q, r, noise, force, precision, features)


def predicted_shares(columns: Columns, posterior: BentStudents) -> tuple[Tensor, Tensor]:
    """(S, K, W) r = C q at the posterior's centre, and the variance of r given q."""
    x = torch.where(posterior.mask, posterior.centre, -torch.inf).movedim(1, 2)
    q = torch.softmax(x, dim=1).to(columns.mean.dtype)
    return (columns.mean @ q).clamp_min(1e-12), columns.variance @ q.square()


def likely_log_shares(mean: Tensor, counts: Tensor, mask: Tensor) -> Tensor:
    """(S, K, W) where to start: a few steps of EM on the columns' means, classes without counts
    at half a prediction."""
    n = mask.sum(dim=1, keepdim=True)
    total = counts.sum(dim=1, keepdim=True).clamp_min(1.0)
    q = (mask / n).to(counts.dtype).expand_as(counts)
    shares = counts / total
    for _ in range(_EM_STEPS):
        r = (mean @ q).clamp_min(1e-12)
        q = q * (mean.mT @ (shares / r))
    x = torch.where(mask, (q + 0.5 / (total + n)).log(), 0.0)
    return torch.where(mask, x - x.sum(dim=1, keepdim=True) / n, 0.0)


def _along(matrix: Tensor, messages: Tensor) -> Tensor:
    """A product with the columns (S, K, K) for messages (S, K, W, C)."""
    return (matrix @ messages.flatten(2)).reshape(messages.shape)


def _beside(similar: Similarity, messages: Tensor) -> Tensor:
    """Means over similar labels."""
    told = (similar @ messages.flatten(2)).reshape(messages.shape)
    return told / similar.degrees[..., None, None]


def _tamed(x: Tensor) -> Tensor:
    """Near zero x, far away its logarithm."""
    return torch.asinh(x) / 2
