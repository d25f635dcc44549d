"""GS-B3SE: the target class prior under label shift, with full uncertainty.

>>> import gsb3se as gs
>>> counts = gs.ShiftCounts([[45, 5], [5, 45]], target=[70, 30], labels=["cat", "dog"])
>>> gs.baselines.bbse(counts).round(3).tolist()
[0.75, 0.25]

A room imports only from those above it:

    support/      tools that know no statistics
    graph/        which labels are alike
    model/        the data, the priors, the density
    posterior/    what an answer is
    drawing/      pictures
    inference/    the backends; gsb3se_amortized/ is one more, with torch
    checks/       questions that take more than looking at a posterior
    estimate.py, baselines.py, adaptation.py, ...: the names people import
    stream/       windows over time
    batch/        many groups of predictions, from files
    compare/      every backend beside HMC
    report/       a result as a page
    cli/          the command line, one command a file
"""

from importlib import import_module
from typing import Any

from gsb3se import adaptation, baselines, diagnostics, geometry, shifts
from gsb3se.compare import Comparison, compare
from gsb3se.estimate import InferenceError, estimate
from gsb3se.graph import LabelGraph
from gsb3se.inference.gaussian import Laplace, NewtonCG
from gsb3se.inference.hmc import HMC
from gsb3se.inference.structured import Structured
from gsb3se.inference.variational import Variational
from gsb3se.model.counts import ConfusionCounts, ShiftCounts
from gsb3se.model.prior import Prior
from gsb3se.model.problem import Problem
from gsb3se.model.simulation import simulate
from gsb3se.posterior.posterior import Posterior
from gsb3se.posterior.status import Diagnostics, Status
from gsb3se.support import forked_processes  # noqa: F401  looks at every fork from now on
from gsb3se.support.errors import GSB3SEWarning
from gsb3se.support.version import __version__ as __version__

_LAZY = ("batch", "plots", "report", "stream")  # imported when they are first asked for

__all__ = [
    "HMC",
    "Comparison",
    "ConfusionCounts",
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


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return import_module(f"gsb3se.{name}")
    raise AttributeError(f"module 'gsb3se' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
