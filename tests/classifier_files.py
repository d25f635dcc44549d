"""A folder of classifier outputs like those the benchmark on real classifiers reads, made up."""

import json

import numpy as np

WNIDS = [f"n{i:04d}" for i in range(8)]


def scores(y, n_classes, rng, sharpness=3.0):
    """Logits of a classifier that is mostly right, and errs towards the next class."""
    right, next_one = np.eye(n_classes)[y], np.eye(n_classes)[(y + 1) % n_classes]
    return rng.normal(size=(len(y), n_classes)) + sharpness * right + next_one


def probabilities(logits):
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    return (e / e.sum(axis=1, keepdims=True)).astype(np.float32)


def write_folder(folder, rows=260, seed=0):
    """All files, with ``rows`` rows a class (fewer where there are many classes)."""
    rng = np.random.default_rng(seed)
    folder.mkdir(exist_ok=True)
    for name, n_classes in (("mnist", 10), ("20news", 20)):
        y = np.repeat(np.arange(n_classes), rows)
        probs = probabilities(scores(y, n_classes, rng))
        np.savez(folder / f"cleanlab_{name}_cvprobs.npz", probs=probs, labels=y.astype(np.uint8))
    parts = {}
    for part, size in (("val", rows), ("test", 2 * rows)):
        y = np.repeat(np.arange(10), size)
        parts |= {f"labels_{part}": y, f"logits_{part}": scores(y, 10, rng).astype(np.float16)}
    np.savez(folder / "cifar10_resnet110.npz", **parts)
    y = np.repeat(np.arange(100), 100)
    for model, sharpness in (("wideresnet164", 4.0), ("densenetbc100", 4.0), ("lenet5", 1.0)):
        probs = probabilities(scores(y, 100, rng, sharpness))
        np.savez(folder / f"cifar100_{model}.npz", probs_test=probs, labels_test=y)
    truth = np.repeat(np.arange(8), 700)
    predicted = np.where(rng.random(len(truth)) < 0.8, truth, rng.integers(8, size=len(truth)))
    kept = {"labels": truth, "pred_timm_resnet34": predicted}
    confidence = np.full(len(truth), 0.8)
    np.savez(folder / "imagenet_val_hardpreds.npz", **kept, conf_timm_resnet34=confidence)
    sizes = {"cifar10": 10, "cifar100": 100, "imagenet1k": 8}
    embeddings = {f"{name}_name": rng.normal(size=(n, 12)) for name, n in sizes.items()}
    np.savez(folder / "label_embeddings_minilm_l6_v2.npz", **embeddings)
    coarse = [f"group {i}" for i in range(20)]
    names = {"cifar100_coarse": coarse, "cifar100_fine_to_coarse": [i % 20 for i in range(100)]}
    (folder / "class_names.json").write_text(json.dumps(names))
    nodes = {"root": {"hypernyms": []}, "a": {"hypernyms": ["root"]}, "b": {"hypernyms": ["root"]}}
    nodes |= {wnid: {"hypernyms": ["ab"[i % 2]]} for i, wnid in enumerate(WNIDS)}
    tree = {"wnid": WNIDS, "nodes": nodes}
    (folder / "imagenet1k_wordnet_hierarchy.json").write_text(json.dumps(tree))
    return folder
