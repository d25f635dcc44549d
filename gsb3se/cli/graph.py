"""gsb3se graph: build a label graph, look at one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np

from gsb3se.cli.console import ExistingFile, File, console, plain_speech, table
from gsb3se.graph import LabelGraph
from gsb3se.support.errors import some_of
from gsb3se.support.files import check_output, names_in_npz, read_npy, read_npz
from gsb3se.support.labels import Label, printable
from gsb3se.support.tables import read_json, read_labels


@click.group()
def graph() -> None:
    """Build a label graph, or look at one.

    \b
    gsb3se graph build names.txt --weights clip.safetensors --out graph.npz
    gsb3se graph show graph.npz
    """


@graph.command()
@click.argument("source", type=ExistingFile)
@click.option("--out", type=File, required=True, help="The graph file to write (.npz).")
@click.option("-k", default=8, show_default=True, help="Neighbours of a label.")
@click.option("--labels", type=ExistingFile, help="Names for embeddings that come without.")
@click.option(
    "--model", default="ViT-B-32", show_default=True, help="For names: an open_clip model."
)
@click.option(
    "--weights",
    default="openai",
    show_default=True,
    help="For names: a checkpoint file, or a tag of pretrained weights.",
)
def build(source: Path, out: Path, k: int, labels: Path | None, model: str, weights: str) -> None:
    """Build a label graph from SOURCE and print a summary.

    \b
    SOURCE is one of
      .txt          class names, one a line: embedded with CLIP
      .json         a list of class names: embedded with CLIP
                    an object child -> parent: a taxonomy
      .npy          embeddings, one row a label
      .npz          an array "embeddings", and optionally "labels"

    \b
    gsb3se graph build names.txt --weights clip.safetensors -k 8 --out graph.npz
    gsb3se graph build embeddings.npy --labels names.txt --out graph.npz
    """
    with plain_speech():
        check_output(out, "--out", ".npz", inputs=(source, labels))
        names = None if labels is None else read_labels(labels)
        built = _build(source, k, names, {"model": model, "weights": weights})
        built.save(out)
        _summarise(built)
        console.print(f"wrote {out}")


@graph.command()
@click.argument("file", type=ExistingFile)
def show(file: Path) -> None:
    """Print a summary of a graph file.

    \b
    gsb3se graph show graph.npz
    """
    with plain_speech():
        _summarise(LabelGraph.load(file))


def _build(
    source: Path, k: int, labels: tuple[Label, ...] | None, clip: dict[str, Any]
) -> LabelGraph:
    if source.suffix == ".npy":
        return LabelGraph.knn(read_npy(source), k, labels=labels)
    if source.suffix == ".npz":
        arrays = read_npz(source, ("embeddings", "labels"))
        if "embeddings" not in arrays:
            there = some_of(names_in_npz(source)) or "none"
            raise ValueError(f"{source} has no array 'embeddings'; it has {there}")
        if labels is None and "labels" in arrays:
            labels = tuple(np.atleast_1d(arrays["labels"]).tolist())
        return LabelGraph.knn(arrays["embeddings"], k, labels=labels)
    if source.suffix == ".json" and isinstance(tree := read_json(source), dict):
        return LabelGraph.from_taxonomy(tree, k, labels)
    if source.suffix in (".json", ".txt"):
        if labels is not None:
            raise ValueError(
                "--labels goes with embeddings and taxonomies; names are labels already"
            )
        names = [str(name) for name in read_labels(source)]
        with console.status(f"embedding {len(names)} names with {clip['model']}"):
            return LabelGraph.from_names(names, encoder="clip", k=k, **clip)
    raise ValueError(f"{source}: expected a .txt, .json, .npy or .npz file")


def _summarise(graph: LabelGraph) -> None:
    console.print(repr(graph))
    shown = table("", "figure", "value")
    if (weights := graph.sparse_weights) is not None:
        degrees = np.diff(weights.indptr)
        shown.add_row("neighbours of a label", _range(degrees, ".0f"))
        shown.add_row("weight of an edge", _range(weights.data, ".3f"))
    with console.status("measuring its connectivity"):  # some seconds at 10,000 labels
        shown.add_row("algebraic connectivity", f"{graph.algebraic_connectivity:.4g}")
    console.print(shown)
    for i, j in graph.bridges[:10]:
        console.print(f"bridge: {_name(graph, i)} - {_name(graph, j)}")
    if len(graph.bridges) > 10:
        console.print(f"and {len(graph.bridges) - 10} more bridges")


def _range(values: np.ndarray, form: str) -> str:
    low, middle, high = np.percentile(values, [0, 50, 100])
    return f"{low:{form}} to {high:{form}}, median {middle:{form}}"


def _name(graph: LabelGraph, index: int) -> str:
    return printable(index if graph.labels is None else graph.labels[index])
