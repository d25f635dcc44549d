"""HMC: the posterior by NumPyro's NUTS, the reference every other backend is judged by."""

from __future__ import annotations

import math
import time
import warnings
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gsb3se.inference.hmc.coordinates import column_scaling, share_scaling
from gsb3se.inference.hmc.verdict import judge
from gsb3se.model.problem import Problem
from gsb3se.posterior.arviz_bridge import arviz_module
from gsb3se.posterior.identifiability import identified
from gsb3se.posterior.posterior import Posterior
from gsb3se.support.errors import GSB3SEWarning, as_whole_number, require
from gsb3se.support.forked_processes import check_not_forked
from gsb3se.support.limits import HMC_DEEP_TREES, HMC_SAYS_HOW_LONG
from gsb3se.support.machine import available_cores
from gsb3se.support.progress import progress_bar

if TYPE_CHECKING:
    from gsb3se.inference.hmc.density import JaxProblem
    from gsb3se.inference.hmc.sampler import ChainDraws, ChainStart

_WORTH_SAYING = 300  # seconds
_DEEP, _SHALLOW = 9, 6  # trees


@dataclass(frozen=True)
class HMC:
    """The exact posterior by NUTS on (theta, phi, tau_q, tau_C), in nearly round coordinates.

    Args:
        chains, warmup, draws: as in the paper by default; chains run side by side where the
            machine has cores.
        target_accept: acceptance the step size is tuned to; raise it if draws diverge.
        max_tree_depth: a trajectory has at most 2^depth - 1 steps; None for 9 up to 50 classes,
            where steps are cheap and ridges are sharp, and 6 beyond.
        progress: show a progress bar; None: if standard error is a terminal.

    A draw costs some 31 to 63 gradients of O(K^2 + edges K) each. Needs the extra ``hmc``; jax's
    settings are left as they are.

    >>> HMC(chains=2, draws=500)
    HMC(chains=2, warmup=500, draws=500, target_accept=0.95, max_tree_depth=None, progress=None)
    """

    chains: int = 4
    warmup: int = 500
    draws: int = 1000
    target_accept: float = 0.95
    max_tree_depth: int | None = None
    progress: bool | None = None

    def __post_init__(self) -> None:
        as_whole_number(self.chains, "chains", least=1)
        as_whole_number(self.warmup, "warmup", least=20)
        as_whole_number(self.draws, "draws", least=4)
        if self.max_tree_depth is not None:
            as_whole_number(self.max_tree_depth, "max_tree_depth", least=1)
        if not isinstance(self.target_accept, Real) or not 0.1 <= self.target_accept < 1:
            raise ValueError(
                f"target_accept must lie between 0.1 and 1, for instance 0.95; "
                f"got {self.target_accept!r}"
            )

    def infer(self, problem: Problem, rng: np.random.Generator) -> Posterior:
        """Sample; the status tells of chains that do not mix, divergences, and too few draws."""
        require("numpyro", extra="hmc")
        check_not_forked("jax")
        arviz_module()  # fails here, before sampling, if ArviZ is missing
        from gsb3se.inference.hmc.density import as_data, double_precision
        from gsb3se.inference.hmc.sampler import run_chains, sampler, starting_points

        began = time.perf_counter()
        n = problem.n_classes
        depth = self.max_tree_depth or (_DEEP if n <= HMC_DEEP_TREES else _SHALLOW)
        columns = column_scaling(problem)
        starts = starting_points(problem, columns, self.chains, rng)
        run = sampler(self.warmup, self.target_accept, depth)
        with double_precision():
            data = as_data(problem, columns, share_scaling(problem))
            if n >= HMC_SAYS_HOW_LONG:
                self._say_how_long(data, starts[0], 2**depth - 1)
        iterations = self.chains * (self.warmup + self.draws)
        with progress_bar(f"NUTS, {self.chains} chains", iterations, self.progress) as bar:
            chains, confusion = run_chains(run, data, starts, self.warmup, self.draws, bar.advance)
        others = draws_by_name(chains)
        q, r = (np.stack([getattr(chain, name) for chain in chains]) for name in ("q", "r"))
        diagnostics = judge(problem, q, others, depth, time.perf_counter() - began)
        return identified(
            Posterior.from_draws(
                q / q.sum(axis=-1, keepdims=True),
                r,
                others=others,
                labels=problem.counts.labels,
                diagnostics=diagnostics,
                backend="hmc",
                confusion_mean=confusion,
                n_target=problem.counts.n_target,
                problem=problem,
            )
        )

    def _say_how_long(self, data: JaxProblem, start: ChainStart, steps: int) -> None:
        """Time a few gradients and say what the run may take, before it starts."""
        from gsb3se.inference.hmc.sampler import seconds_a_gradient

        gradient = seconds_a_gradient(data, start.z)
        rounds = math.ceil(self.chains / min(self.chains, available_cores()))
        longest = 1.5 * gradient * steps * rounds * (self.warmup + self.draws)
        if longest > _WORTH_SAYING:
            warnings.warn(
                f"HMC over {len(data.target)} classes may take {_minutes(longest / 2)} to "
                f"{_minutes(longest)} minutes ({1000 * gradient:.0f} ms a gradient, up to {steps} "
                "a draw); fewer chains or draws shorten it in proportion",
                GSB3SEWarning,
                stacklevel=4,
            )


def draws_by_name(chains: list[ChainDraws]) -> dict[str, NDArray[Any]]:
    """Strengths, alpha and beta, and the sampler's own figures; (chains, draws) each."""
    tau = np.stack([chain.tau for chain in chains])
    draws = {"tau_q": tau[..., 0], "tau_C": tau[..., 1]}
    if chains[0].weights is not None:
        weights = np.stack([np.asarray(chain.weights) for chain in chains])
        draws |= {"alpha": weights[..., 0], "beta": weights[..., 1]}
    about = {"diverging": "diverging", "energy": "energy"}
    about |= {"n_steps": "num_steps", "acceptance_rate": "accept_prob"}
    return draws | {
        name: np.stack([getattr(chain, field) for chain in chains]) for name, field in about.items()
    }


def _minutes(seconds: float) -> str:
    return f"{max(1.0, seconds / 60):.0f}"
