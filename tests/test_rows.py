"""The target's likelihood given levels: saddlepoints against exact laws and differences."""

import numpy as np
import pytest
from scipy import sparse
from scipy.special import gammaln
from scipy.stats import nbinom

from gsb3se.inference.structured.column_laws import ColumnLaws, ColumnParameters
from gsb3se.inference.structured.count_likelihood import CountLikelihood


def laws(rate, variance):
    rate = np.asarray(rate, float)
    return ColumnLaws(rate, np.asarray(variance, float), rate.sum(axis=0), ColumnParameters(1.0))


def test_one_gamma_a_row_is_a_negative_binomial():
    rate = np.diag([6.0, 20.0, 3.0])
    rate[rate == 0] = 1e-9
    target = np.array([40.0, 7.0, 0.0])
    rows = CountLikelihood(laws(rate, 1.5 * rate), target, np.full(3, 1 / 3))
    log_eta = np.log([[5.0, 0.5, 0.1], [9.0, 0.3, 2.0]]).T
    values = rows.evaluate(log_eta).log_likelihood
    expected = []
    for eta in np.exp(log_eta.T):
        shape, scale = np.diag(rate) / 1.5, 1.5 * eta
        expected.append(nbinom.logpmf(target, shape, 1 / (1 + scale)).sum())
    # The saddlepoint differs by Stirling's factors, which do not depend on eta.
    assert np.diff(values)[0] == pytest.approx(np.diff(expected)[0], rel=2e-2)


def test_many_terms_match_simulation():
    rng = np.random.default_rng(0)
    rate = rng.gamma(1.0, 2.0, (4, 4)) + np.diag([10.0] * 4)
    variance = rate * rng.uniform(0.5, 1.5, (4, 4))
    target = np.array([30.0, 12.0, 50.0, 8.0])
    rows = CountLikelihood(laws(rate, variance), target, np.full(4, 0.25))
    points = np.log(np.array([[2.0, 1.0, 3.0, 0.7], [2.5, 0.8, 2.5, 1.0], [1.5, 1.4, 3.5, 0.4]])).T
    found = rows.evaluate(points)
    shape, scale = rate**2 / variance, variance / rate
    cells = rng.gamma(shape, size=(200_000, 4, 4)) * scale
    values, totals = [], []
    for eta in np.exp(points.T):
        mean = cells @ eta
        log_p = target * np.log(mean) - mean - gammaln(target + 1)
        weight = np.exp(log_p)
        values.append(np.log(weight.mean(axis=0)).sum())
        share = weight / weight.sum(axis=0)
        totals.append(np.einsum("nj,nji->i", share, cells))
    np.testing.assert_allclose(np.diff(found.log_likelihood), np.diff(values), atol=0.06)
    np.testing.assert_allclose(np.exp(found.log_totals.T), totals, rtol=0.02)


@pytest.mark.parametrize("zero", [False, True])
def test_the_gradient_is_that_of_differences(zero):
    rng = np.random.default_rng(1)
    rate = rng.gamma(0.5, 2.0, (6, 6)) + np.diag([8.0] * 6)
    target = np.array([30.0, 12.0, 50.0, 8.0, 3.0, 0.0 if zero else 1.0])
    rows = CountLikelihood(laws(rate, 0.8 * rate), target, rng.dirichlet(np.ones(6)))
    assert 6 <= rows.n_terms < 36
    at, pull = rng.normal(0, 0.5, (6, 2)), rng.standard_normal((6, 2))

    def value(points):
        found = rows.evaluate(points)
        return found.log_likelihood + (pull * found.log_totals).sum(axis=0)

    gradient = rows.gradient(rows.evaluate(at), pull)
    for i in range(6):
        step = 1e-4 * np.eye(6)[:, [i]]
        expected = (value(at + step) - value(at - step)) / 2e-4
        np.testing.assert_allclose(gradient[i], expected, rtol=1e-3, atol=1e-4)


def test_geometry_is_the_curvature_at_a_fit():
    """Fisher's information: minus the Hessian where every row is met exactly."""
    rate = np.array([[50.0, 4, 2], [6, 40, 8], [4, 6, 60]])
    log_eta = np.log([2.0, 5.0, 3.0])
    target = rate @ np.exp(log_eta)
    rows = CountLikelihood(laws(rate, rate), target, np.full(3, 1 / 3))
    information = rows.geometry(log_eta).information
    hessian = np.empty((3, 3))
    for i in range(3):
        step = 0.02 * np.eye(3)[i]
        sides = [
            rows.gradient(rows.evaluate((log_eta + s * step)[:, None]), np.zeros((3, 1)))[:, 0]
            for s in (1, -1)
        ]
        hessian[i] = (sides[1] - sides[0]) / 0.04
    np.testing.assert_allclose(information, hessian, rtol=0.1, atol=0.05 * np.abs(hessian).max())


def test_the_covariance_of_totals_is_that_of_the_tilted_cells():
    """One class a row: given its count a cell is nearly known, and so is its part of u."""
    rate = np.array([[50.0, 4, 2], [6, 40, 8], [4, 6, 60]])
    target = np.array([300.0, 500, 250])
    rows = CountLikelihood(laws(rate, rate), target, np.full(3, 1 / 3))
    geometry = rows.geometry(np.log([5.0, 10.0, 4.0]))
    covariance = geometry.covariance()
    # By simulation: Gamma cells, weighted by the likelihood of their rows.
    rng = np.random.default_rng(0)
    cells = rng.gamma(rate, size=(400_000, 3, 3))
    mean = cells @ np.array([5.0, 10.0, 4.0])
    moments = np.zeros((3, 3))
    expected = np.zeros(3)
    for j in range(3):
        log_weight = target[j] * np.log(mean[:, j]) - mean[:, j]
        weight = np.exp(log_weight - log_weight.max())
        weight /= weight.sum()
        row = cells[:, j]
        centre = weight @ row
        expected += centre
        moments += np.einsum("n,ni,nk->ik", weight, row - centre, row - centre)
    moments /= np.outer(expected, expected)
    np.testing.assert_allclose(covariance, moments, atol=0.1 * moments.max())
    laplacian = sparse.csr_array(np.array([[2.0, -1, -1], [-1, 3, -2], [-1, -2, 3]]))
    assert geometry.roughness(laplacian) == pytest.approx(
        np.einsum("ij,ij->", laplacian.toarray(), covariance), rel=1e-5
    )


def test_saddlepoints_of_tiny_shapes_are_found():
    """Cells of shape 1e-5 have their root nearer to the pole than e^-nu has digits."""
    rate = np.array([[50.0, 1e-5, 1e-6], [1e-5, 40.0, 1e-5], [1e-7, 1e-5, 1e-5]])
    laws_ = ColumnLaws(rate, rate, np.array([50.0, 40, 1]), ColumnParameters(1.0))
    rows = CountLikelihood(laws_, np.array([100.0, 20, 400]), np.array([0.2, 0.1, 0.7]))
    log_eta = np.log([[2.0, 0.5, 1e3], [1.0, 3.0, 1e6]]).T
    values = rows.evaluate(log_eta)
    assert np.isfinite(values.log_likelihood).all() and np.isfinite(values.log_totals).all()
    assert values.saddle.steps < 40
    at = values.saddle
    first = rows._by_row @ (rows._shape * at.p) + at.s_rest * at.p_rest
    np.testing.assert_allclose(first, rows._counts * np.ones(2), rtol=0.02)


SPIKY = np.array([[60.0, 1e-3, 2e-3, 1e-3], [2e-3, 30, 1e-3, 2e-3], [1e-3, 1e-3, 20, 2e-3],
                  [1e-3, 2e-3, 1e-3, 5]])  # fmt: skip


def spiky_rows(target, likely):
    """Cells off the diagonal of shape about .001 and scale 1."""
    variance = np.where(np.eye(4) == 1, SPIKY, SPIKY * 1.2)
    spiky_laws = laws(SPIKY, variance)
    return CountLikelihood(spiky_laws, np.asarray(target, float), np.asarray(likely)), spiky_laws


@pytest.mark.parametrize("own", [0.5, 1.0, 4.0])
def test_rows_with_spiky_cells_have_their_exact_law(own):
    """Against the convolution of negative binomials, as the rows' own classes explain too little,
    just enough or too much."""
    target, likely = [2400, 12, 3, 0], np.array([0.97, 0.012, 0.006, 0.012])
    rows, spiky = spiky_rows(target, likely)
    assert rows.rare.cells[1:].sum() == 9
    level = np.array([40.0, 0.4 * own, 0.15 * own, 0.2])
    plain = np.array([40.0, 0.4, 0.15, 0.2])
    found = rows.evaluate(np.log(np.stack([plain, level], axis=1))).log_likelihood
    shape, scale = spiky.rate**2 / spiky.variance, spiky.variance / spiky.rate

    def exact(eta):
        whole = 0.0
        for j, n in enumerate(target):
            counts = np.arange(n + 1)
            law = np.eye(n + 1)[0]
            for i in range(4):
                term = nbinom.pmf(counts, shape[j, i], 1 / (1 + eta[i] * scale[j, i]))
                law = np.convolve(law, term)[: n + 1]
            whole += np.log(law[n])
        return whole

    assert found[1] - found[0] == pytest.approx(exact(level) - exact(plain), abs=0.12)


@pytest.mark.parametrize("target", [[2400, 12, 3, 0], [2400, 12, 40, 1], [900, 12, 3, 2]])
def test_the_gradient_of_spikes_is_that_of_differences(target):
    rng = np.random.default_rng(2)
    rows, _ = spiky_rows(target, [0.97, 0.012, 0.006, 0.012])
    assert rows.rare.cells.any()
    at = np.log([40.0, 0.4, 0.15, 0.2])[:, None] + rng.normal(0, 0.3, (4, 2))
    pull = rng.standard_normal((4, 2))

    def value(points):
        found = rows.evaluate(points)
        return found.log_likelihood + (pull * found.log_totals).sum(axis=0)

    gradient = rows.gradient(rows.evaluate(at), pull)
    for i in range(4):
        step = 1e-4 * np.eye(4)[:, [i]]
        expected = (value(at + step) - value(at - step)) / 2e-4
        np.testing.assert_allclose(gradient[i], expected, rtol=1e-3, atol=1e-3)


def test_a_row_that_only_spikes_explain_keeps_them():
    rate = np.array([[50.0, 1e-3], [1e-3, 1e-3]])
    rows = CountLikelihood(laws(rate, rate), np.array([100.0, 30]), np.array([0.9, 0.1]))
    assert not rows.rare.cells[1].any()
    assert rows.evaluate(np.log([[2.0], [100.0]])).log_likelihood[0] > -200
