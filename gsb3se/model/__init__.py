"""What is believed: the data, the priors, and the density that joins them.

    tau_q ~ Gamma(a_q, b_q)           theta | tau_q ~ N(0, (tau_q L)^+)       q = softmax(theta)
    tau_C ~ Gamma(a_C, b_C)           phi_i | tau_C ~ N(mu_i, (tau_C L)^+)    c_i = softmax(phi_i)
    validation counts of class i ~ Multinomial(n_i, c_i)
    target counts ~ Multinomial(n', r),  r = C q

A :class:`~gsb3se.model.source_problem.SourceProblem` holds what is known of a classifier before any
target is looked at; a :class:`~gsb3se.model.problem.Problem` adds one target, whose evidence is its
counts of predictions (:mod:`~gsb3se.model.counts`). Other evidence is a sibling of Problem over
SourceProblem, with a likelihood of its own in each backend that takes it; ``content_hash``,
``posterior/storage``, ``posterior/identifiability`` and ``estimate`` are to be extended with it.
Each prior stands in one place: :mod:`~gsb3se.model.share_prior` for theta,
:mod:`~gsb3se.model.column_mean` for the mean mu_i of the columns (the paper has none).
:mod:`~gsb3se.model.density` is the log joint with its gradient and Hessian products; the versions
in jax and torch are kept apart, so that they test each other.

What the paper's theory says of this density does not all hold. The log joint is concave neither in
all variables nor in theta or a column alone; a mode need not be unique; and the joint mode over the
strengths too is a poor estimate, for it collapses onto a uniform q when labels are few.

Beside the hierarchy stand ``adaptation`` (what to do with shares), ``calibration`` of soft scores,
``mixture_proportions`` (maximum likelihood), ``shifts`` and ``simulation`` of data,
``starting_values`` of solvers, and ``content_hash``, by which kept results are known.

This room knows the graph and arithmetic. It must not know how anything is inferred.
"""

from gsb3se.model.counts import ConfusionCounts, ShiftCounts
from gsb3se.model.density import Latents, Strengths, log_joint, log_joint_and_gradient
from gsb3se.model.prior import Prior
from gsb3se.model.problem import Problem
from gsb3se.model.source_problem import SourceProblem

__all__ = [
    "ConfusionCounts",
    "Latents",
    "Prior",
    "Problem",
    "ShiftCounts",
    "SourceProblem",
    "Strengths",
    "log_joint",
    "log_joint_and_gradient",
]
