"""How close is each backend to HMC, on data of a kind?

python examples/compare_backends.py compared.png

A useful classifier over a few classes is made up; HMC is run, then the backends beside it. What is
finished is kept in the folder given by --cache, so that a second call costs nothing.
"""

from pathlib import Path

import click

import gsb3se as gs
from gsb3se.model.simulation import simulate_classifier


@click.command()
@click.argument("picture", type=click.Path(path_type=Path))
@click.option("--classes", default=12, show_default=True)
@click.option("--cache", type=click.Path(path_type=Path, file_okay=False))
@click.option("--draws", default=1000, show_default=True, help="Of HMC, a chain.")
@click.option("--steps", default=2000, show_default=True, help="Of variational fits, at most.")
def main(picture: Path, classes: int, cache: Path | None, draws: int, steps: int) -> None:
    """Compare, print the errors, draw the intervals."""
    counts, graph, truth = simulate_classifier(classes, labels=20, n_target=2000, seed=0)
    found = gs.compare(
        counts,
        graph,
        prior=gs.Prior.anchored(),
        backends={
            "structured": gs.Structured(),
            "amortized": "amortized",
            "variational": gs.Variational(max_steps=steps),
            "mean field": gs.Variational(family="mean-field", max_steps=steps),
            "Laplace": gs.Laplace(),
        },
        reference=gs.HMC(draws=draws),
        truth=truth,
        cache=cache,
        tell=lambda name: print(f"{name} ..."),
    )
    for row in found.rows:
        errors = "  ".join(
            f"{name} {row.figures[name]:.3f}"
            for name in ("mean_error", "sd_error", "l1")
            if name in row.figures
        )
        print(f"{row.name:12s} {errors}  {row.seconds:.2g} s  {row.status}")
    found.plot(picture)
    print(f"wrote {picture}")


if __name__ == "__main__":
    main()
