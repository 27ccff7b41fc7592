"""Point reads: an agent record, a state entry, a waiting message. They see every commit and lease nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from agentbus import Agent, Bus, pool, topic
from agentbus.errors import BusClosed, WrongLoop
from tests.api.helpers import known, take, worker
from tests.conftest import Engine
from tests.support.cases import each
from tests.support.clock import FakeClock


async def test_a_point_read_sees_earlier_commits_of_another_bus(engine: Engine) -> None:
    async with engine.connect() as bus, engine.connect() as other:
        for n in range(50):
            await other.state("s").set("k", n)
            assert await bus.state("s").get("k") == n
            await bus.state("s").set("k", -n)
            assert await other.state("s").get("k") == -n


async def test_a_point_read_returns_the_current_record_of_an_agent(engine: Engine) -> None:
    async with engine.connect() as bus, engine.connect() as other:
        a = await worker(other, "a")
        for percent in (1, 50, 100):
            await a.progress(percent)
            assert (await known(bus, "a")).progress == percent
        assert await bus.agents.get("nobody") is None


async def test_a_point_read_reports_a_waiting_message(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a", pools=["p"], topics=["t"])
    b = await worker(bus, "b")
    assert await a.pending() is False
    for address in ("a", pool("p"), topic("t")):
        await b.send(address, "note")
        assert await a.pending() is True
        assert await b.pending() is False
        message = await take(a)
        assert await a.pending() is False
        await message.ack()
        assert await a.pending() is False
    await b.send("a", "note", delay=10)
    assert await a.pending() is False
    clock.stall(10)
    assert await a.pending() is True
    await take(a, lease=5)
    assert await a.pending() is False
    clock.stall(5)
    assert await a.pending() is True
    assert await a.pending() is True


async def test_a_task_of_only_point_reads_yields_to_other_tasks(bus: Bus) -> None:
    """It never waits for anything, and what it looks for must come all the same."""

    async def set_soon() -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        await bus.state("s").set("ready", True)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(set_soon)
        with anyio.fail_after(60):
            while not await bus.state("s").get("ready"):
                pass


async def test_a_task_of_only_point_reads_can_be_cancelled(bus: Bus) -> None:
    with anyio.move_on_after(0.01) as scope:
        while True:
            await bus.state("s").get("k")
    assert scope.cancelled_caught


LOOKS: list[Callable[[Bus, Agent], Awaitable[Any]]] = [
    lambda bus, _: bus.state("s").get("k"),
    lambda bus, _: bus.state("s").entry("k"),
    lambda bus, _: bus.agents.get("a"),
    lambda _, agent: agent.pending(),
]


@each("look", LOOKS)
async def test_a_point_read_on_a_closed_bus_is_a_named_error(
    engine: Engine, look: Callable[[Bus, Agent], Awaitable[Any]]
) -> None:
    async with engine.connect() as bus:
        a = await worker(bus, "a")
    with pytest.raises(BusClosed):
        await look(bus, a)


async def test_a_point_read_on_an_unopened_bus_is_a_named_error(engine: Engine) -> None:
    with pytest.raises(BusClosed):
        await engine.connect().state("s").get("k")


async def test_a_point_read_from_another_event_loop_is_a_named_error(bus: Bus) -> None:
    with pytest.raises(WrongLoop):
        await asyncio.to_thread(lambda: asyncio.run(bus.state("s").get("k")))
    assert await bus.state("s").get("k") is None
