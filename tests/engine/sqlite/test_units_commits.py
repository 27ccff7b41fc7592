"""The number of commits: one for everything in a unit, and one for all units that end together."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

import agentbus
from agentbus import Bus, Message
from agentbus.engine.sqlite.engine import SQLiteEngine
from agentbus.engine.sqlite.wal import WriteAheadLog
from tests.api.unit_contents import World, name_no_agent, world_on
from tests.support.clock import FakeClock


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    clock = FakeClock()
    async with agentbus.connect(tmp_path / "bus", clock=clock) as bus:
        clock.attach(bus)
        async with world_on(bus, clock, tmp_path) as world:
            yield world


@contextmanager
def statements(bus: Bus) -> Iterator[list[str]]:
    """The first words of what is executed on the writer's connection during a block, but for settings."""
    assert isinstance(bus._engine, SQLiteEngine)
    writer = bus._engine._writer
    assert writer is not None
    seen: list[str] = []
    connection = writer._connection._conn

    def note(sql: str) -> None:
        word = sql.split(None, 1)[0]
        if word != "PRAGMA":
            seen.append(word)

    connection.set_trace_callback(note)
    try:
        yield seen
    finally:
        connection.set_trace_callback(None)


def count(seen: list[str], word: str) -> int:
    return sum(one == word for one in seen)


async def handle(world: World, message: Message, number: int, ready: asyncio.Barrier, spoilt: bool = False) -> None:
    async with message as unit:
        world.fill(unit, message, number)
        if spoilt:
            await name_no_agent(world, message, unit)
        await unit._prepare()
        await ready.wait()


async def test_one_of_everything_is_one_commit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # It is a transaction, too.
    monkeypatch.setattr(WriteAheadLog, "_preallocate", lambda _: None)
    message = await world.message()
    with closing(sqlite3.connect(world.root / "bus" / "bus.db")) as other:
        (before,) = other.execute("PRAGMA data_version").fetchone()
        with statements(world.bus) as seen:
            async with message as unit:
                world.fill(unit, message)
                assert seen == []
                assert other.execute("PRAGMA data_version").fetchone() == (before,)
        assert other.execute("PRAGMA data_version").fetchone() != (before,)
    assert (count(seen, "BEGIN"), count(seen, "COMMIT"), count(seen, "ROLLBACK")) == (1, 1, 0)
    assert (seen[0], seen[-1]) == ("BEGIN", "COMMIT")
    assert await world.all_of(message)


async def test_units_that_end_together_are_one_commit(world: World) -> None:
    messages = [await world.message(number) for number in range(12)]
    ready = asyncio.Barrier(12)
    with statements(world.bus) as seen:
        await asyncio.gather(*(handle(world, message, n, ready) for n, message in enumerate(messages)))
    assert (count(seen, "COMMIT"), count(seen, "SAVEPOINT"), count(seen, "ROLLBACK")) == (1, 0, 0)
    assert len(seen) < 12 * 15, "they share their statements"


async def test_one_that_fails_costs_the_others_a_second_try_and_nothing_else(world: World) -> None:
    messages = [await world.message(number) for number in range(12)]
    ready = asyncio.Barrier(12)
    with statements(world.bus) as seen:
        results = await asyncio.gather(
            *(handle(world, message, n, ready, spoilt=n == 7) for n, message in enumerate(messages)),
            return_exceptions=True,
        )
    assert [result is None for result in results] == [n != 7 for n in range(12)]
    # The common attempt is undone; each has a savepoint; the last commit gives the message of the failed one back.
    assert count(seen, "SAVEPOINT") == 12
    assert (count(seen, "BEGIN"), count(seen, "COMMIT")) == (3, 2)
