"""Variational: the posterior by a fitted guide, in Pyro."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from gsb3se.errors import GSB3SEWarning, as_whole_number, require
from gsb3se.forks import check_not_forked
from gsb3se.identifiability import identified
from gsb3se.inference.columns import fit_columns
from gsb3se.inference.posterior_frame import PosteriorFrame, column_gaussians, posterior_frame
from gsb3se.inference.strengths import spread_of
from gsb3se.inference.structured import MOST_CORRECTED, four_groups, has_few_counts
from gsb3se.inference.target import TargetDensity
from gsb3se.posterior import Posterior
from gsb3se.problem import Problem
from gsb3se.status import Diagnostics, Finding, Status

if TYPE_CHECKING:
    from gsb3se.inference.svi import Fit, Sample

Family = Literal["structured", "mean-field"]
Precision = Literal["float64", "float32"]

_MOST_CLASSES = 600  # K^3 numbers are held
_SLOW_CLASSES = 300  # beyond which a CPU takes long
_LAYERS, _LAYERS_UNSEEN = 4, 12  # where every class has validation rows, and where one has none
_FEW_CLASSES, _LAYERED_DRAWS = 64, (1000, 500)  # up to so many classes, and beyond
_DRAWS = 2000  # without layers, which cost the most
_CELLS_A_BATCH = 400_000
_ELBO_DRAWS = 512
_SKIPPED_SHARE, _ASTRAY_SHARE = 0.1, 0.5  # of steps; of draws, each of which has many chances


@dataclass(frozen=True)
class Variational:
    """The posterior of q by variational inference, with Pyro on torch.

    The guide (:mod:`gsb3se.inference.guide`) starts at the structured backend's solution and keeps
    the hierarchy's structure: levels with a full covariance, columns with the label graph's, rows
    that meet the target exactly through r = C q, both strengths. Its ELBO is raised until it is
    flat; Hamiltonian layers then take off what is left of the family's narrowness
    (:mod:`gsb3se.inference.svi`).

    Args:
        family: "structured", or "mean-field": independent normals for everything, as a textbook
            would, to compare with.
        draws: of the posterior; None: 2,000 without layers, with them 1,000 up to 64 classes and
            500 beyond.
        layers: Hamiltonian layers at the end of the structured guide; None: up to 64 classes, or
            up to 128 if validation counts are small, 4, or 12 if a class has no validation rows;
            none otherwise.
        particles: draws of the guide a step.
        max_steps: at most, before the ELBO is flat; as many again, at most 400, settle it.
        device: "cpu", "cuda" or any other name that torch knows.
        dtype: "float64" or "float32".
        progress: show a progress bar; None: if standard error is a terminal.

    O(K^3) time and memory a step, particles side by side; 300 classes take minutes on a CPU, more
    want a GPU, and 600 is the limit.

    >>> Variational(draws=500).draws
    500
    """

    family: Family = "structured"
    draws: int | None = None
    layers: int | None = None
    particles: int = 16
    max_steps: int = 2000
    device: str = "cpu"
    dtype: Precision = "float64"
    progress: bool | None = None

    def __post_init__(self) -> None:
        if self.draws is not None:
            as_whole_number(self.draws, "draws", least=4)
        as_whole_number(self.particles, "particles", least=2)
        as_whole_number(self.max_steps, "max_steps", least=1)
        if self.layers is not None:
            as_whole_number(self.layers, "layers", least=0)
        for name, allowed in (("family", Family), ("dtype", Precision)):
            if getattr(self, name) not in get_args(allowed):
                expected = " or ".join(repr(value) for value in get_args(allowed))
                raise ValueError(f"{name} must be {expected}; got {getattr(self, name)!r}")
        if self.family == "mean-field" and self.layers:
            raise ValueError("layers lengthen the structured guide: leave them out of mean-field")

    def infer(self, problem: Problem, rng: np.random.Generator) -> Posterior:
        """Fit and draw; the status tells of an ELBO that is not flat."""
        torch = require("torch", extra="variational")
        require("pyro", extra="variational")
        check_not_forked("torch")
        n = problem.n_classes
        if n > _MOST_CLASSES:
            raise ValueError(
                f"the variational guide holds K^3 numbers and takes at most {_MOST_CLASSES} "
                f"classes; got {n}: use backend='structured'"
            )
        device = self._device(torch)
        from gsb3se.inference import svi
        from gsb3se.inference.guide import StructuredGuide
        from gsb3se.inference.pyro_model import Hierarchy

        began = time.perf_counter()
        seed = int(rng.integers(2**31))
        batch = int(np.clip(_CELLS_A_BATCH // n**2, 2, 256))
        with svi.private_state(seed, device, n), self._progress() as bar:
            model = Hierarchy(problem, device, getattr(torch, self.dtype))
            structured = StructuredGuide(model, structured_frame(problem))
            guide: Any = structured
            if self.family == "mean-field":
                guide = svi.mean_field(model, structured)
            self._say_how_long(model, guide, n)
            first = {name: value.clone() for name, value in guide.state_dict().items()}
            guide.eval()
            start = svi.mean_elbo(model, guide, _ELBO_DRAWS, batch, seed)
            fitted = svi.fit(model, guide, self.particles, self.max_steps, bar("ELBO"))
            end = svi.mean_elbo(model, guide, _ELBO_DRAWS, batch, seed)
            rose = end >= start or not np.isfinite(start)
            if not rose:
                guide.load_state_dict(first)
            layers = self._layers(problem)
            draws = self.draws or (_LAYERED_DRAWS[n > _FEW_CLASSES] if layers else _DRAWS)
            structured.unsolved = 0
            drawn = svi.draw(model, guide, draws, batch, layers, bar("draws"))
            k = svi.pareto_k(drawn.log_weights)
        figures = {
            "elbo_start": start,
            "elbo": end if rose else start,
            "elbo_with_layers": float(drawn.log_weights.mean()),
            "pareto_k": k,
            "layers": layers,
            "thrown_out_of_layers": drawn.thrown,
            "draws_lost": drawn.lost,
            "rows_unsolved": structured.unsolved,
        }
        return self._posterior(problem, drawn, fitted, rose, figures, began)

    def _layers(self, problem: Problem) -> int:
        if self.family == "mean-field":
            return 0
        if self.layers is not None:
            return self.layers
        n = problem.n_classes
        needed = n <= _FEW_CLASSES or (n <= MOST_CORRECTED and has_few_counts(problem))
        unseen = bool(problem.counts.without_validation)
        return (_LAYERS_UNSEEN if unseen else _LAYERS) if needed else 0

    def _posterior(
        self,
        problem: Problem,
        drawn: Sample,
        fitted: Fit,
        rose: bool,
        figures: dict[str, Any],
        began: float,
    ) -> Posterior:
        steps = len(fitted.elbo) + fitted.skipped
        findings = []
        if not fitted.flat:
            told = f"the ELBO still rose after {self.max_steps} steps"
            findings.append(Finding(Status.NOT_CONVERGED, told))
        if not rose or fitted.skipped > _SKIPPED_SHARE * steps:
            told = (
                f"the fit ended below its start ({fitted.skipped} of {steps} steps were not "
                "finite), and this is the start"
                if not rose
                else f"{fitted.skipped} of {steps} steps were not finite"
            )
            findings.append(Finding(Status.NOT_CONVERGED, told))
        astray = figures["draws_lost"] + figures["rows_unsolved"] + figures["thrown_out_of_layers"]
        if astray > _ASTRAY_SHARE * len(drawn.q):
            told = (
                f"of {len(drawn.q)} draws {figures['draws_lost']} were lost, "
                f"{figures['thrown_out_of_layers']} times one was thrown out of a layer, and "
                f"{figures['rows_unsolved']} equations of rows were not solved"
            )
            findings.append(Finding(Status.DIVERGENT, told))
        figures |= {
            "elbo_rose": rose,
            "elbo_flat": fitted.flat,
            "elbo_trace": fitted.elbo,
            "gradient": fitted.gradient,
            "gradient_noise": fitted.gradient_noise,
            "steps": steps,
            "skipped_steps": fitted.skipped,
            "seconds": time.perf_counter() - began,
        }
        return identified(
            Posterior.from_draws(
                four_groups(drawn.q / drawn.q.sum(axis=1, keepdims=True)),
                four_groups(drawn.r / drawn.r.sum(axis=1, keepdims=True)),
                others={name: four_groups(values) for name, values in drawn.others.items()},
                labels=problem.counts.labels,
                diagnostics=Diagnostics.of(findings, figures),
                backend="variational" if self.family == "structured" else "mean-field",
                confusion_mean=drawn.confusion,
                n_target=problem.counts.n_target,
                problem=problem,
            )
        )

    def _device(self, torch: Any) -> Any:
        try:
            device = torch.device(self.device)
            torch.zeros(1, device=device)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise ValueError(
                f"device {self.device!r} cannot be used ({reason}): use 'cpu', or 'cuda' where "
                "torch finds a GPU"
            ) from None
        return device

    def _say_how_long(self, model: Any, guide: Any, n: int) -> None:
        """Beyond what a CPU does in minutes: time a step and say so, before the work."""
        if n <= _SLOW_CLASSES or self.device != "cpu":
            return
        from gsb3se.inference import svi

        seconds = svi.seconds_a_step(model, guide, self.particles)
        warnings.warn(
            f"the variational backend over {n} classes takes {seconds:.1f} s a step on a CPU, "
            f"{max(1.0, 300 * seconds / 60):.0f} minutes or more in all: use device='cuda', or "
            "backend='structured'",
            GSB3SEWarning,
            stacklevel=4,
        )

    @contextmanager
    def _progress(self) -> Iterator[Callable[[str], Callable[..., None]]]:
        """Bars on standard error; yields a maker of what to tell the progress of a stage to."""
        shown = sys.stderr.isatty() if self.progress is None else self.progress
        if not shown:
            yield lambda stage: lambda *told: None
            return
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True)) as bar:

            def stage(name: str) -> Callable[..., None]:
                task = bar.add_task(name, total=None)

                def tell(done: int, total: int, elbo: float | None = None) -> None:
                    told = name if elbo is None else f"{name} {elbo:.1f}"
                    bar.update(task, completed=done, total=total, description=told)

                return tell

            yield stage


def structured_frame(problem: Problem) -> PosteriorFrame:
    """Where the structured stages find the posterior, in double precision; O(K^4)."""
    laws, run = fit_columns(problem)
    known = np.flatnonzero(run.sizes > 0)
    prior = problem.prior
    if len(known):
        curvature = spread_of(run, laws, known).curvature
    else:  # the strengths have their prior
        anchor = [] if prior.anchor_sd is None else [prior.anchor_sd**-2] * 2
        curvature = np.diag([prior.a_C, *anchor])
    levels = TargetDensity(problem, laws.astype(np.float64)).frame
    return posterior_frame(problem, column_gaussians(run, laws, curvature), levels)
