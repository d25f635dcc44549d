"""Re-weight training while the classes drift: a Lightning callback on real digits.

python examples/lightning_callback.py accuracy.png

An epoch belongs to a window of unlabelled digits. Before it, the callback counts the network's
predictions on validation rows and window, infers the window's shares, and hands the module weights
for its loss and the shares for its LogitCorrection. The callback is all that a module of your own
would need; it asks for ``module.class_weights`` and ``module.correction``.
"""

import logging
import warnings
from copy import deepcopy
from pathlib import Path

import click
import torch
from drifting_digits import Stream, accuracy, draw, drifting_stream, small_network, tell
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import gsb3se as gs
from gsb3se.training import LabelShiftMetric, LogitCorrection, shift_weights

import lightning  # isort: skip  (after gsb3se.training, which makes torchvision importable)


class FollowTheShift(lightning.Callback):
    """Gives a module the weights and the prior of the window it is about to meet."""

    def __init__(self, stream: Stream) -> None:
        self.stream, self.p = stream, stream.source_prior
        self.metric = LabelShiftMetric(10, stream.graph, gs.Prior.anchored())
        names = ("as trained", "logits corrected", "re-weighted")
        self.accuracies: dict[str, list[float]] = {name: [] for name in names}

    def on_fit_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        self.as_trained = deepcopy(module.network).eval()

    def on_train_epoch_start(
        self, trainer: lightning.Trainer, module: lightning.LightningModule
    ) -> None:
        images, _ = self.stream.windows[trainer.current_epoch]
        validation, truth = self.stream.validation
        self.metric.reset()
        self.metric.update(self._logits(module, validation), truth)
        self.metric.update(self._logits(module, images))
        post = self.metric.compute()
        module.class_weights.copy_(shift_weights(post, self.p, clip=(0.05, 10.0)))
        module.correction.set_prior(post)

    def on_train_epoch_end(
        self, trainer: lightning.Trainer, module: lightning.LightningModule
    ) -> None:
        images, digits = self.stream.windows[trainer.current_epoch]
        with torch.no_grad():
            old = self.as_trained(images)
        self.accuracies["as trained"].append(accuracy(old, digits))
        self.accuracies["logits corrected"].append(accuracy(module.correction(old), digits))
        self.accuracies["re-weighted"].append(accuracy(self._logits(module, images), digits))

    @staticmethod
    def _logits(module: lightning.LightningModule, images: Tensor) -> Tensor:
        was_training = module.training
        module.eval()
        with torch.no_grad():
            logits = module(images)
        module.train(was_training)
        return logits


class Digits(lightning.LightningModule):
    """A small network whose loss is weighted by class; weights and prior are saved with it."""

    class_weights: Tensor

    def __init__(self, source_prior: list[float], seed: int) -> None:
        super().__init__()
        self.network = small_network(seed)
        self.correction = LogitCorrection(source_prior, source_prior)
        self.register_buffer("class_weights", torch.ones(10))

    def forward(self, images: Tensor) -> Tensor:
        return self.network(images)

    def training_step(self, batch: tuple[Tensor, Tensor], number: int) -> Tensor:
        images, digits = batch
        return cross_entropy(self(images), digits, weight=self.class_weights)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=3e-3, weight_decay=1e-3)


@click.command()
@click.argument("picture", type=click.Path(path_type=Path))
@click.option("--windows", default=12, show_default=True)
@click.option("--rows", default=400, show_default=True, help="Digits in a window.")
@click.option("--epochs", default=60, show_default=True, help="Before the stream.")
@click.option("--passes", default=8, show_default=True, help="Over the rows, in a window.")
@click.option("--seed", default=0, show_default=True)
def main(picture: Path, windows: int, rows: int, epochs: int, passes: int, seed: int) -> None:
    """Train, meet the stream with the callback, draw."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    lightning.seed_everything(seed, verbose=False)  # the order of the rows
    stream = drifting_stream(windows, rows, seed)
    module = Digits(stream.source_prior.tolist(), seed)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    quiet |= {"enable_model_summary": False, "accelerator": "cpu"}
    rows_once = TensorDataset(*stream.train)
    lightning.Trainer(max_epochs=epochs, **quiet).fit(
        module, DataLoader(rows_once, batch_size=64, shuffle=True)
    )
    follow = FollowTheShift(stream)
    again = torch.utils.data.ConcatDataset([rows_once] * passes)
    lightning.Trainer(max_epochs=windows, callbacks=[follow], **quiet).fit(
        module, DataLoader(again, batch_size=64, shuffle=True)
    )
    tell(follow.accuracies)
    draw(follow.accuracies, picture)
    print(f"wrote {picture}")


if __name__ == "__main__":
    main()
