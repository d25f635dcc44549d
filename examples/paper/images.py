"""The paper's images and its classifier: torchvision's data sets, and a ResNet-18 trained on them.

What comes out are the classifier's logits on validation and test images, which is all that the rest
of the protocol needs.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from outputs import Outputs, stratified
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from gsb3se.support.progress import progress_bar
from gsb3se.support.torchvision_ops import make_torchvision_importable

make_torchvision_importable()
import torchvision  # noqa: E402
from torchvision.transforms import v2  # noqa: E402

_AT_ONCE = 256  # images that run through a trained network


class Images(NamedTuple):
    """(n, channels, height, width) bytes, (n,) classes, and the K classes' names."""

    pixels: Tensor
    labels: np.ndarray
    names: tuple[str, ...]

    def __getitem__(self, rows: np.ndarray) -> "Images":  # type: ignore[override]
        return Images(self.pixels[rows], self.labels[rows], self.names)


def _mnist(folder: Path, train: bool) -> Images:
    found = torchvision.datasets.MNIST(folder, train=train, download=True)
    names = tuple(str(digit) for digit in range(10))
    return Images(found.data[:, None], found.targets.numpy(), names)


def _cifar(kind: type) -> Callable[[Path, bool], Images]:
    def load(folder: Path, train: bool) -> Images:
        found = kind(folder, train=train, download=True)
        pixels = torch.from_numpy(found.data).permute(0, 3, 1, 2).contiguous()
        return Images(pixels, np.asarray(found.targets), tuple(found.classes))

    return load


def _digits(folder: Path, train: bool) -> Images:
    """scikit-learn's small digits, split in two: to see the chain run."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    rows = order[: len(order) // 2] if train else order[len(order) // 2 :]
    images = torch.from_numpy(pixels[rows] * (255 / 16)).to(torch.uint8).reshape(-1, 1, 8, 8)
    return Images(images, labels[rows], tuple(str(digit) for digit in range(10)))


IMAGES: dict[str, Callable[[Path, bool], Images]] = {
    "mnist": _mnist,
    "cifar10": _cifar(torchvision.datasets.CIFAR10),
    "cifar100": _cifar(torchvision.datasets.CIFAR100),
    "digits": _digits,
}


def classifier_outputs(
    data_set: str,
    folder: Path,
    train_rows: int,
    validation_rows: int,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    device: str,
    seed: int,
) -> Outputs:
    """Train on stratified images, and run on validation images and on the whole test split."""
    train, test = (IMAGES[data_set](folder, part) for part in (True, False))
    rows = stratified(train.labels, train_rows + validation_rows, seed)
    ours, held = rows[:train_rows], rows[train_rows:]
    network = resnet18(train, seed).to(device)
    mirrored = data_set.startswith("cifar")
    fit(network, train[ours], epochs, batch_size, learning_rate, mirrored, device, seed)
    features = penultimate(network, train[ours], device)
    means = [features[train.labels[ours] == label].mean(axis=0) for label in range(len(test.names))]
    logits = [logits_of(network, part, device) for part in (train[held], test)]
    return Outputs(
        logits[0], train.labels[held], logits[1], test.labels, test.names, np.stack(means)
    )


def resnet18(images: Images, seed: int) -> nn.Module:
    """torchvision's, with a first layer for small images in place of the one for 224 pixels."""
    torch.manual_seed(seed)
    network = torchvision.models.resnet18(num_classes=len(images.names))
    channels = images.pixels.shape[1]
    network.conv1 = nn.Conv2d(channels, 64, kernel_size=3, padding=1, bias=False)
    network.maxpool = nn.Identity()
    return network


class _Augmented(Dataset):
    def __init__(self, images: Images, mirrored: bool) -> None:
        self.images = images
        size = images.pixels.shape[-1]
        parts = [v2.RandomCrop(size, padding=size // 8)] + [v2.RandomHorizontalFlip()] * mirrored
        self.change = v2.Compose(parts)

    def __len__(self) -> int:
        return len(self.images.labels)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        return _scaled(self.change(self.images.pixels[row])), int(self.images.labels[row])


def _scaled(pixels: Tensor) -> Tensor:
    return (pixels.float() / 255 - 0.5) / 0.25


def fit(
    network: nn.Module,
    images: Images,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    mirrored: bool,
    device: str,
    seed: int,
) -> None:
    """SGD with momentum and one cycle of the learning rate, on shifted and mirrored images."""
    torch.manual_seed(seed)
    whole = len(images.labels) >= batch_size  # a last batch of one image would have no variance
    loader = DataLoader(_Augmented(images, mirrored), batch_size, shuffle=True, drop_last=whole)
    optimiser = torch.optim.SGD(
        network.parameters(), learning_rate, momentum=0.9, nesterov=True, weight_decay=5e-4
    )
    steps = epochs * len(loader)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, learning_rate, total_steps=steps)
    network.train()
    with progress_bar("training steps", steps) as bar:
        for _ in range(epochs):
            for pixels, labels in loader:
                optimiser.zero_grad()
                logits = network(pixels.to(device))
                nn.functional.cross_entropy(logits, labels.to(device)).backward()
                optimiser.step()
                schedule.step()
                bar.advance(1)
    network.eval()


def logits_of(network: nn.Module, images: Images, device: str) -> np.ndarray:
    """(n, K) of a network in eval()."""
    with torch.inference_mode():
        parts = [network(_scaled(part).to(device)).cpu() for part in images.pixels.split(_AT_ONCE)]
    return torch.cat(parts).double().numpy()


def penultimate(network: nn.Module, images: Images, device: str) -> np.ndarray:
    """(n, 512) what the last layer sees."""
    last, network.fc = network.fc, nn.Identity()
    try:
        return logits_of(network, images, device)
    finally:
        network.fc = last
