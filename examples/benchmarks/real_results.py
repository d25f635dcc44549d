"""What the benchmark on real classifiers found, looked up by setting."""

from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np
import polars as pl
import real_methods
from real_data import DATA_SETS, main_graph, target_size
from real_grids import FAILED

TITLES = {
    "mnist": "MNIST",
    "20news": "20 Newsgroups",
    "cifar10": "CIFAR-10",
    "cifar100-wideresnet164": "CIFAR-100, WideResNet",
    "cifar100-densenetbc100": "CIFAR-100, DenseNet",
    "cifar100-lenet5": "CIFAR-100, LeNet",
    "imagenet": "ImageNet",
    "unshifted": "no shift assumed",
    "counted": "predictions as counted",
    "bbse raw": "BBSE, raw",
    "bbse": "BBSE, projected",
    "bbse bootstrap": "BBSE, bootstrap",
    "rlls": "RLLS",
    "mlls": "MLLS, hard",
    "acc": "ACC (QuaPy)",
    "bayesian-cc": "BayesianCC (QuaPy)",
    "em": "EM, raw scores",
    "em bcts": "EM, BCTS",
    "paper structured": "paper's prior, structured",
    "paper plain": "paper's prior, structured, no chains",
    "paper amortized": "paper's prior, amortized",
    "paper hmc": "paper's prior, HMC",
    "anchored structured": "anchored, structured",
    "anchored plain": "anchored, structured, no chains",
    "anchored amortized": "anchored, amortized",
    "anchored hmc": "anchored, HMC",
    "paper newton": "paper's prior, Newton-CG",
    "paper laplace": "paper's prior, nested Laplace",
    "paper variational": "paper's prior, variational",
}
BAYESIAN = tuple(name for name, method in real_methods.METHODS.items() if method.uses_graph)
SOFT = ("em", "em bcts")
HARD = ("unshifted", "counted", "bbse raw", "bbse", "rlls", "mlls", "acc", "bayesian-cc", *BAYESIAN)
METHODS = (*HARD[:4], "bbse bootstrap", *HARD[4:], *SOFT)


def title_of(name: str) -> str:
    """What tables call a data set or a method."""
    return TITLES.get(name, name)


class Findings:
    """The rows of the Parquet file.

    A figure of a setting is given only where all shifts and all repeats of it are there, so that
    cells beside each other are over the same targets.
    """

    def __init__(self, frame: pl.DataFrame) -> None:
        failed = pl.col("status").str.starts_with(FAILED)
        self.failures = frame.filter(failed)
        self.frame = frame.filter(~failed)
        self._parts = self.frame.partition_by(
            "data_set", "labels", "method", "graph", "n_target", as_dict=True
        )

    def best(self, data_set: str, labels: int, methods: Iterable[str], figure: str) -> str | None:
        """The method with the smallest mean."""
        known = {m: self.mean_and_error(data_set, labels, m, figure) for m in methods}
        means = {method: cell[0] for method, cell in known.items() if cell is not None}
        return min(means, key=means.__getitem__) if means else None

    @property
    def data_sets(self) -> list[str]:
        return self.there(DATA_SETS)

    def there(self, data_sets: Iterable[str]) -> list[str]:
        """Those of which there are rows."""
        known = set(self.frame["data_set"])
        return [name for name in data_sets if name in known]

    @property
    def labels(self) -> list[int]:
        return sorted(set(self.frame["labels"]))

    @cached_property
    def shifts(self) -> list[str]:
        return sorted(set(self.frame["shift"]))

    @property
    def target_sizes(self) -> list[int]:
        return sorted(set(self.frame["n_target"]))

    def _part(
        self, data_set: str, labels: int, method: str, graph: str | None, n_target: int | None
    ) -> pl.DataFrame | None:
        uses_graph = method in BAYESIAN
        chosen = graph or main_graph(data_set)
        size = n_target or target_size(data_set)
        return self._parts.get((data_set, labels, method, chosen if uses_graph else "", size))

    def shifts_of(
        self, data_set: str, labels: int, method: str, graph: str | None = None
    ) -> list[str]:
        """The shifts on which a method ran."""
        part = self._part(data_set, labels, method, graph, None)
        return [] if part is None else sorted(set(part["shift"]))

    def repeats(
        self,
        data_set: str,
        labels: int,
        method: str,
        figure: str = "l1_population",
        graph: str | None = None,
        shifts: Sequence[str] | None = None,
        n_target: int | None = None,
    ) -> np.ndarray | None:
        """(repeats,) means over the shifts; None unless every one of them was measured."""
        part = self._part(data_set, labels, method, graph, n_target)
        if part is None or figure not in part.columns:
            return None
        wanted = self._usual_shifts(data_set) if shifts is None else list(shifts)
        part = part.filter(pl.col("shift").is_in(wanted)).drop_nulls(figure)
        means = part.group_by("repeat").agg(pl.col(figure).mean(), pl.len()).sort("repeat")
        if not wanted or len(means) < self._n_repeats or (means["len"] != len(wanted)).any():
            return None
        return means[figure].to_numpy()

    @cached_property
    def _n_repeats(self) -> int:
        return self.frame["repeat"].n_unique()

    def _usual_shifts(self, data_set: str) -> list[str]:
        return sorted(set(self.frame.filter(pl.col("data_set") == data_set)["shift"]))

    def mean_and_error(self, *setting, **more) -> tuple[float, float] | None:
        """The mean over repeats and its standard error; arguments as of :meth:`repeats`."""
        values = self.repeats(*setting, **more)
        if values is None:
            return None
        return float(values.mean()), standard_error(values)

    def median(self, data_set: str, labels: int, method: str, figure: str) -> float | None:
        """Over shifts and repeats, if all of them are there."""
        if self.repeats(data_set, labels, method, figure) is None:
            return None
        part = self._part(data_set, labels, method, None, None)
        return None if part is None else part[figure].median()

    def doubtful(self, data_set: str, labels: int, method: str) -> float | None:
        """Share of the posteriors whose status is not ok."""
        part = self._part(data_set, labels, method, None, None)
        return None if part is None else float((part["status"] != "ok").mean())

    def shift_size(self, data_set: str, shift: str, n_target: int | None = None) -> float | None:
        """Mean L1 distance between source and population."""
        size = n_target or target_size(data_set)
        mine = (pl.col("data_set") == data_set) & (pl.col("shift") == shift)
        part = self.frame.filter(mine & (pl.col("n_target") == size))
        return part["shift_size"].mean() if len(part) else None


def standard_error(values: np.ndarray) -> float:
    """Of their mean."""
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")
