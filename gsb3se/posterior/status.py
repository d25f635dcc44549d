"""What a result says about itself: a status with its remedies, flags of classes, figures.

A new status is a member of :class:`Status`, in the order of severity, and a text with its remedy in
``_TEXTS``; code that finds it adds a :class:`Finding`. The guide's page on statuses lists them all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from gsb3se.posterior.chain_mixing import Mixing
from gsb3se.support.labels import Label

Flags = Mapping[Label, tuple[str, ...]]


class Status(Enum):
    """How far a posterior can be relied on; the value is a word, ``text`` cause and remedy.

    >>> Status.OK.value
    'ok'
    """

    OK = "ok"
    LOOSE_GRAPH = "loose graph"
    PARTLY_IDENTIFIED = "partly identified"
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
    Status.LOOSE_GRAPH: (
        "the groups may drift apart as if they had nothing in common: collect more similarities "
        "between them, raise the weights of these edges, or use LabelGraph.exchangeable"
    ),
    Status.PARTLY_IDENTIFIED: (
        "the other shares can be relied on: collect validation rows of the classes named, or merge "
        "those that the classifier cannot tell apart"
    ),
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


def as_markdown() -> str:
    """The list that the guide shows, from the lightest to the gravest."""
    return "\n".join(f"- **{status.value}**: {status.text}." for status in Status)


@dataclass(frozen=True)
class Finding:
    """One thing to know about a result.

    Attributes:
        remedy: what to do, where it is not what the status says in general.
    """

    status: Status
    sentence: str
    remedy: str = ""

    @property
    def what_to_do(self) -> str:
        """Its own remedy, or that of its status."""
        return self.remedy or self.status.text


@dataclass(frozen=True)
class Measures:
    """The figures that code goes by; None where a backend does not have them.

    Attributes:
        tau_q: the strength of the shares' prior at the mode, or its mean.
        prior_share: share of the spread of all shares that is the prior's, 0 to 1.
        effective_draws: 5 % of the classes have fewer.
        mixing: of HMC's chains.
        seconds: that inference took; loading_seconds: that a first call took beyond it.
    """

    tau_q: float | None = None
    prior_share: float | None = None
    effective_draws: float | None = None
    mixing: Mixing | None = None
    seconds: float | None = None
    loading_seconds: float | None = None


@dataclass(frozen=True)
class Diagnostics:
    """Status, message with the remedies, flags and figures; ``Posterior.diagnostics``.

    Attributes:
        status: the gravest of the findings'.
        message: every finding in a sentence, each with its remedy.
        figures: numbers behind it, by name, for people; lists have an entry a class.
        findings: the gravest first.
        flags: what there is to know about single classes, by label, whatever the status: "no
            validation rows", "never predicted", "cannot be told from 'b'", "wide".
        measures: the figures that code goes by.

    >>> Diagnostics.of([], {"steps": 7}).message
    'ok'
    """

    status: Status
    message: str
    figures: Mapping[str, Any] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    flags: Flags = field(default_factory=dict)
    measures: Measures = field(default_factory=Measures)

    @classmethod
    def of(
        cls,
        findings: Sequence[Finding],
        figures: Mapping[str, Any],
        flags: Flags | None = None,
        measures: Measures | None = None,
    ) -> Diagnostics:
        """Sum up findings, the gravest first; a remedy that several share is given once."""
        ordered = tuple(sorted(findings, key=lambda finding: -finding.status.severity))
        sentences, given = [], set()
        for finding in ordered:
            remedy = "" if finding.what_to_do in given else f" ({finding.what_to_do})"
            given.add(finding.what_to_do)
            sentences.append(f"{finding.status.value}: {finding.sentence}{remedy}")
        status = ordered[0].status if ordered else Status.OK
        message = "; ".join(sentences) or Status.OK.value
        flags, measures = dict(flags or {}), measures or Measures()
        return cls(status, message, dict(figures), ordered, flags, measures)

    def and_also(
        self,
        findings: Sequence[Finding] = (),
        figures: Mapping[str, Any] | None = None,
        flags: Flags | None = None,
        **measures: Any,
    ) -> Diagnostics:
        """The same with more findings, figures, flags and measures."""
        return Diagnostics.of(
            [*self.findings, *findings],
            {**self.figures, **(figures or {})},
            {**self.flags, **(flags or {})},
            replace(self.measures, **measures),
        )
