"""Posterior: what every backend returns."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gsb3se.model.adaptation import importance_weights
from gsb3se.model.problem import Problem
from gsb3se.posterior.families import Draws, Family, LogisticNormal, frozen
from gsb3se.posterior.status import Diagnostics
from gsb3se.support.errors import as_whole_number, require, some_of
from gsb3se.support.labels import Label, as_labels, printable
from gsb3se.support.limits import ROWS_SHOWN
from gsb3se.support.linear_algebra import covariance_root
from gsb3se.support.named_axes import in_order_of
from gsb3se.support.simplex import Matrix, Vector, as_distribution


class WeightSummary(NamedTuple):
    """Importance weights q_i / p_i: posterior mean, sd, and ends of the interval; (K,) each."""

    mean: Vector
    sd: Vector
    low: Vector
    high: Vector


@dataclass(frozen=True, eq=False, repr=False)
class Posterior:
    """The posterior of the target class prior q, the same object whatever made it.

    Attributes:
        form: :class:`Draws`, :class:`LogisticNormal` or :class:`BentStudent`.
        labels: the K class names.
        diagnostics: status, message with a remedy, figures.
        backend: the name of what made it.
        confusion_mean: (K, K) E[C] if the backend has it; columns sum to one.
        n_target: target predictions it was made from, if known.
        problem: counts, graph and prior it was made from, if known.

    >>> post = Posterior.from_draws([[0.2, 0.8], [0.4, 0.6]], labels=["cat", "dog"])
    >>> post.mean.round(3).tolist()
    [0.3, 0.7]
    >>> low, high = post.interval(0.9)
    """

    form: Family
    labels: tuple[Label, ...]
    diagnostics: Diagnostics
    backend: str = "unknown"
    confusion_mean: Matrix | None = None
    n_target: int | None = None
    problem: Problem | None = None

    def __post_init__(self) -> None:
        n = self.form.n_classes
        checked = self.problem is not None and self.labels is self.problem.counts.labels
        if not checked or len(self.labels) != n:
            object.__setattr__(self, "labels", as_labels(self.labels, n))
        if self.confusion_mean is not None:
            matrix = frozen(self.confusion_mean, "confusion_mean")
            if matrix.shape != (n, n):
                raise ValueError(f"confusion_mean must be ({n}, {n}); got {matrix.shape}")
            object.__setattr__(self, "confusion_mean", matrix)

    # Makers

    @classmethod
    def from_draws(
        cls,
        q: ArrayLike,
        r: ArrayLike | None = None,
        *,
        others: Mapping[str, ArrayLike] | None = None,
        labels: ArrayLike | tuple[Label, ...] | None = None,
        diagnostics: Diagnostics | None = None,
        **about: Any,
    ) -> Posterior:
        """A posterior from draws of q, (draws, K) or (chains, draws, K), and of r = C q."""
        draws, predicted = np.asarray(q), None if r is None else np.asarray(r)
        if draws.ndim == 2:
            draws, predicted = draws[None], None if predicted is None else predicted[None]
        kept = {name: np.asarray(value) for name, value in (others or {}).items()}
        return cls._of(Draws(draws, predicted, kept), labels, diagnostics, about)

    @classmethod
    def gaussian(
        cls,
        theta: ArrayLike,
        covariance: ArrayLike,
        *,
        labels: ArrayLike | tuple[Label, ...] | None = None,
        diagnostics: Diagnostics | None = None,
        **about: Any,
    ) -> Posterior:
        """A posterior q = softmax(theta), theta ~ N(theta, covariance); (K,) and (K, K)."""
        mean = np.asarray(theta, dtype=float)
        matrix = np.asarray(covariance, dtype=float)
        if mean.ndim != 1 or matrix.shape != (len(mean), len(mean)):
            raise ValueError(
                f"expected theta (K,) and covariance (K, K); got {mean.shape} and {matrix.shape}"
            )
        return cls._of(
            LogisticNormal(mean, covariance_root(matrix, strict=True)), labels, diagnostics, about
        )

    @classmethod
    def _of(
        cls,
        form: Family,
        labels: Any,
        diagnostics: Diagnostics | None,
        about: Mapping[str, Any],
    ) -> Posterior:
        n = form.n_classes
        names = tuple(range(n)) if labels is None else labels
        return cls(form, names, diagnostics or Diagnostics.of([], {}), **about)

    # Summaries

    @property
    def n_classes(self) -> int:
        """K."""
        return self.form.n_classes

    @cached_property
    def _draws(self) -> Matrix:
        return self.form.shares()

    @cached_property
    def _sorted(self) -> Matrix:
        """(K, n) the draws of each class in rising order: side by side they are sorted fast."""
        return np.sort(np.ascontiguousarray(self._draws.T), axis=1)

    @cached_property
    def mean(self) -> Vector:
        """(K,) E[q], a distribution."""
        return frozen(self._draws.mean(axis=0, dtype=float), "mean")

    @cached_property
    def sd(self) -> Vector:
        """(K,) posterior standard deviations of q."""
        away = self._draws - self.mean.astype(self._draws.dtype)
        squares = np.einsum("ni,ni->i", away, away, dtype=float)
        return frozen(np.sqrt(squares / max(len(away) - 1, 1)), "sd")

    def quantile(self, p: ArrayLike) -> NDArray[np.float64]:
        """Quantiles of every q_i: (K,) for a number p, (P, K) for P of them."""
        asked = np.asarray(p, dtype=float)
        if asked.ndim > 1 or not ((asked >= 0) & (asked <= 1)).all():
            raise ValueError(f"p must be a number between 0 and 1, or several of them; got {p!r}")
        place = asked * (len(self._draws) - 1)
        below = np.floor(place).astype(int)
        above = np.minimum(below + 1, len(self._draws) - 1)
        low, high = (self._sorted[:, at].T.astype(float) for at in (below, above))
        return low + (place - below)[..., None] * (high - low)

    def interval(self, level: float = 0.9) -> tuple[Vector, Vector]:
        """Equal-tailed credible intervals: (low, high), (K,) each."""
        low, high = self.quantile(_tails(level))
        return low, high

    def sample(self, n: int, seed: int | np.random.Generator = 0) -> Matrix:
        """(n, K) draws of q."""
        n = as_whole_number(n, "n", least=1)
        return self.form.sample(n, np.random.default_rng(seed)).q

    def predictive(
        self, n_target: int, size: int, seed: int | np.random.Generator = 0
    ) -> NDArray[np.int64]:
        """Posterior predictive counts of predictions on a new target set, (size, K).

        Each row is Multinomial(n_target, C q) with a draw of (C, q) of its own. Compare them with
        the observed counts to see whether the model fits them.
        """
        n_target = as_whole_number(n_target, "n_target", least=1)
        size = as_whole_number(size, "size", least=1)
        rng = np.random.default_rng(seed)
        r = self.form.sample(size, rng).r
        if r is None:
            raise ValueError(
                f"this posterior, made by {self.backend!r}, holds no draws of the predicted shares "
                "C q: use another backend for predictive counts"
            )
        return rng.multinomial(n_target, r / r.sum(axis=1, keepdims=True))

    def importance_weights(self, source_prior: ArrayLike, level: float = 0.9) -> WeightSummary:
        """q_i / p_i, the weight of a source row of class i in the target, with intervals.

        >>> post = Posterior.from_draws([[0.2, 0.8], [0.4, 0.6]])
        >>> post.importance_weights([0.5, 0.5]).mean.round(3).tolist()
        [0.6, 1.4]
        """
        p = self._by_class(source_prior, "source_prior")
        if (p == 0).any():
            absent = [self.labels[i] for i in np.flatnonzero(p == 0)]
            raise ValueError(
                f"source_prior is 0 for {some_of(absent)}: no source row can stand for them"
            )
        mean = importance_weights(self.mean, p)
        scale = np.divide(mean, self.mean, where=self.mean > 0, out=np.zeros_like(mean))
        low, high = self.interval(level)
        return WeightSummary(mean, scale * self.sd, scale * low, scale * high)

    def l1_distance(self, prior: ArrayLike) -> Vector:
        """Draws of sum_i |q_i - p_i|, (n,): how far the target is from a class prior p.

        Posterior noise alone makes this distance positive: many classes and few target predictions
        give a large distance without any shift.

        >>> post = Posterior.from_draws([[0.2, 0.8], [0.4, 0.6]])
        >>> post.l1_distance([0.5, 0.5]).round(3).tolist()
        [0.6, 0.2]
        """
        p = self._by_class(prior, "prior").astype(self._draws.dtype)
        away = self._draws - p
        np.abs(away, out=away)
        return (away @ np.ones_like(p)).astype(float)  # a sum, as fast whatever lies side by side

    def _by_class(self, shares: ArrayLike, name: str) -> Vector:
        """(K,) shares in the order of the labels, which a Series may name in another."""
        ordered = in_order_of(self.labels, shares, name)
        return as_distribution(ordered, name, self.n_classes)

    # Showing

    def rows(self, level: float = 0.9) -> dict[str, list[Any]]:
        """Columns ``class``, ``mean``, ``sd``, ``low``, ``high``; one entry a class."""
        low, high = self.interval(level)
        numbers = {"mean": self.mean, "sd": self.sd, "low": low, "high": high}
        return {"class": list(self.labels)} | {
            name: values.tolist() for name, values in numbers.items()
        }

    def to_frame(self, level: float = 0.9) -> Any:
        """:meth:`rows` as a pandas DataFrame."""
        return require("pandas", extra="batch").DataFrame(self.rows(level))

    def summary(self, level: float = 0.9) -> str:
        """A table to read: the most frequent classes, their intervals, and the status.

        >>> print(Posterior.from_draws([[0.2, 0.8], [0.4, 0.6]], labels=["cat", "dog"]).summary())
        Posterior of 2 class shares by unknown, 90 % intervals; status: ok
        class    mean      sd     low    high
        dog    0.7000  0.1414  0.6100  0.7900
        cat    0.3000  0.1414  0.2100  0.3900
        """
        columns = self.rows(level)
        order = np.argsort(-self.mean, kind="stable")
        names = [printable(self.labels[i]) for i in order[:ROWS_SHOWN]]
        width = max(len("class"), *(len(name) for name in names))
        lines = [
            f"Posterior of {self.n_classes} class shares by {self.backend}, {100 * level:.3g} % "
            f"intervals; status: {self.diagnostics.status.value}"
        ]
        if not self.diagnostics.status.is_ok:
            lines.append(self.diagnostics.message)
        numbers = ("mean", "sd", "low", "high")
        lines.append(f"{'class':{width}s}" + "".join(f"{name:>8s}" for name in numbers))
        for name, i in zip(names, order, strict=False):
            figures = "".join(f"{columns[number][i]:8.4f}" for number in numbers)
            lines.append(f"{name:{width}s}{figures}")
        if self.n_classes > ROWS_SHOWN:
            lines.append(f"... and {self.n_classes - ROWS_SHOWN} classes with smaller shares")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return (
            f"Posterior({self.n_classes} classes, {self.form.kind} by {self.backend}, "
            f"status {self.diagnostics.status.value!r})"
        )

    def to_arviz(self) -> Any:
        """ArviZ's container: an InferenceData with arviz 0.x, a DataTree with 1.x."""
        from gsb3se.posterior.arviz_bridge import to_arviz

        return to_arviz(self)

    # Files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save to one NPZ file, which loads without the backend that made it."""
        from gsb3se.posterior.storage import save_posterior

        save_posterior(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Posterior:
        """Load what :meth:`save` wrote."""
        from gsb3se.posterior.storage import load_posterior

        return load_posterior(path)


def _tails(level: float) -> tuple[float, float]:
    if not isinstance(level, Real) or not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, for instance 0.9; got {level!r}")
    return (1 - level) / 2, (1 + level) / 2
