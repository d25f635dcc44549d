"""Whatever the counts, graph and prior are: a posterior that is one, or one clear refusal.

``pytest -m slow`` tries some thousands of problems instead of some hundreds.
"""

import time
import warnings

import numpy as np
import pytest

import gsb3se as gs
from gsb3se_amortized.backend import Amortized

LONGEST = 20.0  # seconds of computing; nearly all problems take a fraction of one
BACKENDS = {  # and how many problems each is given, by default and where there is time
    "structured": (gs.Structured(), 5, 400),
    "without-chains": (gs.Structured(refine=False), 10, 3000),
    "newton": (gs.NewtonCG(), 30, 3000),
    "laplace": (gs.Laplace(), 8, 400),
    "amortized": (Amortized(), 50, 3000),
    "variational": (gs.Variational(max_steps=60, draws=100, layers=1), 5, 100),
    "hmc": (gs.HMC(chains=1, warmup=30, draws=30), 2, 60),
}


def any_problem(seed: int) -> tuple[gs.ShiftCounts, gs.LabelGraph, gs.Prior]:
    """Counts, graph and prior, each ordinary or at some edge of what is allowed, or beyond it."""
    rng = np.random.default_rng(seed)
    k = int(rng.integers(2, 13))
    counts = gs.ShiftCounts(any_source(k, rng), any_target(k, rng))
    return counts, any_graph(k, rng), any_prior(rng)


def any_source(k: int, rng: np.random.Generator) -> np.ndarray:
    accuracy, rows = rng.choice([0.0, 0.1, 0.5, 0.9, 1.0]), int(rng.choice([1, 5, 50, 10**6]))
    rates = accuracy * np.eye(k) + (1 - accuracy) / k
    source = np.column_stack([rng.multinomial(rows, column) for column in (rates / rates.sum(0)).T])
    lost = rng.uniform(size=k) < rng.choice([0.0, 0.3, 0.9])
    match rng.integers(9):
        case 0:
            source[:] = 0  # no labels at all
        case 1:
            source = source.sum(axis=0) * (np.arange(k) == rng.integers(k))[:, None]  # always one
        case 2:
            source[:, lost] = 0  # classes without validation rows
        case 3:
            source[lost] = 0  # classes that are never predicted
        case 4:
            source = source[rng.permutation(k)]  # labels that were mixed up
        case 5:
            source[:, rng.integers(k)] *= 10**6
        case 6:
            source = np.eye(k, dtype=np.int64)[:, rng.permutation(k)] * rows
        case 7:
            source[:] = np.eye(k, dtype=np.int64)[rng.integers(k)][:, None] * rows * ~lost
    return source.astype(np.int64)


def any_target(k: int, rng: np.random.Generator) -> np.ndarray:
    size = int(rng.choice([1, 2, 30, 1000, 10**7]))
    concentration = float(rng.choice([0.05, 1.0, 50.0]))
    shares = np.maximum(rng.dirichlet(np.full(k, concentration)), 1e-12)
    if rng.uniform() < 0.2:
        shares = np.eye(k)[rng.integers(k)]  # one class alone
    return rng.multinomial(size, shares / shares.sum())


def any_graph(k: int, rng: np.random.Generator) -> gs.LabelGraph:
    scale = float(rng.choice([1e-8, 1e-3, 1.0]))
    chain = np.diag(np.ones(k - 1), 1)
    uneven = np.diag(10.0 ** rng.uniform(-8, 0, k - 1), 1)
    dense = np.triu(rng.uniform(0.01, 1, (k, k)), 1)
    match rng.integers(5):
        case 0:
            return gs.LabelGraph.exchangeable(k)
        case 1:
            return gs.LabelGraph.knn(rng.standard_normal((k, 4)), k=min(3, k - 1))
        case 2:
            weights = scale * chain
        case 3:
            weights = uneven
        case _:
            weights = scale * dense
    return gs.LabelGraph.from_weights(weights + weights.T)


def any_prior(rng: np.random.Generator) -> gs.Prior:
    shapes = 10.0 ** rng.choice([-3.0, -1.0, 0.0, 1.0, 3.0], 4) if rng.uniform() < 0.5 else [1] * 4
    anchor = float(rng.choice([0.01, 1.0, 5.0, 100.0])) if rng.uniform() < 0.5 else None
    return gs.Prior(*map(float, shapes), anchor_sd=anchor)


def check(backend: object, seed: int) -> bool:
    """Whether there was an answer; an answer is checked, a refusal must say something."""
    began = time.process_time()
    try:
        counts, graph, prior = any_problem(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", gs.GSB3SEWarning)
            posterior = gs.estimate(counts, graph, prior=prior, backend=backend, seed=0)
    except ValueError as error:
        assert len(str(error)) > 20, seed
        return False
    finally:
        assert time.process_time() - began < LONGEST, seed
    low, high = posterior.interval(0.9)
    draws = posterior.sample(50, seed=0)
    for numbers in (posterior.mean, posterior.sd, low, high, draws):
        assert np.isfinite(numbers).all(), seed
    assert np.isclose(posterior.mean.sum(), 1) and (posterior.mean >= 0).all(), seed
    assert np.allclose(draws.sum(axis=-1), 1) and (draws >= 0).all(), seed
    assert (posterior.sd >= 0).all(), seed
    assert ((low <= high) & (low >= 0) & (high <= 1)).all(), seed
    found = posterior.diagnostics
    assert found.status.is_ok or found.message, seed
    return True


@pytest.mark.parametrize("backend", BACKENDS)
def test_any_problem(backend):
    made, few, _ = BACKENDS[backend]
    assert sum(check(made, seed) for seed in range(few)) > few / 3


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_very_many_problems(backend):
    made, _, many = BACKENDS[backend]
    answered = sum(check(made, seed) for seed in range(10_000, 10_000 + many))
    print(backend, many, "problems,", answered, "answered")
