"""Tilted moments of Poisson cells against direct integration."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import polygamma

from gsb3se.inference.structured.poisson_cells import counted_moments, empty_cell_table


def integrated(count, mean, sd):
    """rate and curvature by a fine grid."""
    high = min(mean + 12 * sd + count * sd**2, np.log(count + 1) + 6)
    x = np.linspace(mean - 12 * sd, max(high, mean), 400_001)
    log_density = count * x - np.exp(x) - (x - mean) ** 2 / (2 * sd**2)
    weight = np.exp(log_density - log_density.max())
    weight /= weight.sum()
    rate = weight @ np.exp(x)
    return rate, rate - weight @ (np.exp(x) - rate) ** 2


@given(mean=st.floats(-15, 3), sd=st.floats(0.1, 6))
def test_empty_cell_table_are_those_of_the_integral(mean, sd):
    rate, curvature = integrated(0, mean, sd)
    found = empty_cell_table()(np.array([mean]), np.array([sd]))
    assert found.rate[0] == pytest.approx(rate, rel=2e-3)
    assert found.curvature[0] == pytest.approx(curvature, rel=5e-3)


@given(count=st.integers(1, 3000), mean=st.floats(-6, 6), sd=st.floats(0.1, 4))
def test_counted_cells_are_those_of_the_integral(count, mean, sd):
    rate, curvature = integrated(count, mean, sd)
    found = counted_moments(np.array([float(count)]), np.array([mean]), np.array([sd**2]))
    assert found.rate[0] == pytest.approx(rate, rel=1e-4)
    assert found.curvature[0] == pytest.approx(curvature, rel=1e-2)


def test_moments_keep_their_bounds():
    """0 < kappa < lambda and v kappa < 1: the law is log-concave and its cells positive."""
    mean, sd = np.meshgrid(np.linspace(-60, 9, 200), np.linspace(0.05, 12, 100))
    rate, curvature = empty_cell_table()(mean, sd)
    assert np.isfinite(rate).all()
    assert (curvature > 0).all()
    assert (curvature <= rate * (1 + 1e-5)).all()
    assert (sd**2 * curvature < 1).all()


@given(mean=st.floats(-30, 8), sd=st.floats(12.5, 60))
def test_sites_wider_than_the_table_are_a_probit(mean, sd):
    rate, curvature = integrated(0, mean, sd)
    found = empty_cell_table()(np.array([mean]), np.array([sd]))
    assert found.rate[0] == pytest.approx(rate, rel=2e-2)
    assert found.curvature[0] == pytest.approx(curvature, rel=3e-2)


@given(count=st.integers(1, 10**7), mean=st.floats(-6, 16), sd=st.floats(0.01, 1e4))
def test_the_precision_of_a_counted_site_keeps_its_digits(count, mean, sd):
    found = counted_moments(np.array([float(count)]), np.array([mean]), np.array([sd**2]))
    assert found.precision[0] > 0
    if sd > 100:  # of a flat Gaussian the site is all there is: a log Gamma
        assert found.precision[0] == pytest.approx(1 / polygamma(1, count), rel=2e-2)
