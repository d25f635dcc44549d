"""Prior: the hyper-priors of the hierarchy and the optional anchor of the columns."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real

_RANGE = (1e-6, 1e6)  # beyond it numbers lose their digits, and nothing is meant


@dataclass(frozen=True)
class Prior:
    """Gamma(shape a, rate b) hyper-priors on both smoothing strengths; the paper's hierarchy.

    theta ~ N(0, (tau_q L)^+) and phi_i ~ N(mu_i, (tau_C L)^+), with mu_i = 0 unless anchored.

    Args:
        a_q, b_q: shape and rate of tau_q, the smoothness of the target log-prior.
        a_C, b_C: shape and rate of tau_C, the smoothness of each confusion column.
        anchor_sd: None for the paper's zero-mean columns. Otherwise the columns are centred on
            mu_i = alpha e_i + beta W[:, i] and alpha, beta ~ N(0, anchor_sd^2) are learned: a
            classifier mostly says the right label, and next most often a similar one.

    A zero-mean column is centred on a classifier that guesses; with few labels this shrinks the
    diagonal of C. :meth:`anchored` removes that pull.

    >>> Prior().is_anchored, Prior.anchored().is_anchored
    (False, True)
    """

    a_q: float = 1.0
    b_q: float = 1.0
    a_C: float = 1.0
    b_C: float = 1.0
    anchor_sd: float | None = None

    def __post_init__(self) -> None:
        for name in ("a_q", "b_q", "a_C", "b_C", "anchor_sd"):
            value = getattr(self, name)
            if value is None and name == "anchor_sd":
                continue
            number = isinstance(value, Real) and not isinstance(value, bool)
            if not (number and _RANGE[0] <= value <= _RANGE[1]):
                raise ValueError(
                    f"{name} must be a number from {_RANGE[0]:g} to {_RANGE[1]:g}; got {value!r}"
                )

    @classmethod
    def anchored(
        cls,
        a_q: float = 1.0,
        b_q: float = 1.0,
        a_C: float = 1.0,
        b_C: float = 1.0,
        anchor_sd: float = 5.0,
    ) -> Prior:
        """The hierarchy whose columns are centred on alpha e_i + beta W[:, i]."""
        return cls(a_q, b_q, a_C, b_C, anchor_sd)

    @classmethod
    def of(cls, prior: Prior | str | None) -> Prior:
        """A prior from its name, "anchored" or "paper"; None is the default, anchored.

        >>> Prior.of("paper") == Prior(), Prior.of(None) == Prior.anchored()
        (True, True)
        """
        if isinstance(prior, cls):
            return prior
        if prior is None or prior == "anchored":
            return cls.anchored()
        if prior == "paper":
            return cls()
        if isinstance(prior, str):
            raise ValueError(f"unknown prior {prior!r}: expected 'anchored', 'paper' or a gs.Prior")
        raise TypeError(f"prior must be 'anchored', 'paper' or a gs.Prior; got {prior!r}")

    @property
    def is_anchored(self) -> bool:
        """Whether alpha and beta are part of the model."""
        return self.anchor_sd is not None
