"""Modes and the Gaussians there: Newton-CG and the nested Laplace approximation.

``mode_search`` ascends the log density over theta and all columns at once by Newton steps, solved
by conjugate gradients on exact Hessian products with the ``preconditioner``; ``strength_search``
re-estimates both strengths from quadratic forms corrected by the trace, or follows the paper's
joint scheme, which collapses when labels are few; ``hessian_blocks`` eliminates the columns from
the Hessian one by one. ``newton`` returns the Gaussian at the mode, ``laplace`` mixes those of a 3
x 3 grid of both strengths. Both are textbook references: off where rare classes are skewed.
"""

from gsb3se.inference.gaussian.laplace import Laplace
from gsb3se.inference.gaussian.newton import NewtonCG

__all__ = ["Laplace", "NewtonCG"]
