"""What draws of chains must show before they are relied on."""

from __future__ import annotations

from dataclasses import dataclass

LARGEST_R_HAT = 1.01
LEAST_ESS = 400  # effective draws, bulk and tail


@dataclass(frozen=True)
class Mixing:
    """How the chains of q mixed.

    Attributes:
        r_hat: the largest of any class.
        bulk_ess, tail_ess: effective draws of the worst class.
        divergences: of all draws.
    """

    r_hat: float
    bulk_ess: float
    tail_ess: float
    divergences: int

    @property
    def complaints(self) -> tuple[str, ...]:
        """The checks that fail, in words; none if the draws can serve as a reference."""
        failed = []
        if not self.r_hat <= LARGEST_R_HAT:
            failed.append(f"R-hat {self.r_hat:.3f} above {LARGEST_R_HAT}")
        ess = min(self.bulk_ess, self.tail_ess)
        if not ess >= LEAST_ESS:
            failed.append(f"{ess:.0f} effective draws, below {LEAST_ESS}")
        if self.divergences:
            failed.append(f"{self.divergences} divergent draws")
        return tuple(failed)
