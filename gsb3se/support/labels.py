"""Label names: an explicit, ordered list, and the way from values to positions in it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gsb3se.support.errors import some_of

Label = str | int

LONGEST = 1000  # letters of a label from a file
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
        text = [name for name in names if isinstance(name, str)]
        numbers = [name for name in names if isinstance(name, int)]
        raise ValueError(
            f"labels must be all strings or all integers; got both: {some_of(text, most=3)} as "
            f"text, {some_of(numbers, most=3)} as numbers"
        )
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
        if any("\ud800" <= letter <= "\udfff" for letter in label) or "\0" in label:
            raise ValueError(f"a label must be text that UTF-8 can write; got {label!r}")
        return str(label)
    if isinstance(label, int | np.integer) and not isinstance(label, bool):
        if not -(2**63) <= int(label) < 2**63:
            raise ValueError(f"an integer label must fit into 64 bits; got {label}")
        return int(label)
    raise ValueError(f"a label must be a string or an integer; got {label!r}")


def printable(text: object) -> str:
    """Text that is safe to display: each non-printable character becomes an escape sequence.

    >>> printable("cat")
    'cat'
    >>> printable("cat" + chr(7)).endswith("x07")
    True
    """
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in shown
    )


def as_integer(text: str) -> int | None:
    """The whole number a text spells as programs do, '2' or '2.0'; None for other text.

    >>> as_integer("2.0"), as_integer("007")
    (2, None)
    """
    match = _INTEGER.fullmatch(text)
    return None if match is None else int(match[1])


def as_text_labels(texts: Sequence[str]) -> tuple[Label, ...]:
    """Labels that came as text: as whole numbers if all of them spell one.

    >>> as_text_labels(["1", "2"]), as_text_labels(["001", "2"])
    ((1, 2), ('001', '2'))
    """
    labels = as_labels(texts)
    whole = _as_numbers(labels)
    return as_labels(whole) if all(isinstance(label, int) for label in whole) else labels


def same_names(labels: Sequence[Label], others: Sequence[Label]) -> list[int] | None:
    """Position of each label in ``others``, or None if the two name different classes.

    Whole numbers and their text are the same name.

    >>> same_names([0, 1], ["1", "0"])
    [1, 0]
    """
    if len(labels) != len(others):
        return None
    if isinstance(labels[0], int) != isinstance(others[0], int):
        labels, others = _as_numbers(labels), _as_numbers(others)
    place = {name: index for index, name in enumerate(others)}
    if len(place) < len(others) or any(name not in place for name in labels):
        return None
    return [place[name] for name in labels]


def _as_numbers(labels: Sequence[Label]) -> Sequence[Label]:
    """The labels with every whole number as one, however it was written."""
    whole = [label if isinstance(label, int) else as_integer(label) for label in labels]
    return [
        label if number is None else number for label, number in zip(labels, whole, strict=True)
    ]


def class_names(
    validation: Sequence[NDArray[np.generic]], target: NDArray[np.generic]
) -> tuple[Label, ...]:
    """The classes of columns whose labels nobody listed: all values that occur, sorted.

    Args:
        validation: true labels and predictions; target: the target's predictions.

    Raises:
        ValueError: two of the columns have no value in common, so that their labels are written
            in different ways.
    """
    truth, predicted, aim = (distinct_values(column) for column in (*validation, target))
    validated = {*truth, *predicted}
    every = as_labels(list({*validated, *aim}))
    check_same_rows_overlap(truth, predicted)
    _check_overlap(tuple(validated), aim, "the validation rows", "the predictions of the target")
    return tuple(sorted(every))


def check_same_rows_overlap(truth: tuple[Label, ...], predicted: tuple[Label, ...]) -> None:
    """Raise ValueError if the true labels and predictions of the same rows share no class.

    A classifier that predicts a single class may be wrong in every row. That is accepted unless the
    two columns spell the same class differently, such as 'Cat' and 'cat'.
    """
    alike = {_loosely(label) for label in truth} & {_loosely(label) for label in predicted}
    if (len(truth) > 1 and len(predicted) > 1) or alike:
        _check_overlap(truth, predicted, "the true labels", "the predictions of the same rows")


def _loosely(label: Label) -> str:
    return str(label).strip().casefold()


def _check_overlap(
    one: tuple[Label, ...], other: tuple[Label, ...], name: str, other_name: str
) -> None:
    if not one or not other or set(one) & set(other):
        return
    raise ValueError(
        f"{name} and {other_name} have no class in common: "
        f"{some_of(sorted(one, key=repr), most=3)} against "
        f"{some_of(sorted(other, key=repr), most=3)}. Write both in one way, or list every class "
        "in labels="
    )


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
    check_not_masked(values, name)
    column = np.asarray(values)
    if column.size == 0 and column.ndim == 1:
        return column.astype(np.int64)
    if column.dtype.kind == "U" and not hasattr(values, "dtype"):
        _check_all_text(values, name)
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
            raise _missing(name, row)
        if (abs(column) < 2**53).all() and (column == column.round()).all():
            return column.astype(np.int64)  # integers that came through a float column
    if column.dtype.kind == "O":
        for row, value in enumerate(column):
            if not isinstance(value, str | int) and _is_missing(value):
                raise _missing(name, row)
    return column


def check_not_masked(values: object, name: str) -> None:
    """Raise ValueError where a masked array hides values, which numpy would bring back."""
    if np.ma.isMaskedArray(values) and np.ma.getmaskarray(values).any():
        raise ValueError(f"{name} must not have masked values: drop or fill them first")


def _check_all_text(values: ArrayLike, name: str) -> None:
    """Refuse what numpy would turn into text, such as NaN into a label 'nan'."""
    for row, value in enumerate(values):  # type: ignore[arg-type]
        if isinstance(value, str):
            continue
        if _is_missing(value):
            raise _missing(name, row)
        raise ValueError(
            f"{name} must be all strings or all integers; got both: {value!r} in row {row}"
        )


def _is_missing(value: object) -> bool:
    """None, NaN, NaT and pandas' NA are not equal to themselves, or do not know it."""
    try:
        return value is None or not bool(value == value)
    except (TypeError, ValueError):
        return True


def _missing(name: str, row: int) -> ValueError:
    return ValueError(f"{name} has missing values, the first in row {row}: drop those rows")


def declared_categories(values: Any) -> tuple[Label, ...] | None:
    """The categories of a pandas Categorical or a polars Enum; None for what declares none."""
    dtype = getattr(values, "dtype", None)
    if type(dtype).__name__ not in ("CategoricalDtype", "Enum"):
        return None
    categories = getattr(dtype, "categories", None)
    return None if categories is None else as_labels(list(categories))


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
