"""Variances and solves of Gaussian fields against dense inverses."""

import numpy as np
import pytest

import gsb3se as gs
from gsb3se.inference.structured.graph_solver import DenseSolver, LoopySolver, StarSolver


def exact(graph, tau, precision):
    laplacian = graph.laplacian.toarray()
    inverses = [np.linalg.inv(tau * laplacian + np.diag(column)) for column in precision.T]
    return np.array(inverses)


def settled(field, tau, precision):
    messages = field.start(tau, precision)
    for _ in range(60):
        seen, messages = field.conductance(tau, precision, messages)
    return 1 / (precision + seen)


def random_precision(n, rng):
    return np.exp(rng.normal(-2, 2, (n, 6)))


def test_a_star_is_exact():
    rng = np.random.default_rng(0)
    graph, field = gs.LabelGraph.exchangeable(9), StarSolver(gs.LabelGraph.exchangeable(9))
    precision = random_precision(9, rng)
    inverse = exact(graph, 0.7, precision)
    np.testing.assert_allclose(settled(field, 0.7, precision), np.einsum("bjj->jb", inverse))
    right = rng.standard_normal((9, 6))
    np.testing.assert_allclose(
        field.solve(0.7, precision, right), np.einsum("bjk,kb->jb", inverse, right), rtol=1e-9
    )
    np.testing.assert_allclose(field.apply(0.7, right), 0.7 * graph.laplacian.toarray() @ right)


def test_propagation_is_exact_on_a_tree():
    rng = np.random.default_rng(1)
    n = 30
    weights = np.zeros((n, n))
    for child in range(1, n):
        parent = rng.integers(child)
        weights[child, parent] = weights[parent, child] = rng.uniform(0.1, 1)
    graph = gs.LabelGraph.from_weights(weights)
    precision = random_precision(n, rng)
    expected = np.einsum("bjj->jb", exact(graph, 0.3, precision))
    np.testing.assert_allclose(settled(LoopySolver(graph), 0.3, precision), expected, rtol=1e-10)


def test_propagation_is_near_on_a_graph_with_loops_and_nearer_when_tuned():
    rng = np.random.default_rng(2)
    graph = gs.LabelGraph.knn(rng.standard_normal((120, 6)), k=6)
    field = LoopySolver(graph)
    precision = np.full((120, 4), 0.02)
    precision[rng.integers(120, size=8), rng.integers(4, size=8)] = 5.0
    expected = np.einsum("bjj->jb", exact(graph, 0.1, precision))
    plain = np.abs(settled(field, 0.1, precision) / expected - 1)
    field.tune(0.1, np.full((120, 1), 0.02))
    tuned = np.abs(settled(field, 0.1, precision) / expected - 1)
    assert np.median(plain) < 0.2
    assert np.median(tuned) < 0.4 * np.median(plain)


@pytest.mark.parametrize("kind", [LoopySolver, DenseSolver])
def test_solves_go_on_to_the_solution(kind):
    rng = np.random.default_rng(3)
    graph = gs.LabelGraph.knn(rng.standard_normal((40, 4)), k=4)
    field = kind(graph)
    precision, right = random_precision(40, rng), rng.standard_normal((40, 6))
    x = np.zeros_like(right)
    for _ in range(40):
        x += field.solve(0.5, precision, right - field.apply(0.5, x) - precision * x)
    expected = np.einsum("bjk,kb->jb", exact(graph, 0.5, precision), right)
    np.testing.assert_allclose(x, expected, rtol=1e-6, atol=1e-8)


def test_the_star_keeps_its_digits_in_single_precision():
    rng = np.random.default_rng(4)
    n = 4000
    field = StarSolver(gs.LabelGraph.exchangeable(n))
    x, precision = rng.normal(-6, 2, (n, 3)), np.exp(rng.normal(-6, 1, (n, 3)))
    single = [part.astype(np.float32) for part in (precision, x)]
    double = [part.astype(float) for part in single]
    image = field.apply(0.03, double[1])
    np.testing.assert_allclose(field.apply(0.03, single[1]), image, atol=1e-5 * np.abs(image).max())
    np.testing.assert_allclose(
        field.solve(0.03, *single), field.solve(0.03, *double), rtol=2e-5, atol=1e-3
    )
    np.testing.assert_allclose(
        field.conductance(0.03, single[0], None)[0],
        field.conductance(0.03, double[0], None)[0],
        rtol=1e-5,
    )
