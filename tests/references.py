"""Makes tests/references/: small problems and HMC's posterior of each, in summary.

python tests/references.py

Every file holds the problem itself (counts and label weights), so that what made it may change, and
of HMC's draws the mean, the sd, the 5, 50 and 95 % quantiles of every share, mean and sd of log
tau_C, the least effective sample size and the largest R-hat. Draws are made until every share has
2,000 effective ones.
"""

import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

import gsb3se as gs
from gsb3se.compare.comparison import complaints_about
from gsb3se.model.simulation import simulate_classifier

FOLDER = Path(__file__).parent / "references"
PRIORS = {"paper": gs.Prior(), "anchored": gs.Prior.anchored()}
LEVELS = (0.05, 0.5, 0.95)
LEAST_ESS = 2000
SIZES = {3: (15, 300), 10: (20, 1000), 30: (40, 3000)}  # labels a class, target predictions


class Reference(NamedTuple):
    """A problem and what HMC says of it."""

    problem: gs.Problem
    mean: np.ndarray
    sd: np.ndarray
    quantiles: np.ndarray
    log_tau_C: np.ndarray


def cases():
    """Name, counts, graph and prior of every case."""
    for prior in PRIORS:
        for n, (labels, n_target) in SIZES.items():
            made = simulate_classifier(n, labels, n_target, seed=n)
            yield f"{n} classes {prior}", made.counts, made.graph, prior
    made = simulate_classifier(10, 20, 1000, seed=110)
    confusion = made.counts.confusion.toarray()
    confusion[:, 4] = 0
    yield "empty class paper", gs.ShiftCounts(confusion, made.counts.target), made.graph, "paper"


def make(name, counts, graph, prior):
    problem = gs.Problem(counts, graph, PRIORS[prior])
    for draws in (2000, 6000, 20_000):
        hmc = gs.HMC(warmup=1000, draws=draws, target_accept=0.97)
        exact = hmc.infer(problem, np.random.default_rng(1))
        if exact.diagnostics.figures["bulk_ess_min"] >= LEAST_ESS:
            break
    if complaints := complaints_about(exact):
        sys.exit(f"{name}: {complaints}")
    log_tau = np.log(exact.form.others["tau_C"])
    figures = exact.diagnostics.figures
    np.savez_compressed(
        FOLDER / f"{name.replace(' ', '_')}.npz",
        confusion=counts.confusion.toarray().astype(np.int32),
        target=counts.target,
        weights=graph.weights.toarray(),
        prior=prior,
        mean=exact.mean,
        sd=exact.sd,
        quantiles=exact.quantile(LEVELS),
        log_tau_C=[log_tau.mean(), log_tau.std()],
        mixing=[figures["bulk_ess_min"], max(figures["r_hat_q"])],
    )
    print(f"{name}: ESS {figures['bulk_ess_min']:.0f}, {figures['seconds']:.0f} s", flush=True)


def names():
    return sorted(path.stem for path in FOLDER.glob("*.npz"))


def load(name) -> Reference:
    with np.load(FOLDER / f"{name}.npz") as kept:
        counts = gs.ShiftCounts(kept["confusion"], kept["target"])
        graph = gs.LabelGraph.from_weights(kept["weights"])
        problem = gs.Problem(counts, graph, PRIORS[str(kept["prior"])])
        return Reference(problem, *(kept[part] for part in Reference._fields[1:]))


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for case in cases():
        make(*case)
