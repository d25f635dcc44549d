"""GS-B3SE: the target class prior under label shift, with full uncertainty.

>>> import gsb3se as gs
>>> counts = gs.ShiftCounts([[45, 5], [5, 45]], target=[70, 30], labels=["cat", "dog"])
>>> gs.baselines.bbse(counts).round(3).tolist()
[0.75, 0.25]
"""

from gsb3se import adaptation, baselines, diagnostics, forks, geometry, shifts  # noqa: F401
from gsb3se.comparison import Comparison, compare
from gsb3se.counts import ShiftCounts
from gsb3se.errors import GSB3SEWarning
from gsb3se.estimate import InferenceError, estimate
from gsb3se.graph import LabelGraph
from gsb3se.inference.hmc import HMC
from gsb3se.inference.laplace import Laplace
from gsb3se.inference.newton import NewtonCG
from gsb3se.inference.structured import Structured
from gsb3se.inference.variational import Variational
from gsb3se.posterior import Posterior
from gsb3se.prior import Prior
from gsb3se.problem import Problem
from gsb3se.simulation import simulate
from gsb3se.status import Diagnostics, Status

__version__ = "0.1.0"
__all__ = [
    "HMC",
    "Comparison",
    "Diagnostics",
    "GSB3SEWarning",
    "InferenceError",
    "LabelGraph",
    "Laplace",
    "NewtonCG",
    "Posterior",
    "Prior",
    "Problem",
    "ShiftCounts",
    "Status",
    "Structured",
    "Variational",
    "adaptation",
    "baselines",
    "compare",
    "diagnostics",
    "estimate",
    "geometry",
    "shifts",
    "simulate",
]
