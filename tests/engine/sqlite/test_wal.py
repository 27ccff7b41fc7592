"""The write-ahead log: a sweep checkpoints it under the lock, up to its oldest reader."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

import agentbus
from agentbus import Bus
from agentbus.api.monitor import Sweeper, Thresholds
from agentbus.engine.sqlite.lock import FileLock
from agentbus.engine.sqlite.wal import WriteAheadLog
from agentbus.errors import InvalidInput, LockTimeout
from agentbus.operations.liveness import Rules
from tests.api.helpers import worker
from tests.engine.sqlite.lock_holder import held_elsewhere

MIB = 1024 * 1024


def size(directory: Path) -> int:
    return (directory / "bus.db-wal").stat().st_size


@contextmanager
def reading(directory: Path) -> Iterator[None]:
    """Read for very long: what is written meanwhile cannot leave the log."""
    with closing(sqlite3.connect(directory / "bus.db", isolation_level=None)) as connection:
        connection.execute("BEGIN")
        connection.execute("SELECT count(*) FROM messages").fetchall()
        yield
        connection.execute("ROLLBACK")


async def fill(bus: Bus, directory: Path, least: int) -> None:
    """Write until the log has that many bytes; only possible during a read."""
    a = await worker(bus, "filler", takeover=True)
    while size(directory) < least:
        await a.send("filler", "note", "x" * (MIB // 2))


async def test_a_log_that_grew_too_long_is_made_small_again(tmp_path: Path) -> None:
    async with agentbus.connect(tmp_path) as bus:
        with reading(tmp_path):
            await fill(bus, tmp_path, 17 * MIB)
            await bus.sweep()
            assert size(tmp_path) >= 17 * MIB, "it is still read"
        await bus.sweep()
        assert size(tmp_path) < 17 * MIB
        assert (await bus.stats()).messages["queued"] > 30, "nothing is lost"


async def test_a_moderate_log_keeps_its_file_and_a_small_one_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with agentbus.connect(tmp_path) as bus:
        asked: list[bool] = []
        writer = bus._engine._writer  # type: ignore[attr-defined]
        checkpoint = writer.checkpoint

        async def noting(*, truncate: bool) -> bool:
            asked.append(truncate)
            return bool(await checkpoint(truncate=truncate))

        monkeypatch.setattr(writer, "checkpoint", noting)
        await bus.sweep()
        assert asked == [], "hardly anything is in it"
        with reading(tmp_path):
            await fill(bus, tmp_path, 2 * MIB)
        await bus.sweep()
        assert asked == [False]
        await bus.sweep()
        assert asked == [False], "nothing was written since"
        a = await worker(bus, "a")
        for _ in range(30):
            await a.send("a", "note")
            await bus.sweep()
        assert asked == [False], "the log has begun again, and is short"
        with reading(tmp_path):
            for _ in range(5):
                await a.send("a", "note", "x" * (MIB // 2))
        await bus.sweep()
        assert asked == [False, False]


async def test_a_log_that_cannot_be_checkpointed_is_reported(tmp_path: Path) -> None:
    async with agentbus.connect(tmp_path) as bus:
        sweeper = Sweeper(bus._engine, Rules(60_000, 300_000), Thresholds(log=2 * MIB))
        with reading(tmp_path):
            await fill(bus, tmp_path, 3 * MIB)
            (finding,) = (await sweeper.sweep()).findings
            assert (finding.kind, finding.facts["bytes"] > 2 * MIB) == ("log_long", True)
            assert "long-running reader" in finding.text
            assert (await sweeper.sweep()).findings == []


async def test_a_checkpoint_waits_for_the_lock_and_no_longer_than_it_may(tmp_path: Path) -> None:
    async with agentbus.connect(tmp_path, lock_timeout=0.3) as bus:
        with reading(tmp_path):
            await fill(bus, tmp_path, 2 * MIB)
        with held_elsewhere(tmp_path) as pid, pytest.raises(LockTimeout) as late:
            await bus._engine.checkpoint()
        assert late.value.pid == pid
        await bus._engine.checkpoint()
        await (await worker(bus, "a")).send("a", "note")


async def test_writes_continue_during_checkpoints_and_their_cancellation(tmp_path: Path) -> None:
    async with agentbus.connect(tmp_path) as bus:
        a = await worker(bus, "a")
        with reading(tmp_path):
            await fill(bus, tmp_path, 2 * MIB)
        writer = bus._engine._writer  # type: ignore[attr-defined]

        async def checkpoints() -> None:
            for number in range(50):
                task = asyncio.create_task(writer.checkpoint(truncate=bool(number % 2)))
                await asyncio.sleep(0)
                if number % 3 == 0:
                    task.cancel()
                await asyncio.wait([task])

        async def progress(number: int) -> None:
            # Small writes without fsync, which may run on the loop's own thread.
            for percent in range(50):
                await a.progress((number + percent) % 100)

        await asyncio.gather(checkpoints(), *(progress(number) for number in range(5)))
        assert (await bus.stats()).agents["running"] == 2


async def test_the_store_itself_is_refused_as_a_log_file(tmp_path: Path) -> None:
    """Opening and closing it would drop the locks that SQLite has on it."""
    async with agentbus.connect(tmp_path) as bus:
        (tmp_path / "link").symlink_to(tmp_path / "bus.db")
        for name in ("bus.db", "bus.db-wal", "bus.db-shm", "link"):
            with pytest.raises(InvalidInput):
                await bus.monitor(log_file=tmp_path / name).__aenter__()
        await (await worker(bus, "a")).send("a", "note")


def test_how_long_the_log_is_can_be_seen_though_its_file_never_shrinks(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "bus.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute("CREATE TABLE t (x)")
        for _ in range(30):
            connection.execute("INSERT INTO t VALUES (zeroblob(10000))")
        log = WriteAheadLog(connection, str(tmp_path / "bus.db"), FileLock(tmp_path / "lock", 10))
        ((_, pages, moved),) = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        assert pages == moved > 60
        assert log.is_due(pages)
        assert not log.is_due(pages + 1)
        # All of it was moved: it starts again.
        connection.execute("INSERT INTO t VALUES (1)")
        assert os.stat(tmp_path / "bus.db-wal").st_size > pages * 4096
        assert log.is_due(1)
        assert not log.is_due(pages)
        log.close()
