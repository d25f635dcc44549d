"""What a result says about itself: a status, the remedy, and the figures behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from gsb3se.counts import ShiftCounts
from gsb3se.errors import some_of
from gsb3se.labels import Label
from gsb3se.simplex import Matrix, Vector

if TYPE_CHECKING:
    from gsb3se.posterior import Posterior

_DENSE_SINGULAR_VALUES = 1500  # classes up to which all singular values are computed
_SINGULAR = 1e-10  # of the largest singular value: below it the matrix has no inverse
_SIMULATED_CURVES = 2000
_CLEAR = 2.0  # standard errors of the smallest singular value
_CLEARLY_IN_IT = 0.25  # of the largest squared entry: classes that make up such a direction


class Status(Enum):
    """How far a posterior can be relied on; the value is a word, ``text`` cause and remedy.

    >>> Status.OK.value
    'ok'
    """

    OK = "ok"
    NOT_IDENTIFIED = "not identified"
    TOO_FEW_DRAWS = "too few draws"
    CHAINS_DISAGREE = "chains disagree"
    DIVERGENT = "divergent"
    SEVERAL_MODES = "several modes"
    STRENGTHS_OPEN = "strengths open"
    UNSEEN_CONFUSIONS = "unseen confusions"
    UNFAMILIAR = "unfamiliar"
    NOT_A_MAXIMUM = "not a maximum"
    COLLAPSED = "collapsed"
    NOT_CONVERGED = "not converged"

    @property
    def is_ok(self) -> bool:
        """Whether there is nothing to say."""
        return self is Status.OK

    @property
    def text(self) -> str:
        """The cause, and what to do."""
        return _TEXTS[self]

    @property
    def severity(self) -> int:
        """Place in the list above: of several findings the last one names the result."""
        return list(Status).index(self)


_TEXTS = {
    Status.OK: "nothing stands against using the result",
    Status.NOT_IDENTIFIED: (
        "the prior fills the gap: collect what is missing, or merge classes that the classifier "
        "cannot tell apart"
    ),
    Status.TOO_FEW_DRAWS: (
        "the chains hold too few independent draws for reliable intervals: raise draws"
    ),
    Status.CHAINS_DISAGREE: (
        "the chains have not mixed: raise warmup and draws; if it stays, the posterior has several "
        "modes, and more validation rows are what helps"
    ),
    Status.DIVERGENT: (
        "the sampler met places too steep for its step, so that parts of the posterior may be "
        "missing: with hmc raise target_accept towards 0.99, otherwise use backend='hmc'"
    ),
    Status.STRENGTHS_OPEN: (
        "the validation counts hardly tell how strongly the columns are smoothed: intervals may be "
        "off; collect more validation rows, or compare with backend='hmc'"
    ),
    Status.UNSEEN_CONFUSIONS: (
        "intervals may be too narrow, and shares too near to what was counted: use the anchored "
        "prior, which knows what confusions to expect, or collect more validation rows"
    ),
    Status.UNFAMILIAR: (
        "the encoder was not trained on such problems, and its answer may be off: use "
        "backend='structured'"
    ),
    Status.SEVERAL_MODES: (
        "the posterior has more than one mode, and this Gaussian knows the one it ended at: use "
        "backend='hmc'"
    ),
    Status.NOT_A_MAXIMUM: (
        "the solver ended where the posterior still rises in some direction, and no Gaussian fits "
        "there: use backend='hmc'"
    ),
    Status.COLLAPSED: (
        "the joint mode over tau has run to q uniform and columns that guess, as it does when "
        "labels are few: use tau='marginal' or backend='hmc'"
    ),
    Status.NOT_CONVERGED: "the solver stopped at its limit before it was done: raise max_steps",
}


@dataclass(frozen=True)
class Finding:
    """One thing to know about a result."""

    status: Status
    sentence: str


@dataclass(frozen=True)
class Diagnostics:
    """Status, message with the remedy, and figures; ``Posterior.diagnostics``.

    Attributes:
        status: the gravest of what was found.
        message: every finding in a sentence, each with its remedy.
        figures: numbers behind it, by name; lists have an entry a class.

    >>> Diagnostics.of([], {"steps": 7})
    Diagnostics(status=<Status.OK: 'ok'>, message='ok', figures={'steps': 7})
    """

    status: Status
    message: str
    figures: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, findings: Sequence[Finding], figures: Mapping[str, Any]) -> Diagnostics:
        """Sum up findings, the gravest first."""
        if not findings:
            return cls(Status.OK, Status.OK.value, dict(figures))
        ordered = sorted(findings, key=lambda found: -found.status.severity)
        sentences = []
        for found in ordered:
            told = f"{found.status.value}: {found.sentence}"
            if found is next(other for other in ordered if other.status is found.status):
                told += f" ({found.status.text})"
            sentences.append(told)
        return cls(ordered[0].status, "; ".join(sentences), dict(figures))


@dataclass(frozen=True, eq=False)
class Identifiability:
    """What the counts can say about q, before any inference.

    Attributes:
        smallest_singular_value, condition_number: of the estimated confusion matrix C~.
        noise: standard error of C~ along its weakest direction, in the same unit as the singular
            value: below twice the noise the direction is not clearly seen in the data.
        weakest: classes whose shares trade off against each other along such directions.
        without_validation, never_predicted: classes by name.
        about_source, about_target: what of this stands against the result.
    """

    smallest_singular_value: float
    condition_number: float
    noise: float
    weakest: tuple[Label, ...]
    without_validation: tuple[Label, ...]
    never_predicted: tuple[Label, ...]
    about_source: tuple[Finding, ...]
    about_target: tuple[Finding, ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What stands against the result."""
        return self.about_source + self.about_target

    def of_target(self, counts: ShiftCounts) -> Identifiability:
        """The same for another target of the same validation counts."""
        never = counts.never_predicted
        return replace(self, never_predicted=never, about_target=_few_targets(counts))

    def figures(self) -> dict[str, Any]:
        """The attributes for ``Diagnostics.figures``."""
        return {
            "smallest_singular_value": self.smallest_singular_value,
            "condition_number": self.condition_number,
            "noise_along_weakest": self.noise,
            "weakest_direction": list(self.weakest),
            "without_validation": list(self.without_validation),
            "never_predicted": list(self.never_predicted),
        }


def identifiability(
    counts: ShiftCounts,
    directions: tuple[Vector, Matrix] | None = None,
    spectrum: bool = True,
) -> Identifiability:
    """Say what the counts cannot determine: O(K^3) up to 1,500 classes, sparse beyond.

    Args:
        counts: validation and target counts.
        directions: :func:`weak_directions` of the same validation counts, if they are known.
        spectrum: whether singular values are looked at, which is most of the time; without them
            their figures are nan.

    >>> alike = ShiftCounts([[30, 30], [20, 20]], [60, 40], labels=["cat", "dog"])
    >>> found = identifiability(alike)
    >>> found.findings[0].status.value, found.weakest
    ('not identified', ('cat', 'dog'))
    """
    sizes, n = counts.validation_sizes, counts.n_classes
    known = sizes > 0
    # Purity with one pseudo-count a column: a few rows that agree do not make it certain.
    squares = np.asarray(counts.confusion.astype(float).power(2).sum(axis=0))
    rows = sizes.astype(float)  # the square of a large count would wrap around
    purity = (squares + (2 * rows + 1) / n) / (rows + 1) ** 2
    variance = (1 - purity) / np.maximum(rows, 1)
    smallest = largest = noise = 0.0 if spectrum else float("nan")
    weakest: tuple[Label, ...] = ()
    if spectrum and known.any():
        values, vectors = weak_directions(counts) if directions is None else directions
        smallest, largest = float(values[-1]), float(values[0])
        errors = np.sqrt(vectors**2 @ variance[known])
        noise = float(errors[-1])
        unseen = values[-len(errors) :] <= np.maximum(_CLEAR * errors, _SINGULAR * largest)
        unseen[-1] = True
        weight = np.square(vectors[unseen]).sum(axis=0)
        chosen = np.flatnonzero(known)[weight > _CLEARLY_IN_IT * weight.max()]
        weakest = tuple(counts.labels[i] for i in chosen)
    missing = counts.without_validation
    findings = []
    if missing:
        findings.append(
            Finding(
                Status.NOT_IDENTIFIED,
                f"no validation row of {some_of(missing)}: how they are predicted, and with it "
                "their share, is known from the prior alone",
            )
        )
    if known.any() and smallest <= max(_CLEAR * noise, _SINGULAR * largest):
        findings.append(
            Finding(
                Status.NOT_IDENTIFIED,
                f"the predictions hardly tell {some_of(weakest)} apart (smallest singular value "
                f"{smallest:.2g}, its standard error {noise:.2g}): their sum is better known than "
                "each of them",
            )
        )
    if missing and spectrum:
        smallest = 0.0  # of the whole matrix, whose columns of unseen classes are zero
    return Identifiability(
        smallest,
        _ratio(largest, smallest),
        noise,
        weakest,
        missing,
        counts.never_predicted,
        tuple(findings),
        _few_targets(counts),
    )


def _few_targets(counts: ShiftCounts) -> tuple[Finding, ...]:
    if counts.n_target >= counts.n_classes:
        return ()
    told = (
        f"fewer target predictions ({counts.n_target}) than classes ({counts.n_classes}): most of "
        "the answer is the prior's"
    )
    return (Finding(Status.NOT_IDENTIFIED, told),)


def _ratio(largest: float, smallest: float) -> float:
    if np.isnan(smallest):
        return smallest
    return float(largest / smallest) if smallest > _SINGULAR * largest else float("inf")


def weak_directions(counts: ShiftCounts) -> tuple[Vector, Matrix]:
    """Singular values, falling, and the directions in q of the last of them, a row each.

    Of the confusion rates of all classes with validation rows. All of them up to 1,500 classes; of
    more, the largest value and the weakest direction.
    """
    columns = counts.confusion_rates[:, np.flatnonzero(counts.validation_sizes > 0)]
    if columns.shape[1] <= _DENSE_SINGULAR_VALUES:
        _, values, right = np.linalg.svd(columns.toarray(), full_matrices=False)
        return values, right
    from scipy.sparse.linalg import eigsh

    # C'C is sparse; shifted a little below zero, its smallest eigenvalue is found by inversion.
    gram = sparse.csc_array(columns.T @ columns)
    start = np.random.default_rng(0).standard_normal(columns.shape[1])
    largest = float(eigsh(gram, k=1, v0=start, return_eigenvectors=False)[0])
    value, vector = eigsh(gram, k=1, sigma=-1e-10 * largest, v0=start)
    smallest = value[0] if value[0] > 1e-14 * largest else 0.0  # squares have half the digits
    return np.sqrt([largest, smallest]), vector.T


@dataclass(frozen=True, eq=False)
class EffectiveInformation:
    """What the counts say about theta on the sum-zero space, beside what the prior says.

    Attributes:
        information: (K, K) J'(D^-1 + S)^-1 J: of the target counts, the columns' own uncertainty
            taken into account; zero along 1.
        smallest: its smallest eigenvalue on the sum-zero space; zero if some direction is unseen.
        weakest: (K,) that direction.
        shrinkage: (K,) share of each class's log share that is the prior's: 0 where the counts
            alone speak, 1 where they say nothing.
        variance_bound: 1 / (tau_q lambda_2 + smallest), above every variance of theta.
    """

    information: Matrix
    smallest: float
    weakest: Vector
    shrinkage: Vector
    variance_bound: float


def effective_information(posterior: Posterior) -> EffectiveInformation:
    """The information about theta = log q in a posterior that knows E[C] and tau_q.

    Those by "structured", "hmc" and "variational" do.

    At the posterior mean of q and of the confusion matrix, with Cov(theta) = (tau_q L +
    information)^+ on the sum-zero space, no variance exceeds 1 / (tau_q lambda_2 + smallest).
    O(K^3).
    """
    found = _geometry(posterior)
    n = len(found.theta)
    values, vectors = np.linalg.eigh(found.information + np.ones((n, n)) * found.level / n)
    covariance = found.covariance
    kept = covariance @ (found.tau * found.laplacian)
    connectivity = float(np.linalg.eigvalsh(found.laplacian)[1])
    smallest = max(float(values[0]), 0.0)
    return EffectiveInformation(
        found.information,
        smallest,
        vectors[:, 0],
        np.clip(np.diag(kept) * n / (n - 1), 0.0, 1.0),
        1 / (found.tau * connectivity + smallest),
    )


@dataclass(frozen=True, eq=False)
class GraphSensitivity:
    """How q would move with the label graph.

    Attributes:
        edges: (E, 2) pairs of classes.
        change: (E, K) derivative of q by the relative weight of each edge, d q / d log w.
        strongest: (E,) total variation of q for a doubled weight, to first order.
        without_graph: (K,) the mean of q if the graph were dropped for the exchangeable one, to
            first order: mean + d q.
    """

    edges: NDArray[np.int64]
    change: Matrix
    strongest: Vector
    without_graph: Vector


def graph_sensitivity(posterior: Posterior) -> GraphSensitivity:
    """The derivative of q by every edge of the graph, for a posterior that knows E[C] and tau_q.

    Those by "structured", "hmc" and "variational" do.

    The mode moves by -tau_q Cov(theta) (dL) theta when the Laplacian does by dL, and q by
    diag(q) - qq' times that, tau_q held.
    """
    found = _geometry(posterior)
    q, theta = found.q, found.theta
    jacobian = (np.diag(q) - np.outer(q, q)) @ found.covariance
    upper = np.argwhere(np.triu(-found.laplacian, k=1) > 0)
    i, j = upper.T
    weight = -found.laplacian[i, j]
    pull = -found.tau * weight * (theta[i] - theta[j])
    change = pull[:, None] * (jacobian[:, i] - jacobian[:, j]).T
    n = len(q)
    exchangeable = np.eye(n) - 1 / n
    # Scaled to the graph's own mean degree: the shape is dropped, not the strength.
    exchangeable *= np.trace(found.laplacian) / np.trace(exchangeable)
    moved = -found.tau * jacobian @ ((exchangeable - found.laplacian) @ theta)
    return GraphSensitivity(
        upper,
        change,
        np.abs(change).sum(axis=1) / 2 * np.log(2),
        posterior.mean + moved,
    )


def _strength(posterior: Posterior) -> float:
    """tau_q, of the mode or the mean of its draws."""
    known = posterior.diagnostics.figures.get("tau_q")
    if known is None and hasattr(posterior.form, "others"):
        draws = posterior.form.others.get("tau_q")
        known = None if draws is None else np.mean(draws)
    if known is None:
        raise ValueError(
            f"a posterior by {posterior.backend!r} does not tell tau_q, the strength of the "
            "smoothing: infer it anew with backend='structured'"
        )
    return float(known)


class _Geometry(NamedTuple):
    q: Vector
    theta: Vector
    tau: float
    laplacian: Matrix
    information: Matrix
    covariance: Matrix
    level: float


def _geometry(posterior: Posterior) -> _Geometry:
    """Information and covariance of theta at the posterior mean."""
    problem = posterior.problem
    if problem is None or posterior.confusion_mean is None:
        raise ValueError(
            f"a posterior by {posterior.backend!r} without its problem or mean confusion matrix "
            "does not tell: infer it anew with backend='structured'"
        )
    q, confusion = posterior.mean, posterior.confusion_mean
    r = confusion @ q
    sizes = np.maximum(problem.column_sizes, 1.0)
    weight = q**2 / (sizes + 1)
    noise = np.diag(r / problem.target.sum() + confusion @ weight)
    noise -= (confusion * weight) @ confusion.T
    jacobian = confusion * q - np.outer(r, q)
    information = jacobian.T @ np.linalg.solve(noise, jacobian)
    information = (information + information.T) / 2
    laplacian = problem.graph.laplacian.toarray()
    tau = _strength(posterior)
    n = len(q)
    level = float(np.trace(information) / n + tau)
    whole = information + tau * laplacian + level / n
    covariance = (np.linalg.inv(whole) - 1 / (level * n)).astype(float)
    log_q = np.log(q)
    return _Geometry(q, log_q - log_q.mean(), tau, laplacian, information, covariance, level)


def rank_uniformity(ranks: ArrayLike, largest: int, seed: int = 0) -> float:
    """How likely ranks this uneven are if they are uniform on 0..largest.

    The statistic is the least likely of all points of the ranks' cumulative counts, so that a value
    of at least 0.05 means that the whole curve lies within its 95 % simultaneous band (Säilynoja,
    Bürkner and Vehtari, 2022).

    Args:
        ranks: (n,) of the truth among ``largest`` draws, one a simulated data set.

    >>> rank_uniformity(np.arange(100), largest=99) > 0.05, rank_uniformity([3] * 100, 99) < 0.05
    (True, True)
    """
    observed = np.asarray(ranks)
    whole = observed.ndim == 1 and observed.size > 0 and observed.dtype.kind in "iu"
    if not whole or observed.min() < 0 or observed.max() > largest:
        raise ValueError(f"ranks must be whole numbers from 0 to {largest}, one a data set")
    from scipy.stats import binom  # slow to import, and needed by nobody else

    rng = np.random.default_rng(seed)
    simulated = rng.integers(largest + 1, size=(_SIMULATED_CURVES, len(observed)))
    level = np.arange(1, largest + 1) / (largest + 1)

    def extremity(sets: NDArray[np.int64]) -> Vector:
        below = np.array([np.bincount(one, minlength=largest + 1) for one in sets])
        below = below.cumsum(axis=1)[:, :-1]
        lower = binom.cdf(below, len(observed), level)
        upper = binom.sf(below - 1, len(observed), level)
        return np.minimum(lower, upper).min(axis=1)

    return float(np.mean(extremity(simulated) <= extremity(observed[None])[0]))
