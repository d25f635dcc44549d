"""The amortized encoder of GS-B3SE: counts and label graph to the posterior of q in one pass.

>>> from gsb3se_amortized import Amortized
>>> Amortized(checkpoint="base").refine is None
True
"""

from gsb3se.errors import require

for _module in ("torch", "torch_geometric", "safetensors"):
    require(_module, extra="amortized")

from gsb3se_amortized.backend import Amortized  # noqa: E402
from gsb3se_amortized.checkpoint import Checkpoint, load  # noqa: E402

__all__ = ["Amortized", "Checkpoint", "load"]
