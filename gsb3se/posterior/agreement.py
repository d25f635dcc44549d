"""How far a posterior is from a reference, class by class."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gsb3se.posterior.families import Draws
from gsb3se.posterior.posterior import Posterior
from gsb3se.support.simplex import Vector

_LEVELS = np.linspace(0.005, 0.995, 100)  # quantiles whose distances make the Wasserstein distance


@dataclass(frozen=True, eq=False)
class Agreement:
    """Errors of every q_i in units of the reference's sd, (K,) each.

    Attributes:
        mean: absolute error of the mean.
        sd_ratio: sd over the reference's.
        low, high: absolute errors of the interval's ends.
        wasserstein: 1-Wasserstein distance of the marginals.

    >>> rng = np.random.default_rng(0)
    >>> one, other = (Posterior.from_draws(rng.dirichlet([3, 5, 2], 4000)) for _ in range(2))
    >>> bool(Agreement.between(one, other).mean.max() < 0.1)
    True
    """

    mean: Vector
    sd_ratio: Vector
    low: Vector
    high: Vector
    wasserstein: Vector

    @classmethod
    def between(cls, posterior: Posterior, reference: Posterior, level: float = 0.9) -> Agreement:
        """A posterior against the reference.

        Args:
            level: of the intervals whose ends are compared.
        """
        if posterior.n_classes != reference.n_classes:
            raise ValueError(
                f"the posterior has {posterior.n_classes} classes and the reference "
                f"{reference.n_classes}: compare posteriors of one problem"
            )
        sd = reference.sd + np.finfo(float).tiny
        ends = np.abs(np.subtract(posterior.interval(level), reference.interval(level)))
        apart = np.abs(posterior.quantile(_LEVELS) - reference.quantile(_LEVELS))
        return cls(
            np.abs(posterior.mean - reference.mean) / sd,
            posterior.sd / sd,
            ends[0] / sd,
            ends[1] / sd,
            apart.mean(axis=0) / sd,
        )

    @classmethod
    def of_halves(cls, reference: Posterior, level: float = 0.9) -> Agreement:
        """Late draws of each chain against early ones: the Monte Carlo error of the reference."""
        if not isinstance(reference.form, Draws) or reference.form.q.shape[1] < 2:
            raise ValueError("only draws have halves to compare")
        half = reference.form.q.shape[1] // 2
        early, late = reference.form.q[:, :half], reference.form.q[:, half:]
        return cls.between(Posterior.from_draws(late), Posterior.from_draws(early), level)

    def sd_within(self, low: float, high: float) -> float:
        """Share of the classes whose sd is within these ratios of the reference's."""
        return float(np.mean((self.sd_ratio >= low) & (self.sd_ratio <= high)))

    def figures(self) -> dict[str, float]:
        """Summaries over the classes, by name."""
        ratios: NDArray[np.float64] = np.quantile(self.sd_ratio, [0.05, 0.5, 0.95])
        return {
            "mean_error": float(np.median(self.mean)),
            "mean_error_95": float(np.quantile(self.mean, 0.95)),
            "sd_error": float(np.median(np.abs(self.sd_ratio - 1))),
            "sd_ratio_5": float(ratios[0]),
            "sd_ratio": float(ratios[1]),
            "sd_ratio_95": float(ratios[2]),
            "low_error": float(np.median(self.low)),
            "high_error": float(np.median(self.high)),
            "wasserstein": float(np.median(self.wasserstein)),
        }
