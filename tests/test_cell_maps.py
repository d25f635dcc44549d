"""Hinges: slopes against differences, quantiles against those of the cell's own density."""

import numpy as np
import pytest
from scipy.stats import norm

from gsb3se.inference.structured.exact.hinges import fit_hinges

# n, cavity mean and variance, eta, wanted, noise
CELLS = {
    "empty, far below its wall": (0, -12.0, 4.0, 5.0, 0.0, 50.0),
    "empty, at its wall": (0, -1.0, 16.0, 0.1, 0.0, 100.0),
    "empty, and the target's row has no room": (0, -1.0, 9.0, 30.0, 5.0, 40.0),
    "few counts": (3, 0.0, 4.0, 2.0, 8.0, 100.0),
    "many counts": (400, 5.0, 9.0, 1.0, 390.0, 1e4),
    "a wide cavity": (1, -20.0, 400.0, 0.5, 0.0, 10.0),
}


def quantiles(cell, levels):
    n, m, v, eta, wanted, noise = cell
    x = np.linspace(-120, 8, 400_001)
    log_density = n * x - np.exp(x) - (x - m) ** 2 / (2 * v)
    log_density -= (eta * np.exp(x) - wanted) ** 2 / (2 * noise)
    mass = np.exp(log_density - log_density.max()).cumsum()
    return np.interp(levels, mass / mass[-1], x)


@pytest.mark.parametrize("name", CELLS)
def test_quantiles_are_those_of_the_cell(name):
    cell = CELLS[name]
    hinge = fit_hinges(*(np.array([float(part)]) for part in cell))
    scores = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])
    expected = quantiles(cell, norm.cdf(scores))
    found = hinge.centre + hinge.bend(scores)[0]
    sd = (expected[3] - expected[1]) / 2
    assert found[2] == pytest.approx(expected[2], abs=0.02 * sd)
    np.testing.assert_allclose(
        found, expected, atol=0.6 * sd
    )  # it has four numbers to follow the density with
    assert (hinge.narrow <= hinge.wide).all()


def test_slopes_are_those_of_differences():
    hinge = fit_hinges(*(np.array([float(part)]) for part in CELLS["empty, at its wall"]))
    y, step = np.linspace(-4, 4, 33), 1e-5
    _, slope, bend = hinge.bend(y)
    (above, rise, _), (below, fall, _) = hinge.bend(y + step), hinge.bend(y - step)
    np.testing.assert_allclose(slope, (above - below) / (2 * step), rtol=1e-6)
    np.testing.assert_allclose(bend, (rise - fall) / (2 * step), rtol=1e-5, atol=1e-8)
    assert (slope > 0).all()
