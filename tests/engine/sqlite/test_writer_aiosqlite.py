"""The writer reaches into aiosqlite, which is pinned for that reason. These tests fail if what it reaches for moves."""

from __future__ import annotations

import asyncio
import inspect
import sqlite3
import threading
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import aiosqlite
import anyio
import pytest

from agentbus.engine.sqlite.writer import DaemonConnection, WriterConnection

C = TypeVar("C", bound=DaemonConnection)


def memory() -> sqlite3.Connection:
    return sqlite3.connect(":memory:", check_same_thread=False)


@asynccontextmanager
async def opened(connection: C) -> AsyncIterator[C]:
    await connection
    try:
        yield connection
    finally:
        await connection.close()


def test_aiosqlite_is_pinned_to_the_version_that_was_looked_at() -> None:
    project = tomllib.loads((Path(__file__).resolve().parents[3] / "pyproject.toml").read_text(encoding="utf-8"))
    assert "aiosqlite>=0.22.1,<0.23" in project["project"]["dependencies"]
    assert aiosqlite.__version__.startswith("0.22.")


def test_a_connection_has_a_thread_that_is_not_started_yet() -> None:
    # Only then can it still become a daemon.
    connection = DaemonConnection(memory)
    assert isinstance(connection._thread, threading.Thread)
    assert not connection._thread.is_alive()
    assert connection._thread.daemon


async def test_the_queue_takes_pairs_of_future_and_function() -> None:
    async with opened(WriterConnection(memory)) as connection:
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        connection._tx.put_nowait((future, lambda: threading.current_thread().name))
        with anyio.fail_after(60):
            assert await future == connection._thread.name


async def test_run_on_thread_does_not_wait() -> None:
    ran = threading.Event()
    where: list[threading.Thread] = []

    def look() -> None:
        where.append(threading.current_thread())
        ran.set()

    async with opened(WriterConnection(memory)) as connection:
        connection.run_on_thread(look)
        assert await asyncio.to_thread(ran.wait, 5)
        assert where == [connection._thread]


async def test_run_on_thread_and_run_keep_their_order() -> None:
    order: list[int] = []
    async with opened(WriterConnection(memory)) as connection:
        connection.run_on_thread(lambda: order.append(1))
        connection.run_on_thread(lambda: order.append(2))
        await connection.run(lambda: order.append(3))
        assert order == [1, 2, 3]


async def test_run_returns_or_raises_what_the_function_does() -> None:
    async with opened(WriterConnection(memory)) as connection:
        assert await connection.run(lambda: 42) == 42
        with pytest.raises(ZeroDivisionError):
            await connection.run(lambda: 1 / 0)


async def test_a_function_that_raises_leaves_the_thread_running() -> None:
    # It must not raise; should it ever, the next one is still served.
    async with opened(WriterConnection(memory)) as connection:
        connection.run_on_thread(lambda: 1 / 0)
        assert await connection.run(lambda: "here") == "here"


async def test_the_raw_connection_is_the_one_that_was_made() -> None:
    made = memory()
    async with opened(WriterConnection(lambda: made)) as connection:
        assert connection._conn is made


def test_executing_takes_a_plain_function() -> None:
    assert inspect.iscoroutinefunction(aiosqlite.Connection._execute)
    assert list(inspect.signature(aiosqlite.Connection._execute).parameters)[:2] == ["self", "fn"]


async def test_fetching_all_rows_is_one_hop() -> None:
    # Readers rely on it: execute, fetch and close one by one cost three.
    async with opened(DaemonConnection(memory)) as connection:
        before = connection._tx.qsize()
        rows = await connection.execute_fetchall("SELECT 1, 'a' UNION SELECT 2, 'b'", ())
        assert list(rows) == [(1, "a"), (2, "b")]
        assert connection._tx.qsize() == before


async def test_closing_ends_the_thread() -> None:
    connection = WriterConnection(memory)
    await connection
    thread = connection._thread
    await connection.close()
    await asyncio.to_thread(thread.join, 5)
    assert not thread.is_alive()


async def test_a_connection_that_cannot_be_made_leaves_no_thread_behind() -> None:
    def refuse() -> sqlite3.Connection:
        raise sqlite3.OperationalError("no")

    connection = WriterConnection(refuse)
    with pytest.raises(sqlite3.OperationalError):
        await connection
    await asyncio.to_thread(connection._thread.join, 5)
    assert not connection._thread.is_alive()
