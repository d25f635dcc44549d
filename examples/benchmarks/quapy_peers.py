"""QuaPy's estimators, run on the same counts."""

import sys
from importlib import reload
from types import ModuleType

import numpy as np

import gsb3se as gs

# QuaPy turns all its Bayesian methods off without pystan, which BayesianCC does not use.
for _name in ("stan", "stan.common"):
    sys.modules.setdefault(_name, ModuleType(_name))
from quapy.method import _bayesian  # noqa: E402
from quapy.method.aggregative import ACC  # noqa: E402

if not _bayesian.DEPENDENCIES_INSTALLED:  # somebody imported it before
    reload(_bayesian)


def adjusted_count(counts: gs.ShiftCounts) -> np.ndarray:
    """(K,) by ACC with its default solver: least squares over the simplex."""
    rates, observed = counts.confusion_rates.toarray(), counts.target / counts.n_target
    return ACC.solve_adjustment(rates, observed, solver="minimize", method="inversion")


def bayesian_cc(
    counts: gs.ShiftCounts, seed: int, warmup: int = 500, draws: int = 1000
) -> np.ndarray:
    """(draws, K) by BayesianCC: flat Dirichlet priors on shares and on every column, no graph.

    One chain, as it runs by default; nothing checks whether it has mixed.
    """
    import jax
    import jax.numpy as jnp  # as plain numpy arrays its counts fail numpyro's checks

    samples = _bayesian.sample_posterior_bayesianCC(
        jnp.asarray(counts.target),
        jnp.asarray(counts.confusion.toarray().T),
        num_warmup=warmup,
        num_samples=draws,
        alpha=np.ones(counts.n_classes),
        temperature=1.0,
        seed=seed,
    )
    shares = np.array(samples[_bayesian.P_TEST_Y])
    jax.clear_caches()  # it compiles anew every time, and a few hundred programs exhaust memory
    return shares
