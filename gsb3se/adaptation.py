"""What to do with an estimated target prior: correct probabilities, weigh source rows."""

from gsb3se.model.adaptation import correct, importance_weights
from gsb3se.support.simplex import as_probabilities

__all__ = ["as_probabilities", "correct", "importance_weights"]
