"""A hash of everything that a posterior is made from."""

from __future__ import annotations

import hashlib
from dataclasses import astuple

import numpy as np
from scipy import sparse

from gsb3se.model.problem import Problem
from gsb3se.model.source_problem import SourceProblem

_VERSION = 1  # of what goes into the hash


def content_hash(problem: SourceProblem, settings: str) -> str:
    """A hash of counts, graph, prior and settings; names of labels do not enter.

    Args:
        settings: a text that names everything else, such as the backend and the seed.
    """
    if type(problem) not in (SourceProblem, Problem):
        raise TypeError(f"what a {type(problem).__name__} holds is not part of this hash yet")
    counts, graph = problem.counts, problem.graph
    digest = hashlib.sha256(f"{_VERSION} {settings} {astuple(problem.prior)}".encode())
    matrices = [counts.confusion]
    if graph.sparse_weights is None:
        digest.update(f"exchangeable {graph.n_classes}".encode())
    else:
        matrices.append(graph.sparse_weights)
    for each in matrices:
        matrix = sparse.csr_array(each)
        matrix.sort_indices()
        for array, kind in (
            (matrix.indptr, np.int64),
            (matrix.indices, np.int64),
            (matrix.data, float),
        ):
            digest.update(np.ascontiguousarray(array, dtype=kind).tobytes())
    if isinstance(problem, Problem):
        digest.update(np.ascontiguousarray(problem.counts.target, dtype=np.int64).tobytes())
    return digest.hexdigest()[:32]
