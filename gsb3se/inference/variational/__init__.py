"""The structured variational backend: a map from white noise to the posterior, fitted in Pyro.

``pyro_program`` is the hierarchy as a Pyro program; ``guide`` the map, started at the structured
backend's solution: class levels with a full covariance, each column with the covariance that the
label graph and tau_C give it, cells with a wall where they would have been counted, and every row
of cells moved until it meets the target's counts (``row_equations``), so that theta and the columns
stay coupled through r = C q exactly. ``fit`` raises the ELBO until it is flat, settles with a
falling step and averaged iterates, and goes back to its start should it end below it; ``draw``
lengthens the guide by Hamiltonian layers where they are worth it. The Pareto k of the importance
weights is far above 0.7 from some 30 classes on, which speaks against reweighting the draws, not
against their marginals.
"""

from gsb3se.inference.variational.backend import Variational

__all__ = ["Variational"]
