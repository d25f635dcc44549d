"""The columns' laws against quadrature over the exact posterior of a column."""

import numpy as np
import pytest
from scipy.special import logsumexp
from sum_zero import sum_zero_basis

import gsb3se as gs
from gsb3se.inference.structured.column_fit import fit_columns
from gsb3se.inference.structured.column_laws import ColumnOutput, ColumnParameters
from gsb3se.inference.structured.column_propagation import ColumnPropagation
from gsb3se.inference.structured.strength_integration import slope_of_evidence

COUNTS = np.array([[9, 2, 0], [1, 6, 1], [0, 3, 4]])
WEIGHTS = np.array([[0, 0.9, 0.2], [0.9, 0, 0.5], [0.2, 0.5, 0]])


def column_posterior(problem, parameters, i):
    """Points phi of column i's plane, their posterior weights, and the column's log evidence."""
    laplacian = problem.graph.laplacian.toarray()
    nodes = np.linspace(-14, 14, 561)
    plane = np.stack(np.meshgrid(nodes, nodes), -1).reshape(-1, 2) @ sum_zero_basis(3).T
    mean = parameters.alpha * np.eye(3)[i] + parameters.beta * problem.graph.weights.toarray()[:, i]
    away = plane - mean + mean.mean()
    log_c = plane - logsumexp(plane, axis=1, keepdims=True)
    value = log_c @ problem.counts.confusion.toarray()[:, i]
    value += np.log(parameters.tau) - parameters.tau / 2 * np.einsum(
        "nj,jk,nk->n", away, laplacian, away
    )
    evidence = logsumexp(value)
    return np.exp(log_c), np.exp(value - evidence), evidence


@pytest.mark.parametrize("prior", [gs.Prior(), gs.Prior.anchored()], ids=["paper", "anchored"])
def test_means_variances_and_slopes_are_those_of_the_exact_columns(prior):
    counts = gs.ShiftCounts(COUNTS, [1, 1, 1])
    problem = gs.Problem(counts, gs.LabelGraph.from_weights(WEIGHTS), prior)
    parameters = ColumnParameters(0.6, 1.5, 0.7) if prior.is_anchored else ColumnParameters(0.4)
    run = ColumnPropagation(problem)
    rate, variance = np.empty((3, 3)), np.empty((3, 3))
    sums = run.run(parameters, np.arange(3), ColumnOutput(rate, variance))
    np.testing.assert_allclose(rate.sum(axis=0), COUNTS.sum(axis=0))
    sizes = COUNTS.sum(axis=0)
    for i in range(3):
        c, weight, _ = column_posterior(problem, parameters, i)
        mean = weight @ c
        sd = np.sqrt(weight @ (c - mean) ** 2)
        assert (np.abs(rate[:, i] / sizes[i] - mean) < 0.06 * sd).all()
        # E[e^2x] = n (n + 1) E[c^2]: the cells' variances by the law of the total
        second = sizes[i] * (sizes[i] + 1) * (weight @ c**2)
        np.testing.assert_allclose(variance[:, i] + rate[:, i] ** 2, second, rtol=0.03)

    def log_density(vector):
        at = ColumnParameters(float(np.exp(vector[0])), *vector[1:])
        value = sum(column_posterior(problem, at, i)[2] for i in range(3))
        value += prior.a_C * vector[0] - prior.b_C * at.tau
        if prior.is_anchored:
            value -= (vector[1] ** 2 + vector[2] ** 2) / (2 * prior.anchor_sd**2)
        return value

    at = np.array([np.log(parameters.tau), parameters.alpha, parameters.beta])
    slope = slope_of_evidence(run, parameters, sums)
    for k in range(3 if prior.is_anchored else 1):
        step = 1e-3 * np.eye(3)[k]
        expected = (log_density(at + step) - log_density(at - step)) / 2e-3
        assert slope[k] == pytest.approx(expected, abs=0.06)


def test_large_counts_leave_the_observed_rates():
    confusion = np.array([[8000, 500, 100], [1500, 9000, 900], [500, 500, 9000]])
    problem = gs.Problem(gs.ShiftCounts(confusion, [1, 1, 1]))
    laws, _, _ = fit_columns(problem)
    np.testing.assert_allclose(laws.mean, confusion / confusion.sum(axis=0), atol=1e-3)
    np.testing.assert_allclose(laws.variance / laws.rate, 1.0, atol=0.05)


def test_propagation_in_blocks_and_single_precision_is_that_of_exact_inverses():
    rng = np.random.default_rng(0)
    graph = gs.LabelGraph.knn(rng.standard_normal((280, 8)), k=6)
    truth = 0.7 * np.eye(280) + 0.3 * rng.dirichlet(np.full(280, 0.1), 280).T
    columns = np.column_stack([rng.multinomial(20, c) for c in truth.T])
    problem = gs.Problem(gs.ShiftCounts(columns, np.ones(280, int)), graph)
    laws, report, _ = fit_columns(problem)
    assert report.not_converged == 0
    assert report.settled
    exact = ColumnPropagation(problem, exact=True)
    rate, variance = np.empty((280, 280)), np.empty((280, 280))
    few = np.arange(0, 280, 40)
    exact.run(laws.parameters, few, ColumnOutput(rate, variance))
    gap = np.abs(laws.rate[:, few] - rate[:, few]) / np.sqrt(variance[:, few])
    assert np.median(gap) < 0.01
    assert np.quantile(gap, 0.95) < 0.04


def test_a_column_without_counts_has_its_prior():
    confusion = COUNTS * [1, 1, 0]
    graph = gs.LabelGraph.from_weights(WEIGHTS)
    problem = gs.Problem(gs.ShiftCounts(confusion, [1, 1, 1]), graph, gs.Prior.anchored())
    laws, _, _ = fit_columns(problem)
    assert laws.sizes[2] < 20
    assert np.isfinite(laws.rate).all()
    assert laws.mean[:, 2].sum() == pytest.approx(1)


def test_a_run_goes_on_from_its_own_columns_alone():
    """Blocks that begin alike and are as long are not the same block."""
    counts = gs.ShiftCounts(COUNTS, [1, 1, 1])
    problem = gs.Problem(counts, gs.LabelGraph.from_weights(WEIGHTS))
    found = []
    for before in ([0, 1], None):
        run = ColumnPropagation(problem)
        if before is not None:
            run.run(ColumnParameters(0.4), np.array(before))
        rate, variance = np.zeros((3, 3)), np.zeros((3, 3))
        run._block(ColumnParameters(0.4), np.array([0, 2]), ColumnOutput(rate, variance))
        found.append(rate)
    np.testing.assert_array_equal(*found)
