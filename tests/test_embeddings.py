"""Class names to vectors, with open_clip's own tokenizer and a small random model."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from gsb3se import LabelGraph
from gsb3se.graph.embeddings import class_means, clip_text, embed_names, encode_text
from gsb3se.support.torchvision_ops import make_torchvision_importable

torch = pytest.importorskip("torch")
make_torchvision_importable()
open_clip = pytest.importorskip("open_clip")

NAMES = ["cat", "dog", "aquarium fish", "pickup truck"]
SMALL = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": 32, "layers": 1, "width": 64, "patch_size": 16},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2},
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A small architecture known to open_clip, and a local file of random weights for it."""
    from safetensors.torch import save_file

    folder = tmp_path_factory.mktemp("clip")
    (folder / "tiny-clip.json").write_text(json.dumps(SMALL))
    open_clip.add_model_config(folder / "tiny-clip.json")
    torch.manual_seed(0)
    model = open_clip.create_model("tiny-clip").eval()
    path = folder / "weights.safetensors"
    save_file(model.state_dict(), str(path))
    return model, str(path)


def test_a_local_checkpoint_gives_the_embeddings_of_its_model(checkpoint):
    model, path = checkpoint
    found = clip_text(NAMES, model="tiny-clip", weights=path)
    with torch.inference_mode():
        tokens = open_clip.get_tokenizer("tiny-clip")([f"a photo of a {name}." for name in NAMES])
        expected = model.encode_text(tokens, normalize=True).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1)


def test_batches_do_not_matter_and_templates_are_averaged(checkpoint):
    model, path = checkpoint
    whole = clip_text(NAMES, model="tiny-clip", weights=path)
    parts = clip_text(NAMES, model="tiny-clip", weights=path, batch_size=3)
    np.testing.assert_allclose(parts, whole, atol=1e-6)
    tokenizer = open_clip.get_tokenizer("tiny-clip")
    singles = [encode_text(model, tokenizer, NAMES, [t]) for t in ("{}", "a drawing of a {}")]
    both = encode_text(model, tokenizer, NAMES, ["{}", "a drawing of a {}"])
    mean = sum(singles)
    np.testing.assert_allclose(both, mean / np.linalg.norm(mean, axis=1, keepdims=True), atol=1e-6)


def test_a_graph_from_names(checkpoint):
    _, path = checkpoint
    graph = LabelGraph.from_names(NAMES, k=2, model="tiny-clip", weights=path)
    assert graph.labels == tuple(NAMES)
    assert graph.algebraic_connectivity > 0


def test_any_callable_encodes():
    vectors = {"a": [1.0, 0.0], "b": [0.9, 0.1], "c": [0.0, 1.0]}
    graph = LabelGraph.from_names("abc", encoder=lambda names: [vectors[n] for n in names], k=1)
    assert graph.weights[0, 1] > 0
    with pytest.raises(ValueError, match="must give 2 vectors"):
        embed_names(["a", "b"], encoder=lambda names: [[1.0]])
    with pytest.raises(ValueError, match="'clip' or a callable; got 'bert'"):
        embed_names(["a", "b"], encoder="bert")
    with pytest.raises(ValueError, match="options 'model' go with"):
        embed_names(["a"], encoder=lambda names: [[1.0]], model="x")


def test_bad_models_weights_and_templates_are_named(checkpoint):
    model, _ = checkpoint
    with pytest.raises(ValueError, match="no model 'ViT-Z'"):
        clip_text(NAMES, model="ViT-Z")
    with pytest.raises(RuntimeError, match="Give weights= the path of a checkpoint"):
        clip_text(NAMES, model="tiny-clip", weights="/nowhere/weights.safetensors")
    tokenizer = open_clip.get_tokenizer("tiny-clip")
    with pytest.raises(ValueError, match=r"needs a {} for the name; got 'a photo'"):
        encode_text(model, tokenizer, NAMES, ["a photo"])
    with pytest.raises(ValueError, match="at least one name"):
        encode_text(model, tokenizer, [])


def test_without_a_network_the_error_says_how_to_get_the_weights(tmp_path):
    offline = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    program = "from gsb3se import LabelGraph; LabelGraph.from_names(['a', 'b'])"
    done = subprocess.run(
        [sys.executable, "-c", program], env=offline, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "could not load the weights 'openai' of ViT-B-32" in done.stderr
    assert "Give weights= the path of a checkpoint on this machine" in done.stderr


def test_a_pickled_checkpoint_is_not_executed(checkpoint, tmp_path):
    import pickle

    class Payload:
        def __reduce__(self):
            return (open, (str(tmp_path / "executed"), "w"))

    path = tmp_path / "evil.pt"
    path.write_bytes(pickle.dumps(Payload(), protocol=2))
    with pytest.raises(RuntimeError, match="could not load the weights"):
        clip_text(NAMES, model="tiny-clip", weights=str(path))
    assert not (tmp_path / "executed").exists()


def test_class_means_are_means():
    rng = np.random.default_rng(0)
    features, y = rng.standard_normal((60, 4)), rng.choice(["a", "b", "c"], 60)
    means, labels = class_means(features, y)
    assert labels == ("a", "b", "c")
    for row, label in zip(means, labels, strict=True):
        np.testing.assert_allclose(row, features[y == label].mean(axis=0))
    with pytest.raises(ValueError, match="'d' have none"):
        class_means(features, y, labels=["a", "b", "c", "d"])
    with pytest.raises(ValueError, match="one row for each of the 60 labels"):
        class_means(features[:-1], y)


@pytest.mark.parametrize("names", [[], ["cat"], [1, 2, 3]])
def test_names_are_at_least_two_strings(names):
    with pytest.raises(ValueError, match="names must be at least 2 strings"):
        LabelGraph.from_names(names)
