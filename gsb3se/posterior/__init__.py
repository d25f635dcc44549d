"""What an answer is: the posterior of q, what it says of itself, and how it is kept.

Every backend returns a :class:`~gsb3se.posterior.posterior.Posterior`. Inside it is a family
(:mod:`~gsb3se.posterior.families`: draws, a Gaussian, a bent Student t), and its problem, so that
it can be asked later. A status is a member of :class:`~gsb3se.posterior.status.Status` with its
remedy; findings are added by a backend (in its ``verdict`` or ``backend``) or, for all of them, by
:func:`~gsb3se.posterior.identifiability.identified`, which says what the prior fills in, class by
class; the guide's page lists them from ``status.as_markdown()``. :mod:`~gsb3se.posterior.agreement`
measures how far one posterior is from another.

This room knows the model. It must not know how a posterior was inferred; what needs inference to
answer belongs into :mod:`gsb3se.checks`.
"""

from gsb3se.posterior.posterior import Posterior
from gsb3se.posterior.status import Diagnostics, Finding, Status

__all__ = ["Diagnostics", "Finding", "Posterior", "Status"]
