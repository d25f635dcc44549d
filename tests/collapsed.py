"""The density with both strengths integrated out, and the Gauss-Newton Hessian.

Nothing in the package needs them; they check its joint density, its conditionals of the strengths
and its Hessian products, of which they are made.
"""

import numpy as np
from hierarchy import flat
from scipy.stats import gamma

from gsb3se.model.density import (
    Curvature,
    Latents,
    Strengths,
    log_joint,
    log_joint_and_gradient,
    tau_conditionals,
)


def log_collapsed(problem, latents):
    """log p(counts, theta, phi, alpha, beta) = log joint - log p(tau | everything), at any tau."""
    conditional = tau_conditionals(problem, latents)
    tau = conditional.mean
    value = log_joint(problem, latents, tau)
    for which in ("q", "C"):
        law = gamma(getattr(conditional.shape, which), scale=1 / getattr(conditional.rate, which))
        value -= law.logpdf(getattr(tau, which))
    return value


def log_collapsed_and_gradient(problem, latents):
    """Its gradient is that of the joint at tau = shape / rate."""
    tau = tau_conditionals(problem, latents).mean
    return log_collapsed(problem, latents), log_joint_and_gradient(problem, latents, tau)[1]


def collapsed_hessian_product(problem, latents, direction):
    """(-Hessian) times a direction: that at fixed strengths, less the strengths' own answer."""
    conditional = tau_conditionals(problem, latents)
    tau = conditional.mean
    product = flat(Curvature(problem, latents, tau).product(direction))
    for which in ("q", "C"):
        energy = _gradient_of_energy(problem, latents, tau, which)
        shape, rate = getattr(conditional.shape, which), getattr(conditional.rate, which)
        product -= shape / rate**2 * (energy @ flat(direction)) * energy
    return product


def _gradient_of_energy(problem, latents, tau, which):
    """Of theta'L theta / 2, or the columns' form, by what a unit of its strength adds."""
    pairs = [Strengths(**{"q": tau.q, "C": tau.C, which: value}) for value in (1.0, 2.0)]
    one, two = (flat(log_joint_and_gradient(problem, latents, pair)[1]) for pair in pairs)
    return one - two


class GaussNewton(Curvature):
    """Positive semi-definite, from the observed target counts in place of the expected ones."""

    def __init__(self, problem, latents: Latents, tau):
        super().__init__(problem, latents, tau, "fisher")
        observed = np.divide(problem.target, self._r, where=self._r > 0, out=0 * self._r)
        self._weight = np.divide(observed, self._r, where=self._r > 0, out=0 * self._r)
