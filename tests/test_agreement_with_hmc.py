"""The net: every backend against HMC's stored posteriors of small problems.

A tolerance is a limit on the median and on the largest error of the shares' means, in HMC's sds (of
the interval's ends, half as much again in the median), and the range that nine in ten of the sds'
ratios lie in.
"""

import warnings
from typing import NamedTuple

import numpy as np
import pytest
import references

import gsb3se as gs
from gsb3se.estimate import BACKENDS


class Tolerance(NamedTuple):
    median: float
    largest: float
    sd: tuple[float, float]


LIMITS = {
    "hmc": Tolerance(0.1, 0.3, (0.85, 1.18)),
    "structured": Tolerance(0.08, 0.3, (0.88, 1.14)),
    "variational": Tolerance(0.1, 0.45, (0.8, 1.2)),
    "amortized": Tolerance(0.3, 0.9, (0.6, 1.5)),
    "laplace": Tolerance(0.4, 0.9, (0.6, 1.5)),
    "newton": Tolerance(0.45, 1.2, (0.55, 1.6)),
}
# Of a class without rows the posterior is far from any Gaussian.
EMPTY_LIMITS = LIMITS | {
    "amortized": Tolerance(0.3, 0.9, (0.4, 1.5)),
    "laplace": Tolerance(0.8, 2.0, (0.5, 4.5)),
    "newton": Tolerance(0.5, 1.2, (0.5, 2.5)),
}
LONG_FITS = ("30_classes_paper", "30_classes_anchored", "10_classes_paper", "empty_class_paper")
SETTINGS = {"hmc": gs.HMC(chains=2, warmup=400, draws=800, progress=False)}


def test_every_backend_has_its_limits_and_every_kind_of_case_is_there():
    assert set(LIMITS) == set(BACKENDS)
    made = {name.replace(" ", "_") for name, *_ in references.cases()}
    assert made == set(references.names())


def pairs():
    """Each case by each backend; long ones are slow."""
    for name in references.names():
        for backend in BACKENDS:
            long = backend == "hmc" and not name.startswith("3_")
            long |= backend == "variational" and name in LONG_FITS
            yield pytest.param(name, backend, marks=[pytest.mark.slow] if long else [])


@pytest.mark.parametrize(("name", "backend"), pairs())
def test_a_backend_agrees_with_hmc(name, backend):
    exact, limit = references.load(name), LIMITS[backend]
    if exact.problem.counts.without_validation:
        limit = EMPTY_LIMITS[backend]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gs.GSB3SEWarning)
        ours = gs.estimate(
            exact.problem.counts,
            exact.problem.graph,
            prior=exact.problem.prior,
            backend=SETTINGS.get(backend, backend),
            seed=0,
        )
    mean = np.abs(ours.mean - exact.mean) / exact.sd
    ratio = ours.sd / exact.sd
    ends = np.abs(ours.quantile([0.05, 0.95]) - exact.quantiles[[0, 2]]) / exact.sd
    found = f"mean {np.median(mean):.3f} {mean.max():.3f}, ends {np.median(ends):.3f}, sd {ratio}"
    assert np.median(mean) < limit.median, found
    assert mean.max() < limit.largest, found
    assert np.median(ends) < 1.5 * limit.median, found
    assert np.mean((ratio > limit.sd[0]) & (ratio < limit.sd[1])) >= 0.9, found
    if backend in ("hmc", "structured", "variational"):
        log_tau, (middle, width) = np.log(ours.form.others["tau_C"]), exact.log_tau_C
        assert abs(log_tau.mean() - middle) < 0.4 * width + 0.05
