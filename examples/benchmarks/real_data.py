"""Real classifiers to measure on: their outputs, graphs of their labels, shifted targets.

A folder holds any of these files; a data set whose files are missing is said to be.

| data set | files | validation rows, target rows |
| --- | --- | --- |
| mnist, 20news | cleanlab_mnist_cvprobs.npz, cleanlab_20news_cvprobs.npz: probs, labels | split |
| cifar10 | cifar10_resnet110.npz: logits_val, labels_val, logits_test, labels_test | val, test |
| cifar100-MODEL | cifar100_MODEL.npz: probs_test, labels_test | split |
| imagenet | imagenet_val_hardpreds.npz: labels, pred_MODEL; no scores | split |

Names' embeddings are in label_embeddings_minilm_l6_v2.npz, superclasses in class_names.json,
WordNet in imagenet1k_wordnet_hierarchy.json.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from zlib import crc32

import numpy as np

import gsb3se as gs
from gsb3se.support.files import read_npz
from gsb3se.support.simplex import softmax

Vector = np.ndarray
Matrix = np.ndarray

SHIFTS = ("dirichlet 0.1", "dirichlet 1", "dirichlet 10", "power law", "tweak one", "graph-smooth")
EXPONENT = 1.1  # of the power law
TWEAKED = 0.5  # share of the one class
SMOOTHNESS = 0.3  # tau_q of graph-smooth shares: log-shares scatter by about 1
NEWSGROUPS = (
    "alt.atheism", "comp.graphics", "comp.os.ms-windows.misc", "comp.sys.ibm.pc.hardware",
    "comp.sys.mac.hardware", "comp.windows.x", "misc.forsale", "rec.autos", "rec.motorcycles",
    "rec.sport.baseball", "rec.sport.hockey", "sci.crypt", "sci.electronics", "sci.med",
    "sci.space", "soc.religion.christian", "talk.politics.guns", "talk.politics.mideast",
    "talk.politics.misc", "talk.religion.misc",
)  # fmt: skip
MAIN_GRAPH = {"mnist": "features", "20news": "hierarchy"}  # names for all others
_GRAPH_ROWS = 50  # of each digit, whose mean scores make MNIST's graph and which serve nothing else


@dataclass(frozen=True, eq=False)
class Outputs:
    """What a classifier said of labelled rows.

    Attributes:
        truth, predicted: (n,) classes.
        scores: (n, K) log-probabilities, or None if only the predictions are known.
        validation: (n,) which rows may be validation rows; None: any, split at random.
        graphs: of the labels, by kind.
        most_labels: validation rows a class that are set aside.
    """

    name: str
    truth: Vector
    predicted: Vector
    scores: Matrix | None
    graphs: Mapping[str, gs.LabelGraph]
    validation: Vector | None = None
    most_labels: int = 50

    @property
    def n_classes(self) -> int:
        return next(iter(self.graphs.values())).n_classes

    @property
    def n_target(self) -> int:
        """Rows of a target, unless another number is asked for."""
        return target_size(self.name)

    @property
    def source_prior(self) -> Vector:
        """(K,) the class shares of the rows, as those the classifier was trained on."""
        return np.bincount(self.truth, minlength=self.n_classes) / len(self.truth)


def _mnist(folder: Path) -> Outputs:
    arrays = read_npz(folder / "cleanlab_mnist_cvprobs.npz")
    truth, scores = arrays["labels"].astype(int), _log(arrays["probs"])
    first = np.concatenate([np.flatnonzero(truth == digit)[:_GRAPH_ROWS] for digit in range(10)])
    graph = gs.LabelGraph.from_class_means(scores[first], truth[first], k=4)
    rest = np.setdiff1d(np.arange(len(truth)), first)
    return _soft("mnist", truth[rest], scores[rest], {"features": graph})


def _20news(folder: Path) -> Outputs:
    arrays = read_npz(folder / "cleanlab_20news_cvprobs.npz")
    parents = {}
    for name in NEWSGROUPS:
        while "." in name:
            parents[name] = name.rpartition(".")[0]
            name = parents[name]
    graph = gs.LabelGraph.from_taxonomy(parents, k=4, labels=NEWSGROUPS)
    return _soft("20news", arrays["labels"], _log(arrays["probs"]), {"hierarchy": _unnamed(graph)})


def _cifar10(folder: Path) -> Outputs:
    arrays = read_npz(folder / "cifar10_resnet110.npz")
    both = ("val", "test")
    logits = np.concatenate([arrays[f"logits_{part}"] for part in both]).astype(float)
    truth = np.concatenate([arrays[f"labels_{part}"] for part in both])
    may_validate = np.arange(len(truth)) < len(arrays["labels_val"])
    graphs = {"names": gs.LabelGraph.knn(_embeddings(folder, "cifar10"), k=4)}
    return _soft("cifar10", truth, np.log(softmax(logits, axis=1)), graphs, may_validate)


def _cifar100(model: str) -> Callable[[Path], Outputs]:
    def load(folder: Path) -> Outputs:
        arrays = read_npz(folder / f"cifar100_{model}.npz")
        names = json.loads((folder / "class_names.json").read_text())
        groups = [names["cifar100_coarse"][i] for i in names["cifar100_fine_to_coarse"]]
        graphs = {
            "names": gs.LabelGraph.knn(_embeddings(folder, "cifar100"), k=8),
            "hierarchy": _unnamed(gs.LabelGraph.from_taxonomy(groups, k=8)),
        }
        scores = _log(arrays["probs_test"])
        return _soft(f"cifar100-{model}", arrays["labels_test"].ravel(), scores, graphs)

    return load


def _imagenet(folder: Path) -> Outputs:
    arrays = read_npz(folder / "imagenet_val_hardpreds.npz")
    tree = json.loads((folder / "imagenet1k_wordnet_hierarchy.json").read_text())
    parents = {
        child: node["hypernyms"][0] for child, node in tree["nodes"].items() if node["hypernyms"]
    }
    graphs = {
        "names": gs.LabelGraph.knn(_embeddings(folder, "imagenet1k"), k=8),
        "hierarchy": _unnamed(gs.LabelGraph.from_taxonomy(parents, k=8, labels=tree["wnid"])),
    }
    truth, predicted = (arrays[key].astype(int) for key in ("labels", "pred_timm_resnet34"))
    return Outputs("imagenet", truth, predicted, None, graphs, most_labels=20)


DATA_SETS: dict[str, Callable[[Path], Outputs]] = {
    "mnist": _mnist,
    "20news": _20news,
    "cifar10": _cifar10,
    "cifar100-wideresnet164": _cifar100("wideresnet164"),
    "cifar100-densenetbc100": _cifar100("densenetbc100"),
    "cifar100-lenet5": _cifar100("lenet5"),
    "imagenet": _imagenet,
}


def main_graph(data_set: str) -> str:
    """The kind of label graph that a data set has by default."""
    return MAIN_GRAPH.get(data_set, "names")


def target_size(data_set: str) -> int:
    """Rows of a target by default."""
    return 5000 if data_set == "imagenet" else 1000


@lru_cache(maxsize=8)
def load(name: str, folder: Path) -> Outputs:
    """A data set by its name, kept for the next call."""
    return DATA_SETS[name](folder)


def _soft(name: str, truth: Vector, scores: Matrix, graphs: Mapping, validation=None) -> Outputs:
    return Outputs(name, truth.astype(int), scores.argmax(axis=1), scores, graphs, validation)


def _log(probabilities: Matrix) -> Matrix:
    """Log-probabilities that are finite where a classifier said never."""
    return np.log(np.maximum(probabilities.astype(float), 1e-12))


def _unnamed(graph: gs.LabelGraph) -> gs.LabelGraph:
    """Labels are class indices here."""
    return gs.LabelGraph.from_weights(graph.weights)


def _embeddings(folder: Path, data_set: str) -> Matrix:
    return read_npz(folder / "label_embeddings_minilm_l6_v2.npz")[f"{data_set}_name"]


@dataclass(frozen=True, eq=False)
class Target:
    """A shifted target set.

    Attributes:
        rows: (n',) of the outputs; population: (K,) the shares it was drawn with; realised: (K,)
            those it has.
    """

    rows: Vector
    population: Vector
    realised: Vector


@dataclass(frozen=True)
class Repeat:
    """One split of a data set, and everything that is drawn from it.

    A data set's validation rows are set aside first, as many as the largest setting takes, and
    smaller settings take the first of them; the targets come from the rest. So all settings of a
    repeat meet the same targets.
    """

    outputs: Outputs
    number: int

    def _rng(self, purpose: str) -> np.random.Generator:
        return np.random.default_rng(
            [self.number, crc32(self.outputs.name.encode()), crc32(purpose.encode())]
        )

    @cached_property
    def _parts(self) -> tuple[list[Vector], Vector]:
        """Rows set aside for validation, by class, and the pool of target rows."""
        outputs = self.outputs
        order = self._rng("split").permutation(len(outputs.truth))
        may = np.ones(len(order), bool) if outputs.validation is None else outputs.validation
        ours = order[may[order]]
        held = [
            ours[outputs.truth[ours] == label][: outputs.most_labels]
            for label in range(outputs.n_classes)
        ]
        rest = may if outputs.validation is None else ~outputs.validation
        return held, np.setdiff1d(np.flatnonzero(rest), np.concatenate(held))

    def validation(self, labels: int) -> Vector:
        """Rows of a validation set with so many a class."""
        return np.concatenate([rows[:labels] for rows in self._parts[0]])

    def target(self, shift: str, n: int) -> Target:
        """n rows without replacement, with shares limited to what the pool supports."""
        outputs, rng = self.outputs, self._rng(shift)
        pool = self._parts[1]
        supply = np.bincount(outputs.truth[pool], minlength=outputs.n_classes)
        q = within_supply(self._shares(shift, rng), supply, n)
        classes = range(outputs.n_classes)
        for _ in range(1000):  # until no class is asked for more rows than it has
            try:
                drawn = gs.shifts.draw_target(outputs.truth[pool], q, n, rng, labels=classes)
            except ValueError:
                continue
            return Target(pool[drawn.indices], q, drawn.realised)
        raise ValueError(f"{outputs.name} has too few rows for {n} target rows")

    def _shares(self, shift: str, rng: np.random.Generator) -> Vector:
        n = self.outputs.n_classes
        kind, _, concentration = shift.partition(" ")
        if kind == "dirichlet":
            return gs.shifts.dirichlet(n, float(concentration), rng)
        if shift == "power law":
            return gs.shifts.power_law(n, EXPONENT, rng)
        if shift == "tweak one":
            return gs.shifts.tweak_one(n, int(rng.integers(n)), TWEAKED)
        return gs.shifts.graph_smooth(self.graph("main"), SMOOTHNESS, rng)

    def graph(self, kind: str) -> gs.LabelGraph:
        """A label graph: one of the data set's, its main one, a wrong one, or none."""
        if kind == "none":
            return gs.LabelGraph.exchangeable(self.outputs.n_classes)
        main = self.outputs.graphs[main_graph(self.outputs.name)]
        if kind == "shuffled":
            order = self._rng("shuffled").permutation(self.outputs.n_classes)
            return gs.LabelGraph.from_weights(main.weights[order][:, order])
        return main if kind == "main" else self.outputs.graphs[kind]


def within_supply(q: Vector, supply: Vector, n: int) -> Vector:
    """The shares s q, with s > 1, cut to what a pool supports: n q_i two sds below its rows.

    >>> within_supply(np.array([0.8, 0.1, 0.1]), np.array([100, 100, 100]), 160).tolist()
    [0.5, 0.25, 0.25]
    """
    most = np.maximum(supply - 2 * np.sqrt(supply), 0) / n
    if most[q > 0].sum() <= 1:
        raise ValueError(
            f"a pool of {supply.sum()} rows is too small for a target of {n} without replacement"
        )
    cut = np.zeros(len(q), bool)
    while True:
        free = q[~cut].sum()
        shares = np.where(cut, most, q * (1 - most[cut].sum()) / free)
        over = shares > most * (1 + 1e-12)
        if not over.any():
            return shares / shares.sum()
        cut |= over
