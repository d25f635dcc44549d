"""The one place that knows ArviZ, in its 0.x and 1.x interfaces."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gsb3se.support.errors import require

if TYPE_CHECKING:
    from gsb3se.posterior.posterior import Posterior

_PARAMETERS = ("tau_q", "tau_C", "alpha", "beta")
_GAUSSIAN_DRAWS = 4000


def to_arviz(posterior: Posterior) -> Any:
    """Draws of a posterior as ArviZ's container, with its labels as coordinates."""
    from gsb3se.posterior.families import Draws

    form = posterior.form
    if isinstance(form, Draws):
        q, r, others = form.q, form.r, form.others
    else:
        shares = form.sample(_GAUSSIAN_DRAWS, np.random.default_rng(0))
        q, r, others = shares.q[None], None if shares.r is None else shares.r[None], {}
    groups: dict[str, dict[str, Any]] = {"posterior": {"q": q}}
    if r is not None:
        groups["posterior"]["r"] = r
    for name, values in others.items():
        group = "posterior" if name in _PARAMETERS else "sample_stats"
        groups.setdefault(group, {})[name] = values
    return _from_groups(
        groups, coords={"class": list(posterior.labels)}, dims={"q": ["class"], "r": ["class"]}
    )


class Convergence(NamedTuple):
    """Rank-normalised R-hat, bulk and tail effective sample sizes of several quantities, by name;
    an array of each quantity's shape."""

    r_hat: dict[str, Any]
    bulk_ess: dict[str, Any]
    tail_ess: dict[str, Any]


def convergence(draws: Mapping[str, NDArray[np.float64]]) -> Convergence:
    """How (chains, draws, ...) arrays have mixed.

    A single chain is compared with itself, one half with the other.
    """
    arviz = arviz_module()
    container = _from_groups(
        {"posterior": {name: _halved(values) for name, values in draws.items()}}
    )
    computed = (
        arviz.rhat(container),
        arviz.ess(container, method="bulk"),
        arviz.ess(container, method="tail"),
    )
    return Convergence(
        *({name: np.asarray(_dataset(each)[name]) for name in draws} for each in computed)
    )


def _halved(values: NDArray[np.float64]) -> NDArray[np.float64]:
    if len(values) > 1:
        return values
    half = values.shape[1] // 2
    return np.concatenate([values[:, :half], values[:, half : 2 * half]])


def arviz_module() -> Any:
    """ArviZ, or the command that installs it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # 0.x announces 1.x to everyone
        return require("arviz", extra="hmc")


def _from_groups(groups: dict[str, dict[str, Any]], **axes: Any) -> Any:
    arviz = arviz_module()
    if int(arviz.__version__.split(".")[0]) >= 1:
        return arviz.from_dict(groups, **axes)
    return arviz.from_dict(**groups, **axes)


def _dataset(found: Any) -> Any:
    """The Dataset itself, or within the DataTree of arviz 1.x."""
    return found["posterior"] if "posterior" in getattr(found, "children", ()) else found
