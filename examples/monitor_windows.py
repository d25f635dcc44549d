"""Watch a stream drift: two hundred windows of real digits, one pass of the encoder for all.

python examples/monitor_windows.py drift.png

A classifier is trained on scikit-learn's digits and validated on 40 of each. Then the digits it
meets change from window to window, from mostly low ones to mostly high ones. The picture has the
posterior of every digit's share over the windows, its 90 % band, and the shares that were drawn.
"""

import time
from pathlib import Path

import click
import numpy as np
from sklearn.datasets import load_digits
from sklearn.naive_bayes import GaussianNB

import gsb3se as gs


@click.command()
@click.argument("picture", type=click.Path(path_type=Path))
@click.option("--windows", default=200, show_default=True)
@click.option("--rows", default=250, show_default=True, help="Digits in a window.")
@click.option("--seed", default=0, show_default=True)
def main(picture: Path, windows: int, rows: int, seed: int) -> None:
    """Train, let the stream drift, infer all windows, draw."""
    rng = np.random.default_rng(seed)
    images, digits = load_digits(return_X_y=True)
    order = rng.permutation(len(digits))
    images, digits = images[order] / 16, digits[order]
    model = GaussianNB(var_smoothing=1e-3).fit(images[:300], digits[:300])
    rest = np.arange(300, len(digits))
    held = np.concatenate([rest[digits[rest] == digit][:40] for digit in range(10)])
    pool = np.setdiff1d(rest, held)
    predicted = model.predict(images)

    truth, targets = [], []
    for place in np.linspace(-1, 1, windows):
        shares = np.exp(0.35 * place * (np.arange(10) - 4.5))
        chance = (shares / np.bincount(digits[pool]))[digits[pool]]
        drawn = rng.choice(pool, rows, p=chance / chance.sum())
        truth.append(np.bincount(digits[drawn], minlength=10) / rows)
        targets.append(np.bincount(predicted[drawn], minlength=10))
    counts = gs.ShiftCounts.from_predictions(
        digits[held], predicted[held], predicted[pool], labels=range(10)
    )
    graph = gs.LabelGraph.from_class_means(images[:300], digits[:300], k=4)

    began = time.perf_counter()
    posteriors = gs.estimate(counts, graph, targets=targets, backend="amortized")
    bands = np.array([posterior.quantile([0.05, 0.5, 0.95]) for posterior in posteriors])
    seconds = time.perf_counter() - began
    inside = np.mean((bands[:, 0] <= truth) & (truth <= bands[:, 2]))
    print(
        f"{windows} windows in {seconds:.2f} s, intervals included; {100 * inside:.0f} % of the "
        "90 % intervals hold the share that was drawn"
    )
    draw(bands, np.array(truth), picture)
    print(f"wrote {picture}")


def draw(bands: np.ndarray, truth: np.ndarray, picture: Path) -> None:
    """A panel a digit: bands (windows, 3, 10), truth (windows, 10)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(2, 5, figsize=(13, 5), sharex=True, sharey=True)
    at = np.arange(len(bands))
    for digit, panel in enumerate(panels.flat):
        panel.fill_between(
            at, bands[:, 0, digit], bands[:, 2, digit], color="tab:blue", alpha=0.3, lw=0
        )
        panel.plot(at, bands[:, 1, digit], color="tab:blue", lw=1)
        panel.plot(at, truth[:, digit], ".", color="black", ms=2)
        panel.set_title(f"digit {digit}", fontsize=10)
        panel.spines[["top", "right"]].set_visible(False)
    figure.supxlabel("window")
    figure.supylabel("share")
    figure.suptitle("Median and 90 % interval of each digit's share; dots: what was drawn")
    figure.tight_layout()
    figure.savefig(picture, dpi=130)


if __name__ == "__main__":
    main()
