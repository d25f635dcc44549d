"""What a batch has finished, in one SQLite file, so that a run that was killed can go on."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from gsb3se.support.errors import some_of
from gsb3se.support.simplex import Matrix

FAILED = "failed"
_TABLES = """
create table plan (name text primary key, value text not null);
create table counted (content blob not null, digest blob not null);
create table results (
    place integer primary key, status text not null, message text not null,
    shift real, probability real, numbers blob, digest blob not null
);
"""


class GroupResult(NamedTuple):
    """What was found about one group.

    Attributes:
        status, message: of the posterior, or "failed" and why.
        shift: posterior mean of the L1 distance to the source prior.
        probability: that this distance exceeds the alert.
        numbers: (4, K) mean, sd, low, high; None where it failed.
    """

    status: str
    message: str
    shift: float | None = None
    probability: float | None = None
    numbers: Matrix | None = None


class DamagedJournal(ValueError):
    """The file holds nothing that a run could go on with."""


class Journal:
    """Finished groups by their places; a group is in it wholly or not at all.

    Args:
        path: of the file.
        plan: everything the results depend on, by names a user knows.
        resume: whether to go on with what is there.

    Raises:
        ValueError: there is unfinished work and ``resume`` is not asked for, it is of another plan,
            or another process is at it.
    """

    def __init__(self, path: Path, plan: Mapping[str, str], resume: bool) -> None:
        self.path = path
        if path.exists() and not path.is_file():
            raise ValueError(
                f"{path} is where unfinished work is kept, and is no file: move it away"
            )
        if path.exists() and not resume:
            raise ValueError(
                f"unfinished work lies in {path}: --resume goes on with it; delete it to start anew"
            )
        try:  # autocommit: transactions are begun where they belong
            self._connection = sqlite3.connect(path, isolation_level=None, timeout=0.2)
        except sqlite3.Error as error:
            raise ValueError(f"{path} cannot be written: {error}") from None
        try:
            with self._whole():
                self._begin(plan)
        except BaseException:
            self._connection.close()
            raise

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """What the database cannot do ends as one sentence about its file."""
        try:
            yield
        except sqlite3.Error as error:
            if "locked" in str(error) or "busy" in str(error):
                message = f"{self.path}: {error}: another run is at work on it"
                raise ValueError(message) from None
            message = f"{self.path} holds no unfinished work of this version ({error}): delete it"
            raise DamagedJournal(message) from None

    def _begin(self, plan: Mapping[str, str]) -> None:
        """Lock the file; write the plan, or check that it is the one that was written."""
        run = self._connection.execute
        run("pragma locking_mode = exclusive")
        run("begin exclusive")
        self._check_plan(plan)
        run("commit")

    def _check_plan(self, plan: Mapping[str, str]) -> None:
        run = self._connection.execute
        if not run("select 1 from sqlite_master where name = 'plan'").fetchone():
            for statement in _TABLES.split(";"):
                run(statement)
            self._connection.executemany("insert into plan values (?, ?)", plan.items())
            return
        kept = dict(run("select name, value from plan").fetchall())
        differ = [name for name in {**kept, **plan} if kept.get(name) != plan.get(name)]
        if differ:
            raise ValueError(
                f"the unfinished work in {self.path} differs in {some_of(differ)}: repeat the call "
                "as it was, or delete the file to start anew"
            )

    @property
    def counted(self) -> bytes | None:
        """The counts of all groups, if they were kept."""
        with self._whole():
            row = self._connection.execute("select content, digest from counted").fetchone()
            if row is not None:
                self._check_digest(row)
        return None if row is None else bytes(row[0])

    def keep_counted(self, content: bytes) -> None:
        """Keep the counts of all groups."""
        with self._whole():
            row = (content, _digest((content,)))
            self._connection.execute("insert into counted values (?, ?)", row)

    def finished(self) -> set[int]:
        """Places of the groups that need not be inferred again."""
        with self._whole():
            return {place for (place,) in self._connection.execute("select place from results")}

    def keep(self, results: Iterable[tuple[int, GroupResult]]) -> None:
        """Keep finished groups, all of them or, should the process die, none."""
        with self._whole():
            self._connection.execute("begin")
            self._connection.executemany(
                "insert into results values (?, ?, ?, ?, ?, ?, ?)",
                (_row(place, result) for place, result in results),
            )
            self._connection.execute("commit")

    def results(self) -> Iterator[GroupResult]:
        """All that is finished, by place."""
        with self._whole():
            for row in self._connection.execute("select * from results order by place"):
                self._check_digest(row)
                _, status, message, shift, probability, numbers, _ = row
                if not isinstance(numbers, bytes | None):
                    raise self._damaged()
                array = None if numbers is None else np.frombuffer(numbers).reshape(4, -1)
                yield GroupResult(status, message, shift, probability, array)

    def _check_digest(self, row: tuple[Any, ...]) -> None:
        """Refuse a row that is not as it was written."""
        if row[-1] != _digest(row[:-1]):
            raise self._damaged()

    def _damaged(self) -> DamagedJournal:
        return DamagedJournal(f"{self.path} is damaged: delete it to start anew")

    def only_failures(self) -> str | None:
        """Why the first group failed, if all did."""
        run = self._connection.execute
        with self._whole():
            if run("select 1 from results where status != ? limit 1", (FAILED,)).fetchone():
                return None
            row = run("select message from results order by place limit 1").fetchone()
        return None if row is None else row[0]

    def discard(self) -> None:
        """Delete the file: nothing is left to go on with."""
        self._connection.close()
        self.path.unlink(missing_ok=True)

    def discard_if_empty(self) -> bool:
        """Delete the file unless some group in it was inferred; whether it was deleted."""
        empty = not self.finished() or self.only_failures() is not None
        if empty:
            self.discard()
        return empty

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connection.close()


def _row(place: int, result: GroupResult) -> tuple[Any, ...]:
    numbers = None if result.numbers is None else result.numbers.tobytes()
    row = (int(place), *result[:4], numbers)
    return (*row, _digest(row))


def _digest(row: tuple[Any, ...]) -> bytes:
    """What tells a row from a damaged one."""
    return hashlib.blake2b(repr(row).encode(), digest_size=8).digest()


def file_stamp(path: str | os.PathLike[str]) -> str:
    """What tells a file from a changed or replaced one: its place, size and times."""
    status = Path(path).stat()
    times = (status.st_mtime_ns, status.st_ctime_ns)
    return json.dumps([str(Path(path).resolve()), status.st_ino, status.st_size, *times])


def as_plan(**parts: Any) -> dict[str, str]:
    """A plan from the parts that make it."""
    return {name.replace("_", " "): str(value) for name, value in parts.items()}
