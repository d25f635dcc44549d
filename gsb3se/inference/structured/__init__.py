"""The structured backend: HMC's answer in seconds, at thousands of classes.

It works in two stages.

*The source.* Given the validation counts each confusion column is a log-Gaussian Cox process on the
label graph. Expectation propagation, with Gaussian belief propagation for the variances, settles
all of them (``column_propagation``, on ``graph_solver`` and ``poisson_cells``), and tau_C, alpha
and beta by their evidence (``column_fit``). Where the counts leave these open they are integrated
over, up to ``limits.STRENGTHS_INTEGRATED`` classes (``strength_integration``).

*The target.* With the columns' cells as Gammas the rows of the target counts are independent given
the classes' levels, and every cell is integrated out by a saddlepoint (``count_likelihood``; cells
that are zero or once in a while a spike have factors of their own in ``rare_confusions``). What is
left is a density over the levels (``share_density``). A search for its mode gives coordinates
(``share_mode``), in which a few hundred short Hamiltonian chains sample it side by side
(``share_chains``, all put together in ``approximation``).

With small validation counts these laws are no longer good enough. Up to
``limits.EXACT_CHAINS_BY_DEFAULT`` classes, if in the median class the largest count is below 25 (30
labels of a good classifier, more of a bad one), exact chains over levels, cells and strengths start
at those draws and end with the hierarchy's own posterior (:mod:`~.exact`). How far they move means
and sds is an estimate of the approximation's own error; ``verdict`` turns all of it into findings.
"""

from gsb3se.inference.structured.backend import Structured, StructuredSource

__all__ = ["Structured", "StructuredSource"]
