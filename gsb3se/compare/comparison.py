"""compare: how close is each backend to HMC, on these data?"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from gsb3se import baselines
from gsb3se.compare import cache as results_cache
from gsb3se.estimate import Backend, as_backend, identity
from gsb3se.graph import LabelGraph
from gsb3se.inference.hmc.backend import HMC
from gsb3se.model.counts import ShiftCounts
from gsb3se.model.prior import Prior
from gsb3se.model.problem import Problem
from gsb3se.posterior.agreement import Agreement
from gsb3se.posterior.posterior import Posterior
from gsb3se.support.errors import GSB3SEWarning, MissingExtra
from gsb3se.support.files import as_csv, as_json, write_text
from gsb3se.support.simplex import Vector, as_distribution
from gsb3se.support.version import __version__

DEFAULT_BACKENDS = ("structured", "amortized", "variational", "laplace", "newton")
POINT_ESTIMATES = ("bbse", "rlls", "mlls")
_LAST = ("seconds", "loading", "speed_up", "status", "message")  # columns of a table
_LONGER, _CAREFUL = 4, 0.99  # draws and acceptance of a second try

Kind = Literal["reference", "backend", "baseline"]


@dataclass(frozen=True, eq=False)
class ComparisonRow:
    """One estimator beside the reference.

    Attributes:
        name, kind: "structured" and "backend", "bbse" and "baseline", and so on.
        figures: errors in units of the reference's sd, medians over the classes unless the name
            says otherwise; of a baseline the mean's alone; l1 if the truth is known.
        seconds: it took once loaded; loading: seconds before, for imports, weights and tables;
            speed_up: the reference's seconds over these.
        status: the posterior's; "failed" if there is none, "point" of a baseline.
        message: what the status means.
    """

    name: str
    kind: Kind
    figures: Mapping[str, float]
    seconds: float
    speed_up: float
    status: str
    message: str = ""
    loading: float = 0.0

    def flat(self) -> dict[str, Any]:
        """Everything by name, for a table."""
        about = {"name": self.name, "kind": self.kind}
        times = {"seconds": self.seconds, "loading": self.loading, "speed_up": self.speed_up}
        status = {"status": self.status, "message": self.message}
        return about | dict(self.figures) | times | status


@dataclass(frozen=True, eq=False)
class Comparison:
    """Every estimator beside the reference.

    Attributes:
        reference: HMC's posterior; complaints: why it is not to be relied on, if so.
        rows: the reference's own noise first, then what was compared.
        posteriors: the backends' by name; point_estimates: the baselines'.
        level: of the intervals.
        truth: (K,) if it is known.
    """

    reference: Posterior
    complaints: tuple[str, ...]
    rows: tuple[ComparisonRow, ...]
    posteriors: Mapping[str, Posterior] = field(default_factory=dict)
    point_estimates: Mapping[str, Vector] = field(default_factory=dict)
    level: float = 0.9
    truth: Vector | None = None

    def __getitem__(self, name: str) -> ComparisonRow:
        """The row of an estimator."""
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(f"{name!r} was not compared; there are {[row.name for row in self.rows]}")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the rows to a .csv file, or everything but the draws to a .json file."""
        suffix, rows = Path(path).suffix.lower(), [row.flat() for row in self.rows]
        if suffix == ".csv":
            names = list(dict.fromkeys(name for row in rows for name in row))
            names.sort(key=lambda name: name in _LAST)
            write_text(path, as_csv(names, ([row.get(n, "") for n in names] for row in rows)))
        elif suffix == ".json":
            content = {
                "level": self.level,
                "reference_checks": list(self.complaints) or "passed",
                "rows": rows,
                "classes": {"hmc": self.reference.rows(self.level)}
                | {name: post.rows(self.level) for name, post in self.posteriors.items()},
                "point_estimates": {k: q.tolist() for k, q in self.point_estimates.items()},
                "truth": None if self.truth is None else self.truth.tolist(),
            }
            write_text(path, as_json(content))
        else:
            raise ValueError(f"a comparison is saved to .csv or .json; got {path}")

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw every backend's intervals beside the reference's."""
        from gsb3se.compare import picture

        picture.draw(self, path)


def compare(  # noqa: PLR0913
    counts: ShiftCounts,
    graph: LabelGraph | None = None,
    *,
    prior: Prior | str | None = None,
    backends: Sequence[str | Backend] | Mapping[str, str | Backend] = DEFAULT_BACKENDS,
    point_estimates: Sequence[str] = POINT_ESTIMATES,
    reference: HMC | None = None,
    truth: ArrayLike | None = None,
    level: float = 0.9,
    seed: int = 0,
    cache: str | os.PathLike[str] | None = None,
    tell: Callable[[str], object] = lambda name: None,
    landed: Callable[[Comparison], object] = lambda so_far: None,
) -> Comparison:
    """Run HMC and other estimators on one problem and measure how far they are apart.

    Args:
        counts, graph, prior: as :func:`gsb3se.estimate` takes them.
        backends: names or objects, or either by a name of your own.
        point_estimates: of "bbse", "rlls" and "mlls".
        reference: HMC with settings of your own. If its chains fail their checks (R-hat 1.01 of
            every share, 400 effective draws, no divergence) it is run once more, longer.
        truth: (K,) the true shares, for L1 errors, if they are known.
        level: of the intervals whose ends are compared.
        seed: of every estimator.
        cache: a folder; what was made there from the same counts, graph, prior, settings and seed
            is not made again, so that a call that was stopped goes on where it was.
        tell: told the name of what is about to run.
        landed: given the comparison so far after every estimator.

    >>> counts = ShiftCounts([[45, 5], [5, 45]], target=[700, 300])
    >>> short = HMC(chains=2, warmup=300, draws=800, progress=False)
    >>> comparison = compare(counts, backends=["structured", "newton"], reference=short)
    >>> bool(comparison["structured"].figures["mean_error"] < 0.3)
    True
    """
    run = _ComparisonRun(
        Problem(counts, graph, prior),
        truth=None if truth is None else as_distribution(truth, "truth", counts.n_classes),
        level=level,
        seed=seed,
        folder=None if cache is None else Path(cache),
    )
    chosen = _by_name(backends)
    for name in point_estimates:
        if name not in POINT_ESTIMATES:
            raise ValueError(f"unknown point estimate {name!r}: expected one of {POINT_ESTIMATES}")
    tell("hmc")
    run.take_reference(reference or HMC())
    landed(run.so_far())
    for name, backend in chosen.items():
        tell(name)
        run.take_backend(name, backend)
        landed(run.so_far())
    for name in point_estimates:
        tell(name)
        run.take_baseline(name)
    landed(run.so_far())
    return run.so_far()


class _ComparisonRun:
    """A comparison that grows by an estimator at a time."""

    def __init__(
        self,
        problem: Problem,
        truth: Vector | None,
        level: float,
        seed: int,
        folder: Path | None,
    ) -> None:
        self.problem, self.truth, self.level = problem, truth, level
        self.seed, self.folder = seed, folder
        self.rows: list[ComparisonRow] = []
        self.posteriors: dict[str, Posterior] = {}
        self.estimates: dict[str, Vector] = {}

    def so_far(self) -> Comparison:
        """What there is, as a result of its own."""
        return Comparison(
            self.exact,
            self.complaints,
            tuple(self.rows),
            dict(self.posteriors),
            dict(self.estimates),
            self.level,
            self.truth,
        )

    def take_reference(self, settings: HMC) -> None:
        """HMC, and its own noise: one half of its draws against the other."""
        self.exact, self.complaints = find_reference(self.problem, settings, self.seed, self.folder)
        about = self.exact.diagnostics
        self.seconds, loading = _times(self.exact)
        figures = Agreement.of_halves(self.exact, self.level).figures() | self._l1(self.exact.mean)
        status = "no reference" if self.complaints else about.status.value
        message = "; ".join(self.complaints) or about.message
        self.rows.append(
            ComparisonRow("hmc", "reference", figures, self.seconds, 1.0, status, message, loading)
        )

    def take_backend(self, name: str, backend: Backend) -> None:
        """A backend against the reference; one that fails has a row that says why."""
        try:
            posterior = _kept_or_made(backend, self.problem, self.seed, self.folder)
        except (ArithmeticError, ValueError, RuntimeError, MissingExtra) as error:
            self.rows.append(
                ComparisonRow(name, "backend", {}, np.nan, np.nan, "failed", str(error))
            )
            return
        self.posteriors[name] = posterior
        figures = Agreement.between(posterior, self.exact, self.level).figures()
        figures |= self._l1(posterior.mean)
        about, (seconds, loading) = posterior.diagnostics, _times(posterior)
        speed_up, status = self.seconds / seconds, about.status.value
        self.rows.append(
            ComparisonRow(
                name, "backend", figures, seconds, speed_up, status, about.message, loading
            )
        )

    def take_baseline(self, name: str) -> None:
        """A point estimate against the reference's mean."""
        began = time.perf_counter()
        q = getattr(baselines, name)(self.problem.counts)
        seconds = time.perf_counter() - began
        self.estimates[name] = q
        apart = np.abs(q - self.exact.mean) / (self.exact.sd + np.finfo(float).tiny)
        figures = {
            "mean_error": float(np.median(apart)),
            "mean_error_95": float(np.quantile(apart, 0.95)),
        } | self._l1(q)
        self.rows.append(
            ComparisonRow(name, "baseline", figures, seconds, self.seconds / seconds, "point")
        )

    def _l1(self, q: Vector) -> dict[str, float]:
        return {} if self.truth is None else {"l1": float(np.abs(q - self.truth).sum())}


def find_reference(
    problem: Problem, settings: HMC, seed: int, folder: Path | None
) -> tuple[Posterior, tuple[str, ...]]:
    """HMC's posterior from the cache or made, and what speaks against it as a reference.

    Only one that passes its checks is kept, and one in the cache that does not is made anew.
    """
    silent = replace(settings, progress=None)  # a bar changes no draw
    name = f"{silent!r} seed {seed}"
    kept = results_cache.load(folder, "hmc", problem, name)
    if kept is not None and not complaints_about(kept):
        return kept, ()
    posterior = _timed(settings, problem, seed)
    if complaints_about(posterior):
        longer = replace(
            settings,
            warmup=2 * settings.warmup,
            draws=_LONGER * settings.draws,
            target_accept=max(settings.target_accept, _CAREFUL),
        )
        posterior = _timed(longer, problem, seed)
    complaints = complaints_about(posterior)
    if not complaints:
        results_cache.save(folder, "hmc", problem, name, posterior)
    return posterior, complaints


def complaints_about(reference: Posterior) -> tuple[str, ...]:
    """The checks that HMC's draws of q fail."""
    mixing = reference.diagnostics.measures.mixing
    return ("it does not say how its chains mixed",) if mixing is None else mixing.complaints


def _by_name(
    backends: Sequence[str | Backend] | Mapping[str, str | Backend],
) -> dict[str, Backend]:
    if isinstance(backends, Mapping):
        return {str(name): as_backend(backend) for name, backend in backends.items()}
    if isinstance(backends, str):
        raise ValueError(f"backends must be a list of names or objects; got {backends!r}")
    named = [(each if isinstance(each, str) else repr(each), as_backend(each)) for each in backends]
    if len(dict(named)) < len(named):
        raise ValueError("a backend was named twice")
    return dict(named)


def _timed(backend: Backend, problem: Problem, seed: int) -> Posterior:
    """A posterior that says how long it took, and how long it took to load before."""
    loading = _load(backend)
    began = time.perf_counter()
    posterior = backend.infer(problem, np.random.default_rng(seed))
    diagnostics = posterior.diagnostics.and_also(
        seconds=time.perf_counter() - began, loading_seconds=loading
    )
    labels = problem.counts.labels
    return replace(posterior, diagnostics=diagnostics, labels=labels, problem=problem)


def _times(posterior: Posterior) -> tuple[float, float]:
    """Seconds that inference took, and loading before it."""
    measures = posterior.diagnostics.measures
    return float(measures.seconds or np.nan), float(measures.loading_seconds or 0.0)


def _load(backend: Backend) -> float:
    """Seconds that a first small inference takes beyond a second one: a backend's loading."""
    tiny = Problem(ShiftCounts([[9, 1, 1], [1, 9, 1], [1, 1, 9]], [5, 5, 5]))
    if isinstance(backend, HMC):
        backend = replace(backend, chains=1, warmup=20, draws=8, progress=False)
    seconds = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GSB3SEWarning)
        for _ in range(2):
            began = time.perf_counter()
            try:
                backend.infer(tiny, np.random.default_rng(0))
            except (ArithmeticError, ValueError, RuntimeError):
                return 0.0  # what is wrong will be said of the problem itself
            seconds.append(time.perf_counter() - began)
    return max(0.0, seconds[0] - seconds[1])


def _kept_or_made(backend: Backend, problem: Problem, seed: int, folder: Path | None) -> Posterior:
    settings = f"{identity(backend)} seed {seed} by {__version__}"
    label = type(backend).__name__.lower()
    kept = results_cache.load(folder, label, problem, settings)
    if kept is not None and kept.diagnostics.measures.seconds is not None:
        return kept
    posterior = _timed(backend, problem, seed)
    results_cache.save(folder, label, problem, settings, posterior)
    return posterior
