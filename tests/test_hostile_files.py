"""Whatever is in a file, a command ends with its result or with one sentence.

Valid files are damaged at random: bytes of the whole file, and of what is inside archives, where a
checksum would otherwise hide the rest. ``pytest -m slow`` damages two thousand of each kind.
"""

import io
import json
import re
import struct
import time
import zipfile

import numpy as np
import polars as pl
import pytest

import gsb3se as gs
from gsb3se_amortized.checkpoint import WEIGHTS

NAMES = ("ant", "bee", "cow")
FEW, MANY = 30, 2000
LONGEST = 20.0  # seconds


def damaged(content: bytes, rng: np.random.Generator) -> bytes:
    """The same with some bytes changed, lost, doubled or added."""
    data = bytearray(content)
    for _ in range(int(rng.integers(1, 4))):
        if not data:
            return b""
        at = int(rng.integers(len(data)))
        if rng.uniform() < 0.5:  # where headers are
            at = int(rng.integers(min(len(data), 300)))
            at = at if rng.uniform() < 0.5 else len(data) - 1 - at
        size = int(min(rng.integers(1, 1 << int(rng.integers(1, 10))), len(data) - at))
        what = rng.integers(7)
        if what == 0:
            data[at] ^= 1 << int(rng.integers(8))
        elif what == 1:
            data[at : at + size] = rng.bytes(size)
        elif what == 2:
            del data[at : at + size]
        elif what == 3:
            data[at:at] = data[at : at + size]
        elif what == 4:
            data[at : at + size] = bytes([int(rng.choice([0, 255, 0x7F]))]) * size
        elif what == 5:
            del data[at:]
        else:
            data[at:at] = rng.choice([b"999999999999", b"-1", b"nan", b'"', b"\x00", b"\x1b[31m"])
    return bytes(data)


def damaged_archive(content: bytes, rng: np.random.Generator) -> bytes:
    """An NPZ file whole as an archive, with some of its arrays damaged, renamed, lost or others."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(made, "w") as new:
        for entry in old.infolist():
            name, inside = entry.filename, old.read(entry)
            what = rng.integers(8)
            if what == 0:
                continue
            if what == 1:
                name = name[1:]
            elif what == 2:
                inside = damaged(inside, rng)
            elif what == 3:
                inside = _as_npy(_strange_array(rng))
            elif what == 4:
                inside = inside.replace(b"(", rng.choice([b"(-", b"(9", b"((", b"[("]), 1)
            new.writestr(name, inside)
    return made.getvalue()


def _strange_array(rng: np.random.Generator) -> np.ndarray:
    kinds = (
        np.array(3.5), np.array("text"), np.zeros((2, 3, 4)), np.zeros(0), np.array([np.nan, 1.0]),
        np.array([2**62, -5]), np.array(["a", "b\x1b[31m", ":dog:"]), np.array([b"x", b"y"]),
        np.array(["2020-01-01"], "M8[D]"), np.array([True, False]), np.array([1 + 2j]),
        np.zeros(3, dtype=[("a", int), ("b", float)]), np.full((2, 2), np.inf),
    )  # fmt: skip
    return kinds[rng.integers(len(kinds))]


def _as_npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def strange_parquet(rng: np.random.Generator) -> bytes:
    """A whole Parquet file whose columns are of types that are no labels or counts."""
    columns = (
        pl.Series([{"a": 1}, {"a": 2}]), pl.Series([[1, 2], [3]]), pl.Series([1.5, None]),
        pl.Series([b"ant", b"bee"]), pl.Series([True, False]), pl.Series([None, None]),
        pl.Series(["1.5", "2"]).cast(pl.Decimal(10, 2)), pl.Series([2**63, 1], dtype=pl.UInt64),
        pl.Series(["2020-01-01", "2021-01-01"]).str.to_date(), pl.Series(["ant", "b\x00ee"]),
        pl.Series(["ant", "bee"], dtype=pl.Categorical), pl.Series(["ant", ""]),
        pl.Series(["x" * 5000, "ant"]), pl.Series([float("nan"), 1.0]), pl.Series([1.0, 2.0]),
    )  # fmt: skip
    frame = pl.DataFrame(
        {name: columns[rng.integers(len(columns))] for name in ("prediction", "label", "n", "day")}
    )
    made = io.BytesIO()
    frame.select(rng.permutation(frame.columns)[: rng.integers(1, 5)].tolist()).write_parquet(made)
    return made.getvalue()


def damaged_checkpoint(content: bytes, rng: np.random.Generator) -> bytes:
    """A safetensors file whose metadata say something else."""
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    about = json.loads(header["__metadata__"]["gsb3se"])
    strange = [None, [], {}, "x", -1, 10**9, 1.5, [1], {"a": 1}, True]
    where = [about, about["settings"], about["ranges"], header["__metadata__"], header][
        rng.integers(5)
    ]
    name = str(rng.choice(list(where)))
    if rng.uniform() < 0.3:
        del where[name]
    else:
        where[name] = strange[rng.integers(len(strange))]
    if isinstance(header.get("__metadata__"), dict) and "gsb3se" in header["__metadata__"]:
        if where is not header["__metadata__"]:
            header["__metadata__"]["gsb3se"] = json.dumps(about)
        elif not isinstance(header["__metadata__"]["gsb3se"], str):
            header["__metadata__"]["gsb3se"] = json.dumps(header["__metadata__"]["gsb3se"])
    told = json.dumps(header).encode()
    return struct.pack("<Q", len(told)) + told + content[8 + size :]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Valid files of every kind, by name."""
    folder = tmp_path_factory.mktemp("whole")
    rng = np.random.default_rng(0)
    truth = rng.choice(NAMES, 60)
    predicted = np.where(rng.uniform(size=60) < 0.8, truth, rng.choice(NAMES, 60))
    target = rng.choice(NAMES, 50)
    validation = pl.DataFrame({"label": truth, "prediction": predicted})
    logs = pl.DataFrame({"prediction": target, "day": rng.integers(0, 3, 50), "n": [1] * 50})
    validation.write_csv(folder / "val.csv")
    logs.write_csv(folder / "new.csv")
    validation.write_parquet(folder / "val.parquet")
    logs.write_parquet(folder / "new.parquet")
    np.savez(folder / "val.npz", label=truth, prediction=predicted)
    counts = gs.ShiftCounts.from_predictions(truth, predicted, target, labels=NAMES)
    counts.save(folder / "counts.npz")
    graph = gs.LabelGraph.from_weights(np.full((3, 3), 0.5), labels=NAMES)
    graph.save(folder / "graph.npz")
    gs.estimate(counts, graph, backend="newton").save(folder / "post.npz")
    return {path.name: path.read_bytes() for path in folder.iterdir()} | {
        "base.safetensors": (WEIGHTS / "base.safetensors").read_bytes()
    }


def _cases(whole: dict[str, bytes], rng: np.random.Generator):
    """A kind of file, its damaged content, and a command that reads it."""
    estimate = ("estimate", "--backend", "newton")
    batch = ("batch", "--backend", "newton", "--out", "out.csv", "--validation")
    npz = {
        "val.npz": (*estimate, "--validation", "val.npz", "--target", "good.csv"),
        "counts.npz": (*estimate, "--counts", "counts.npz"),
        "graph.npz": ("graph", "show", "graph.npz"),
        "post.npz": ("report", "post.npz", "--out", "page.html"),
    }
    text = {
        "val.csv": (*estimate, "--validation", "val.csv", "--target", "good.csv"),
        "new.csv": (*batch, "good-val.csv", "--by", "day", "--count-column", "n", "new.csv"),
    }
    tables = {
        "val.parquet": (*estimate, "--validation", "val.parquet", "--target", "good.csv"),
        "new.parquet": (*batch, "good-val.csv", "--by", "day", "new.parquet"),
    }
    amortized = ("estimate", "--counts", "good.npz", "--backend", "amortized")

    def one(kinds, *ways):
        name = str(rng.choice(list(kinds)))
        return name, ways[rng.integers(len(ways))](whole[name], rng), kinds[name]

    yield "npz", lambda: one(npz, damaged, damaged_archive, damaged_archive)
    yield "csv", lambda: one(text, damaged)
    yield "parquet", lambda: one(tables, damaged, damaged, lambda _, r: strange_parquet(r))
    checkpoint = {"base.safetensors": (*amortized, "--checkpoint", "base.safetensors")}
    yield "checkpoint", lambda: one(checkpoint, damaged, damaged_checkpoint)


def _check(result, seconds: float, what: str) -> None:
    assert seconds < LONGEST, what
    told = f"{what}: {result.output[-500:]}"
    assert result.exception is None or isinstance(result.exception, SystemExit), told
    assert not re.search(r"Traceback|unexpected [A-Z]\w+(Error|Exception|Warning)", told), told
    assert "\x1b[31m" not in result.output, told
    if result.exit_code:
        assert result.exit_code == 1 and "Error: " in result.output, told


def _damage(run, kind: str, times: int, whole: dict[str, bytes], tmp_path) -> dict[bool, int]:
    rng = np.random.default_rng(sum(kind.encode()))
    (tmp_path / "good.csv").write_bytes(whole["new.csv"])
    (tmp_path / "good-val.csv").write_bytes(whole["val.csv"])
    (tmp_path / "good.npz").write_bytes(whole["counts.npz"])
    make = dict(_cases(whole, rng))[kind]
    ended = {True: 0, False: 0}
    for number in range(times):
        name, content, command = make()
        (tmp_path / name).write_bytes(content)
        began = time.perf_counter()
        result = run(*command)
        _check(result, time.perf_counter() - began, f"{kind} {number}, {' '.join(command)}")
        ended[result.exit_code == 0] += 1
        for left in ("out.csv", "out.csv.unfinished"):
            (tmp_path / left).unlink(missing_ok=True)
    return ended


def _damage_journals(
    run, times: int, whole: dict[str, bytes], tmp_path, monkeypatch
) -> dict[bool, int]:
    rng = np.random.default_rng(0)
    for name in ("val.csv", "new.csv"):
        (tmp_path / name).write_bytes(whole[name])
    command = ("batch", "new.csv", "--validation", "val.csv", "--by", "day", "--backend", "newton")
    with monkeypatch.context() as broken:
        broken.setattr("gsb3se.batch.output.write_results", _fails)
        assert run(*command, "--out", "out.csv").exit_code == 1
    journal = tmp_path / "out.csv.unfinished"
    content = journal.read_bytes()
    ended = {True: 0, False: 0}
    for number in range(times):
        journal.write_bytes(damaged(content, rng))
        began = time.perf_counter()
        result = run(*command, "--out", "out.csv", "--resume")
        _check(result, time.perf_counter() - began, f"journal {number}")
        ended[result.exit_code == 0] += 1
        (tmp_path / "out.csv").unlink(missing_ok=True)
    return ended


def _fails(*arguments: object) -> None:
    raise ValueError("stopped here")


KINDS = ("npz", "csv", "parquet", "checkpoint")


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_end_in_a_sentence(kind, run, whole, tmp_path):
    ended = _damage(run, kind, FEW, whole, tmp_path)
    assert ended[False] > 0


def test_damaged_journals_end_in_a_sentence(run, whole, tmp_path, monkeypatch):
    _damage_journals(run, FEW, whole, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_thousands_of_damaged_files(kind, run, whole, tmp_path):
    print(kind, _damage(run, kind, MANY, whole, tmp_path))


@pytest.mark.slow
def test_thousands_of_damaged_journals(run, whole, tmp_path, monkeypatch):
    print("journal", _damage_journals(run, MANY, whole, tmp_path, monkeypatch))
