import io
import zipfile

import numpy as np
import pytest
from numpy.lib.format import write_array_header_1_0

from gsb3se import LabelGraph, ShiftCounts
from gsb3se.support.files import read_npz, save_arrays, write_atomically, write_text


def test_a_failing_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail(file):
        file.write(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, fail)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"the folder .*nowhere does not exist"):
        ShiftCounts([[1, 0], [0, 1]], [1, 1]).save(tmp_path / "nowhere" / "counts.npz")


def test_one_kind_does_not_load_as_another(tmp_path):
    LabelGraph.exchangeable(3).save(tmp_path / "graph.npz")
    with pytest.raises(ValueError, match="holds no ShiftCounts: its kind is 'LabelGraph'"):
        ShiftCounts.load(tmp_path / "graph.npz")


def test_a_newer_format_asks_for_an_upgrade(tmp_path):
    save_arrays(tmp_path / "new.npz", "ShiftCounts", version=99)
    with pytest.raises(ValueError, match="upgrade gsb3se"):
        ShiftCounts.load(tmp_path / "new.npz")


def test_a_file_that_lacks_something_is_damaged(tmp_path):
    save_arrays(tmp_path / "part.npz", "ShiftCounts", target=[1, 2])
    with pytest.raises(ValueError, match="damaged: it lacks 'data', 'indices'"):
        ShiftCounts.load(tmp_path / "part.npz")


def test_pickles_and_garbage_are_refused(tmp_path):
    np.savez(tmp_path / "pickle.npz", kind="ShiftCounts", data=np.array([print], dtype=object))
    (tmp_path / "text.npz").write_text("no archive")
    (tmp_path / "empty.npz").write_bytes(b"")
    np.save(tmp_path / "single.npy", np.ones(3))
    for name in ("pickle.npz", "text.npz", "empty.npz", "single.npy"):
        with pytest.raises(ValueError, match="not an NPZ file of plain arrays"):
            ShiftCounts.load(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        ShiftCounts.load(tmp_path / "absent.npz")


def test_objects_are_not_saved(tmp_path):
    with pytest.raises(ValueError, match="numbers and text only"):
        save_arrays(tmp_path / "x.npz", "ShiftCounts", thing=np.array([object()]))
    assert not list(tmp_path.iterdir())


def test_a_failing_write_names_the_file_that_was_asked_for(tmp_path):
    with pytest.raises(OSError, match=f"{tmp_path.name}'$"):
        ShiftCounts([[1, 0], [0, 1]], [1, 1]).save(tmp_path)
    assert not list(tmp_path.iterdir())


def test_written_files_have_the_usual_rights(tmp_path):
    (tmp_path / "plain").write_text("x")
    write_text(tmp_path / "atomic", "x")
    assert (tmp_path / "atomic").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_arrays_that_are_not_asked_for_are_not_read(tmp_path):
    counts = ShiftCounts([[9, 1], [1, 9]], [5, 5])
    counts.save(tmp_path / "counts.npz")
    with zipfile.ZipFile(tmp_path / "counts.npz", "a") as archive:
        archive.writestr("junk.npy", b"no array")
    assert ShiftCounts.load(tmp_path / "counts.npz") == counts


@pytest.mark.parametrize("claimed", [None, 1 << 30])
def test_a_file_made_to_fill_the_memory_is_refused(tmp_path, claimed):
    """Also where its index claims that much more is packed."""
    path = tmp_path / "bomb.npz"
    save_arrays(path, "ShiftCounts")
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("target.npy", "w") as file:
            header = io.BytesIO()
            shape = {"descr": "|u1", "fortran_order": False, "shape": (1 << 29,)}
            write_array_header_1_0(header, shape)
            file.write(header.getvalue())
            for _ in range(1 << 9):
                file.write(bytes(1 << 20))
        packed = archive.getinfo("target.npy").compress_size
    if claimed is not None:
        content = path.read_bytes()
        at = content.rindex(packed.to_bytes(4, "little"))  # in the index, which comes last
        path.write_bytes(content[:at] + claimed.to_bytes(4, "little") + content[at + 4 :])
    with pytest.raises(ValueError, match="made to fill the memory"):
        read_npz(path)


def test_a_link_is_written_through(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "real").read_text() == "new" and (tmp_path / "link").is_symlink()
