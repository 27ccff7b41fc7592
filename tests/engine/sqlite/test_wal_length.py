"""Zeros are appended to the log up to the length at which it begins again: a sync of a file that grows takes longer."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from agentbus.core.clock import SystemClock
from agentbus.engine.sqlite import disk_reserve, paths, wal
from agentbus.engine.sqlite import lock as locks
from agentbus.engine.sqlite.blocking import BlockingSQLite
from agentbus.operations.types import define
from tests.support.writing import wanted

FULL = 4_000_000
"""Bytes that only a preallocated log has in these tests."""
STEPS = wal._FIRST_PREALLOCATION + wal.CHECKPOINT_PAGES // wal._PREALLOCATED_PAGES
"""Durable commits after which it has its full length."""


class Place:
    """A bus of one process."""

    def __init__(self, directory: Path) -> None:
        self.home = paths.find(directory)
        self.engine = BlockingSQLite(self.home, durability="disk", clock=SystemClock(), lock_timeout=10)
        self.written: list[str] = []

    def write(self, count: int) -> None:
        for _ in range(count):
            self.written.append(f"type-{len(self.written)}")
            self.engine.write(define, wanted(self.written[-1]))

    @property
    def size(self) -> int:
        return Path(f"{self.home.file}-wal").stat().st_size

    def missing(self, database: str | None = None) -> set[str]:
        """Return what was written and is not in a database."""
        with closing(sqlite3.connect(database or self.home.file)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            return set(self.written) - {name for (name,) in connection.execute("SELECT name FROM vocabulary")}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path / "bus")
    with closing(place.engine):
        yield place


def test_a_preallocateed_log_does_not_grow_and_loses_nothing(place: Place, tmp_path: Path) -> None:
    before = place.size
    place.write(wal._FIRST_PREALLOCATION - 1)
    assert place.size < before + 100_000, "a command that writes little does not pay for it"
    place.write(STEPS)
    size = place.size
    assert size >= FULL
    for _ in range(5):
        place.write(20)
        # As after a power cut: without the -shm, SQLite reads the log from the beginning to the end.
        for suffix in ("", "-wal"):
            shutil.copy(f"{place.home.file}{suffix}", f"{tmp_path}/copy{suffix}")
        assert place.missing(f"{tmp_path}/copy") == set()
    assert place.size == size
    assert place.missing() == set()


def test_it_is_preallocateed_again_after_it_was_emptied(place: Place) -> None:
    place.write(STEPS)
    assert place.engine._runner is not None
    assert place.engine._runner.checkpoint(truncate=True) is True
    assert place.size == 0
    place.write(wal._FIRST_PREALLOCATION - 1)
    assert 0 < place.size < 100_000
    place.write(STEPS)
    assert place.size >= FULL


def test_several_processes_preallocate_one_log(place: Place, tmp_path: Path) -> None:
    with closing(Place(tmp_path / "bus").engine) as other:
        for number in range(STEPS):
            place.write(1)
            other.write(define, wanted(f"other-{number}"))
        size = place.size
        assert FULL <= size < FULL + 1_000_000
        place.write(20)
        assert place.size == size
    assert place.missing() == set()


def test_a_log_that_is_longer_stays_as_it_is(place: Place) -> None:
    with closing(sqlite3.connect(place.home.file, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM vocabulary").fetchall()
        with closing(sqlite3.connect(place.home.file)) as foreign:
            foreign.execute("CREATE TABLE large (bytes)")
            foreign.execute("INSERT INTO large VALUES (zeroblob(6000000))")
            foreign.commit()
            size = place.size
            assert size > 6_000_000
            place.write(STEPS)
            assert size < place.size < size + FULL
            assert foreign.execute("SELECT length(bytes) FROM large").fetchall() == [(6_000_000,)]
        assert place.missing() == set()


def test_a_disk_that_is_nearly_full_is_left_alone(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_reserve, "_free", lambda _: 8 * FULL)
    place.write(STEPS)
    assert place.size < 1_000_000


def test_what_another_program_is_writing_is_not_overwritten(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not use the lock of the bus. It begins after the commit whose sync preallocates the log."""
    place.write(wal._FIRST_PREALLOCATION - 1)
    with closing(sqlite3.connect(place.home.file, isolation_level=None)) as foreign:
        foreign.execute("CREATE TABLE other (number)")
        preallocate = wal.WriteAheadLog._preallocate

        def meanwhile(log: wal.WriteAheadLog) -> None:
            foreign.execute("BEGIN IMMEDIATE")
            foreign.execute("INSERT INTO other VALUES (1)")
            preallocate(log)
            foreign.execute("COMMIT")

        monkeypatch.setattr(wal.WriteAheadLog, "_preallocate", meanwhile)
        before = place.size
        place.write(1)
        assert before < place.size < before + 100_000
        assert foreign.execute("SELECT number FROM other").fetchall() == [(1,)]
    assert place.missing() == set()
    assert locks.holder(str(place.home.lock)) is None
