"""Label names: an explicit, ordered list, and the way from values to positions in it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gsb3se.errors import some_of

Label = str | int

_CHUNK = 1 << 17  # values turned into Python objects at a time
_INTEGER = re.compile(r"(0|-?[1-9][0-9]{0,17})([.]0*)?")  # not '007', which is a name


def as_labels(labels: Iterable[object], n_classes: int | None = None) -> tuple[Label, ...]:
    """Check a list of label names: all strings or all integers, none twice.

    >>> as_labels(["cat", "dog"])
    ('cat', 'dog')
    """
    if isinstance(labels, set | frozenset) or not isinstance(labels, Iterable):
        raise ValueError(f"labels must be given in order, as a list; got {type(labels).__name__}")
    names = tuple(_as_label(label) for label in labels)
    if n_classes is not None and len(names) != n_classes:
        raise ValueError(f"expected {n_classes} labels, one a class; got {len(names)}")
    if len({type(name) for name in names}) > 1:
        raise ValueError("labels must be all strings or all integers; got both")
    if twice := more_than_once(names):
        raise ValueError(f"labels must be distinct; found more than once: {some_of(twice)}")
    return names


def more_than_once(items: Iterable[Hashable]) -> list[Hashable]:
    """What occurs more than once, in the order of its first occurrence.

    >>> more_than_once("abcab")
    ['a', 'b']
    """
    return [item for item, times in Counter(items).items() if times > 1]


def _as_label(label: object) -> Label:
    if isinstance(label, str):
        return str(label)
    if isinstance(label, int | np.integer) and not isinstance(label, bool):
        if not -(2**63) <= int(label) < 2**63:
            raise ValueError(f"an integer label must fit into 64 bits; got {label}")
        return int(label)
    raise ValueError(f"a label must be a string or an integer; got {label!r}")


def as_integer(text: str) -> int | None:
    """The whole number a text spells as programs do, '2' or '2.0'; None for other text.

    >>> as_integer("2.0"), as_integer("007")
    (2, None)
    """
    found = _INTEGER.fullmatch(text)
    return None if found is None else int(found[1])


def distinct_values(*columns: NDArray[np.generic]) -> tuple[Label, ...]:
    """The sorted distinct values of several columns, as labels."""
    seen: set[object] = set()
    for column in columns:
        if column.dtype.kind in "iu":
            seen.update(np.unique(column).tolist())
        else:
            for chunk in _chunks(column):
                seen.update(chunk)
    labels = as_labels(list(seen))
    return tuple(sorted(labels))


def as_column(values: ArrayLike, name: str) -> NDArray[np.generic]:
    """A column of label values as a one-dimensional array."""
    if np.ma.isMaskedArray(values) and np.ma.getmaskarray(values).any():
        raise ValueError(f"{name} has masked values: drop those rows first")
    column = np.asarray(values)
    if column.size == 0 and column.ndim == 1:
        return column.astype(np.int64)
    if column.ndim != 1:
        raise ValueError(
            f"{name} must be one-dimensional, one label a row; got shape {column.shape}"
        )
    if column.dtype.kind == "b":
        raise ValueError(f"{name} must hold labels, strings or integers; got true and false")
    if column.dtype.kind == "u" and column.max() >= 2**63:
        raise ValueError(f"{name} must hold integers of 64 bits at most; got {column.max()}")
    if column.dtype.kind == "f":
        if np.isnan(column).any():
            row = int(np.flatnonzero(np.isnan(column))[0])
            raise ValueError(f"{name} has missing values, the first in row {row}: drop those rows")
        if (abs(column) < 2**53).all() and (column == column.round()).all():
            return column.astype(np.int64)  # integers that came through a float column
    return column


def as_codes(
    values: ArrayLike, labels: Iterable[Label] | None, name: str
) -> tuple[NDArray[np.int64], tuple[Label, ...]]:
    """Positions of a column's values among the labels; by default its distinct values, sorted."""
    column = as_column(values, name)
    names = distinct_values(column) if labels is None else as_labels(labels)
    return encode(column, names, name), names


def encode(column: NDArray[np.generic], labels: Sequence[Label], name: str) -> NDArray[np.int64]:
    """Positions of the values in ``labels``.

    Raises:
        ValueError: a value is no label; the message names it.
    """
    if column.dtype.kind in "iu" and all(isinstance(label, int) for label in labels):
        codes = _encode_integers(column, np.array(labels, dtype=np.int64))
    else:
        position = {label: index for index, label in enumerate(labels)}
        codes = np.empty(len(column), dtype=np.int64)
        start = 0
        for chunk in _chunks(column):
            codes[start : start + len(chunk)] = [position.get(value, -1) for value in chunk]  # type: ignore[call-overload]
            start += len(chunk)
    unknown = codes < 0
    if unknown.any():
        strangers = sorted(set(column[unknown].tolist()), key=repr)
        raise ValueError(
            f"{name} holds {some_of(strangers)}, unknown among the {len(labels)} labels "
            f"({some_of(tuple(labels), most=3)}): name every class in labels=, or drop those rows"
        )
    return codes


def _encode_integers(column: NDArray[np.generic], labels: NDArray[np.int64]) -> NDArray[np.int64]:
    values = column.astype(np.int64)
    if np.array_equal(labels, np.arange(len(labels))):
        values[(values < 0) | (values >= len(labels))] = -1
        return values
    if len(labels) == 0:
        return np.full(len(values), -1)
    order = np.argsort(labels)
    places = np.searchsorted(labels, values, sorter=order)
    codes = order[np.minimum(places, len(labels) - 1)]
    return np.where(labels[codes] == values, codes, -1)


def _chunks(column: NDArray[np.generic]) -> Iterator[list[object]]:
    for start in range(0, len(column), _CHUNK):
        yield column[start : start + _CHUNK].tolist()
