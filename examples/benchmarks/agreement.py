"""How close is a backend to the exact posterior?

python examples/benchmarks/agreement.py --backend structured --cache DIR --data DIR

The exact posterior is HMC's, run until every share has an effective sample size of 1,000; it is
kept in the cache folder, so that a second run, perhaps of another backend, only loads it. Errors
are those of q in units of HMC's sd, pooled over classes and seeds of a case: the absolute error of
the mean, the ratio of the sds, the error of the 5 % and 95 % quantiles, the 1-Wasserstein distance;
then the L1 error of both against the truth. "hmc halves" compares one half of HMC's draws with the
other: nothing can be told to be closer than that. A reference whose chains disagree or hold too few
effective draws is none; a case says how many of its seeds have such. Times are those of inference
alone, HMC's with compilation.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
from cases import PRIORS, Case, cifar100, drawn_from_hierarchy, simulated_classifier
from rich.console import Console
from rich.table import Table

import gsb3se as gs
from gsb3se.estimate import Backend, as_backend
from gsb3se.posterior.agreement import Agreement

LEAST_ESS = 1000
LARGEST_R_HAT = 1.02
HALVES = "hmc halves"
BANDS = ((0.88, 1.14), (0.8, 1.2), (0.75, 1.33))  # of sd ratios
OTHERS = {"mean-field": gs.Variational(family="mean-field", progress=False)}  # not for use
HOPELESS = 0.03  # of it: four times the draws would not help


@click.command()
@click.option("--backend", "backends", multiple=True, default=("structured",), show_default=True)
@click.option("--data", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--cache", type=click.Path(path_type=Path, file_okay=False), required=True)
@click.option("--classes", default=(10, 30, 100), multiple=True, type=int)
@click.option("--prior", "priors", default=tuple(PRIORS), multiple=True)
@click.option("--seeds", default=3, show_default=True)
@click.option("--hierarchy", is_flag=True, help="Also problems drawn from the hierarchy itself.")
@click.option("--each", is_flag=True, help="A row a seed as well.")
@click.option("--missing/--no-missing", default=True, help="Run HMC where the cache has nothing.")
@click.option("--markdown", is_flag=True, help="Rows for a Markdown table as well.")
@click.option("--quick", is_flag=True, help="Few draws and one small case: only to see it run.")
def main(
    backends: tuple[str, ...],
    data: Path | None,
    cache: Path,
    classes: tuple[int, ...],
    priors: tuple[str, ...],
    seeds: int,
    hierarchy: bool,
    each: bool,
    missing: bool,
    markdown: bool,
    quick: bool,
) -> None:
    """Compare backends with HMC and print a row a case and backend."""
    cache.mkdir(parents=True, exist_ok=True)
    found: dict[tuple[str, str], list[Comparison]] = defaultdict(list)
    unmixed: Counter[str] = Counter()
    for seed in range(seeds):
        for name, case in cases(data, classes, priors, seed, hierarchy):
            path = cache / f"{name} seed {seed}.npz"
            if (quick and found) or not (missing or path.exists()):
                continue
            reference, seconds = exact(case, path, quick)
            unmixed[name] += not mixed(reference)
            found[name, HALVES].append(Comparison.of_halves(reference, case.truth, seconds))
            for backend in backends:
                began = time.perf_counter()
                posterior = chosen(backend).infer(case.problem, np.random.default_rng(seed))
                taken = time.perf_counter() - began
                made = Comparison(reference, posterior, case.truth, seconds, taken)
                found[name, backend].append(made)
                if each:
                    print(f"{name} seed {seed}, {backend}: {made}", flush=True)
    table = Table(
        "case", "no reference", "backend", "mean error: median", "p95", "sd ratio: 5 %", "50 %",
        "95 %", "in .88-1.14", "in .8-1.2", "in .75-1.33", "sd error", "5 % error", "95 % error",
        "W1", "L1", "L1 of HMC", "s", "s of HMC",
    )  # fmt: skip
    for (name, backend), comparisons in found.items():
        told = f"{unmixed[name]} of {len(comparisons)}" if unmixed[name] else ""
        table.add_row(name, told, backend, *pooled(comparisons))
    Console(width=240).print(table)
    if markdown:
        print_markdown(found, unmixed)


def chosen(name: str) -> Backend:
    """A backend by its name, also one that only a comparison wants."""
    return OTHERS[name] if name in OTHERS else as_backend(name)


def print_markdown(found: dict[tuple[str, str], list["Comparison"]], unmixed: Counter[str]) -> None:
    """The most important figures, a row a case and backend, HMC's halves at its end."""
    for (name, backend), comparisons in found.items():
        if backend == HALVES:
            continue
        cell = pooled(comparisons)
        floor = pooled(found[name, HALVES])
        star = f" {'*' * unmixed[name]}" if unmixed[name] else ""
        print(
            f"| {name}{star} | {backend} | {cell[0]} | {cell[1]} | {cell[2]} to {cell[4]} | "
            f"{100 * float(cell[5]):.0f} % | {100 * float(cell[6]):.0f} % | {cell[8]} | "
            f"{cell[11]} | {cell[12]} | {cell[13]} | {cell[14]} | {floor[0]}, {floor[1]} |"
        )


def cases(
    data: Path | None, classes: tuple[int, ...], priors: tuple[str, ...], seed: int, hierarchy: bool
) -> Iterator[tuple[str, Case]]:
    """Every case of a seed, by name."""
    for prior in priors:
        for n in classes:
            for labels in (10, 50):
                for n_target in (1000, 10_000):
                    name = f"K={n} {labels} a class n'={n_target} {prior}"
                    made = simulated_classifier(n, labels, n_target, PRIORS[prior], seed)
                    yield f"simulated {name}", made
                    if hierarchy:
                        drawn = drawn_from_hierarchy(n, labels, n_target, PRIORS[prior], seed)
                        yield f"hierarchy {name}", drawn
        for model in ("wideresnet164", "densenetbc100", "lenet5") if data is not None else ():
            for labels in (10, 50):
                name = f"CIFAR-100 {model} {labels} a class {prior}"
                yield name, cifar100(data, model, labels, PRIORS[prior], seed)


def exact(case: Case, path: Path, quick: bool = False) -> tuple[gs.Posterior, float]:
    """HMC's posterior and its seconds, from the cache or run and kept there."""
    if not path.exists():
        small = case.problem.n_classes < 100
        for draws in (60,) if quick else (1000, 3000) if small else (500, 2000):
            warmup = 60 if quick else 500 if small else 300
            backend = gs.HMC(warmup=warmup, draws=draws, progress=False)
            posterior = backend.infer(case.problem, np.random.default_rng(0))
            effective = posterior.diagnostics.figures["bulk_ess_min"]
            if effective >= LEAST_ESS or effective < HOPELESS * LEAST_ESS:
                break
        posterior.save(path)
        figures = posterior.diagnostics.figures
        told = ", ".join(f"{figures[k]:.4g}" for k in ("seconds", "bulk_ess_min", "r_hat_max"))
        print(f"{path.stem}: s, ESS, R-hat {told}", flush=True)
    posterior = gs.Posterior.load(path)
    return posterior, posterior.diagnostics.figures["seconds"]


def mixed(reference: gs.Posterior) -> bool:
    """Whether the shares' chains agree and hold enough draws."""
    figures = reference.diagnostics.figures
    return max(figures["r_hat_q"]) <= LARGEST_R_HAT and figures["bulk_ess_min"] >= LEAST_ESS


class Comparison:
    """A posterior against the reference, class by class, in units of the reference's sd."""

    def __init__(
        self,
        reference: gs.Posterior,
        posterior: gs.Posterior,
        truth: np.ndarray,
        reference_seconds: float,
        seconds: float,
    ) -> None:
        found = Agreement.between(posterior, reference)
        self.mean, self.ratio, self.wasserstein = found.mean, found.sd_ratio, found.wasserstein
        self.low, self.high = found.low, found.high
        self.l1 = np.abs(posterior.mean - truth).sum()
        self.reference_l1 = np.abs(reference.mean - truth).sum()
        self.seconds, self.reference_seconds = seconds, reference_seconds
        self.status = posterior.diagnostics.status.value

    @classmethod
    def of_halves(cls, reference: gs.Posterior, truth: np.ndarray, seconds: float) -> "Comparison":
        """One half of every chain against the other."""
        half = reference.form.q.shape[1] // 2
        first, second = (
            gs.Posterior.from_draws(part)
            for part in (reference.form.q[:, :half], reference.form.q[:, half:])
        )
        return cls(first, second, truth, seconds, seconds)

    def __str__(self) -> str:
        inside = np.mean((self.ratio >= 0.88) & (self.ratio <= 1.14))
        return (
            f"mean {np.median(self.mean):.3f} {np.quantile(self.mean, 0.95):.3f}, sd "
            f"{np.quantile(self.ratio, 0.05):.2f} {np.median(self.ratio):.2f} "
            f"{np.quantile(self.ratio, 0.95):.2f} in {inside:.2f}, L1 {self.l1:.4f} "
            f"{self.reference_l1:.4f}, {self.seconds:.2f} s, {self.status}"
        )


def pooled(comparisons: list[Comparison]) -> list[str]:
    """The figures of all classes and seeds of a case."""

    def every(name: str) -> np.ndarray:
        return np.concatenate([np.atleast_1d(getattr(one, name)) for one in comparisons])

    mean, ratio = every("mean"), every("ratio")
    return [
        f"{np.median(mean):.3f}",
        f"{np.quantile(mean, 0.95):.3f}",
        *(f"{x:.2f}" for x in np.quantile(ratio, [0.05, 0.5, 0.95])),
        *(f"{np.mean((ratio >= a) & (ratio <= b)):.2f}" for a, b in BANDS),
        f"{np.median(np.abs(ratio - 1)):.3f}",
        *(f"{np.median(every(name)):.3f}" for name in ("low", "high", "wasserstein")),
        *(f"{every(name).mean():.4f}" for name in ("l1", "reference_l1")),
        *(f"{every(name).mean():.2f}" for name in ("seconds", "reference_seconds")),
    ]


if __name__ == "__main__":
    main()
