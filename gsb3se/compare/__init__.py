"""How close is each backend to HMC, on a user's own counts?

:mod:`~gsb3se.compare.comparison` runs HMC, the other backends and the baselines on one problem and
measures how far they are apart; :mod:`~gsb3se.compare.cache` keeps finished posteriors under a hash
of what they were made from; :mod:`~gsb3se.compare.picture` draws them beside each other.

This room knows backends and posteriors. It must not know batches or the command line.
"""

from gsb3se.compare.comparison import Comparison, compare

__all__ = ["Comparison", "compare"]
