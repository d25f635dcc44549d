"""What a pandas Series or DataFrame says beside its values: the names of its rows and columns.

Names take precedence over positions: values are reordered to the labels by name, and refused if the
names differ from the labels. A default index 0..n-1 is ignored. pandas is never imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gsb3se.support.errors import some_of
from gsb3se.support.labels import Label, as_labels, same_names


def row_names(values: Any) -> tuple[Any, ...] | None:
    """The index of a Series or DataFrame, unless it is the default one; None for anything else."""
    return _names(values, "index")


def column_names(values: Any) -> tuple[Any, ...] | None:
    """The columns of a DataFrame, unless they are the default ones; None for anything else."""
    return _names(values, "columns")


def _names(values: Any, axis: str) -> tuple[Any, ...] | None:
    if not hasattr(values, "iloc"):
        return None
    names = getattr(values, axis, None)
    if names is None:
        return None
    listed = names.tolist()
    default = type(names).__name__ == "RangeIndex" and listed == list(range(len(listed)))
    return None if default else tuple(listed)


def check_same_rows(first: Any, second: Any, names: tuple[str, str]) -> None:
    """Raise ValueError if both have an index and these differ.

    Whether values that stand beside each other belong together cannot be known then.
    """
    indexes = [values.index if hasattr(values, "iloc") else None for values in (first, second)]
    if indexes[0] is None or indexes[1] is None or indexes[0].equals(indexes[1]):
        return
    raise ValueError(
        f"{names[0]} and {names[1]} have different indexes ({some_of(indexes[0][:3].tolist())} ... "
        f"and {some_of(indexes[1][:3].tolist())} ...): give them the same one, or pass "
        ".to_numpy() of both if their rows stand in the same order"
    )


def in_order_of(
    labels: Sequence[Label], values: Any, name: str, axes: tuple[int, ...] = (0,)
) -> Any:
    """Values by class in the order of the labels; what has no names is taken as it stands.

    Args:
        axes: which axes of ``values`` are the classes.

    Raises:
        ValueError: the names are not those of the labels.
    """
    if not hasattr(values, "iloc"):
        return values
    array = values.to_numpy()
    if array.dtype == object:  # of nullable columns
        array = np.array(array.tolist())
    for axis in axes:
        names = (row_names, column_names)[axis](values)
        if names is None or (names == tuple(range(len(labels))) and isinstance(labels[0], str)):
            continue  # nothing is said of which row is whose
        order = same_names(labels, as_labels(names))
        if order is None:
            where = ("index", "columns")[axis]
            raise ValueError(
                f"the {where} of {name} ({some_of(names, most=3)}) must name the same "
                f"{len(labels)} classes as the labels ({some_of(tuple(labels), most=3)}): use "
                "reindex(labels, fill_value=0) where some are missing, or pass .to_numpy() if they "
                "stand in the same order"
            )
        array = np.take(array, order, axis=axis)
    return array
