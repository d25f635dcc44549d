"""ShiftCounts: all that the hierarchy sees of the data."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from gsb3se.support.errors import MOST_IN_ALL
from gsb3se.support.files import compressed, load_arrays, save_arrays, whole
from gsb3se.support.labels import (
    Label,
    as_column,
    as_labels,
    check_not_masked,
    class_names,
    declared_categories,
    encode,
)
from gsb3se.support.named_axes import check_same_rows, column_names, in_order_of


@dataclass(frozen=True, eq=False, init=False, repr=False)
class ConfusionCounts:
    """Confusion counts of a labelled validation set: what is known of the classifier.

    Args:
        confusion: (K, K) counts; ``confusion[j, i]`` is how often the classifier predicted class j
            where the truth was class i. Dense, scipy.sparse or a DataFrame; kept sparse.
        labels: K names, all strings or all integers; by default the columns of a pandas DataFrame,
            or 0..K-1.

    >>> ConfusionCounts([[9, 2], [1, 8]]).with_target([30, 70])
    ShiftCounts(2 classes, 20 validation rows, 100 target predictions)
    """

    confusion: sparse.csc_array
    labels: tuple[Label, ...]

    def __init__(
        self,
        confusion: ArrayLike | sparse.sparray | sparse.spmatrix,
        labels: Iterable[Label] | None = None,
    ) -> None:
        shape = confusion.shape if hasattr(confusion, "shape") else np.shape(confusion)
        _check_square(shape)
        n_classes = shape[0]
        labels = column_names(confusion) if labels is None else labels
        names = tuple(range(n_classes)) if labels is None else as_labels(labels, n_classes)
        confusion = in_order_of(names, confusion, "the confusion counts", axes=(0, 1))
        object.__setattr__(self, "confusion", _confusion_counts(confusion))
        object.__setattr__(self, "labels", names)

    @property
    def n_classes(self) -> int:
        """K."""
        return len(self.labels)

    @property
    def n_validation(self) -> int:
        """m, the number of validation rows."""
        return int(self.confusion.sum())

    @cached_property
    def validation_sizes(self) -> NDArray[np.int64]:
        """(K,) validation rows n_i of each true class."""
        return np.asarray(self.confusion.sum(axis=0), dtype=np.int64)

    @property
    def validation_shares(self) -> NDArray[np.float64]:
        """(K,) shares of the true classes among the validation rows: the source prior, if they
        were drawn from the source at random."""
        return self.validation_sizes / self.n_validation

    @property
    def without_validation(self) -> tuple[Label, ...]:
        """Classes of which the validation set has no row: their column is known from the prior."""
        return self._labels_where(self.validation_sizes == 0)

    @cached_property
    def confusion_rates(self) -> sparse.csc_array:
        """C~, (K, K): the columns divided by n_i; a class without validation rows has zeros."""
        scale = 1.0 / np.maximum(self.validation_sizes, 1)
        rates = self.confusion.astype(float)
        rates.data *= np.repeat(scale, np.diff(rates.indptr))
        return rates

    def with_target(self, target: ArrayLike) -> ShiftCounts:
        """The same validation counts, not copied, with a target's (or another's) predictions.

        A Series whose index names the classes is put in the order of the labels.
        """
        target = in_order_of(self.labels, target, "the target counts")
        other = object.__new__(ShiftCounts)
        other.__dict__.update(self.__dict__)  # what was worked out of the counts goes along
        object.__setattr__(other, "target", _target_counts(target, self.n_classes))
        return other

    def __repr__(self) -> str:
        return f"ConfusionCounts({self.n_classes} classes, {self.n_validation} validation rows)"

    def _labels_where(self, mask: NDArray[np.bool_]) -> tuple[Label, ...]:
        return tuple(self.labels[i] for i in np.flatnonzero(mask))


@dataclass(frozen=True, eq=False, init=False, repr=False)
class ShiftCounts(ConfusionCounts):
    """Confusion counts of a labelled validation set and prediction counts of a target set.

    Args:
        confusion: (K, K) counts; ``confusion[j, i]`` is how often the classifier predicted class j
            where the truth was class i: the transpose of scikit-learn's, which
            :meth:`from_confusion` takes. Dense, scipy.sparse or a DataFrame; kept sparse.
        target: (K,) counts of the predictions on the unlabelled target set.
        labels: K names, all strings or all integers; by default the columns of a pandas DataFrame,
            or 0..K-1.

    A pandas DataFrame or Series whose index names the classes is put in the order of the labels.

    Classes without validation rows and classes that were never predicted are allowed; see
    :attr:`without_validation` and :attr:`never_predicted`.

    >>> counts = ShiftCounts([[9, 2], [1, 8]], target=[30, 70], labels=["cat", "dog"])
    >>> counts
    ShiftCounts(2 classes, 20 validation rows, 100 target predictions)
    >>> (counts + counts).n_target
    200
    """

    target: NDArray[np.int64]

    def __init__(
        self,
        confusion: ArrayLike | sparse.sparray | sparse.spmatrix,
        target: ArrayLike,
        labels: Iterable[Label] | None = None,
    ) -> None:
        super().__init__(confusion, labels)
        target = in_order_of(self.labels, target, "the target counts")
        object.__setattr__(self, "target", _target_counts(target, self.n_classes))

    @classmethod
    def from_confusion(
        cls,
        matrix: ArrayLike | sparse.sparray | sparse.spmatrix,
        target: ArrayLike,
        labels: Iterable[Label] | None = None,
        *,
        truth: Literal["rows", "columns"],
    ) -> ShiftCounts:
        """Counts from a confusion matrix of either orientation.

        Args:
            matrix: (K, K) counts of the validation rows.
            target: (K,) counts of the target's predictions.
            labels: the K names.
            truth: "rows" if ``matrix[i, j]`` counts true class i predicted as j, as
                ``sklearn.metrics.confusion_matrix`` returns it; "columns" if ``matrix[j, i]`` does,
                as :class:`ShiftCounts` keeps it.

        >>> counts = ShiftCounts.from_confusion([[9, 1], [2, 8]], [30, 70], truth="rows")
        >>> counts.confusion.toarray().tolist()
        [[9, 2], [1, 8]]
        """
        if truth not in ("rows", "columns"):
            raise ValueError(
                "truth must be 'rows' for matrix[true, predicted], as scikit-learn has it, or "
                f"'columns' for matrix[predicted, true]; got {truth!r}"
            )
        given: Any = matrix if hasattr(matrix, "T") else np.asarray(matrix)
        return cls(given.T if truth == "rows" else given, target, labels)

    @classmethod
    def from_predictions(
        cls,
        y_true: ArrayLike,
        y_pred: ArrayLike,
        target_pred: ArrayLike,
        labels: Iterable[Label] | None = None,
    ) -> ShiftCounts:
        """Count the predictions of a classifier.

        Args:
            y_true: (m,) true labels of the validation rows.
            y_pred: (m,) predicted labels of the same rows.
            target_pred: (n',) predicted labels of the target rows.
            labels: every class, in the order the results shall have. Without it, the classes are
                the distinct values that occur, sorted, and the categories of Categorical columns;
                any other class is left out.

        Raises:
            ValueError: columns do not fit together: lengths or indexes differ, or, without labels,
                two of them have no class in common ("CAT" and "cat").

        >>> counts = ShiftCounts.from_predictions(["a", "b"], ["a", "a"], ["b", "a", "a"])
        >>> counts.labels, counts.target.tolist()
        (('a', 'b'), [2, 1])
        """
        columns = {
            "y_true": as_column(y_true, "y_true"),
            "y_pred": as_column(y_pred, "y_pred"),
            "target_pred": as_column(target_pred, "target_pred"),
        }
        if len(columns["y_true"]) != len(columns["y_pred"]):
            raise ValueError(
                f"y_true and y_pred must be of one length, a row each; "
                f"got {len(columns['y_true'])} and {len(columns['y_pred'])}"
            )
        check_same_rows(y_true, y_pred, ("y_true", "y_pred"))
        given = (y_true, y_pred, target_pred)
        names = _classes(given, list(columns.values())) if labels is None else as_labels(labels)
        _check_number_of_classes(len(names))
        truth, predicted, target = (encode(c, names, name) for name, c in columns.items())
        n = len(names)
        return cls(count_pairs(predicted, truth, n), count_codes(target, n), names)

    @property
    def n_target(self) -> int:
        """n', the number of target predictions."""
        return int(self.target.sum())

    @property
    def never_predicted(self) -> tuple[Label, ...]:
        """Classes that were predicted neither on the validation rows nor on the target."""
        return self._labels_where((self.confusion.sum(axis=1) == 0) & (self.target == 0))

    def __add__(self, other: object) -> ShiftCounts:
        """Merge counts of the same classes, for streams and shards."""
        if not isinstance(other, ShiftCounts):
            return NotImplemented
        if self.labels != other.labels:
            raise ValueError(
                "only counts over the same labels in the same order can be added: build both with "
                "the same labels="
            )
        return ShiftCounts(
            self.confusion + other.confusion, self.target + other.target, self.labels
        )

    def __radd__(self, other: object) -> ShiftCounts:
        """So that ``sum(list_of_counts)`` works."""
        return self if other == 0 else NotImplemented

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ShiftCounts):
            return NotImplemented
        return (
            self.labels == other.labels
            and np.array_equal(self.target, other.target)
            and (self.confusion != other.confusion).nnz == 0
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return (
            f"ShiftCounts({self.n_classes} classes, {self.n_validation} validation rows, "
            f"{self.n_target} target predictions)"
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save to one NPZ file."""
        save_arrays(path, "ShiftCounts", **self.to_arrays())

    def to_arrays(self) -> dict[str, object]:
        """The counts as plain arrays."""
        sparse_parts = {n: getattr(self.confusion, n) for n in ("data", "indices", "indptr")}
        return sparse_parts | {"target": self.target, "labels": self.labels}

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ShiftCounts:
        """Load what :meth:`save` wrote."""
        arrays = load_arrays(path, "ShiftCounts", "data", "indices", "indptr", "target", "labels")
        with whole(path):
            return cls.from_arrays(arrays)

    @classmethod
    def from_arrays(cls, arrays: dict[str, Any]) -> ShiftCounts:
        """What :meth:`to_arrays` gave."""
        n_classes = len(arrays["target"])
        matrix = compressed(sparse.csc_array, arrays, n_classes)
        return cls(matrix, arrays["target"], arrays["labels"].tolist())


def count_pairs(
    predicted: NDArray[np.int64],
    truth: NDArray[np.int64],
    n_classes: int,
    times: NDArray[np.int64] | None = None,
) -> sparse.coo_array:
    """(K, K) how often each class was predicted for each true one, from their positions.

    Args:
        times: how many rows each of them stands for; one if not given.
    """
    times = np.ones(len(truth), dtype=np.int64) if times is None else times
    return sparse.coo_array((times, (predicted, truth)), shape=(n_classes, n_classes))


def count_codes(
    codes: NDArray[np.int64], n_classes: int, times: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """(K,) how often each class occurs, in whole numbers whatever their size."""
    if times is None:
        return np.bincount(codes, minlength=n_classes)
    summed = np.zeros(n_classes, dtype=np.int64)
    np.add.at(summed, codes, times)
    return summed


def _classes(given: tuple[ArrayLike, ...], columns: list[NDArray[np.generic]]) -> tuple[Label, ...]:
    """The classes of the columns of ``from_predictions``, declared or met."""
    met = class_names(columns[:2], columns[2])
    declared = [names for names in map(declared_categories, given) if names is not None]
    if not declared:
        return met
    first = declared[0]
    if all(names == first for names in declared) and set(met) <= set(first):
        return first  # in the order that was declared
    every = as_labels(list({*met, *(name for names in declared for name in names)}))
    return tuple(sorted(every))


def _check_square(shape: tuple[int, ...]) -> None:
    if len(shape) != 2 or shape[0] != shape[1]:
        raise ValueError(
            "confusion must be square, confusion[j, i] counting class j predicted where the truth "
            f"was class i; got shape {shape}. ShiftCounts.from_confusion takes scikit-learn's "
            "orientation with truth='rows'"
        )
    _check_number_of_classes(shape[0])


def _confusion_counts(confusion: Any) -> sparse.csc_array:
    """Check confusion counts and bring them into canonical sparse form."""
    given: Any = confusion
    if not sparse.issparse(confusion):
        check_not_masked(confusion, "the confusion counts")
        given = np.asarray(confusion)
    if not sparse.issparse(given):
        _check_counts(given, "confusion counts")
    entries = sparse.coo_array(given)
    _check_counts(entries.data, "confusion counts")
    # To 64 bits before duplicates are summed: a narrow type would wrap.
    matrix = sparse.csc_array((entries.data.astype(np.int64), entries.coords), shape=given.shape)
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    for part in (matrix.data, matrix.indices, matrix.indptr):
        part.flags.writeable = False
    return matrix


def _target_counts(target: ArrayLike, n_classes: int) -> NDArray[np.int64]:
    """Check target counts and keep them from being changed."""
    check_not_masked(target, "the target counts")
    given = np.asarray(target)
    if given.shape != (n_classes,):
        raise ValueError(
            f"target must hold {n_classes} counts, one for each class of the "
            f"{(n_classes, n_classes)} confusion counts; got shape {given.shape}"
        )
    _check_counts(given, "target counts")
    counts = given.astype(np.int64)
    if counts.sum() == 0:
        raise ValueError("target counts are all zero: expected at least one target prediction")
    counts.flags.writeable = False
    return counts


def _check_number_of_classes(n_classes: int) -> None:
    if n_classes < 2:
        raise ValueError(f"a label shift needs at least 2 classes; got {n_classes}")


def _check_counts(values: NDArray[np.generic], name: str) -> None:
    if values.dtype.kind not in "iuf":
        raise ValueError(f"{name} must be numbers; got values of type {values.dtype}")
    if values.size == 0:
        return
    if values.dtype.kind == "f":
        if not np.isfinite(values).all():
            raise ValueError(f"{name} must be finite; found {values[~np.isfinite(values)][0]}")
        fractional = values != np.floor(values)
        if fractional.any():
            raise ValueError(f"{name} must be whole numbers; found {values[fractional][0]}")
    if values.min() < 0:
        raise ValueError(f"{name} must not be negative; found {values.min()}")
    if values.sum(dtype=float) > MOST_IN_ALL:  # as floats: whole numbers would wrap around
        raise ValueError(
            f"{name} must not exceed 2^53 in all; got {values.sum(dtype=float):.6g}, the largest "
            f"of them {values.max()}"
        )
