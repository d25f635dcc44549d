"""Small problems whose posterior is known by quadrature or importance sampling."""

from functools import cache
from typing import NamedTuple

import numpy as np
from problems import random_graph
from scipy.special import logsumexp
from scipy.stats import multivariate_t
from sum_zero import sum_zero_basis

import gsb3se as gs
from gsb3se.inference.gaussian.mode_search import cold_start, find_mode
from gsb3se.model.density import Curvature, Latents, Strengths
from gsb3se.model.problem import Problem


class Exact(NamedTuple):
    """A problem, mean and sd of q, and the means of r = C q and of C."""

    problem: Problem
    mean: np.ndarray
    sd: np.ndarray
    predicted: np.ndarray
    confusion: np.ndarray


def collapsed(problem, theta, phi):
    """log p(counts, theta, phi) up to a constant, tau integrated out, for many points at once."""
    prior, laplacian = problem.prior, problem.graph.laplacian.toarray()
    log_q = theta - logsumexp(theta, axis=1, keepdims=True)
    log_c = phi - logsumexp(phi, axis=1, keepdims=True)
    log_r = logsumexp(log_c + log_q[:, None, :], axis=2)
    value = np.einsum("ji,nji->n", problem.counts.confusion.toarray(), log_c)
    value += log_r @ problem.target
    form_q = np.einsum("ni,ij,nj->n", theta, laplacian, theta)
    form_c = np.einsum("nik,ij,njk->n", phi, laplacian, phi)
    shape_q, shape_c = problem.tau_shapes
    value -= shape_q * np.log(prior.b_q + form_q / 2)
    return value - shape_c * np.log(prior.b_C + form_c / 2)


def summarised(problem, weight, theta, phi):
    q = np.exp(theta - logsumexp(theta, axis=1, keepdims=True))
    confusion = np.exp(phi - logsumexp(phi, axis=1, keepdims=True))
    mean = weight @ q
    return Exact(
        problem,
        mean,
        np.sqrt(weight @ (q - mean) ** 2),
        np.einsum("n,nji,ni->j", weight, confusion, q),
        np.einsum("n,nji->ji", weight, confusion),
    )


@cache
def two_classes():
    problem = Problem(gs.ShiftCounts([[17, 4], [3, 11]], [60, 25]), prior=gs.Prior(2, 1, 2, 1))
    nodes, weights = np.polynomial.legendre.leggauss(90)
    grid = np.stack(np.meshgrid(*[8 * nodes] * 3, indexing="ij"), axis=-1).reshape(-1, 3)
    mass = np.prod(np.meshgrid(*[weights] * 3, indexing="ij"), axis=0).ravel()
    half = np.array([1.0, -1.0]) / np.sqrt(2)
    theta, phi = grid[:, :1] * half, grid[:, None, 1:] * half[:, None]
    density = collapsed(problem, theta, phi)
    weight = mass * np.exp(density - density.max())
    weight /= weight.sum()
    return summarised(problem, weight, theta, phi)


@cache
def three_classes():
    graph = random_graph(3, "dense", np.random.default_rng(3))
    counts = gs.ShiftCounts([[20, 3, 2], [4, 18, 5], [1, 4, 23]], [80, 70, 50])
    problem, n = Problem(counts, graph, gs.Prior(2, 2, 2, 2)), 3
    tau = Strengths(0.8, 0.8)
    mode = find_mode(problem, tau, cold_start(problem)).latents
    basis = np.kron(np.eye(n + 1), sum_zero_basis(n))
    product = Curvature(problem, mode, tau).product
    hessian = []
    for e in basis.T:
        moved = product(Latents(e[:n], e[n:].reshape(n, n).T.copy()))
        hessian.append(basis.T @ np.concatenate([moved.theta, moved.phi.T.ravel()]))
    centre = basis.T @ np.concatenate([mode.theta, mode.phi.T.ravel()])
    proposal = multivariate_t(centre, 1.5 * np.linalg.inv(np.array(hessian)), df=6, seed=0)
    points = proposal.rvs(300_000)
    wide = points @ basis.T
    theta, phi = wide[:, :n], wide[:, n:].reshape(-1, n, n).transpose(0, 2, 1)
    log_weight = collapsed(problem, theta, phi) - proposal.logpdf(points)
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    assert 1 / np.square(weight).sum() > 20_000  # its own error is far below that of a backend
    return summarised(problem, weight, theta, phi)
