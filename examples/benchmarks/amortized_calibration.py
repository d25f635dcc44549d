"""Are the encoder's intervals as wide as they say, on simulations it has never seen?

python examples/benchmarks/amortized_calibration.py

Hyper-parameters come from their priors (of alpha and beta what lies within the trained ranges), and
of the paper's columns most have their peaks on the diagonal, as in training: the truth is then one
more draw of the posterior that the encoder was taught. Coverage is that of equal-tailed intervals,
over all classes of all data sets; its standard error counts data sets, not classes. Ranks are those
of one quantity a data set among 199 draws, and are held against their 95 % simultaneous band: of
quantities that are all right, one in twenty leaves it.
"""

import time

import click
import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from gsb3se.diagnostics import rank_uniformity
from gsb3se_amortized.checkpoint import load
from gsb3se_amortized.encoder import Encoder
from gsb3se_amortized.padded_batch import Batch
from gsb3se_amortized.simulator import Simulated, simulate_source

RANKED = 199
PRIORS = ("paper", "anchored")


@click.command()
@click.option("--classes", multiple=True, default=(10, 50, 200), show_default=True)
@click.option("--beyond", multiple=True, default=(500, 1000), show_default=True)
@click.option("--datasets", default=1000, show_default=True)
@click.option("--datasets-beyond", default=60, show_default=True)
@click.option("--checkpoint", default="base", show_default=True)
@click.option("--seed", default=20_000, show_default=True)
def main(
    classes: tuple[int, ...],
    beyond: tuple[int, ...],
    datasets: int,
    datasets_beyond: int,
    checkpoint: str,
    seed: int,
) -> None:
    """Coverage and ranks, both priors together and apart."""
    encoder = load(checkpoint).encoder
    coverage = Table("K", "data sets", "prior", "50 %", "90 %")
    ranks = Table("K", "prior", "quantity", "mean rank", "p of uniform ranks", "in the band")
    inside: list[bool] = []
    for n in (*classes, *beyond):
        began = time.perf_counter()
        found = calibrate(encoder, n, datasets if n in classes else datasets_beyond, seed)
        for prior in ("both", *PRIORS):
            chosen = [one for one in found if prior in ("both", one["prior"])]
            if chosen:
                told = [covered(chosen, level) for level in (0.5, 0.9)]
                coverage.add_row(str(n), str(len(chosen)), prior, *told)
        for prior in PRIORS if n in classes else ():
            chosen = [one["ranks"] for one in found if one["prior"] == prior]
            for quantity in chosen[0] if chosen else ():
                observed = np.array([one[quantity] for one in chosen])
                p = rank_uniformity(observed, RANKED)
                inside.append(p >= 0.05)
                mean = f"{observed.mean() / RANKED:.3f}"
                ranks.add_row(
                    str(n), prior, quantity, mean, f"{p:.3f}", "yes" if inside[-1] else "NO"
                )
        print(f"K = {n}: {time.perf_counter() - began:.0f} s", flush=True)
    console = Console(width=110)
    console.print(ranks)
    if inside:
        print(f"{sum(inside)} of {len(inside)} quantities lie in the band")
    console.print(coverage)


@torch.no_grad()
def calibrate(encoder: Encoder, n: int, datasets: int, seed: int) -> list[dict]:
    """Ranks of every share, and of the tracked quantities, a data set each."""
    rng = np.random.default_rng([seed, n])
    generator = torch.Generator().manual_seed(seed)
    together = max(1, min(25, 200_000 // n**2))
    found = []
    for start in track(range(0, datasets, together), description=f"K = {n}"):
        made = [
            simulate_source(n, 1, rng, wide=False) for _ in range(min(together, datasets - start))
        ]
        batch = Batch.of([one.source for one in made])
        posterior, _ = encoder(batch)
        drawn = torch.softmax(posterior.sample(RANKED, generator), dim=-1)[:, :, 0].numpy()
        for place, one in enumerate(made):
            truth = np.exp(one.theta[0] - one.theta[0].max())
            truth /= truth.sum()
            draws = drawn[:, place]
            found.append(
                {
                    "prior": PRIORS[one.source.anchored],
                    "below": (draws < truth).mean(axis=0),
                    "ranks": {
                        name: int((value(draws, one) < value(truth[None], one)).sum())
                        for name, value in TRACKED.items()
                    },
                }
            )
    return found


def covered(found: list[dict], level: float) -> str:
    """Share of the true values inside the intervals, with its standard error."""
    shares = np.array([np.mean(np.abs(one["below"] - 0.5) <= level / 2) for one in found])
    return f"{100 * shares.mean():.1f} ± {100 * shares.std() / np.sqrt(len(shares)):.1f}"


def _roughness(q: np.ndarray, one: Simulated) -> np.ndarray:
    theta = np.log(q + 1e-300)
    theta = (theta - theta.mean(axis=1, keepdims=True)).T
    return np.einsum("ij,ij->j", theta, one.source.graph.laplacian @ theta)


TRACKED = {
    "share of a class": lambda q, one: q[:, 0],
    "share of another": lambda q, one: q[:, 1],
    "of the most predicted": lambda q, one: q[:, one.source.targets[0].argmax()],
    "of the least predicted": lambda q, one: q[:, one.source.targets[0].argmin()],
    "of the least validated": lambda q, one: q[:, one.source.confusion.sum(axis=0).argmin()],
    "of half the classes": lambda q, one: q[:, : q.shape[1] // 2].sum(axis=1),
    "largest share": lambda q, one: q.max(axis=1),
    "entropy": lambda q, one: -(q * np.log(q + 1e-300)).sum(axis=1),
    "theta'L theta": _roughness,
}


if __name__ == "__main__":
    main()
