"""Laplace: the nested Laplace approximation, both strengths integrated out on a small grid."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gsb3se.inference.gaussian.hessian_blocks import (
    GaussianBlocks,
    NotPositiveDefinite,
    gaussian_blocks,
)
from gsb3se.inference.gaussian.mode_search import SearchSettings, find_mode
from gsb3se.inference.gaussian.strength_search import marginal_tau
from gsb3se.model.density import Latents, Strengths, log_joint
from gsb3se.model.problem import Problem
from gsb3se.posterior.families import LogisticNormal
from gsb3se.posterior.identifiability import identified
from gsb3se.posterior.posterior import Posterior
from gsb3se.posterior.status import Diagnostics, Finding, Measures, Status
from gsb3se.support.errors import NoSolution, as_whole_number
from gsb3se.support.simplex import Vector

_LOG_2PI = float(np.log(2 * np.pi))
_NODES = np.sqrt(3.0) * np.array([-1.0, 0.0, 1.0])  # of the Gauss-Hermite rule with three points
_NODE_WEIGHTS = np.array([1.0, 4.0, 1.0]) / 6
_WIDEST = 1.5  # sd of a log strength, at most
_LARGEST_SHIFT = 1.0  # of the grid's middle from where the search for tau ended


@dataclass(frozen=True, eq=False)
class GridNode:
    """The Gaussian at the mode for one pair of strengths, and the pair's log density."""

    log_tau: Vector
    latents: Latents
    blocks: GaussianBlocks
    log_density: float


@dataclass(frozen=True)
class Laplace:
    """Gaussians at the modes given tau, mixed over a 3 x 3 grid of both strengths.

    For each pair on the grid: the mode over theta and all columns, the exact Hessian there by
    block-plus-rank-K algebra, and the Laplace approximation of the pair's posterior density. The
    textbook reference: rare classes and cells without counts are more skewed than a Gaussian can
    say, so that tau_C comes out too large; ``gs.Structured()`` has neither defect.

    Args:
        draws: from the mixture of the Gaussians.
        tolerance, max_steps: of each search for a mode, as in :class:`gs.NewtonCG`.

    O(K^4) time for each of 13 pairs, O(K^2) memory: minutes at 300 classes.

    >>> Laplace()
    Laplace(draws=4000, tolerance=1e-08, max_steps=100)
    """

    draws: int = 4000
    tolerance: float = 1e-8
    max_steps: int = 100

    def __post_init__(self) -> None:
        as_whole_number(self.draws, "draws", least=4)
        as_whole_number(self.max_steps, "max_steps", least=1)
        if not 0 < self.tolerance < 1:
            raise ValueError(f"tolerance must lie between 0 and 1; got {self.tolerance!r}")

    @property
    def _settings(self) -> SearchSettings:
        return SearchSettings(self.tolerance, self.max_steps)

    def infer(self, problem: Problem, rng: np.random.Generator) -> Posterior:
        """Find the strengths' middle and widths, then mix the Gaussians of the grid."""
        fit = marginal_tau(problem, self._settings, rng)
        start = np.log([fit.tau.q, fit.tau.C])
        latents, findings = fit.mode.latents, list(fit.findings)
        centre, widths = self._shape(problem, start, latents)
        nodes, weights, skipped = [], [], 0
        for a, weight_a in zip(_NODES, _NODE_WEIGHTS, strict=True):
            for b, weight_b in zip(_NODES, _NODE_WEIGHTS, strict=True):
                offset = np.array([a, b])
                node = self._node(problem, centre + widths * offset, latents)
                if node is None:
                    skipped += 1
                    continue
                nodes.append(node)
                # The rule's weights include N(0, I), so each node's density is divided by it.
                weights.append(np.log(weight_a * weight_b) + node.log_density + offset @ offset / 2)
        if not nodes:
            raise NoSolution(
                "no pair of strengths has a proper maximum: use backend='structured' or 'hmc'"
            )
        if skipped:
            sentence = f"{skipped} of 9 pairs of strengths have no proper maximum and were left out"
            findings.append(Finding(Status.NOT_A_MAXIMUM, sentence))
        share = np.exp(np.array(weights) - max(weights))
        share /= share.sum()
        q, r, tau = self._draw(nodes, share, rng)
        figures = {
            "tau_q": float(np.exp(share @ [node.log_tau[0] for node in nodes])),
            "tau_C": float(np.exp(share @ [node.log_tau[1] for node in nodes])),
            "log_tau_sd": widths.tolist(),
            "grid_weights": share.tolist(),
            "alpha": float(share @ [node.latents.alpha for node in nodes]),
            "beta": float(share @ [node.latents.beta for node in nodes]),
        } | fit.work.figures()
        confusion = sum(
            weight * node.latents.confusion for weight, node in zip(share, nodes, strict=True)
        )
        return identified(
            Posterior.from_draws(
                q,
                r,
                others={"tau_q": tau[..., 0], "tau_C": tau[..., 1]},
                labels=problem.counts.labels,
                diagnostics=Diagnostics.of(
                    findings, figures, measures=Measures(tau_q=figures["tau_q"])
                ),
                backend="laplace",
                confusion_mean=confusion,
                n_target=problem.counts.n_target,
                problem=problem,
            )
        )

    def _node(self, problem: Problem, log_tau: Vector, start: Latents) -> GridNode | None:
        """The mode and the Gaussian there; None where the Hessian is indefinite."""
        tau = Strengths(*np.exp(log_tau))
        mode = find_mode(problem, tau, start, self._settings)
        try:
            blocks = gaussian_blocks(problem, mode.latents, tau, "exact")
        except NotPositiveDefinite:
            return None
        return GridNode(
            log_tau, mode.latents, blocks, log_evidence(problem, mode.latents, tau, blocks)
        )

    def _shape(self, problem: Problem, start: Vector, latents: Latents) -> tuple[Vector, Vector]:
        """Middle and width of each log strength's density, by a parabola through three points."""
        middle = self._node(problem, start, latents)
        shapes = np.array(problem.tau_shapes)
        centre, widths = start.copy(), np.minimum(np.sqrt(2 / shapes) + 0.1, _WIDEST)
        if middle is None:
            return centre, widths
        for k in range(2):
            step = np.zeros(2)
            step[k] = widths[k]
            sides = [self._node(problem, start + s * step, middle.latents) for s in (-1, 1)]
            if sides[0] is None or sides[1] is None:
                continue
            low, high = (side.log_density - middle.log_density for side in sides if side)
            curvature = max(-(low + high) / widths[k] ** 2, _WIDEST**-2)
            shift = (high - low) / (2 * widths[k]) / curvature
            centre[k] += np.clip(shift, -_LARGEST_SHIFT, _LARGEST_SHIFT)
            widths[k] = curvature**-0.5
        return centre, widths

    def _draw(
        self, nodes: list[GridNode], share: Vector, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(4, draws / 4, ...) draws of q, r and tau from the mixture, in random order."""
        total = self.draws // 4 * 4
        counts = rng.multinomial(total, share)
        q, r, tau = [], [], []
        for node, count in zip(nodes, counts, strict=True):
            if not count:
                continue
            predicted = node.latents.confusion @ node.latents.q
            factor, r_factor = node.blocks.draw_factors()
            form = LogisticNormal(
                node.latents.theta, factor, np.log(predicted), r_factor / predicted[:, None]
            )
            drawn = form.sample(int(count), rng)
            q.append(drawn.q)
            r.append(drawn.r)
            tau.append(np.tile(np.exp(node.log_tau), (count, 1)))
        order = rng.permutation(total)
        return tuple(  # type: ignore[return-value]
            np.concatenate(part)[order].reshape(4, total // 4, -1)  # type: ignore[arg-type]
            for part in (q, r, tau)
        )


def log_evidence(
    problem: Problem, latents: Latents, tau: Strengths, blocks: GaussianBlocks
) -> float:
    """Laplace's log p(counts, log tau_q, log tau_C) at the mode given tau."""
    n = problem.n_classes
    dimensions = (n + 1) * (n - 1) + 2 * problem.prior.is_anchored
    value = log_joint(problem, latents, tau) + np.log(tau.q) + np.log(tau.C)
    return float(value + dimensions * _LOG_2PI / 2 - blocks.log_determinant / 2)
