"""Reading and writing: nothing half-written, nothing unpickled."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from gsb3se.errors import some_of

FORMAT_VERSION = 1


def write_atomically(path: str | os.PathLike[str], write: Callable[[BinaryIO], object]) -> None:
    """Let ``write`` fill a file beside ``path``, then rename it into place.

    A reader sees the old file or the whole new one, never a part of it.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise ValueError(f"cannot write {path}: the folder {path.parent} does not exist")
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    beside = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
        umask = os.umask(0)
        os.umask(umask)
        beside.chmod(0o666 & ~umask)  # mkstemp is private; give the file its usual rights
        try:
            beside.replace(path)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from None
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write text as UTF-8, atomically."""
    write_atomically(path, lambda file: file.write(text.encode()))


def as_json(content: Any) -> str:
    """JSON text of plain values and numpy's; it has no infinity, for which null stands.

    >>> as_json({"a": float("inf")})
    '{\\n  "a": null\\n}\\n'
    """
    return json.dumps(_finite(content), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    return value.item() if isinstance(value, np.generic) else value


def as_csv(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """CSV text.

    >>> as_csv(["a", "b"], [[1, "x,y"]])
    'a,b\\n1,"x,y"\\n'
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()


def save_arrays(path: str | os.PathLike[str], kind: str, **arrays: object) -> None:
    """Save arrays as one NPZ file that says what it is."""
    stamped = {"kind": np.array(kind), "version": np.array(FORMAT_VERSION)}
    content = stamped | {name: np.asarray(value) for name, value in arrays.items()}
    if any(array.dtype.hasobject for array in content.values()):
        raise ValueError(f"a {kind} file holds numbers and text only")
    write_atomically(path, lambda file: np.savez_compressed(file, **content))  # type: ignore[arg-type]


def load_arrays(
    path: str | os.PathLike[str], kind: str, *required: str
) -> dict[str, NDArray[np.generic]]:
    """Load what :func:`save_arrays` wrote for this kind; pickles are refused."""
    arrays = read_npz(path)
    found = str(arrays.get("kind", "unknown"))
    if found != kind:
        raise ValueError(f"{path} holds no {kind}: its kind is {found!r}")
    if int(arrays.get("version", 0)) > FORMAT_VERSION:
        raise ValueError(
            f"{path} has format version {int(arrays['version'])} and this gsb3se reads up to "
            f"{FORMAT_VERSION}: upgrade with  pip install -U gsb3se"
        )
    check_present(path, arrays, *required)
    return arrays


def check_present(
    path: str | os.PathLike[str], arrays: dict[str, NDArray[np.generic]], *required: str
) -> None:
    """Raise ValueError if a file lacks one of its arrays."""
    if missing := [name for name in required if name not in arrays]:
        raise ValueError(f"{path} is damaged: it lacks {some_of(missing)}")


def check_columns(
    path: str | os.PathLike[str], wanted: Sequence[str], found: Sequence[str]
) -> None:
    """Raise ValueError unless a table has each of the wanted columns, once."""
    missing = [name for name in wanted if name not in found]
    if missing:
        raise ValueError(
            f"{path} has no column {some_of(missing)}; it has {some_of(found) or 'none'}"
        )
    if twice := [name for name in wanted if found.count(name) > 1]:
        raise ValueError(f"{path} has more than one column {some_of(twice)}")


def compressed(
    form: type[sparse.csc_array] | type[sparse.csr_array],
    arrays: dict[str, NDArray[np.generic]],
    n: int,
) -> Any:
    """An n x n sparse array from its stored parts, every index checked."""
    try:
        matrix = form((arrays["data"], arrays["indices"], arrays["indptr"]), shape=(n, n))
        matrix.check_format(full_check=True)
    except (ValueError, TypeError) as error:
        raise ValueError(f"the file is damaged: {error}") from None
    return matrix


def read_npz(path: str | os.PathLike[str]) -> dict[str, NDArray[np.generic]]:
    """All arrays of an NPZ file; object arrays, which would be pickles, are refused."""
    archive = _load(path, np.lib.npyio.NpzFile, "an NPZ file of plain arrays")
    with archive:
        try:
            return {name: archive[name] for name in archive.files}
        except (ValueError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError):
            raise ValueError(f"{path} is not an NPZ file of plain arrays") from None


def read_npy(path: str | os.PathLike[str]) -> NDArray[np.generic]:
    """The array of an NPY file; an object array, which would be a pickle, is refused."""
    return _load(path, np.ndarray, "an NPY file of a plain array")


def read_text(path: str | os.PathLike[str]) -> str:
    """A text file, which must be UTF-8."""
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text (byte {error.start})") from None


def _load(path: str | os.PathLike[str], kind: type, expected: str) -> Any:
    try:
        loaded = np.load(path, allow_pickle=False)
    except (ValueError, EOFError, zipfile.BadZipFile, NotImplementedError):
        loaded = None  # numpy's own message would suggest to unpickle the file
    if not isinstance(loaded, kind):
        raise ValueError(f"{path} is not {expected}")
    return loaded
