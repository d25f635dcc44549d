"""Reading and writing: nothing half-written, nothing unpickled."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import secrets
import stat
import sys
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray
from scipy import sparse

from gsb3se.support.errors import MissingExtra, some_of

FORMAT_VERSION = 1
_PLAIN = "biufcSU"  # kinds of plain values
_LARGE, _MOST_EXPANDED = 1 << 28, 100  # bytes; times their size, that packed arrays may have
_LONGEST_MESSAGE = 500  # letters of a message
_LONGEST_STEM = 200  # of a name, so that there is room for more
_BINARY = getattr(os, "O_BINARY", 0)


def write_atomically(
    path: str | os.PathLike[str],
    write: Callable[[BinaryIO], object],
    *,
    beside: Path | None = None,
) -> None:
    """Let ``write`` fill a file beside ``path``, then rename it into place.

    A reader sees the old file or the whole new one, never a part of it, and so it is after a loss
    of power. A file that is replaced keeps its mode; a new one has that of any new file.

    Args:
        beside: the file to fill; None: one with a random name. A process that is killed leaves it
            behind, so where there is only one writer at a time a fixed name lets the next one
            clear it away.
    """
    path = Path(path)
    if path.is_symlink():
        path = path.resolve()  # what it points to is meant
    if not path.parent.is_dir():
        raise ValueError(f"cannot write {path}: the folder {path.parent} does not exist")
    if beside is None:
        beside = path.with_name(f".{path.name[:_LONGEST_STEM]}.{secrets.token_hex(6)}")
    else:
        beside.unlink(missing_ok=True)
    try:
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, 0o666)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        try:
            if path.exists():
                beside.chmod(stat.S_IMODE(path.stat().st_mode))
            beside.replace(path)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from None
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make a renaming last; not every system can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


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
    # Large arrays stay uncompressed: read_npz refuses large files that expand a hundredfold.
    large = sum(array.nbytes for array in content.values()) > _LARGE
    save: Any = np.savez if large else np.savez_compressed
    write_atomically(path, lambda file: save(file, **content))


def load_arrays(
    path: str | os.PathLike[str], kind: str, *required: str, optional: Collection[str] | None = ()
) -> dict[str, NDArray[np.generic]]:
    """Load what :func:`save_arrays` wrote for this kind; pickles are refused.

    Args:
        required: arrays that must be there.
        optional: others to read where they are there; None for all.
    """
    about = read_npz(path, ("kind", "version"))
    stamp = str(about.get("kind", "unknown"))
    if stamp != kind:
        raise ValueError(f"{path} holds no {kind}: its kind is {some_of([stamp])}")
    version = about.get("version", np.array(0))
    if version.shape != () or version.dtype.kind not in "iu":
        raise ValueError(f"{path} is damaged: its format version is no number")
    if int(version) > FORMAT_VERSION:
        raise ValueError(
            f"{path} has format version {int(version)} and this gsb3se reads up to "
            f"{FORMAT_VERSION}: upgrade gsb3se"
        )
    arrays = read_npz(path, None if optional is None else {*required, *optional})
    check_present(path, arrays, *required)
    return arrays


@contextmanager
def whole(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn an error raised inside the block into one ValueError that names the damaged file."""
    try:
        yield
    except MissingExtra:
        raise
    except KeyError as missing:
        raise ValueError(f"{path} is damaged: it lacks {missing}") from None
    except MemoryError:
        raise ValueError(f"{path} is damaged, or too large for this machine's memory") from None
    except BaseException as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        reason = "".join(str(error).strip().splitlines()[:1])[:_LONGEST_MESSAGE]
        if reason.startswith(str(path)):
            raise ValueError(reason) from None
        raise ValueError(f"{path} is damaged: {reason or type(error).__name__}") from None


def is_panic(error: BaseException) -> bool:
    """Whether a library written in Rust gave up; what it raises then is no Exception."""
    return type(error).__name__ == "PanicException"


def check_present(
    path: str | os.PathLike[str], arrays: dict[str, NDArray[np.generic]], *required: str
) -> None:
    """Raise ValueError if a file lacks one of its arrays."""
    if missing := [name for name in required if name not in arrays]:
        raise ValueError(f"{path} is damaged: it lacks {some_of(missing)}")


def check_columns(
    path: str | os.PathLike[str], needed: Sequence[str], columns: Sequence[str]
) -> None:
    """Raise ValueError unless a table has each of the needed columns, once."""
    missing = [name for name in needed if name not in columns]
    if missing:
        raise ValueError(
            f"{path} has no column {some_of(missing)}; it has {some_of(columns) or 'none'}"
        )
    check_distinct(path, needed, columns)


def check_distinct(
    path: str | os.PathLike[str], needed: Sequence[str], columns: Sequence[str]
) -> None:
    """Raise ValueError if a table has one of the needed columns twice."""
    if twice := [name for name in needed if columns.count(name) > 1]:
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


def names_in_npz(path: str | os.PathLike[str]) -> list[str]:
    """The names of an NPZ file's arrays."""
    with _opened_npz(path) as archive:
        return [_array_name(entry) for entry in archive.infolist()]


def read_npz(
    path: str | os.PathLike[str] | BinaryIO, wanted: Collection[str] | None = None
) -> dict[str, NDArray[np.generic]]:
    """Arrays of an NPZ file; object arrays, which would be pickles, are refused.

    Args:
        wanted: the names of those to read, where they are there; None for all of them.
    """
    arrays: dict[str, NDArray[np.generic]] = {}
    with _opened_npz(path) as archive:
        entries = {
            _array_name(entry): entry
            for entry in archive.infolist()
            if wanted is None or _array_name(entry) in wanted
        }
        packed = [entry.compress_size for entry in entries.values()]
        sizes = [entry.file_size for entry in entries.values()]
        # A damaged index may tell of more than the file has, or of the same bytes twice.
        allowed = _MOST_EXPANDED * min(sum(packed), _file_size(path))
        grown = [s for s, p in zip(sizes, packed, strict=True) if s > _LARGE + _MOST_EXPANDED * p]
        if grown or (sum(sizes) > _LARGE and sum(sizes) > allowed):
            raise ValueError(
                f"{path} would grow to {sum(sizes) / 1e9:.3g} GB from what it has packed: it is "
                "damaged, or made to fill the memory"
            )
        for name, entry in entries.items():
            try:
                with archive.open(entry) as file:
                    arrays[name] = _read_array(file, entry.file_size)
            except Exception as error:
                raise _not_plain(path, f"an NPZ file of plain arrays ({name!r}", error) from None
    return arrays


def read_npy(path: str | os.PathLike[str]) -> NDArray[np.generic]:
    """The array of an NPY file; an object array, which would be a pickle, is refused."""
    with Path(path).open("rb") as file:
        try:
            return _read_array(file, os.fstat(file.fileno()).st_size)
        except Exception as error:
            raise _not_plain(path, "an NPY file of a plain array (its array", error) from None


def _opened_npz(path: str | os.PathLike[str] | BinaryIO) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except OSError:
        raise
    except Exception:
        raise ValueError(f"{path} is not an NPZ file of plain arrays") from None


def _file_size(path: str | os.PathLike[str] | BinaryIO) -> int:
    if isinstance(path, str | os.PathLike):
        return Path(path).stat().st_size
    return path.seek(0, os.SEEK_END)


def _array_name(entry: zipfile.ZipInfo) -> str:
    return entry.filename.removesuffix(".npy")


def _read_array(file: IO[bytes], size: int) -> NDArray[np.generic]:
    """A plain array from an open NPY file of a size that must be what its header says."""
    version = npy.read_magic(file)
    read_header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    if version not in read_header:
        raise ValueError(f"its version {version} is unknown")
    shape, column_major, dtype = read_header[version](file)
    if dtype.kind not in _PLAIN or dtype.itemsize == 0:
        raise ValueError(f"it holds values of type {dtype}")
    values = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or values != size - file.tell():
        raise ValueError(f"{size - file.tell()} bytes are no array of {dtype} of shape {shape}")
    content = file.read(values)
    if len(content) != values:
        raise ValueError("it ends too early")
    array = np.frombuffer(content, dtype=dtype).astype(dtype.newbyteorder("="))
    if dtype.kind == "U" and array.size and array.view(np.uint32).max() > sys.maxunicode:
        raise ValueError("it holds text with invalid Unicode code points")
    return array.reshape(shape, order="F" if column_major else "C")


def _not_plain(path: object, what: str, error: Exception) -> ValueError:
    reason = "is too large" if isinstance(error, MemoryError) else f"cannot be read: {error}"
    return ValueError(f"{path} is not {what} {reason})")


def read_text(path: str | os.PathLike[str]) -> str:
    """A text file, which must be UTF-8."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text (byte {error.start})") from None
    if "\0" in text:
        raise ValueError(
            f"{path} is not a text file: it holds a NUL (character {text.index(chr(0))})"
        )
    return text


def check_output(
    path: Path | None, option: str, *suffixes: str, inputs: Iterable[Path | None] = ()
) -> None:
    """Say before the work what would keep its result from being written.

    Args:
        inputs: files and folders that are read, which may not be written over or into.
    """
    if path is None:
        return
    if path.suffix.lower() not in suffixes:
        expected = " or ".join(filter(None, (", ".join(suffixes[:-1]), suffixes[-1])))
        raise ValueError(f"{option} must end in {expected}; got {path}")
    if not path.parent.is_dir():
        raise ValueError(f"cannot write {path}: the folder {path.parent} does not exist")
    for source in inputs:
        if source is None or not source.exists():
            continue
        if path.exists() and path.samefile(source):
            raise ValueError(
                f"{option} {path} would overwrite the input {source}: give another name"
            )
        if source.is_dir() and source.resolve() in path.resolve().parents:
            raise ValueError(
                f"{option} {path} lies in the input {source}, of which every file is read: give "
                "another folder"
            )
