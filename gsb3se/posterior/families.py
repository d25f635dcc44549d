"""The families of posteriors: draws, a Gaussian over the log shares, or a bent Student t."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve
from scipy.linalg.lapack import dtrtri, strtri
from scipy.special import gammaincinv

from gsb3se.support.limits import FEWER_SUMMARY_DRAWS
from gsb3se.support.simplex import Matrix, Vector, softmax

_SUMMARY_PAIRS = 4096  # antithetic pairs behind the summaries of a parametric family
_LEVELS = 256
_BENT_PAIRS, _FEWER_BENT_PAIRS = 1024, 512  # of a bent one, and of many classes


class DrawnShares(NamedTuple):
    """Draws of the class prior q and, where known, of the predicted shares r = C q; (n, K) each."""

    q: Matrix
    r: Matrix | None


@dataclass(frozen=True, eq=False)
class Draws:
    """A posterior as draws.

    Attributes:
        q: (chains, draws, K).
        r: the same shape, predicted shares C q of the same draws.
        others: further draws by name, (chains, draws) each: tau_q, tau_C, alpha, beta, and what
            the sampler says about each draw.
    """

    kind: ClassVar[str] = "draws"  # in files and in words

    q: NDArray[np.float64]
    r: NDArray[np.float64] | None = None
    others: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        q = frozen(self.q, "q")
        if q.ndim != 3 or min(q.shape[:2]) < 1 or q.shape[2] < 2:
            raise ValueError(f"q must be (draws, K) or (chains, draws, K); got {q.shape}")
        _check_shares(q, "q")
        object.__setattr__(self, "q", q)
        if self.r is not None:
            r = frozen(self.r, "r")
            if r.shape != q.shape:
                raise ValueError(f"r must have the shape of q, {q.shape}; got {r.shape}")
            _check_shares(r, "r")
            object.__setattr__(self, "r", r)
        for name, values in self.others.items():
            if np.shape(values) != q.shape[:2]:
                raise ValueError(
                    f"draws of {name} must be {q.shape[:2]} as those of q; got {np.shape(values)}"
                )

    @property
    def n_classes(self) -> int:
        return self.q.shape[-1]

    def shares(self) -> Matrix:
        """Every draw of q, chain after chain."""
        return self.q.reshape(-1, self.n_classes)

    def sample(self, n: int, rng: np.random.Generator) -> DrawnShares:
        """Draws at random; none twice while there are enough."""
        q, r = self.shares(), self.r
        chosen = rng.choice(len(q), n, replace=n > len(q))
        return DrawnShares(q[chosen], None if r is None else r.reshape(q.shape)[chosen])


@dataclass(frozen=True, eq=False)
class LogisticNormal:
    """A posterior as a Gaussian over theta and, where known, over log r.

    With z ~ N(0, I), q = softmax(mean + factor z) and r = softmax(r_mean + r_factor z).

    Attributes:
        mean: (K,); factor: (K, d).
        r_mean: (K,); r_factor: (K, d), or None.
    """

    kind: ClassVar[str] = "logistic-normal"

    mean: Vector
    factor: Matrix
    r_mean: Vector | None = None
    r_factor: Matrix | None = None

    def __post_init__(self) -> None:
        if np.ndim(self.mean) != 1 or len(self.mean) < 2:
            raise ValueError(f"theta must be (K,), at least 2; got shape {np.shape(self.mean)}")
        if np.ndim(self.factor) != 2 or len(self.factor) != len(self.mean):
            raise ValueError(f"factor must be ({len(self.mean)}, d); got {np.shape(self.factor)}")
        shapes = {"mean": np.shape(self.mean), "factor": np.shape(self.factor)}
        shapes |= {"r_mean": shapes["mean"], "r_factor": shapes["factor"]}
        if (self.r_mean is None) != (self.r_factor is None):
            raise ValueError("r_mean and r_factor come together")
        for name, shape in shapes.items():
            if (value := getattr(self, name)) is None:
                continue
            if np.shape(value) != shape:
                raise ValueError(f"{name} must be {shape}; got {np.shape(value)}")
            object.__setattr__(self, name, frozen(value, name))

    @property
    def n_classes(self) -> int:
        return len(self.mean)

    def shares(self) -> Matrix:
        """A fixed set of antithetic draws of q, for summaries."""
        half = np.random.default_rng(0).standard_normal((_SUMMARY_PAIRS, self.factor.shape[1]))
        moved = half @ self.factor.T
        return softmax(self.mean + np.concatenate([moved, -moved]), axis=1)

    def sample(self, n: int, rng: np.random.Generator) -> DrawnShares:
        """Independent draws."""
        white = rng.standard_normal((n, self.factor.shape[1]))
        q = softmax(self.mean + white @ self.factor.T, axis=1)
        if self.r_mean is None or self.r_factor is None:
            return DrawnShares(q, None)
        return DrawnShares(q, softmax(self.r_mean + white @ self.r_factor.T, axis=1))


@dataclass(frozen=True, eq=False)
class BentStudent:
    """A posterior as a Student t over the log shares, sinh-arcsinh transformed by class.

    q = softmax(x), x_i = centre_i + scale_i bend_i(w_i), where w is a Student t of precision R =
    factor factor' on the hyperplane a'w = 0, a = R (1 / scale), and bend(w) = (sinh(tail asinh(w) +
    skew) - sinh(skew)) / (tail cosh(skew)) rises, is 0 at 0 and has slope one there. The predicted
    shares given q are (1 - follows) columns q + follows observed, each times exp(row_sd noise),
    brought to the sum one.

    Attributes:
        centre, scale, skew, tail: (K,); factor: (K, K) lower; freedom: degrees of freedom.
        columns: (K, K) mean of C; follows, observed, row_sd: (K,); or none of the four.
    """

    kind: ClassVar[str] = "bent student"

    centre: Vector
    scale: Vector
    skew: Vector
    tail: Vector
    factor: Matrix
    freedom: float
    columns: Matrix | None = None
    follows: Vector | None = None
    observed: Vector | None = None
    row_sd: Vector | None = None

    def __post_init__(self) -> None:
        n = len(np.atleast_1d(self.centre))
        if np.shape(self.factor) != (n, n) or n < 2:
            raise ValueError(f"factor must be ({n}, {n}), at least 2; got {np.shape(self.factor)}")
        object.__setattr__(self, "factor", frozen(self.factor, "factor"))
        for name in ("centre", "scale", "skew", "tail"):
            if np.shape(getattr(self, name)) != (n,):
                raise ValueError(f"{name} must be ({n},); got {np.shape(getattr(self, name))}")
            object.__setattr__(self, name, frozen(getattr(self, name), name))
        object.__setattr__(self, "freedom", float(self.freedom))
        if min(self.scale.min(), self.tail.min(), self.freedom) <= 0:
            raise ValueError("scale, tail and freedom must be positive")
        rows = {"columns": (n, n), "follows": (n,), "observed": (n,), "row_sd": (n,)}
        given = [name for name in rows if getattr(self, name) is not None]
        if given and len(given) < len(rows):
            raise ValueError(f"{', '.join(rows)} come together; got {', '.join(given)} alone")
        for name in given:
            if np.shape(getattr(self, name)) != rows[name]:
                raise ValueError(f"{name} must be {rows[name]}")
            object.__setattr__(self, name, frozen(getattr(self, name), name))

    @property
    def n_classes(self) -> int:
        return len(self.centre)

    def shares(self) -> Matrix:
        """A fixed set of antithetic draws of q, for summaries; in single precision."""
        pairs = _BENT_PAIRS if self.n_classes <= FEWER_SUMMARY_DRAWS else _FEWER_BENT_PAIRS
        half, levels = _white(self.n_classes, pairs)
        chance = gammaincinv(self.freedom / 2, levels) / (self.freedom / 2)
        moved = self._in_the_plane(half)
        moved /= np.tile(np.sqrt(chance).astype(np.float32), pairs // _LEVELS)
        np.arcsinh(moved, out=moved)
        return self._bent(np.concatenate([moved, -moved], axis=1)).T

    def sample(self, n: int, rng: np.random.Generator) -> DrawnShares:
        """Independent draws."""
        white = rng.standard_normal((n, self.n_classes)).T
        chance = rng.chisquare(self.freedom, n) / self.freedom
        q = self._bent(np.arcsinh(self._in_the_plane(white) / np.sqrt(chance))).T
        if self.columns is None or self.follows is None:
            return DrawnShares(q, None)
        r = (1 - self.follows) * (q @ self.columns.T) + self.follows * np.asarray(self.observed)
        r = r * np.exp(np.asarray(self.row_sd) * rng.standard_normal(q.shape))
        return DrawnShares(q, r / r.sum(axis=1, keepdims=True))

    def _in_the_plane(self, white: NDArray[Any]) -> NDArray[Any]:
        """Draws of N(0, R^-1) given a'w = 0 from white ones, (K, n)."""
        pull = self.factor @ (self.factor.T @ (1 / self.scale))
        pull = np.maximum(pull, 1e-6 * np.abs(pull).max())
        across = cho_solve((self.factor, True), pull)
        across /= pull @ across
        pull, across = pull.astype(white.dtype), across.astype(white.dtype)
        invert = strtri if white.dtype == np.float32 else dtrtri
        inverse, failed = invert(self.factor.astype(white.dtype), lower=1)
        if failed:
            raise ValueError("factor must have a positive diagonal")
        free = inverse.T @ white
        free -= np.outer(across, pull @ free)
        return free

    def _bent(self, stretched: NDArray[Any]) -> Matrix:
        """q from asinh(w), (K, n); in place, for it is most of the time of a summary."""
        slope = self.scale / (self.tail * np.cosh(self.skew))
        tail, skew, slope, centre = (
            part[:, None].astype(stretched.dtype)
            for part in (self.tail, self.skew, slope, self.centre - slope * np.sinh(self.skew))
        )
        stretched *= tail
        stretched += skew
        np.sinh(stretched, out=stretched)
        stretched *= slope
        stretched += centre
        stretched -= stretched.max(axis=0)
        np.exp(stretched, out=stretched)
        stretched /= stretched.sum(axis=0)
        return stretched


Family = Draws | LogisticNormal | BentStudent


@lru_cache(maxsize=2)
def _white(n_classes: int, pairs: int) -> tuple[NDArray[np.float32], Vector]:
    """White noise (K, pairs), the same at every call, and levels of a chi^2, evenly spread.

    A level serves several pairs: to invert a chi^2 takes as long as everything else of a draw.
    """
    rng = np.random.default_rng(0)
    half = rng.standard_normal((pairs, n_classes), dtype=np.float32).T.copy()
    levels = (np.arange(_LEVELS) + 0.5) / _LEVELS
    half.flags.writeable = levels.flags.writeable = False
    return half, levels


def four_chains(draws: NDArray[Any]) -> NDArray[Any]:
    """Independent draws (n, ...) as (4, n / 4, ...), as if of four chains.

    Tools that compare chains then have something to compare.
    """
    return draws[: len(draws) // 4 * 4].reshape(-1, 4, *draws.shape[1:]).swapaxes(0, 1)


def frozen(values: Any, name: str) -> NDArray[np.float64]:
    """Floats that nobody can change, a copy unless they are such; every number finite."""
    array = values if _is_fixed(values) else np.array(values)
    if array.dtype.kind not in "fiu" or not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite numbers")
    array = array.astype(float, copy=False)
    array.flags.writeable = False
    return array


def _is_fixed(values: Any) -> bool:
    """Whether these are numbers that nobody can change, or a part of such."""
    while isinstance(values, np.ndarray) and not values.flags.writeable:
        if values.base is None:
            return True
        values = values.base
    return False


def _check_shares(draws: NDArray[np.float64], name: str) -> None:
    if (draws < 0).any() or (np.abs(draws.sum(axis=-1) - 1) > 1e-6).any():
        raise ValueError(f"every draw of {name} must be non-negative and sum to one")
