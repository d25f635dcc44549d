"""GS-B3SE: the target class prior under label shift, with full uncertainty."""

from gsb3se.counts import ShiftCounts
from gsb3se.graph import LabelGraph
from gsb3se.model import simulate
from gsb3se.prior import Prior

__version__ = "0.1.0"
__all__ = ["LabelGraph", "Prior", "ShiftCounts", "simulate"]
