"""What to ask of a posterior: what it says of itself, how much the counts contribute, and how it
depends on the graph."""

from gsb3se.checks.rank_calibration import rank_uniformity
from gsb3se.checks.sensitivity import GraphSensitivity, graph_sensitivity
from gsb3se.posterior.information import EffectiveInformation, effective_information
from gsb3se.posterior.status import Diagnostics, Finding, Status

__all__ = [
    "Diagnostics",
    "EffectiveInformation",
    "Finding",
    "GraphSensitivity",
    "Status",
    "effective_information",
    "graph_sensitivity",
    "rank_uniformity",
]
