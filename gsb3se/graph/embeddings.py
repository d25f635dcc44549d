"""Class names and features to vectors, from which a label graph can be built."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from gsb3se.support.errors import require, some_of
from gsb3se.support.labels import Label, as_codes
from gsb3se.support.named_axes import check_same_rows
from gsb3se.support.simplex import Matrix
from gsb3se.support.torchvision_ops import make_torchvision_importable

Encoder = Callable[[list[str]], ArrayLike]

PHOTO_TEMPLATES = ("a photo of a {}.",)


def embed_names(names: Sequence[str], encoder: str | Encoder = "clip", **options: Any) -> Matrix:
    """Embed class names.

    Args:
        names: K class names.
        encoder: "clip", or a callable from a list of names to a (K, d) array.
        options: for "clip", passed to :func:`clip_text`.

    >>> embed_names(["cat", "horse"], encoder=lambda names: [[len(n), 1.0] for n in names]).tolist()
    [[3.0, 1.0], [5.0, 1.0]]
    """
    names = list(names)
    if isinstance(encoder, str):
        if encoder != "clip":
            raise ValueError(f"encoder must be 'clip' or a callable; got {encoder!r}")
        vectors: ArrayLike = clip_text(names, **options)
    else:
        if options:
            raise ValueError(f"options {some_of(list(options))} go with encoder='clip' only")
        vectors = encoder(names)
    matrix = np.asarray(vectors, dtype=float)
    if matrix.ndim != 2 or len(matrix) != len(names):
        raise ValueError(f"the encoder must give {len(names)} vectors; got shape {matrix.shape}")
    return matrix


def clip_text(
    names: Sequence[str],
    model: str = "ViT-B-32",
    weights: str = "openai",
    templates: Sequence[str] = PHOTO_TEMPLATES,
    device: str = "cpu",
    batch_size: int = 256,
) -> Matrix:
    """Embed class names with the text encoder of an open_clip model.

    Args:
        names: K class names.
        model: an open_clip model name. OpenAI's own weights in a local file want
            "ViT-B-32-quickgelu".
        weights: a tag of pretrained weights, taken from the usual cache or downloaded, or the path
            of a local checkpoint (safetensors, or a PyTorch state dict without pickled code).
        templates: prompts with a ``{}`` for the name; their unit embeddings are averaged.
        device: where to run the encoder.
        batch_size: prompts encoded at a time.

    Returns:
        (K, d) unit vectors.
    """
    network, tokenizer = load_clip(model, weights, device)
    return encode_text(network, tokenizer, names, templates, device, batch_size)


def load_clip(model: str, weights: str, device: str = "cpu") -> tuple[Any, Any]:
    """An open_clip model with weights from a file, the cache or the hub, and its tokenizer."""
    make_torchvision_importable()
    open_clip = require("open_clip", extra="clip")
    if model not in open_clip.list_models():
        raise ValueError(f"open_clip has no model {model!r}: see open_clip.list_models()")
    tag = open_clip.get_pretrained_cfg(model, weights)
    try:
        network = open_clip.create_model(
            model,
            pretrained=weights,
            device=device,
            weights_only=True,
            force_quick_gelu=bool(tag and tag.get("quick_gelu", False)),
        )
    except Exception as error:  # the hub's client, torch and open_clip each raise their own kinds
        raise RuntimeError(
            f"could not load the weights {weights!r} of {model}: {error}\n"
            "Give weights= the path of a checkpoint on this machine. Where there is a network,\n"
            f"  python -c \"import open_clip as c; c.create_model('{model}', pretrained='openai')\""
            "\n"
            "fetches one into the cache, from where it loads without a network."
        ) from error
    return network.eval(), open_clip.get_tokenizer(model)


def encode_text(
    network: Any,
    tokenizer: Any,
    names: Sequence[str],
    templates: Sequence[str] = PHOTO_TEMPLATES,
    device: str = "cpu",
    batch_size: int = 256,
) -> Matrix:
    """(K, d) unit embeddings of names by a loaded open_clip model."""
    import torch

    if not names or not templates:
        raise ValueError("expected at least one name and one template")
    if unmarked := [template for template in templates if "{}" not in template]:
        raise ValueError(f"a template needs a {{}} for the name; got {some_of(unmarked)}")
    total = np.zeros(0)
    for template in templates:
        prompts = [template.replace("{}", name) for name in names]
        parts = []
        with torch.inference_mode():
            for start in range(0, len(prompts), batch_size):
                tokens = tokenizer(prompts[start : start + batch_size]).to(device)
                parts.append(network.encode_text(tokens).double().cpu().numpy())
        total = _unit(np.concatenate(parts)) + (total if total.size else 0.0)
    return _unit(total)


def _unit(vectors: Matrix) -> Matrix:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def class_means(
    features: ArrayLike, y: ArrayLike, labels: Iterable[Label] | None = None
) -> tuple[Matrix, tuple[Label, ...]]:
    """Mean feature vector of each class.

    Args:
        features: (n, d), for instance of a network's last hidden layer.
        y: (n,) labels of the rows.
        labels: the classes in order; by default the distinct values of y, sorted.

    Returns:
        (K, d) means, and the labels.

    >>> class_means([[0.0], [2.0], [5.0]], ["a", "a", "b"])[0].tolist()
    [[1.0], [5.0]]
    """
    check_same_rows(features, y, ("features", "y"))
    features = np.asarray(features)
    codes, names = as_codes(y, labels, "y")
    if features.ndim != 2 or len(features) != len(codes):
        raise ValueError(
            f"features must be (n, d) with one row for each of the {len(codes)} labels; "
            f"got shape {features.shape}"
        )
    sizes: NDArray[np.int64] = np.bincount(codes, minlength=len(names))
    if (sizes == 0).any():
        empty = [names[i] for i in np.flatnonzero(sizes == 0)]
        raise ValueError(f"every class needs a row of features; {some_of(empty)} have none")
    shares = sparse.csr_array(
        (1.0 / sizes[codes], (codes, np.arange(len(codes)))), shape=(len(names), len(codes))
    )
    return np.asarray(shares @ features, dtype=float), names
