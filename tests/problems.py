"""Random problems to evaluate the model on."""

import numpy as np
import pytest
from hypothesis import strategies as st

import gsb3se as gs
from gsb3se.model.density import Latents, Strengths
from gsb3se.model.problem import Problem

# For tests that take long: both priors where there is time, the default by default.
PRIORS_THE_PAPERS_SLOW = [
    pytest.param(gs.Prior(), id="paper", marks=pytest.mark.slow),
    pytest.param(gs.Prior.anchored(), id="anchored"),
]


def random_graph(n_classes, kind, rng):
    if kind == "exchangeable":
        return gs.LabelGraph.exchangeable(n_classes)
    if kind == "knn":
        return gs.LabelGraph.knn(rng.standard_normal((n_classes, 5)), k=2)
    weights = rng.uniform(0.05, 1.0, (n_classes, n_classes))
    return gs.LabelGraph.from_weights((weights + weights.T) / 2)


def random_problem(n_classes, seed, anchored, kind="knn", n_source=8, n_target=60):
    """A problem with zero cells, possibly empty classes, and a point to evaluate it at."""
    rng = np.random.default_rng(seed)
    graph = random_graph(n_classes, kind, rng)
    shapes = rng.uniform(0.5, 2.5, 4)
    prior = gs.Prior(*shapes, anchor_sd=rng.uniform(2, 6) if anchored else None)
    sizes = rng.integers(0, n_source + 1, n_classes)
    confusion = np.column_stack(
        [rng.multinomial(n, rng.dirichlet(np.full(n_classes, 0.4))) for n in sizes]
    )
    target = rng.multinomial(n_target, rng.dirichlet(np.full(n_classes, 0.7)))
    problem = Problem(gs.ShiftCounts(confusion, target), graph, prior)
    point = Latents(
        rng.standard_normal(n_classes),
        1.5 * rng.standard_normal((n_classes, n_classes)),
        *(rng.normal(0, 3, 2) if anchored else (0.0, 0.0)),
    )
    return problem, point, Strengths(*rng.uniform(0.2, 3.0, 2))


problems = st.builds(
    random_problem,
    n_classes=st.sampled_from([2, 3, 5, 8, 12]),
    seed=st.integers(0, 2**31),
    anchored=st.booleans(),
    kind=st.sampled_from(["knn", "dense", "exchangeable"]),
)


def direction_like(point, seed):
    rng = np.random.default_rng(seed)
    anchored = point.alpha != 0.0 or point.beta != 0.0
    return Latents(
        rng.standard_normal(point.theta.shape),
        rng.standard_normal(point.phi.shape),
        *(rng.standard_normal(2) if anchored else (0.0, 0.0)),
    )
