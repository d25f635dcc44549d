"""How much of a posterior is the prior's, and of which classes.

Given the columns' mean C and q, the target counts carry the information I = J'N^-1 J about theta,
with J = C (diag(q) - qq') and N the variance of the observed shares about C q: the counts' own, and
the columns' as far as n_i validation rows leave them open. The posterior covariance S = (tau_q L +
I)^+ of theta is then S tau_q L S + S I S: the prior's part and the counts' part. The same split of
every Var(q_i) shows whether the prior or the counts determine q_i.

A small singular value of the confusion matrix tells less: it belongs to some direction, which may
concern classes that hardly occur, or that the prior knows well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import solve_triangular
from scipy.linalg.lapack import dpotri, spotri
from scipy.sparse.csgraph import connected_components

from gsb3se.graph import LabelGraph
from gsb3se.model.counts import ShiftCounts
from gsb3se.model.problem import Problem
from gsb3se.posterior.families import Draws
from gsb3se.posterior.posterior import Posterior
from gsb3se.posterior.status import Finding, Flags, Status
from gsb3se.support.errors import some_of
from gsb3se.support.labels import Label
from gsb3se.support.limits import CONNECTIVITY, SINGLE_PRECISION_INFORMATION
from gsb3se.support.linear_algebra import filled_cholesky, sum_zero_inverse
from gsb3se.support.simplex import Matrix, Vector

_MOSTLY = 0.5  # share of the spread from which an answer is the prior's
_ALL = 0.9  # the same, however small the spread is
_MATTERS = 0.25  # L1 distance that is the prior's, from which this matters
_MATTERS_OF_SOME = 0.02  # the same of the classes that are flagged
_STRANGE = 0.2  # of the target's predictions, that validation rows never gave
_WIDE = 0.5  # sd of a share, in units of its mean
_OF_ONE = 0.004  # deviation of a class below which its confusions are not reported
_MANY_TARGETS, _MORE_ROWS = 1000.0, 10.0  # times as many: what would they change? Of validation
# rows not too many, or what is noise in C would count as known
_TAU_DRAWS = 128  # of theta, that tell tau_q where the backend does not
_LOOSE = 0.002  # algebraic connectivity of a graph that nearly falls apart, in mean degrees
_FEW = 50  # rows a class, that may be too few
_L1_OF_SD = np.sqrt(2 / np.pi)  # mean absolute deviation of a normal


@dataclass(frozen=True, eq=False)
class VarianceSplit:
    """Every Var(q_i), and how much of it is the prior's.

    Attributes:
        q: (K,) where it was looked at; variance, of_prior: (K,).
        covariance: (K, K) of q.
    """

    q: Vector
    variance: Vector
    of_prior: Vector
    covariance: Matrix

    @property
    def deviation(self) -> Vector:
        """(K,) mean absolute deviations of q; none exceeds twice its mean."""
        return np.minimum(_L1_OF_SD * np.sqrt(self.variance), 2 * self.q)

    @property
    def prior_share(self) -> float:
        """Of all deviations the share that is the prior's, 0 to 1."""
        return float(self.deviation @ self.of_prior / self.deviation.sum())


class TargetInformation(NamedTuple):
    """What the target counts know of theta, and the prior's part beside it.

    Attributes:
        q: (K,); confusion: (K, K) E[C]; sizes: (K,) validation rows; n_target: predictions.
        tau: tau_q; laplacian: L.
    """

    q: Vector
    confusion: Matrix
    sizes: Vector
    n_target: float
    tau: float
    laplacian: Any

    def information(self) -> Matrix:
        """(K, K) about theta; zero along 1. O(K^3)."""
        q, confusion = self.q, self.confusion
        r = confusion @ q
        weight = q**2 / (self.sizes + 1)
        noise = -(confusion * weight) @ confusion.T
        # Along 1, where no share moves, anything may be added: this keeps the matrix regular.
        noise += weight.sum() * np.outer(r, r)
        diagonal = np.diag_indices(len(q))
        noise[diagonal] += r / self.n_target + confusion @ weight
        noise[diagonal] = np.maximum(noise[diagonal], np.finfo(noise.dtype).tiny)
        scale = 1 / np.sqrt(noise[diagonal])
        factor = filled_cholesky(noise * scale[:, None] * scale)
        jacobian = (confusion * q - np.outer(r, q)) * scale[:, None]
        half = solve_triangular(factor, jacobian, lower=True, check_finite=False)
        return half.T @ half

    def covariance(self, information: Matrix) -> Matrix:
        """(K, K) of theta: (tau L + information)^+ on the sum-zero space. O(K^3)."""
        prior = (self.tau * self.laplacian.toarray()).astype(information.dtype)
        level = float(np.trace(information)) / len(self.q) + self.tau
        return sum_zero_inverse(information + prior, level, _scaled_inverse)

    def split(self) -> VarianceSplit:
        """Whose the spread of every share is. O(K^3)."""
        q = self.q
        covariance = self.covariance(self.information())
        moved = q[:, None] * covariance - np.outer(q, q @ covariance)  # dq / dtheta times it
        of_q = moved * q - np.outer(moved @ q, q)
        variance = np.maximum(np.diag(of_q), np.finfo(of_q.dtype).tiny).astype(float)
        rough = (self.laplacian @ moved.T).T
        of_prior = self.tau * np.einsum("ij,ij->i", rough, moved, dtype=float) / variance
        return VarianceSplit(q.astype(float), variance, np.clip(of_prior, 0.0, 1.0), of_q)


def _scaled_inverse(matrix: Matrix) -> Matrix:
    """The inverse of a positive matrix whose diagonal spans many orders of magnitude."""
    scale = 1 / np.sqrt(np.diag(matrix))
    factor = filled_cholesky(matrix * scale[:, None] * scale)
    invert = spotri if matrix.dtype == np.float32 else dpotri
    inverse = invert(factor, lower=1)[0]
    inverse += np.tril(inverse, -1).T - np.triu(inverse, 1)
    return inverse * scale[:, None] * scale


def identified(
    posterior: Posterior, q: Vector | None = None, confusion: Matrix | None = None
) -> Posterior:
    """The posterior, its diagnostics telling also what the prior fills in.

    Args:
        posterior: with its problem.
        q: (K,) where to look, by default the mean; confusion: (K, K) E[C], by default its own.
    """
    problem = posterior.problem
    assert problem is not None
    target = target_information(posterior, q, confusion)
    split = target.split()
    apart = _not_told_apart(target, split)
    flags = _flags(problem.counts, split, apart)
    findings = [*_findings(problem, target, split, apart), *_loose(problem.graph)]
    figures = {"prior_share": split.prior_share, "spread": float(split.deviation.sum())}
    diagnostics = posterior.diagnostics.and_also(
        findings, figures, flags, prior_share=split.prior_share
    )
    return replace(posterior, diagnostics=diagnostics)


def target_information(
    posterior: Posterior, q: Vector | None = None, confusion: Matrix | None = None
) -> TargetInformation:
    """What is needed of a posterior to say how much its target counts contribute."""
    problem = posterior.problem
    confusion = posterior.confusion_mean if confusion is None else confusion
    if problem is None or confusion is None:
        raise ValueError(
            f"this posterior by {posterior.backend!r} lacks its problem or mean confusion matrix, "
            "from which its information is computed: infer it anew with backend='structured'"
        )
    dtype = np.float32 if problem.n_classes > SINGLE_PRECISION_INFORMATION else float
    q = np.maximum(posterior.mean if q is None else q, np.finfo(np.float32).tiny)
    return TargetInformation(
        q.astype(dtype),
        np.asarray(confusion, dtype=dtype),
        np.maximum(problem.column_sizes, 1).astype(dtype),
        float(problem.target.sum()),
        strength(posterior),
        problem.graph.laplacian,
    )


def strength(posterior: Posterior) -> float:
    """tau_q: the mode's, the mean of its draws, or its mean given draws of theta."""
    if (tau_q := posterior.diagnostics.measures.tau_q) is not None:
        return tau_q
    if isinstance(posterior.form, Draws) and "tau_q" in posterior.form.others:
        return float(np.mean(posterior.form.others["tau_q"]))
    problem = posterior.problem
    assert problem is not None
    theta = np.log(np.maximum(posterior.sample(_TAU_DRAWS), np.finfo(float).tiny)).T
    prior = problem.share_prior
    return float(np.mean(prior.strength_given(prior.roughness(theta))))


def _not_told_apart(target: TargetInformation, split: VarianceSplit) -> list[list[int]]:
    """Groups of classes whose shares would trade off also if there were many predictions.

    For two such classes most of the variance of theta_i - theta_j is the prior's. Classes of small
    deviation are skipped, and n_target is raised, since few predictions separate no two classes.
    """
    unsure = np.flatnonzero((split.of_prior > _MOSTLY) & (split.deviation > _OF_ONE))
    if len(unsure) < 2:
        return []
    many = target._replace(n_target=_MANY_TARGETS * target.n_target)
    covariance = many.covariance(many.information())[unsure]
    of_prior = target.tau * covariance @ (target.laplacian @ covariance.T)
    alike = _of_differences(of_prior) > _MOSTLY * _of_differences(covariance[:, unsure])
    part = connected_components(sparse.coo_array(alike))[1]
    groups = [unsure[part == name].tolist() for name in range(part.max() + 1)]
    return [group for group in groups if len(group) > 1]


def _of_differences(covariance: Matrix) -> Matrix:
    """Variances of all differences x_i - x_j, zero on the diagonal."""
    diagonal = np.diag(covariance)
    return diagonal[:, None] + diagonal - 2 * covariance


def _flags(counts: ShiftCounts, split: VarianceSplit, apart: Sequence[Sequence[int]]) -> Flags:
    """What there is to say of single classes."""
    flags: dict[Label, list[str]] = {}
    for label in counts.without_validation:
        flags.setdefault(label, []).append("no validation rows")
    for label in counts.never_predicted:
        flags.setdefault(label, []).append("never predicted")
    for group in apart:
        for i in group:
            others = some_of([counts.labels[j] for j in group if j != i], most=3)
            flags.setdefault(counts.labels[i], []).append(f"cannot be told from {others}")
    for at in np.flatnonzero(np.sqrt(split.variance) > _WIDE * split.q):
        flags.setdefault(counts.labels[at], []).append("wide")
    return {label: tuple(sentences) for label, sentences in flags.items()}


def _findings(
    problem: Problem,
    target: TargetInformation,
    split: VarianceSplit,
    apart: Sequence[Sequence[int]],
) -> list[Finding]:
    labels, share = problem.counts.labels, split.prior_share
    open_by_class = split.deviation * split.of_prior
    missing = np.flatnonzero(problem.column_sizes == 0)
    # That the shares of all classes sum to one is no news.
    groups = [list(group) for group in apart if len(group) < len(labels)]
    groups.sort(key=lambda group: -open_by_class[group].sum())
    findings = _strange_predictions(problem.counts)
    if share > _ALL or (share > _MOSTLY and open_by_class.sum() > _MATTERS):
        most = _MOSTLY * open_by_class.sum()
        if open_by_class[missing].sum() > most:
            sentence, remedy = _unseen(labels, missing), "collect such rows"
            missing = missing[:0]
        elif groups and open_by_class[groups[0]].sum() > most:
            sentence, remedy = (
                _alike(labels, groups.pop(0)),
                "merge them",
            )
        else:
            sentence, remedy = _cause(problem, target)
        sentence = f"{100 * share:.0f} % of the spread of the shares is the prior's: {sentence}"
        findings.append(Finding(Status.NOT_IDENTIFIED, sentence, remedy))
    if len(missing) and open_by_class[missing].sum() > _MATTERS_OF_SOME:
        findings.append(Finding(Status.PARTLY_IDENTIFIED, _unseen(labels, missing)))
    findings += [
        Finding(Status.PARTLY_IDENTIFIED, _alike(labels, group))
        for group in groups
        if open_by_class[group].sum() > _MATTERS_OF_SOME
    ]
    return findings


def _strange_predictions(counts: ShiftCounts) -> list[Finding]:
    """Predictions that tell nothing: always the same one, or of classes never predicted before."""
    findings = []
    never = np.asarray(counts.confusion.sum(axis=1)) == 0
    if (~never).sum() == 1 and (counts.validation_sizes > 0).sum() > 1:
        only = some_of([counts.labels[i] for i in np.flatnonzero(~never)])
        sentence = f"every validation row was predicted as {only}, whatever its true class"
        remedy = "use a classifier that tells classes apart"
        findings.append(Finding(Status.NOT_IDENTIFIED, sentence, remedy))
    strange = counts.target[never].sum() / counts.n_target
    if strange <= _STRANGE or counts.n_validation == 0:
        return findings
    sentence = (
        f"{100 * strange:.0f} % of the target's predictions are of classes that no validation row "
        "was predicted as"
    )
    remedy = "collect more validation rows, of the same classifier and the same kind of inputs"
    return [*findings, Finding(Status.NOT_IDENTIFIED, sentence, remedy)]


def _loose(graph: LabelGraph) -> list[Finding]:
    """A graph that nearly falls apart leaves whole groups of classes without any prior."""
    if graph.is_exchangeable or graph.n_classes > CONNECTIVITY:
        return []
    connectivity, degree = graph.algebraic_connectivity, float(graph.laplacian.diagonal().mean())
    if connectivity >= _LOOSE * degree:
        return []
    sentence = (
        f"groups of the label graph hang together by edges that are too light (algebraic "
        f"connectivity {connectivity:.2g}, mean degree {degree:.2g})"
    )
    return [Finding(Status.LOOSE_GRAPH, sentence)]


def _unseen(labels: Sequence[Label], classes: Sequence[int] | NDArray[np.int64]) -> str:
    return (
        f"no validation row of {some_of([labels[i] for i in classes])}: how they are predicted, "
        "and with it their share, is known from the prior alone"
    )


def _alike(labels: Sequence[Label], group: Sequence[int]) -> str:
    names = some_of([labels[i] for i in group])
    return f"the predictions hardly tell {names} apart: their sum is better known than each"


def _cause(problem: Problem, target: TargetInformation) -> tuple[str, str]:
    """Why the counts do not tell, and what to do: what would more of them change?"""
    many = target._replace(n_target=_MANY_TARGETS * target.n_target)
    by_target = many.split().prior_share
    by_rows = target._replace(sizes=_MORE_ROWS * target.sizes).split().prior_share
    n, counts = problem.n_classes, problem.counts
    few_target = f"{counts.n_target} target predictions are few for {n} classes"
    few_rows = f"{counts.n_validation} validation rows are few for {n} classes"
    if min(by_target, by_rows) <= _MOSTLY:
        if by_target <= by_rows:
            return few_target, "collect more target predictions"
        return few_rows, "collect more validation rows"
    if max(counts.n_target, counts.n_validation) <= _FEW * n:
        cause = f"the counts do not tell the classes apart: {few_target}, and {few_rows}"
        return cause, "collect more of both, and merge classes that stay alike"
    return (
        "the counts do not tell the classes apart, and more rows would not change that",
        "merge classes that the classifier cannot tell apart, or use a better classifier",
    )
