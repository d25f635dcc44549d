"""Which settings the benchmark on real classifiers runs.

A grid is a product; a named plan is a list of grids. Where a product would ask for what does not
exist (scores of ImageNet, 50 labels of its 50 images a class) that part is left out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from real_data import DATA_SETS, SHIFTS, Outputs, main_graph
from real_methods import METHODS, PRIORS

LABELS = (5, 10, 20, 50)
FAILED = "failed"  # how the status of a row begins whose method raised an error
KEY = ("data_set", "labels", "n_target", "repeat", "graph", "method", "shift")


@dataclass(frozen=True)
class Unit:
    """What is run at once: a method on all targets of a repeat that are asked for."""

    data_set: str
    labels: int
    n_target: int
    repeat: int
    graph: str
    method: str
    shifts: tuple[str, ...]

    def row_keys(self) -> Iterator[tuple]:
        """What KEY names, of each of its rows."""
        for shift in self.shifts:
            yield (*(getattr(self, name) for name in KEY[:-1]), shift)


@dataclass(frozen=True)
class Grid:
    """A product of settings; n_target is the data set's own unless given."""

    data_sets: tuple[str, ...] = tuple(DATA_SETS)
    labels: tuple[int, ...] = LABELS
    shifts: tuple[str, ...] = SHIFTS
    graphs: tuple[str, ...] = ("main",)
    methods: tuple[str, ...] = tuple(METHODS)
    repeats: int = 20
    n_target: int | None = None

    def units(self, outputs: dict[str, Outputs]) -> Iterator[Unit]:
        """Its units; a method without a graph runs once. Repeats are the outermost loop."""
        for repeat in range(self.repeats):
            for data_set in self.data_sets:
                found = outputs[data_set]
                for labels in self.labels:
                    if labels > found.most_labels:
                        continue
                    for method in self.methods:
                        if METHODS[method].needs_scores and found.scores is None:
                            continue
                        for graph in self._graphs(method, found):
                            size = self.n_target or found.n_target
                            yield Unit(data_set, labels, size, repeat, graph, method, self.shifts)

    def _graphs(self, method: str, outputs: Outputs) -> Sequence[str]:
        if not METHODS[method].uses_graph:
            return ("",)
        main = main_graph(outputs.name)
        named = [main if graph == "main" else graph for graph in self.graphs]
        there = {*outputs.graphs, "shuffled", "none"}
        return [graph for graph in dict.fromkeys(named) if graph in there]


SMALL = ("mnist", "20news", "cifar10")
CIFAR100 = ("cifar100-wideresnet164", "cifar100-densenetbc100", "cifar100-lenet5")
QUICK = ("unshifted", "counted", "bbse raw", "bbse", "rlls", "mlls", "acc", "em", "em bcts")
_TWO = ("dirichlet 1", "power law")


def _both(*backends: str) -> tuple[str, ...]:
    return tuple(f"{prior} {backend}" for prior in PRIORS for backend in backends)


_CHEAP = _both("plain", "amortized")
_SIZED = ("counted", "rlls", "mlls", "em", "em bcts", *_CHEAP)
_SIZES = {"cifar10": (250, 500, 2000, 4000), CIFAR100[0]: (250, 500, 2000)}
_OTHER_GRAPHS = ("hierarchy", "shuffled", "none")


PLANS: dict[str, tuple[Grid, ...]] = {
    # Two data sets and everything that can be had of them in a quarter of an hour.
    "reduced": (
        Grid(
            ("cifar10", "20news"),
            methods=(*QUICK, "bbse bootstrap", *_CHEAP),
            graphs=("main", "shuffled", "none"),
            repeats=3,
        ),
        Grid(
            ("cifar10", "20news"),
            labels=(10,),
            shifts=_TWO,
            methods=("bayesian-cc", *_both("structured", "hmc")),
            repeats=3,
        ),
    ),
    # What the README shows; the dear methods where they can be had.
    "readme": (
        Grid(
            SMALL + CIFAR100,
            methods=(*QUICK, "bbse bootstrap", *_CHEAP),
        ),
        Grid(CIFAR100[:1], (10,), methods=("anchored structured",)),
        *(
            Grid((data_set,), (10,), _TWO[:1], methods=_SIZED, n_target=n_target)
            for data_set, sizes in _SIZES.items()
            for n_target in sizes
        ),
        Grid(CIFAR100[:1], (10,), _TWO, methods=("bayesian-cc", "paper structured")),
        Grid(SMALL, (10,), methods=("bayesian-cc", *_both("structured"))),
        Grid(
            ("imagenet",),
            (5, 10, 20),
            _TWO,
            methods=("unshifted", "counted", "bbse raw", "bbse", "rlls", "mlls", *_CHEAP),
        ),
        Grid(SMALL, (10,), _TWO[:1], methods=_both("hmc")),
        Grid((*SMALL, CIFAR100[0]), (10,), graphs=_OTHER_GRAPHS, methods=_CHEAP),
        Grid(("imagenet",), (10,), _TWO[:1], graphs=_OTHER_GRAPHS, methods=_both("amortized")),
        Grid(("imagenet",), (10,), _TWO[:1], graphs=_OTHER_GRAPHS[1:], methods=_both("plain")),
    ),
}


def narrowed(
    plan: Sequence[Grid],
    data_sets: Sequence[str],
    labels: Sequence[int],
    shifts: Sequence[str],
    methods: Sequence[str],
    repeats: int | None,
) -> list[Grid]:
    """The part of a plan that has these settings; an empty choice is no restriction."""
    found = []
    for grid in plan:
        cut = replace(
            grid,
            data_sets=tuple(x for x in grid.data_sets if not data_sets or x in data_sets),
            labels=tuple(x for x in grid.labels if not labels or x in labels),
            shifts=tuple(x for x in grid.shifts if not shifts or x in shifts),
            methods=tuple(x for x in grid.methods if not methods or x in methods),
            repeats=grid.repeats if repeats is None else repeats,
        )
        if cut.data_sets and cut.labels and cut.shifts and cut.methods:
            found.append(cut)
    return found
