"""A stream of digits whose classes drift, for the examples that train on it; and its picture."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import gsb3se as gs

NOISE = 0.35  # makes the digits hard enough for their frequencies to matter


@dataclass
class Stream:
    """Rows to train on, to validate on, and windows that come one after the other."""

    train: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor]
    windows: list[tuple[Tensor, Tensor]]
    graph: gs.LabelGraph

    @property
    def source_prior(self) -> np.ndarray:
        """(10,) shares among the training rows."""
        return np.bincount(self.train[1], minlength=10) / len(self.train[1])


def drifting_stream(windows: int, rows: int, seed: int) -> Stream:
    """scikit-learn's digits under noise; from window to window low ones give way to high ones."""
    rng = np.random.default_rng(seed)
    images, digits = load_digits(return_X_y=True)
    images = images / 16 + NOISE * rng.standard_normal(images.shape)
    order = rng.permutation(len(digits))
    train, rest = order[:500], order[500:]
    held = np.concatenate([rest[digits[rest] == digit][:40] for digit in range(10)])
    pool = np.setdiff1d(rest, held)

    def tensors(chosen: np.ndarray) -> tuple[Tensor, Tensor]:
        return torch.tensor(images[chosen], dtype=torch.float32), torch.tensor(digits[chosen])

    drawn = []
    for place in np.linspace(-1, 1, windows):
        shares = np.exp(0.7 * place * (np.arange(10) - 4.5))
        chance = (shares / np.bincount(digits[pool]))[digits[pool]]
        drawn.append(tensors(rng.choice(pool, rows, p=chance / chance.sum())))
    graph = gs.LabelGraph.from_class_means(images[train], digits[train], k=4)
    return Stream(tensors(train), tensors(held), drawn, graph)


def small_network(seed: int) -> nn.Module:
    """64 pixels to 10 logits."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 10))


def accuracy(logits: Tensor, truth: Tensor) -> float:
    """Share of rows whose largest logit is the right one."""
    return float((logits.argmax(dim=1) == truth).float().mean())


def draw(accuracies: dict[str, list[float]], picture: Path) -> None:
    """Accuracy over the windows, a line a method."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.2))
    for name, values in accuracies.items():
        label = f"{name}: {100 * np.mean(values):.1f} % on average"
        axes.plot(np.arange(1, len(values) + 1), 100 * np.array(values), "o-", ms=4, label=label)
    axes.set_xlabel("window: low digits give way to high ones")
    axes.set_ylabel("accuracy, %")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.3)
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(picture, dpi=130)


def tell(accuracies: dict[str, list[float]]) -> None:
    """The averages, in words."""
    for name, values in accuracies.items():
        print(f"{name}: {100 * np.mean(values):.1f} % of the digits are right")
