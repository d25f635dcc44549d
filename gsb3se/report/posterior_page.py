"""The page of one posterior."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from gsb3se.graph import LabelGraph
from gsb3se.plots import shares_of
from gsb3se.posterior.posterior import Posterior
from gsb3se.posterior.status import Status
from gsb3se.report.page import Page, badge
from gsb3se.report.sections import add_all_classes, add_confusions, add_graph, add_shifts
from gsb3se.support.errors import some_of
from gsb3se.support.labels import Label


def of_posterior(
    posterior: Posterior,
    source_prior: ArrayLike | None = None,
    graph: LabelGraph | None = None,
    *,
    level: float = 0.9,
    title: str = "Class shares of the target",
) -> str:
    """The page of one posterior.

    Args:
        source_prior: (K,) what the shares are compared with; by default the shares of the
            validation labels, where the posterior knows its counts.
        graph: by default the one it was made with.
    """
    problem = posterior.problem
    if source_prior is None and problem is not None and problem.counts.n_validation:
        source_prior = problem.counts.validation_shares
    if graph is None and problem is not None:
        graph = problem.graph
    shares = shares_of(posterior, source_prior, level)
    page = Page()
    status = posterior.diagnostics.status
    page.add(badge(status.value, status.is_ok))
    subject = f"{posterior.n_classes} classes, inferred by the backend {posterior.backend}"
    if posterior.n_target is not None:
        subject = f"{posterior.n_target:,} predictions over {subject}"
    page.paragraph(subject + ".")
    if shares.source is not None:
        distance = posterior.l1_distance(shares.source)
        low, high = np.quantile(distance, [(1 - level) / 2, (1 + level) / 2])
        page.paragraph(
            f"The target is {distance.mean():.3f} from the source in L1 ({100 * level:.3g} % "
            f"interval {low:.3f} to {high:.3f}), of at most 2."
        )
    add_shifts(page, shares)
    add_graph(page, shares, graph)
    if posterior.confusion_mean is not None:
        add_confusions(page, posterior.confusion_mean, posterior.labels)
    page.heading("Diagnostics in words")
    for sentence in in_words(posterior):
        page.paragraph(sentence)
    add_all_classes(page, shares)
    return page.finished(title)


def in_words(posterior: Posterior) -> list[str]:
    """What a posterior says about itself, a sentence each."""
    diagnostics = posterior.diagnostics
    if diagnostics.status is Status.OK:
        said = ["The solver ended as it should, and the counts tell the classes apart."]
    else:
        parts = diagnostics.message.split("; ")
        said = [part[0].upper() + part[1:].rstrip(".") + "." for part in parts]
    by_flag: dict[str, list[Label]] = {}
    for label, flags in diagnostics.flags.items():
        for flag in flags:
            by_flag.setdefault(flag, []).append(label)
    for flag, labels in by_flag.items():
        if flag != "wide":
            said.append(f"{flag[0].upper()}{flag[1:]}: {some_of(labels, most=8)}.")
    if (share := diagnostics.measures.prior_share) is not None:
        said.append(f"Of the spread of all shares {100 * share:.0f} % is the prior's.")
    if (draws := diagnostics.measures.effective_draws) is not None:
        said.append(f"The worst class has {draws:.0f} effective draws.")
    if posterior.problem is not None:
        sizes = posterior.problem.counts.validation_sizes
        said.append(
            f"{sizes.sum():,} validation rows, {sizes.min()} to {sizes.max()} a class, "
            f"{np.median(sizes):g} in the median."
        )
    return said
