"""The amortized encoder: counts and label graph to the posterior of q in one forward pass.

Problems are put together into passes (``grouping``, ``padded_batch``). A graph network settles the
confusion columns (``column_encoder``, on ``similarity``), and layers that know the model solve for
the shares (``encoder``, with one full ``newton_step``). The answer is a Student t on the simplex's
tangent, bent class by class (``family``); ``familiarity`` says whether the problem is like those
of the training. ``forward`` runs a pass, and ``backend`` makes posteriors and statuses of it.
``train`` makes a ``checkpoint`` from what the ``simulator`` draws, by the losses of ``objective``.

This is one more backend, with torch. It may use all that those in ``gsb3se.inference`` may, and
the structured one, which can go on from its answer. Importing it does not import torch.

>>> from gsb3se_amortized import Amortized
>>> Amortized(checkpoint="base").refine is None
True
"""

from gsb3se_amortized.backend import Amortized

__all__ = ["Amortized"]
