"""The amortized encoder of GS-B3SE: counts and label graph to the posterior of q in one pass.

>>> from gsb3se_amortized import Amortized
>>> Amortized(checkpoint="base").refine is None
True
"""

from gsb3se_amortized.backend import Amortized

__all__ = ["Amortized"]
