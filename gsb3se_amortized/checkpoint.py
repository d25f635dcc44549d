"""Checkpoints: an encoder's weights as safetensors, with a card that says where they come from."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from gsb3se.support.errors import some_of
from gsb3se.support.files import whole, write_atomically
from gsb3se_amortized.encoder import Encoder
from gsb3se_amortized.familiarity import SHAPES
from gsb3se_amortized.simulator import Ranges

FORMAT_VERSION = 1
_WIDEST = 4096  # that a setting of an encoder may be
WEIGHTS = Path(__file__).parent / "weights"


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A trained encoder and what it knows about itself.

    Attributes:
        encoder: in evaluation mode.
        ranges: what it was trained on.
        typical: summaries of simulated problems, to tell others from: see
            :mod:`gsb3se_amortized.familiarity`; empty if they were not taken.
        card: command, seed, steps, date, measured figures.
    """

    encoder: Encoder
    ranges: Ranges
    typical: Mapping[str, Tensor] = field(default_factory=dict)
    card: Mapping[str, Any] = field(default_factory=dict)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one safetensors file."""
        tensors = {f"encoder.{k}": v for k, v in self.encoder.state_dict().items()}
        tensors |= {f"typical.{k}": v for k, v in self.typical.items()}
        metadata = {
            "kind": "gsb3se encoder",
            "version": FORMAT_VERSION,
            "settings": self.encoder.settings,
            "ranges": asdict(self.ranges),
            "card": dict(self.card),
        }
        write_tensors(path, tensors, metadata)


def find(name: str | os.PathLike[str]) -> Path:
    """The file of a checkpoint that ships with the package, by its name, or a path as it is."""
    shipped = {path.stem: path for path in sorted(WEIGHTS.glob("*.safetensors"))}
    if str(name) in shipped:
        return shipped[str(name)]
    path = Path(name)
    if path.is_file():
        return path
    raise ValueError(
        f"no checkpoint {str(name)!r}: expected the name of one that ships with the package "
        f"({some_of(list(shipped)) or 'there is none'}) or the path of a file that gsb3se train "
        "wrote"
    )


def load(name: str | os.PathLike[str], device: str | torch.device = "cpu") -> Checkpoint:
    """Load a checkpoint by name or path onto a device; the same one is loaded once."""
    return _load(find(name), content_hash(name), str(check_device(device)))


def content_hash(name: str | os.PathLike[str]) -> str:
    """A hash of a checkpoint's file, by name or path."""
    return hashlib.sha256(find(name).read_bytes()).hexdigest()


def check_device(device: str | torch.device) -> torch.device:
    """A device that is there."""
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device must be such as 'cpu' or 'cuda'; got {device!r}") from error
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("device 'cuda' was asked for, and torch sees no CUDA device: use 'cpu'")
    return chosen


@lru_cache(maxsize=4)
def _load(path: Path, content: str, device: str) -> Checkpoint:
    tensors, metadata = read_tensors(path, "gsb3se encoder", device)
    with whole(path):
        if int(metadata["version"]) > FORMAT_VERSION:
            raise ValueError(
                f"{path} has format version {metadata['version']} and this gsb3se reads up to "
                f"{FORMAT_VERSION}: upgrade gsb3se"
            )
        settings, typical = dict(metadata["settings"]), part(tensors, "typical.")
        whole_numbers = all(isinstance(n, int) and 0 <= n <= _WIDEST for n in settings.values())
        if not whole_numbers or not set(settings) <= set(signature(Encoder).parameters):
            raise ValueError(f"its settings are none of an encoder: {settings}")
        encoder = _assembled(settings, part(tensors, "encoder."))
        _check_typical(typical)
        ranges, card = Ranges.of(metadata["ranges"]), dict(metadata["card"])
    encoder.to(device).eval().requires_grad_(False)
    return Checkpoint(encoder, ranges, typical, card)


def _assembled(settings: Mapping[str, int], weights: dict[str, Tensor]) -> Encoder:
    """An encoder of these weights: no memory and no random number goes into one without them."""
    if max(settings.get(name, 0) for name in ("before", "after")) > len(weights):
        raise ValueError(f"{len(weights)} tensors are no encoder of the settings {settings}")
    with torch.device("meta"):
        encoder = Encoder(**settings)
    shapes = {name: tuple(tensor.shape) for name, tensor in encoder.state_dict().items()}
    if shapes != {name: tuple(tensor.shape) for name, tensor in weights.items()}:
        raise ValueError(f"its tensors are not those of an encoder of the settings {settings}")
    if any(t.dtype != torch.float32 or not t.isfinite().all() for t in weights.values()):
        raise ValueError("its weights must be finite numbers in single precision")
    encoder.load_state_dict(weights, assign=True)
    return encoder


def _check_typical(typical: Mapping[str, Tensor]) -> None:
    """Raise ValueError unless it tells familiar problems from others, or is empty."""
    if not typical:
        return
    if {name: tuple(tensor.shape) for name, tensor in typical.items()} != SHAPES:
        raise ValueError("what it knows of simulated problems has other shapes")
    if any(t.dtype != torch.float64 or not t.isfinite().all() for t in typical.values()):
        raise ValueError("what it knows of simulated problems must be finite numbers")
    if not (typical["limit"] > 0).all():
        raise ValueError("its limits of familiar problems must be positive")


def part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin so, without it."""
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def write_tensors(
    path: str | os.PathLike[str], tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]
) -> None:
    """Write a safetensors file of ours, which :func:`read_tensors` reads, whole or not at all."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    content = save(plain, {"gsb3se": json.dumps(metadata)})
    write_atomically(path, lambda file: file.write(content))


def read_tensors(
    path: Path, kind: str, device: str = "cpu"
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and metadata of a safetensors file of ours; safetensors hold no code."""
    with whole(path):
        with safe_open(path, framework="pt", device=device) as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = json.loads((file.metadata() or {}).get("gsb3se", "{}"))
        stamp = metadata.get("kind") if isinstance(metadata, dict) else None
        if stamp != kind:
            raise ValueError(f"{path} holds no {kind}: its kind is {some_of([stamp])}")
    return tensors, metadata
