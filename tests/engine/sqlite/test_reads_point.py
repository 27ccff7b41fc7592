"""Point reads of every kind: no thread but the loop's, one's own writes at once, and no transaction left open."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, closing, suppress
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest

import agentbus
from agentbus import Agent, Bus, Session
from agentbus.engine.sqlite.engine import SQLiteEngine
from agentbus.engine.sqlite.writer import DaemonConnection
from agentbus.errors import DamagedPayload
from tests.faults.rows import lock_held
from tests.support.cases import each

ROUNDS = 250


class World:
    def __init__(self, path: Path, bus: Bus, session: Session, agent: Agent) -> None:
        self.path = path
        self.bus = bus
        self.session = session
        self.agent = agent

    def truncate(self) -> int:
        """Checkpoint the whole log; return 0 if no reader blocks it."""
        with closing(sqlite3.connect(self.path / "bus.db", isolation_level=None, timeout=0)) as other:
            (busy, _, _) = other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return int(busy)


@pytest.fixture
def durability() -> Literal["disk", "process"]:
    return "process"


@pytest.fixture
async def world(durability: Literal["disk", "process"], tmp_path: Path) -> AsyncIterator[World]:
    async with (
        agentbus.connect(tmp_path, beat_every=3600, durability=durability) as bus,
        bus.session("planning", id="s") as session,
        session.agent("a", type="worker", pools=["p"]) as agent,
    ):
        await agent.state.set("k", 1)
        await session.state.set("k", 2)
        yield World(tmp_path, bus, session, agent)


LOOKS: dict[str, Callable[[World], Awaitable[Any]]] = {
    "state.get": lambda world: world.agent.state.get("k"),
    "state.get of nothing": lambda world: world.agent.state.get("nothing", "default"),
    "state.entry": lambda world: world.agent.state.entry("k"),
    "session.state.get": lambda world: world.session.state.get("k"),
    "agents.get": lambda world: world.bus.agents.get("a"),
    "agents.get of an unknown agent": lambda world: world.bus.agents.get("nobody"),
    "agent.pending": lambda world: world.agent.pending(),
    "sessions.get": lambda world: world.bus.sessions.get("s"),
    "sessions.get of nothing": lambda world: world.bus.sessions.get("nothing"),
    "session.record": lambda world: world.session.record(),
    "sessions.open": lambda world: world.bus.sessions.open("s"),
}


class Eye:
    """The connection for looks, with a note of who uses it."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.threads: set[int] = set()
        self.asked = 0

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        self.asked += 1
        self.threads.add(threading.get_ident())
        return self._connection.execute(*arguments)

    def close(self) -> None:
        self._connection.close()


@each("name", LOOKS)
async def test_a_point_read_is_answered_on_the_loops_own_thread(
    world: World, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = LOOKS[name]
    engine = world.bus._engine
    assert isinstance(engine, SQLiteEngine)
    assert engine._inline_reader is not None
    expected = await look(world)

    def hop(*arguments: Any) -> Any:
        raise AssertionError("it went to another thread")

    eye = Eye(engine._inline_reader)
    with monkeypatch.context() as patch:
        patch.setattr(engine, "_inline_reader", eye)
        patch.setattr(DaemonConnection, "execute_fetchall", hop)
        patch.setattr(anyio.to_thread, "run_sync", hop)
        for _ in range(50):
            answer = await look(world)
            if not isinstance(answer, Session):
                assert answer == expected
    assert eye.threads == {threading.get_ident()}
    assert eye.asked == 50, "each is one lookup"


@each("name", LOOKS)
async def test_a_point_read_waits_for_nothing(world: World, name: str) -> None:
    """It is answered in the first step of its coroutine, but for the turns that it leaves to others now and then."""
    look = LOOKS[name]
    turns = 0
    for _ in range(200):
        waiting = look(world).__await__()
        with suppress(StopIteration):
            while True:
                assert next(waiting) is None, "it waits for something"
                turns += 1
    assert 1 <= turns <= 10


@pytest.mark.parametrize("durability", ["disk", "process"])
async def test_a_writer_sees_its_own_write_however_many_write_concurrently(world: World) -> None:
    bus, agent, session = world.bus, world.agent, world.session
    done = asyncio.Event()
    written = 0

    async def disturb(bus: Bus, name: str) -> None:
        nonlocal written
        other = await bus.register(name, type="worker")
        while not done.is_set():
            await other.state.increment("n")
            await other.send(name, "note")
            await other.ack(await other.receive_many(10, timeout=0))
            await bus.state("s").set(name, written)
            written += 3

    async def check(place: int) -> None:
        mine = agent if place == 0 else await bus.register(f"writer-{place}", type="worker")
        for n in range(place, ROUNDS, 4):
            if n % 5 == 0:
                await mine.progress(n % 101, f"note {n}")
                record = await bus.agents.get(mine.id)
                assert record is not None
                assert (record.progress, record.note) == (n % 101, f"note {n}")
            elif n % 5 == 1:
                await mine.send(mine.id, "note", n)
                assert await mine.pending() is True
                message = await mine.receive(timeout=0)
                assert message is not None
                assert await mine.pending() is False
                async with message as unit:
                    unit.state.set("handled", n)
                assert await mine.state.get("handled") == n
            elif n % 5 == 2 and place == 0:
                await session.progress(n % 101)
                found = await bus.sessions.get("s")
                assert found is not None
                assert found.progress == n % 101
            elif n % 5 == 3:
                await mine.state.set("k", n)
                await mine.state.delete("k")
                assert await mine.state.get("k") is None
            else:
                version = await session.state.set(f"k-{place}", n)
                entry = await session.state.entry(f"k-{place}")
                assert entry is not None
                assert (entry.value, entry.version) == (n, version)

    async with AsyncExitStack() as stack:
        elsewhere = await stack.enter_async_context(agentbus.connect(world.path, durability="process"))
        disturbing = [
            asyncio.create_task(disturb(one, f"disturber-{n}"))
            for n, one in enumerate((bus, bus, elsewhere, elsewhere))
        ]
        with anyio.fail_after(60):
            await asyncio.gather(*(check(place) for place in range(4)))
        done.set()
        await asyncio.gather(*disturbing)
    print(f"{ROUNDS} looks after a write of one's own, {written} concurrent writes")
    assert written > 100


async def test_no_point_read_leaves_a_transaction_open(world: World) -> None:
    for round in range(5):
        await world.agent.state.set("k", round)
        for look in LOOKS.values():
            for _ in range(round * 20 + 1):
                await look(world)
        assert world.truncate() == 0
    with closing(sqlite3.connect(world.path / "bus.db")) as other:
        other.execute("UPDATE state SET value = '7' WHERE scope = 'a' AND key = 'k'")
        other.commit()
    for _ in range(3):
        with pytest.raises(DamagedPayload):
            await world.agent.state.get("k")
    assert world.truncate() == 0, "nor does one that failed"
    for turns in range(5):

        async def look_on() -> None:
            while True:
                await world.session.state.get("k")
                await world.agent.pending()

        task = asyncio.create_task(look_on())
        for _ in range(turns + 1):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert world.truncate() == 0, "nor one that was cancelled"
    assert (world.path / "bus.db-wal").stat().st_size == 0


async def test_point_reads_between_the_steps_of_a_scan_do_not_pin_the_log(world: World) -> None:
    for n in range(50):
        await world.agent.state.set(f"k{n:02}", n)
    cursor: str | None = None
    while True:
        page = await world.agent.state.list(limit=10, cursor=cursor)
        assert await world.agent.state.get(page.items[-1].key) == page.items[-1].value
        assert world.truncate() == 0
        cursor = page.cursor
        if cursor is None:
            break


@each("name", LOOKS)
async def test_point_reads_work_while_another_holds_the_write_lock(world: World, name: str) -> None:
    look = LOOKS[name]
    with (
        lock_held(world.path),
        closing(sqlite3.connect(world.path / "bus.db", isolation_level=None)) as other,
        anyio.fail_after(60),
    ):
        other.execute("BEGIN EXCLUSIVE")
        other.execute("UPDATE state SET value = '\"unheard-of\"', checksum = 0")
        other.execute("UPDATE sessions SET progress = 99")
        writing = asyncio.create_task(world.session.state.set("later", 1))
        for _ in range(100):
            answer = await look(world)
        assert "unheard-of" not in str(answer)
        assert getattr(answer, "progress", 0) != 99
        assert not writing.done()
        other.execute("ROLLBACK")
    await writing
    assert await world.session.state.get("later") == 1
