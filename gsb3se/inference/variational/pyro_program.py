"""The hierarchy as a Pyro program; imported only where the variational backend runs.

Columns and theta have free levels here, and counts are Poisson: given their totals these are the
hierarchy's multinomial counts, and the totals say nothing about c_i and q (the levels are flat). So
the posterior of (C, q, tau) is the hierarchy's, and the evidence is its own up to a constant:

    log p(multinomial) = log p(Poisson) + sum_i log n_i + log n' - (K + 1) / 2 log K,

for the level a of x = phi + a 1 is integrated over sqrt(K) da. A class without validation rows has
a total of its own, Gamma(1, 1), whose constant is 0 in place of log n_i.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyro
import torch
from pyro import distributions as dist
from pyro.distributions import constraints
from torch import Tensor

from gsb3se.model.problem import Problem


class GraphField(dist.TorchDistribution):
    """Fields x ~ N(mean, (tau L)^+) along the last axis, flat in their level.

    Args:
        mean: (..., K) or (..., n, K) for n fields of one strength.
        tau: strength, of the batch shape.
        laplacian: (K, K); log_determinant: of its non-zero eigenvalues.
        event_dim: 1 for a field, 2 for several.
    """

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012
    has_rsample = False

    def __init__(
        self, mean: Tensor, tau: Tensor, laplacian: Tensor, log_determinant: float, event_dim: int
    ) -> None:
        self.mean_field, self.tau = mean, tau
        self._laplacian, self._log_determinant = laplacian, log_determinant
        shape = mean.shape[mean.dim() - event_dim :]
        batch = torch.broadcast_shapes(tau.shape, mean.shape[: mean.dim() - event_dim])
        super().__init__(batch, shape, validate_args=False)

    @property
    def support(self) -> Any:
        """Everything; the level is free."""
        return constraints.independent(constraints.real, len(self.event_shape))

    def expand(self, batch_shape: torch.Size, _instance: Any = None) -> GraphField:
        """The same with a larger batch, as plates ask for."""
        batch = torch.Size(batch_shape)
        args = (self._laplacian, self._log_determinant, len(self.event_shape))
        return GraphField(
            self.mean_field.expand(batch + self.event_shape), self.tau.expand(batch), *args
        )

    def log_prob(self, value: Tensor) -> Tensor:
        """Density on the sum-zero space, whatever the level."""
        n, axes = self.event_shape[-1], tuple(range(-len(self.event_shape), 0))
        fields = self.event_shape.numel() // n
        apart = value - self.mean_field
        form = ((apart @ self._laplacian) * apart).sum(axes)
        constant = self._log_determinant - (n - 1) * math.log(2 * math.pi)
        free = fields * (n - 1) * torch.log(self.tau)
        return (free + fields * constant - self.tau * form) / 2

    def sample(self, sample_shape: Any = None) -> Tensor:
        """There is none: a flat level has no law."""
        raise NotImplementedError("a field with a flat level cannot be drawn, only scored")


class Hierarchy:
    """The program, and what its sites are.

    Sites: tau_q, tau_C; weights (2,) of the columns' mean if it is learned; columns (K, K), whose
    row i is column i of the confusion matrix, with free levels; theta (K,), with a free level.
    """

    def __init__(self, problem: Problem, device: torch.device, dtype: torch.dtype) -> None:
        def tensor(values: Any) -> Tensor:
            return torch.as_tensor(np.asarray(values), dtype=dtype, device=device)

        n, prior = problem.n_classes, problem.prior
        self.n_classes = n
        self.laplacian = tensor(problem.graph.laplacian.toarray())
        self.log_determinant = float(problem.graph.log_pseudo_determinant)
        self.counts = tensor(problem.counts.confusion.toarray().T)
        self.target = tensor(problem.target)
        self.unseen = tensor(problem.column_sizes == 0)
        self.tau_q_shape = float(problem.tau_shapes[0])
        self.hyper = tuple(tensor(x) for x in (prior.a_q, prior.b_q, prior.a_C, prior.b_C))
        self.zero = tensor(0.0)
        self.n_weights = problem.column_mean.n_weights
        if self.n_weights:
            self.weight_sd = tensor(problem.column_mean.sd)
            self.patterns = tensor(problem.column_mean.patterns().transpose(0, 2, 1))
        sizes = np.log(np.maximum(problem.column_sizes, 1)).sum() + np.log(problem.target.sum())
        self.log_constant = float(sizes - (n + 1) / 2 * np.log(n))

    def __call__(self) -> None:
        """The generative program, conditioned on the counts."""
        n, (a_q, b_q, a_C, b_C) = self.n_classes, self.hyper
        tau_q = pyro.sample("tau_q", dist.Gamma(a_q, b_q))
        tau_C = pyro.sample("tau_C", dist.Gamma(a_C, b_C))
        mean = self.laplacian.new_zeros(n, n)
        if self.n_weights:
            law = dist.Normal(self.zero, self.weight_sd).expand([self.n_weights]).to_event(1)
            weights = pyro.sample("weights", law)
            mean = torch.einsum("...k,kij->...ij", weights, self.patterns)
        graph = (self.laplacian, self.log_determinant)
        columns = pyro.sample("columns", GraphField(mean, tau_C, *graph, 2))
        theta = pyro.sample("theta", GraphField(self.laplacian.new_zeros(n), tau_q, *graph, 1))
        log_totals = torch.logsumexp(columns, -1)
        pyro.sample(
            "validation",
            dist.Poisson(torch.exp(columns), validate_args=False).to_event(2),
            obs=self.counts,
        )
        pyro.factor("unseen", (self.unseen * log_totals).sum(-1))
        predicted = torch.logsumexp((theta - log_totals)[..., None] + columns, -2)
        pyro.sample(
            "target",
            dist.Poisson(torch.exp(predicted), validate_args=False).to_event(1),
            obs=self.target,
        )

    def tau_q_given(self, theta: Tensor) -> dist.Gamma:
        """The law of tau_q given theta, which is known exactly."""
        form = ((theta @ self.laplacian) * theta).sum(-1)
        shape = self.tau_q_shape * torch.ones_like(form)
        return dist.Gamma(shape, self.hyper[1] + form / 2)
