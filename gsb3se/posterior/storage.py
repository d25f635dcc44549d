"""Posteriors in files: one NPZ file of plain arrays, which loads without the backend."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, astuple
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gsb3se.graph import LabelGraph
from gsb3se.model.counts import ShiftCounts
from gsb3se.model.prior import Prior
from gsb3se.model.problem import Problem
from gsb3se.posterior.chain_mixing import Mixing
from gsb3se.posterior.families import BentStudent, Draws, Family, LogisticNormal
from gsb3se.posterior.posterior import Posterior
from gsb3se.posterior.status import Diagnostics, Finding, Measures, Status
from gsb3se.support.files import load_arrays, save_arrays, whole

_DRAWS_PREFIX = "draws_"
_OLD_MEASURES = ("tau_q", "prior_share", "effective_draws")  # figures of files without measures


def save_posterior(posterior: Posterior, path: str | os.PathLike[str]) -> None:
    """Save to one NPZ file."""
    form, diagnostics = posterior.form, posterior.diagnostics
    arrays: dict[str, Any] = {"form": form.kind}
    if isinstance(form, Draws):
        arrays |= {"q": form.q, "r": form.r}
        arrays |= {f"{_DRAWS_PREFIX}{name}": value for name, value in form.others.items()}
    else:
        arrays |= vars(form)
    arrays["confusion_mean"] = posterior.confusion_mean
    about: dict[str, Any] = {
        "backend": posterior.backend,
        "n_target": posterior.n_target,
        "status": diagnostics.status.value,
        "message": diagnostics.message,
        "figures": diagnostics.figures,
        "measures": asdict(diagnostics.measures),
        "findings": [
            [finding.status.value, finding.sentence, finding.remedy]
            for finding in diagnostics.findings
        ],
        "flags": [[label, *flags] for label, flags in diagnostics.flags.items()],
    }
    if posterior.problem is not None:
        about["prior"] = astuple(posterior.problem.prior)
        for part in ("counts", "graph"):
            inside = getattr(posterior.problem, part).to_arrays()
            arrays |= {f"{part}_{name}": value for name, value in inside.items()}
    arrays |= {"labels": posterior.labels, "about": json.dumps(about, default=_plain)}
    present = {name: value for name, value in arrays.items() if value is not None}
    save_arrays(path, "Posterior", **present)


def load_posterior(path: str | os.PathLike[str]) -> Posterior:
    """Load what :func:`save_posterior` wrote."""
    arrays: dict[str, Any] = load_arrays(
        path, "Posterior", "form", "labels", "about", optional=None
    )
    with whole(path):
        form = _form(arrays)
        about = json.loads(str(arrays["about"]))
        diagnostics = _diagnostics(about)
        labels = tuple(arrays["labels"].tolist())
        backend, n_target = str(about["backend"]), about["n_target"]
        if not isinstance(n_target, int | None) or isinstance(n_target, bool):
            raise ValueError("its metadata are not those of a posterior")
        if n_target is not None and n_target < 1:
            raise ValueError(f"it is of {n_target} target predictions")
        problem = _problem(arrays, about, path)
        if problem is not None and problem.counts.labels != labels:
            raise ValueError("its labels are not those of its counts")
        confusion = arrays.get("confusion_mean")
        if confusion is not None:
            _check_columns(confusion)
        posterior = Posterior(form, labels, diagnostics, backend, confusion, n_target, problem)
        with np.errstate(all="ignore"):
            if not (np.isfinite(posterior.mean).all() and np.isfinite(posterior.sd).all()):
                raise ValueError("its shares are not finite numbers")
        return posterior


def _check_columns(confusion: NDArray[Any]) -> None:
    """Raise ValueError unless the columns of a confusion matrix are shares."""
    if confusion.dtype.kind != "f" or confusion.ndim != 2 or not (confusion >= 0).all():
        raise ValueError("confusion_mean must be a matrix of shares")
    if not np.allclose(confusion.sum(axis=0), 1, atol=1e-3):
        raise ValueError("the columns of confusion_mean must sum to one")


def _form(arrays: dict[str, Any]) -> Family:
    if arrays["form"] == Draws.kind:
        others = {
            name.removeprefix(_DRAWS_PREFIX): values
            for name, values in arrays.items()
            if name.startswith(_DRAWS_PREFIX)
        }
        return Draws(arrays["q"], arrays.get("r"), others)
    if arrays["form"] == LogisticNormal.kind:
        r_mean, r_factor = arrays.get("r_mean"), arrays.get("r_factor")
        return LogisticNormal(arrays["mean"], arrays["factor"], r_mean, r_factor)
    if arrays["form"] == BentStudent.kind:
        needed = {k: arrays[k] for k in ("centre", "scale", "skew", "tail", "factor", "freedom")}
        rows = ("columns", "follows", "observed", "row_sd")
        return BentStudent(**needed, **{k: arrays[k] for k in rows if k in arrays})
    raise ValueError(f"unknown form {str(arrays['form'])!r}")


def _diagnostics(about: dict[str, Any]) -> Diagnostics:
    """What was saved of a posterior's diagnostics."""
    message, figures = about["message"], about["figures"]
    is_message = isinstance(message, str) and bool(message)
    if not is_message or not isinstance(figures, dict):
        raise ValueError("its metadata are not those of a posterior")
    findings = tuple(
        Finding(Status(status), str(sentence), str(remedy))
        for status, sentence, remedy in about.get("findings", [])
    )
    flags = {
        label: tuple(filter(None, map(str, sentences)))
        for label, *sentences in about.get("flags", [])
    }
    measures = about.get("measures", {name: figures.get(name) for name in _OLD_MEASURES})
    status = Status(about["status"])
    return Diagnostics(status, message, figures, findings, flags, _measures(measures))


def _measures(kept: dict[str, Any]) -> Measures:
    """Numbers that code will go by, checked to be such."""
    mixing = kept.pop("mixing", None)
    if mixing is not None:
        _check_numbers(mixing)
        mixing = Mixing(**mixing)
    _check_numbers(kept)
    return Measures(mixing=mixing, **kept)


def _check_numbers(by_name: dict[str, Any]) -> None:
    for name, value in by_name.items():
        if not isinstance(value, int | float | None):
            raise ValueError(f"its figure {name!r} is no number")


def _problem(
    arrays: dict[str, Any], about: dict[str, Any], path: str | os.PathLike[str]
) -> Problem | None:
    """The problem that was saved with a posterior, if one was."""
    if "prior" not in about:
        return None
    counts, graph = (
        {name[len(part) :]: value for name, value in arrays.items() if name.startswith(part)}
        for part in ("counts_", "graph_")
    )
    prior = Prior(*about["prior"])
    return Problem(ShiftCounts.from_arrays(counts), LabelGraph.from_arrays(graph, path), prior)


def _plain(value: Any) -> Any:
    """numpy's scalars and arrays as JSON knows them."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"a diagnostic figure must be a number, text or a list; got {type(value)}")
