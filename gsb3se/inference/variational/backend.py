"""Variational: the posterior by a fitted guide, in Pyro."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import numpy as np

from gsb3se.inference.structured.backend import has_few_counts
from gsb3se.inference.structured.column_fit import fit_columns
from gsb3se.inference.structured.exact.coordinates import (
    PosteriorCoordinates,
    column_gaussians,
    posterior_coordinates,
)
from gsb3se.inference.structured.share_density import ShareDensity
from gsb3se.inference.structured.strength_integration import spread_of
from gsb3se.model.problem import Problem
from gsb3se.posterior.families import four_chains
from gsb3se.posterior.identifiability import identified
from gsb3se.posterior.posterior import Posterior
from gsb3se.posterior.status import Diagnostics, Finding, Measures, Status
from gsb3se.support.errors import GSB3SEWarning, as_whole_number, require
from gsb3se.support.forked_processes import check_not_forked
from gsb3se.support.limits import (
    EXACT_CHAINS_BY_DEFAULT,
    VARIATIONAL,
    VARIATIONAL_LAYERS,
    VARIATIONAL_SAYS_HOW_LONG,
)
from gsb3se.support.progress import progress_bars

if TYPE_CHECKING:
    from gsb3se.inference.variational.draw import GuideDraws
    from gsb3se.inference.variational.fit import GuideFit

GuideFamily = Literal["structured", "mean-field"]
Precision = Literal["float64", "float32"]

_LAYERS, _LAYERS_UNSEEN = 4, 12  # where every class has validation rows, and where one has none
_LAYERED_DRAWS = (1000, 500)  # of few classes, and of many
_DRAWS = 2000  # without layers, which cost the most
_CELLS_A_BATCH = 400_000
_ELBO_DRAWS = 512
_SKIPPED_SHARE, _ASTRAY_SHARE = 0.1, 0.5  # of steps; of draws, each of which has many chances


@dataclass(frozen=True)
class Variational:
    """The posterior of q by variational inference, with Pyro on torch.

    The guide starts at the structured backend's solution and keeps the hierarchy's structure:
    levels with a full covariance, columns with the label graph's, rows that meet the target exactly
    through r = C q, both strengths. Its ELBO is raised until it is flat; Hamiltonian layers then
    take off what is left of the family's narrowness. :mod:`gsb3se.inference.variational` tells
    more.

    Args:
        family: "structured", or "mean-field": independent normals for everything, as a textbook
            would, to compare with.
        draws: of the posterior; None: 2,000 without layers, with them 1,000 up to 64 classes and
            500 beyond.
        layers: Hamiltonian layers at the end of the structured guide; None: up to 64 classes, or
            up to 128 if validation counts are small, 4, or 12 if a class has no validation rows;
            none otherwise.
        particles: draws of the guide a step.
        max_steps: limit until the ELBO is flat; 100 to 400 steps with averaging then follow.
        device: "cpu", "cuda" or any other name that torch knows.
        dtype: "float64" or "float32".
        progress: show a progress bar; None: if standard error is a terminal.

    O(K^3) time and memory a step, particles side by side; 300 classes take minutes on a CPU, more
    want a GPU, and 600 is the limit.

    >>> Variational(draws=500).draws
    500
    """

    libraries: ClassVar[tuple[str, ...]] = ("torch",)

    family: GuideFamily = "structured"
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
        for name, allowed in (("family", GuideFamily), ("dtype", Precision)):
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
        if n > VARIATIONAL:
            raise ValueError(
                f"the variational guide holds K^3 numbers and takes at most {int(VARIATIONAL)} "
                f"classes; got {n}: use backend='structured'"
            )
        device = self._device(torch)
        from gsb3se.inference.variational import draw, fit
        from gsb3se.inference.variational.guide import StructuredGuide
        from gsb3se.inference.variational.pyro_program import Hierarchy

        began = time.perf_counter()
        seed = int(rng.integers(2**31))
        batch = int(np.clip(_CELLS_A_BATCH // n**2, 2, 256))
        with fit.private_state(seed, device, n), progress_bars(self.progress) as add_bar:
            model = Hierarchy(problem, device, getattr(torch, self.dtype))
            structured = StructuredGuide(model, structured_coordinates(problem))
            guide: Any = structured
            if self.family == "mean-field":
                guide = fit.mean_field(model, structured)
            self._say_how_long(model, guide, n)
            first = {name: value.clone() for name, value in guide.state_dict().items()}
            guide.eval()
            start = draw.mean_elbo(model, guide, _ELBO_DRAWS, batch, seed)
            elbo_bar = add_bar("ELBO", None)

            def advance(done: int, total: int, elbo: float) -> None:
                elbo_bar.update(done, total, f"ELBO {elbo:.1f}")

            fitted = fit.fit(model, guide, self.particles, self.max_steps, advance)
            end = draw.mean_elbo(model, guide, _ELBO_DRAWS, batch, seed)
            rose = end >= start or not np.isfinite(start)
            if not rose:
                guide.load_state_dict(first)
            layers = self._layers(problem)
            few = n <= VARIATIONAL_LAYERS
            draws = self.draws or (_LAYERED_DRAWS[not few] if layers else _DRAWS)
            with structured.counting_unsolved() as unsolved:
                drawn = draw.draw(model, guide, draws, batch, layers, add_bar("draws", None).update)
            report = VariationalReport(
                fitted=fitted,
                elbo_start=start,
                elbo=end if rose else start,
                rose=rose,
                elbo_with_layers=float(drawn.log_weights.mean()),
                pareto_k=draw.pareto_k(drawn.log_weights),
                layers=layers,
                draws=len(drawn.q),
                thrown=drawn.thrown,
                lost=drawn.lost,
                unsolved=unsolved(),
            )
        return self._posterior(problem, drawn, report, time.perf_counter() - began)

    def _layers(self, problem: Problem) -> int:
        if self.family == "mean-field":
            return 0
        if self.layers is not None:
            return self.layers
        n = problem.n_classes
        thin = n <= EXACT_CHAINS_BY_DEFAULT and has_few_counts(problem)
        unseen = bool(problem.counts.without_validation)
        needed = n <= VARIATIONAL_LAYERS or thin
        return (_LAYERS_UNSEEN if unseen else _LAYERS) if needed else 0

    def _posterior(
        self, problem: Problem, drawn: GuideDraws, report: VariationalReport, seconds: float
    ) -> Posterior:
        diagnostics = Diagnostics.of(
            report.findings(self.max_steps),
            report.figures() | {"seconds": seconds},
            measures=Measures(seconds=seconds),
        )
        return identified(
            Posterior.from_draws(
                four_chains(drawn.q / drawn.q.sum(axis=1, keepdims=True)),
                four_chains(drawn.r / drawn.r.sum(axis=1, keepdims=True)),
                others={name: four_chains(values) for name, values in drawn.others.items()},
                labels=problem.counts.labels,
                diagnostics=diagnostics,
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
        if n <= VARIATIONAL_SAYS_HOW_LONG or self.device != "cpu":
            return
        from gsb3se.inference.variational.fit import seconds_a_step

        seconds = seconds_a_step(model, guide, self.particles)
        warnings.warn(
            f"the variational backend over {n} classes takes {seconds:.1f} s a step on a CPU, "
            f"{max(1.0, 300 * seconds / 60):.0f} minutes or more in all: use device='cuda', or "
            "backend='structured'",
            GSB3SEWarning,
            stacklevel=4,
        )


@dataclass(frozen=True)
class VariationalReport:
    """How fit and draws went.

    Attributes:
        fitted: the steps; rose: whether the ELBO ended above its start.
        elbo_start, elbo, elbo_with_layers: before the fit, after it, and of the draws.
        pareto_k: tail index of the draws' importance weights.
        layers: at the end of the guide; draws: how many there are.
        thrown: how often a draw was thrown out of a layer; lost: draws that were not finite;
            unsolved: equations of rows that were not solved.
    """

    fitted: GuideFit
    elbo_start: float
    elbo: float
    rose: bool
    elbo_with_layers: float
    pareto_k: float
    layers: int
    draws: int
    thrown: int
    lost: int
    unsolved: int

    @property
    def steps(self) -> int:
        """Of the fit, those that were skipped included."""
        return len(self.fitted.elbo) + self.fitted.skipped

    def figures(self) -> dict[str, Any]:
        """Everything by name, for people."""
        return {
            "elbo_start": self.elbo_start,
            "elbo": self.elbo,
            "elbo_with_layers": self.elbo_with_layers,
            "elbo_rose": self.rose,
            "elbo_flat": self.fitted.flat,
            "elbo_trace": self.fitted.elbo,
            "gradient": self.fitted.gradient,
            "gradient_noise": self.fitted.gradient_noise,
            "steps": self.steps,
            "skipped_steps": self.fitted.skipped,
            "pareto_k": self.pareto_k,
            "layers": self.layers,
            "thrown_out_of_layers": self.thrown,
            "draws_lost": self.lost,
            "rows_unsolved": self.unsolved,
        }

    def findings(self, max_steps: int) -> list[Finding]:
        """What there is to say of it."""
        findings, skipped = [], self.fitted.skipped
        if not self.fitted.flat:
            sentence = f"the ELBO still rose after {max_steps} steps"
            findings.append(Finding(Status.NOT_CONVERGED, sentence))
        if not self.rose:
            sentence = (
                f"the fit ended below its start ({skipped} of {self.steps} steps were not "
                "finite), and this is the start"
            )
            findings.append(Finding(Status.NOT_CONVERGED, sentence))
        elif skipped > _SKIPPED_SHARE * self.steps:
            sentence = f"{skipped} of {self.steps} steps were not finite"
            findings.append(Finding(Status.NOT_CONVERGED, sentence))
        if self.lost + self.unsolved + self.thrown > _ASTRAY_SHARE * self.draws:
            sentence = (
                f"of {self.draws} draws {self.lost} were not finite, {self.thrown} divergences in "
                f"layers were undone, and {self.unsolved} row equations were not solved"
            )
            findings.append(Finding(Status.DIVERGENT, sentence))
        return findings


def structured_coordinates(problem: Problem) -> PosteriorCoordinates:
    """Where the structured stages find the posterior, in double precision; O(K^4)."""
    laws, _, propagation = fit_columns(problem)
    seen, prior = np.flatnonzero(propagation.sizes > 0), problem.prior
    if len(seen):
        curvature = spread_of(propagation, laws, seen).curvature
    else:  # the strengths have their prior
        weights = [] if prior.anchor_sd is None else [prior.anchor_sd**-2] * 2
        curvature = np.diag([prior.a_C, *weights])
    shares = ShareDensity(problem, laws.astype(np.float64)).gaussian
    columns = column_gaussians(propagation, laws, curvature)
    return posterior_coordinates(problem, columns, shares)
