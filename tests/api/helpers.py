"""Helpers shared by the conformance tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import anyio
import pytest

from agentbus import Address, Agent, Bus, Message
from agentbus.errors import AgentBusError
from agentbus.records import AgentRecord, MessageRecord, SessionRecord
from tests.support.clock import FakeClock

T = TypeVar("T")
E = TypeVar("E", bound=AgentBusError)


async def soon(awaitable: Awaitable[T]) -> T:
    """Wait for something that must come without time passing on the bus's clock."""
    with anyio.fail_after(60):
        return await awaitable


async def eventually(clock: FakeClock, done: Callable[[], bool]) -> None:
    """Let the bus work until this holds, and until it has come to rest, without time passing on its clock."""
    with anyio.fail_after(60):
        while not done():
            await clock.settle()
    await clock.settle()


@asynccontextmanager
async def running(coroutine: Coroutine[Any, Any, T]) -> AsyncIterator[asyncio.Task[T]]:
    """A task for the length of a block; cancelled at its end if it is still running."""
    task = asyncio.create_task(coroutine)
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await task


async def take(agent: Agent, **options: Any) -> Message:
    """The message that must be there now."""
    message = await agent.receive(timeout=0, **options)
    assert message is not None, f"nothing there for {agent.id}"
    return message


async def take_all(agent: Agent) -> list[Message]:
    """Everything that is there now, most urgent first."""
    return await agent.receive_many(1000, timeout=0)


async def nothing_for(*agents: Agent) -> bool:
    """Return True if none of these agents has anything to receive."""
    return [await agent.receive(timeout=0) for agent in agents] == [None] * len(agents)


async def stored(bus: Bus, message_id: str | None) -> MessageRecord:
    """The record of a message that must exist."""
    assert message_id is not None
    record = await bus.messages.get(message_id)
    assert record is not None, f"{message_id} is not there"
    return record


async def known(bus: Bus, agent: str) -> AgentRecord:
    """The record of an agent that must exist."""
    record = await bus.agents.get(agent)
    assert record is not None, f"{agent} is not there"
    return record


async def held(bus: Bus, session: str) -> SessionRecord:
    """The record of a session that must exist."""
    record = await bus.sessions.get(session)
    assert record is not None, f"{session} is not there"
    return record


async def count(bus: Bus) -> int:
    """Return the number of messages on the bus, of any status."""
    return sum((await bus.stats()).messages.values())


async def worker(bus: Bus, id: str, **options: Any) -> Agent:
    """An agent that lives until the bus is closed."""
    return await bus.register(id, type="worker", **options)


async def queued(bus: Bus, to: str | Address) -> list[Any]:
    """The payloads that wait at an address, newest first."""
    return [record.payload for record in (await bus.messages.list(to=to, status="queued")).items]


@asynccontextmanager
async def refusing(
    bus: Bus, agent: Agent, expected: type[E] | tuple[type[E], ...]
) -> AsyncIterator[pytest.ExceptionInfo[E]]:
    """A block that must raise this error; then nothing may have been written, and the bus must still work."""
    before = (await bus.stats()).messages, (await bus.agents.list()).items
    with pytest.raises(expected) as refused:
        yield refused
    assert type(refused.value).code != AgentBusError.code, "an error of its own, with a code of its own"
    after = (await bus.stats()).messages, (await bus.agents.list()).items
    assert after == before, "something was written"
    receipt = await agent.send(agent.id, "note", "the bus still works", priority=9)
    message = await take(agent)
    assert message.message_id == receipt.message_id
    await message.ack()
