"""HMC: the posterior by NumPyro's NUTS, the reference every other backend is judged by."""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gsb3se.arviz_bridge import arviz_module, convergence
from gsb3se.errors import GSB3SEWarning, as_whole_number, require
from gsb3se.forks import check_not_forked
from gsb3se.identifiability import identified
from gsb3se.inference.coordinates import column_frame, target_frame
from gsb3se.labels import Label
from gsb3se.posterior import Posterior
from gsb3se.problem import Problem
from gsb3se.status import Diagnostics, Finding, Status

if TYPE_CHECKING:
    from gsb3se.inference.nuts import Chain, Data

_LARGEST_R_HAT = 1.01
_TWO_SIDED = 1.05  # R-hat of tau_C from which chains sit on different sides
_LEAST_ESS = 400
_LEAST_BFMI = 0.3
_DIVERGENT_SHARE = 1e-3
_SMALL = 50  # classes up to which a long trajectory costs little
_LARGE = 300  # classes from which the time is estimated beforehand
_WORTH_SAYING = 300  # seconds


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
        arviz_module()  # missing, it would be missed only after the work
        from gsb3se.inference import nuts

        began = time.perf_counter()
        depth = self.max_tree_depth or (9 if problem.n_classes <= _SMALL else 6)
        columns = column_frame(problem)
        starts = nuts.starting_points(problem, columns, self.chains, rng)
        seeds = [int(seed) for seed in rng.integers(2**31, size=self.chains)]
        run = nuts.sampler(self.warmup, self.target_accept, depth)
        with nuts.double_precision():
            data = nuts.as_data(problem, columns, target_frame(problem))
            if problem.n_classes >= _LARGE:
                self._say_how_long(data, starts[0], 2**depth - 1)
        with self._progress() as tell:
            chains, confusion = nuts.run_chains(
                run, data, starts, seeds, self.warmup, self.draws, tell
            )
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

    def _say_how_long(self, data: Data, start: dict[str, NDArray[np.float64]], steps: int) -> None:
        """Time a few gradients and tell what the run may take, before it starts."""
        from gsb3se.inference import nuts

        gradient = nuts.seconds_a_gradient(data, start)
        rounds = math.ceil(self.chains / nuts.workers(self.chains))
        longest = 1.5 * gradient * steps * rounds * (self.warmup + self.draws)
        if longest > _WORTH_SAYING:
            warnings.warn(
                f"HMC over {len(data.target)} classes may take {_minutes(longest / 2)} to "
                f"{_minutes(longest)} minutes ({1000 * gradient:.0f} ms a gradient, up to {steps} "
                "a draw); fewer chains or draws shorten it in proportion",
                GSB3SEWarning,
                stacklevel=4,
            )

    @contextmanager
    def _progress(self) -> Iterator[Callable[[int], None]]:
        shown = sys.stderr.isatty() if self.progress is None else self.progress
        if not shown:
            yield lambda n: None
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

        bar = Progress(
            "{task.description}",
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        with bar:
            task = bar.add_task(
                f"NUTS, {self.chains} chains", total=self.chains * (self.warmup + self.draws)
            )
            yield lambda n: bar.advance(task, n)


def draws_by_name(chains: list[Chain]) -> dict[str, NDArray[Any]]:
    """Strengths, anchor weights and the sampler's own figures, (chains, draws) each."""
    tau = np.stack([chain.tau for chain in chains])
    found = {"tau_q": tau[..., 0], "tau_C": tau[..., 1]}
    if chains[0].anchor is not None:
        anchor = np.stack([np.asarray(chain.anchor) for chain in chains])
        found |= {"alpha": anchor[..., 0], "beta": anchor[..., 1]}
    about = {"diverging": "diverging", "energy": "energy"}
    about |= {"n_steps": "num_steps", "acceptance_rate": "accept_prob"}
    return found | {
        name: np.stack([getattr(chain, field) for chain in chains]) for name, field in about.items()
    }


def judge(
    problem: Problem,
    q: NDArray[np.float64],
    others: dict[str, NDArray[Any]],
    max_tree_depth: int,
    seconds: float,
) -> Diagnostics:
    """Compare R-hat, effective sample sizes, divergences and E-BFMI with what a user may expect."""
    sampled: dict[str, NDArray[np.float64]] = {
        name: others[name] for name in ("tau_q", "tau_C", "alpha", "beta") if name in others
    }
    mixing = convergence({"q": q, **sampled})
    energy = others["energy"]
    bfmi = np.square(np.diff(energy, axis=1)).mean(axis=1) / energy.var(axis=1)
    divergences = int(others["diverging"].sum())
    at_limit = float(np.mean(others["n_steps"] >= 2**max_tree_depth - 1))
    findings = []

    if divergences > _DIVERGENT_SHARE * energy.size:
        findings.append(Finding(Status.DIVERGENT, f"{divergences} of {energy.size} draws diverged"))
    r_hat = {name: float(np.max(values)) for name, values in mixing["r_hat"].items()}
    worst = max(r_hat, key=lambda name: r_hat[name])
    if not r_hat[worst] <= _LARGEST_R_HAT:
        findings.append(
            Finding(Status.CHAINS_DISAGREE, _disagreement(problem, worst, r_hat, others, mixing))
        )
    least = {
        kind: (float(mixing[f"{kind}_ess"]["q"].min()), int(mixing[f"{kind}_ess"]["q"].argmin()))
        for kind in ("bulk", "tail")
    }
    kind = min(least, key=lambda name: least[name][0])
    if not least[kind][0] >= _LEAST_ESS:
        label = problem.counts.labels[least[kind][1]]
        remedy = "; raise max_tree_depth too, for most trajectories end at it" * (at_limit > 0.5)
        findings.append(
            Finding(
                Status.TOO_FEW_DRAWS,
                f"{kind} ESS of class {label!r} is {least[kind][0]:.0f}, below "
                f"{_LEAST_ESS}{remedy}",
            )
        )
    if bfmi.min() < _LEAST_BFMI:
        findings.append(
            Finding(
                Status.TOO_FEW_DRAWS,
                f"E-BFMI is {bfmi.min():.2f}, below {_LEAST_BFMI}: the tails are reached slowly",
            )
        )
    figures = {
        "seconds": seconds,
        "divergences": divergences,
        "e_bfmi": bfmi.tolist(),
        "mean_steps": float(others["n_steps"].mean()),
        "share_at_max_tree_depth": at_limit,
        "mean_acceptance": float(others["acceptance_rate"].mean()),
        "r_hat_max": max(r_hat.values()),
        "bulk_ess_min": least["bulk"][0],
        "tail_ess_min": least["tail"][0],
    }
    for name in ("q", *sampled):
        figures |= {f"{figure}_{name}": found[name].tolist() for figure, found in mixing.items()}
    return Diagnostics.of(findings, figures)


def _disagreement(
    problem: Problem,
    worst: str,
    r_hat: dict[str, float],
    others: dict[str, NDArray[Any]],
    mixing: dict[str, dict[str, Any]],
) -> str:
    where = f"{worst}"
    if worst == "q":
        label: Label = problem.counts.labels[int(np.argmax(mixing["r_hat"]["q"]))]
        where = f"the share of class {label!r}"
    told = f"R-hat of {where} is {r_hat[worst]:.3f}, above {_LARGEST_R_HAT}"
    if problem.prior.is_anchored and r_hat["tau_C"] > _TWO_SIDED:
        sides = ", ".join(f"{level:.2g}" for level in others["tau_C"].mean(axis=1))
        told += (
            f"; chains hold tau_C at {sides}: with few labels the columns may be explained by "
            "their anchored mean or by their fields, and chains started on both sides stay apart"
        )
    return told


def _minutes(seconds: float) -> str:
    return f"{max(1.0, seconds / 60):.0f}"
