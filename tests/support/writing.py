"""The engine's writer in the hands of a test: callers, a gate that holds its thread, and a look at the database."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agentbus.core.addresses import Address
from agentbus.core.clock import Now, SystemClock
from agentbus.core.codec import encode
from agentbus.engine.sqlite.engine import SQLiteEngine
from agentbus.engine.sqlite.paths import find
from agentbus.engine.sqlite.writer import Writer
from agentbus.operations.agent_identity import Registration
from agentbus.operations.agents import RegisterRequest, register
from agentbus.operations.protocol import Actor, Op, Outcome, Query, operation
from agentbus.operations.rows import Draft, Profile
from agentbus.operations.send import SendRequest
from agentbus.operations.types import DefineRequest, define


class Gate:
    """Holds the writer's thread in the middle of a transaction until it is opened."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()
        self.caller: asyncio.Future[None] | None = None

    async def reached(self) -> None:
        assert await asyncio.to_thread(self.entered.wait, 10)


@operation(durable=True)
def pause(requests: Sequence[Gate], now: Now) -> Op[list[Outcome[None]]]:
    for gate in requests:
        gate.entered.set()
        assert gate.opened.wait(10)
        yield Query("meta_get", ("boot",))
    return [None] * len(requests)


@operation(durable=True)
def break_off(requests: Sequence[str], now: Now) -> Op[list[Outcome[None]]]:
    """Writes, then fails."""
    for name in requests:
        yield Query("meta_set", (name, "written"))
        raise ZeroDivisionError(name)
    return []


@asynccontextmanager
async def opened(path: Path, durability: str = "disk") -> AsyncIterator[SQLiteEngine]:
    engine = SQLiteEngine(find(path), durability=durability, clock=SystemClock(), lock_timeout=10)
    await engine.open()
    try:
        yield engine
    finally:
        await engine.close()


def writer(engine: SQLiteEngine) -> Writer:
    assert engine._writer is not None
    return engine._writer


def trace(engine: SQLiteEngine) -> list[str]:
    """Every statement that the writer's connection runs from now on."""
    statements: list[str] = []
    writer(engine)._connection._conn.set_trace_callback(statements.append)
    return statements


def wanted(name: str) -> DefineRequest:
    return DefineRequest("message", name, "")


def start(engine: SQLiteEngine, *names: str) -> list[asyncio.Task[None]]:
    """Callers, each a task of its own, that each define a type."""
    return [asyncio.ensure_future(answer_to(engine.write(define, wanted(name)))) for name in names]


async def answer_to(answer: Awaitable[Any]) -> Any:
    return await answer


async def paused(engine: SQLiteEngine) -> Gate:
    """The writer's thread is held; what is written from now on waits together."""
    gate = Gate()
    gate.caller = asyncio.ensure_future(answer_to(engine.write(pause, gate)))
    await gate.reached()
    return gate


def open_and_finish(engine: SQLiteEngine, gate: Gate) -> None:
    """Let the thread write all that waits while the loop stands still, which then hears of everything at once."""
    idle = threading.Event()
    gate.opened.set()
    writer(engine)._connection.run_on_thread(idle.set)
    assert idle.wait(10)


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def defined(path: Path) -> set[str]:
    """The types in the database that are not built in."""
    connection = sqlite3.connect(path / "bus" / "bus.db")
    try:
        return {name for (name,) in connection.execute("SELECT name FROM vocabulary WHERE builtin = 0")}
    finally:
        connection.close()


async def agent(engine: SQLiteEngine, id: str) -> tuple[Actor, Registration]:
    registration = await engine.write(register, RegisterRequest(id, "worker", engine.process, Profile()))
    return Actor(id, registration.epoch), registration


def message(actor: Actor, to: str, payload: object = None) -> SendRequest:
    return SendRequest(actor, (Draft(Address("agent", to), "note", encode(payload, 1_000_000), 5, 5),))


async def rows(engine: SQLiteEngine, sql: str) -> list[tuple[Any, ...]]:
    connection = writer(engine)._connection
    return await connection.run(lambda: connection._conn.execute(sql).fetchall())
