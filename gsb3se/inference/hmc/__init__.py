"""HMC, the reference: NumPyro's NUTS on (theta, columns, tau_q, tau_C, alpha, beta) jointly.

``coordinates`` makes variables in which the posterior is nearly round whatever the strengths are;
``density`` is the model's density in jax, pulled back to them; ``sampler`` runs chains in threads,
one a core; ``verdict`` judges R-hat, effective draws, divergences and E-BFMI. It needs float64 and
leaves jax's settings as they are. With few labels the anchored prior can explain the columns by
their mean or by their fields; chains start on both sides, and the status says if they stay there.

Nothing of the other backends enters here.
"""

from gsb3se.inference.hmc.backend import HMC

__all__ = ["HMC"]
