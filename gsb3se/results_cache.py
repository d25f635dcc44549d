"""Posteriors kept on disk under a hash of what they were made from."""

from __future__ import annotations

import hashlib
import os
from dataclasses import astuple, replace
from pathlib import Path

import numpy as np
from scipy import sparse

from gsb3se.graph import IdentityPlusOnes
from gsb3se.posterior import Posterior
from gsb3se.problem import Problem

_VERSION = 1  # of what goes into the hash


def default_folder() -> Path:
    """Where the system keeps what can be made again."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "gsb3se" / "posteriors"


def content_hash(problem: Problem, settings: str) -> str:
    """A hash of counts, graph, prior and settings; names of labels do not enter.

    Args:
        settings: a text that names everything else, such as the backend and the seed.
    """
    counts, graph = problem.counts, problem.graph
    digest = hashlib.sha256(f"{_VERSION} {settings} {astuple(problem.prior)}".encode())
    parts = [counts.confusion]
    if isinstance(graph.weights, IdentityPlusOnes):
        digest.update(f"exchangeable {graph.n_classes}".encode())
    else:
        parts.append(graph.weights)
    for part in parts:
        matrix = sparse.csr_array(part)
        matrix.sort_indices()
        for array, kind in (
            (matrix.indptr, np.int64),
            (matrix.indices, np.int64),
            (matrix.data, float),
        ):
            digest.update(np.ascontiguousarray(array, dtype=kind).tobytes())
    digest.update(np.ascontiguousarray(counts.target, dtype=np.int64).tobytes())
    return digest.hexdigest()[:32]


def load(folder: Path | None, name: str, problem: Problem, settings: str) -> Posterior | None:
    """The posterior that was kept, if there is one that can be read."""
    if folder is None:
        return None
    path = _path(folder, name, problem, settings)
    try:
        kept = Posterior.load(path)
        return replace(kept, labels=problem.counts.labels, problem=problem)
    except (OSError, ValueError):  # none, or a damaged one: it is made anew
        return None


def save(
    folder: Path | None, name: str, problem: Problem, settings: str, posterior: Posterior
) -> None:
    """Keep a posterior."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        posterior.save(_path(folder, name, problem, settings))


def _path(folder: Path, name: str, problem: Problem, settings: str) -> Path:
    return folder / f"{name}-{content_hash(problem, settings)}.npz"
