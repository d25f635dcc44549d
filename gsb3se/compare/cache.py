"""Posteriors kept on disk under a hash of what they were made from."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from gsb3se.model.content_hash import content_hash
from gsb3se.model.problem import Problem
from gsb3se.posterior.posterior import Posterior


def default_folder() -> Path:
    """Where the system keeps what can be made again."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "gsb3se" / "posteriors"


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
