"""Re-weight training while the classes drift: a plain PyTorch loop on real digits.

python examples/training_loop.py accuracy.png

A small network is trained once. Then windows of unlabelled digits arrive whose frequencies drift.
In every window LabelShiftMetric counts the network's predictions on the validation rows and on the
window, the posterior of the window's shares becomes weights for the loss, and the network trains on
its old rows with these weights. Beside it stand the network as it was, and the same with its logits
corrected, which needs no training.
"""

from pathlib import Path

import click
import torch
from drifting_digits import Stream, accuracy, draw, drifting_stream, small_network, tell
from torch import nn
from torch.nn.functional import cross_entropy

import gsb3se as gs
from gsb3se.training import LabelShiftMetric, LogitCorrection, shift_weights


@click.command()
@click.argument("picture", type=click.Path(path_type=Path))
@click.option("--windows", default=12, show_default=True)
@click.option("--rows", default=400, show_default=True, help="Digits in a window.")
@click.option("--steps", default=600, show_default=True, help="Of the first training.")
@click.option("--more-steps", default=60, show_default=True, help="In a window.")
@click.option("--seed", default=0, show_default=True)
def main(picture: Path, windows: int, rows: int, steps: int, more_steps: int, seed: int) -> None:
    """Train, meet the stream, adapt, draw."""
    stream = drifting_stream(windows, rows, seed)
    frozen, adapted = small_network(seed), small_network(seed)
    train(frozen, stream, steps)
    adapted.load_state_dict(frozen.state_dict())

    p = stream.source_prior
    metric = LabelShiftMetric(10, stream.graph, gs.Prior.anchored())
    correction = LogitCorrection(p, p)
    accuracies: dict[str, list[float]] = {
        "as trained": [],
        "logits corrected": [],
        "re-weighted": [],
    }
    for images, digits in stream.windows:
        post = shares_of(images, adapted, metric, stream)
        train(adapted, stream, more_steps, shift_weights(post, p, clip=(0.05, 10.0)))
        correction.set_prior(post)
        with torch.no_grad():
            logits = frozen(images)
            accuracies["as trained"].append(accuracy(logits, digits))
            accuracies["logits corrected"].append(accuracy(correction(logits), digits))
            accuracies["re-weighted"].append(accuracy(adapted(images), digits))
    tell(accuracies)
    draw(accuracies, picture)
    print(f"wrote {picture}")


def shares_of(
    images: torch.Tensor, model: nn.Module, metric: LabelShiftMetric, stream: Stream
) -> gs.Posterior:
    """The posterior of a window's shares, by the model as it is now."""
    metric.reset()
    with torch.no_grad():
        metric.update(model(stream.validation[0]), stream.validation[1])
        metric.update(model(images))
    return metric.compute()


def train(
    model: nn.Module, stream: Stream, steps: int, weights: torch.Tensor | None = None
) -> None:
    """Some steps of Adam on the training rows, weighted by class; the model is left in eval()."""
    images, digits = stream.train
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3, weight_decay=1e-3)
    model.train()
    for _ in range(steps):
        optimiser.zero_grad()
        cross_entropy(model(images), digits, weight=weights).backward()
        optimiser.step()
    model.eval()


if __name__ == "__main__":
    main()
