"""Looks on the loop's own thread: they never wait for a lock, leave no transaction open, and check what they read."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

import agentbus
from agentbus import Bus
from agentbus.engine.sqlite import doorbell
from agentbus.engine.sqlite.engine import SQLiteEngine
from agentbus.errors import DamagedPayload, NotADatabase, WrongState
from tests.support.processes import eventually


@contextmanager
def raw(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path / "bus.db", isolation_level=None, timeout=10)) as connection:
        yield connection


class Failing:
    """A connection on which every statement fails."""

    def __init__(self, code: int) -> None:
        self._code = code
        self.asked = 0

    def execute(self, sql: str, parameters: Any) -> Any:
        self.asked += 1
        error = sqlite3.OperationalError("as if")
        error.sqlite_errorcode = self._code
        raise error

    def close(self) -> None:
        pass


@contextmanager
def failing(bus: Bus, monkeypatch: pytest.MonkeyPatch, code: int) -> Iterator[Failing]:
    assert isinstance(bus._engine, SQLiteEngine)
    with monkeypatch.context() as patch:
        eye = Failing(code)
        patch.setattr(bus._engine, "_inline_reader", eye)
        yield eye


@pytest.mark.parametrize("code", [sqlite3.SQLITE_BUSY, sqlite3.SQLITE_BUSY_RECOVERY, sqlite3.SQLITE_BUSY_SNAPSHOT])
async def test_an_inline_read_that_would_wait_runs_on_the_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    async with agentbus.connect(tmp_path) as bus, bus.agent("a", type="worker") as a:
        await a.state.set("k", 1)
        with failing(bus, monkeypatch, code) as eye:
            assert await a.state.get("k") == 1
            assert await a.pending() is False
            assert (await bus.agents.get("a")) is not None
            assert eye.asked == 3


async def test_any_other_failure_is_a_named_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with agentbus.connect(tmp_path) as bus:
        with failing(bus, monkeypatch, sqlite3.SQLITE_CORRUPT), pytest.raises(NotADatabase):
            await bus.state("s").get("k")


async def test_an_inline_read_needs_no_other_thread(tmp_path: Path) -> None:
    """While only the loop's thread may run, it is answered: in one step of its coroutine."""
    async with agentbus.connect(tmp_path) as bus, bus.agent("a", type="worker") as a:
        await a.state.set("k", 1)
        for look, answer in ((a.state.get("k"), 1), (a.pending(), False)):
            with pytest.raises(StopIteration) as stop:
                look.send(None)
            assert stop.value.value == answer


async def test_inline_reads_do_not_wait_for_a_writer(tmp_path: Path) -> None:
    async with agentbus.connect(tmp_path) as bus:
        await bus.state("s").set("k", 1)
        with raw(tmp_path) as other:
            other.execute("BEGIN IMMEDIATE")
            other.execute("UPDATE state SET value = '2', checksum = 0")
            assert await bus.state("s").get("k") == 1
            other.execute("ROLLBACK")


async def test_inline_reads_leave_no_transaction_open(tmp_path: Path) -> None:
    async with agentbus.connect(tmp_path) as bus, bus.agent("a", type="worker") as a:
        for n in range(20):
            await a.state.set(f"k{n}", n)
            await a.state.get(f"k{n}")
            await a.state.get("nothing")
            await a.state.entry(f"k{n}")
            await a.pending()
            await bus.agents.get("a")
        with raw(tmp_path) as other:
            busy, _, _ = other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        assert busy == 0


async def test_the_connection_for_inline_reads_only_reads(tmp_path: Path) -> None:
    async with agentbus.connect(tmp_path) as bus:
        assert isinstance(bus._engine, SQLiteEngine)
        eye = bus._engine._inline_reader
        assert eye is not None
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            eye.execute("DELETE FROM state")


async def test_damaged_bytes_are_never_returned(tmp_path: Path) -> None:
    async with agentbus.connect(tmp_path) as bus:
        state = bus.state("s")
        for key in "abc":
            await state.set(key, 1)
        with raw(tmp_path) as other:
            other.execute("UPDATE state SET value = '2' WHERE key = 'b'")
        for reading in (state.get("b"), state.entry("b"), state.get("b", as_=int), state.increment("b")):
            with pytest.raises(DamagedPayload, match="'b' of s"):
                await reading
        entries = (await state.list()).items
        assert [(entry.value, entry.error is None) for entry in entries] == [(1, True), (None, False), (1, True)]
        await state.set("b", 3)
        assert await state.get("b") == 3


async def test_an_ended_sessions_state_is_read_but_not_changed(tmp_path: Path) -> None:
    async with agentbus.connect(tmp_path) as bus:
        state = bus.state("session:planning-1")
        with raw(tmp_path) as other:
            other.execute("INSERT INTO sessions (id, operation, created, updated) VALUES ('planning-1', 'plan', 0, 0)")
        await state.set("k", 1)
        assert await bus.state("planning-1").get("k") is None
        with raw(tmp_path) as other:
            other.execute("UPDATE sessions SET status = 'completed', ended = 0")
        for change in (state.set("k", 2), state.delete("k"), state.increment("k")):
            with pytest.raises(WrongState, match=r"planning-1.*completed"):
                await change
        assert await state.get("k") == 1


def _no_socket(directory: Path) -> doorbell.Bell:
    raise OSError("sockets do not work here")


async def test_a_bus_without_a_doorbell_sees_changes_of_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with agentbus.connect(tmp_path, beat_every=3600) as elsewhere:
        monkeypatch.setattr(doorbell, "Bell", _no_socket)
        async with agentbus.connect(tmp_path, beat_every=3600) as bus:
            first, second = bus.state("s").watch(), bus.state("s").watch()
            await elsewhere.state("s").set("k", 0)
            for number in range(1, 4):
                with anyio.fail_after(60):
                    assert (await anext(first)).value == (await anext(second)).value == number - 1
                waiting = asyncio.gather(anext(first), anext(second))
                await asyncio.sleep(0)
                await elsewhere.state("s").set("k", number)
                with anyio.fail_after(60):
                    assert [entry.value for entry in await waiting] == [number, number]
                await elsewhere.state("s").set("k", number)
            for changes in (first, second):
                await changes.aclose()


async def test_closing_leaves_no_thread_and_no_file_of_inline_reads_behind(tmp_path: Path) -> None:
    before = threading.active_count()
    for _ in range(3):
        async with agentbus.connect(tmp_path) as bus:
            await bus.state("s").get("k")
    assert not (tmp_path / "bus.db-wal").exists(), "the last one to close did not checkpoint"
    # A thread that has given its last answer is still about for a moment.
    eventually(lambda: threading.active_count() <= before, "the threads have ended")
