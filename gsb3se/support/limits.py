"""Every threshold in the number of classes, with its reason; the guide prints this table.

>>> EXACT_CHAINS_BY_DEFAULT, EXACT_CHAINS_BY_DEFAULT.reason[:12]
(128, 'exact chains')
"""

from __future__ import annotations


class Limit(int):
    """A number of classes, and why it is that number."""

    reason: str

    def __new__(cls, classes: int, reason: str) -> Limit:
        limit = super().__new__(cls, classes)
        limit.reason = reason
        return limit


# Structured: what is done of the whole method

STRENGTHS_INTEGRATED = Limit(
    300,
    "up to here the structured backend integrates tau_C, alpha and beta over their uncertainty and "
    "draws 1,536 times; beyond, so many cells settle them, and 512 draws take as long",
)
EXACT_CHAINS_BY_DEFAULT = Limit(
    128, "exact chains correct small validation counts by themselves: some ten seconds here"
)
EXACT_CHAINS = Limit(300, "exact chains hold K matrices of K x K: 0.2 GB each such array here")
PROGRESS_OF_COLUMNS = Limit(600, "fitting the columns takes longer than a second or two")
PROGRESS_OF_EXACT_CHAINS = Limit(64, "exact chains take longer than a second or two")

# Structured: how things are computed

DENSE_COLUMNS = Limit(
    64, "up to here inverting every column's matrix is faster than belief propagation"
)
SINGLE_PRECISION_COLUMNS = Limit(
    256, "sweeps of the columns are bound by memory, and their tolerance needs few digits"
)
SINGLE_PRECISION_INVERSES = Limit(
    2000, "the columns that correct belief propagation are inverted in half the time and memory"
)
EXACT_TRACES = Limit(300, "beyond, 16 random signs give a trace as well as K solves do")
CHAIN_GROUPS = Limit(
    48, "beyond, products are large enough for two groups of exact chains, a core each"
)

# Other backends

HMC_AS_SECOND_OPINION = Limit(200, "HMC takes minutes here; beyond, messages do not recommend it")
HMC_DEEP_TREES = Limit(
    50, "steps are cheap and ridges sharp: a tree depth of 9 by default, beyond it 6"
)
HMC_SAYS_HOW_LONG = Limit(300, "HMC may run for hours: the time is estimated beforehand")
VARIATIONAL = Limit(600, "the variational guide holds K^3 numbers")
VARIATIONAL_SAYS_HOW_LONG = Limit(300, "a CPU takes minutes: the time is estimated beforehand")
VARIATIONAL_LAYERS = Limit(
    64, "up to here Hamiltonian layers are cheap, and the guide's narrowness is seen most"
)
VARIATIONAL_ONE_THREAD = Limit(48, "arrays are so small that threads only wait for each other")
AMORTIZED_FEWEST = Limit(
    2, "fewer classes than the encoder was trained on, where its intervals were tested to hold"
)
AMORTIZED_SINGLE_PRECISION = Limit(
    500, "the encoder's Newton step is tried in single precision first, in half the time"
)

# Shared

DENSE_EIGENVALUES = Limit(
    200, "a graph's smallest eigenvalue is faster from the dense matrix up to here"
)
EVALUATED_SIDE_BY_SIDE = Limit(
    300, "likelihood and priors outweigh the start of a thread, and take one each"
)
FEWER_SUMMARY_DRAWS = Limit(
    300,
    "the summary of a parametric posterior takes half as many draws: these are most of its time",
)
SINGLE_PRECISION_INFORMATION = Limit(
    600, "what the prior fills in is judged in single precision, in half the time and memory"
)
ROWS_SHOWN = Limit(25, "beyond, a printed table would leave the screen: it shows the first so many")
CONNECTIVITY = Limit(2000, "up to here a graph's connectivity is checked in every estimate")


def all_limits() -> dict[str, Limit]:
    """Every limit by its name, in the order above."""
    return {name: value for name, value in globals().items() if isinstance(value, Limit)}


def as_markdown() -> str:
    """The table that the guide shows."""
    rows = [f"| {name} | {int(limit):,} | {limit.reason} |" for name, limit in all_limits().items()]
    return "\n".join(["| limit | classes | reason |", "| --- | --- | --- |", *rows])
