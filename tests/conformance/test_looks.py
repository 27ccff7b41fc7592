"""Quick looks: an agent's record, a state entry, whether a message waits. They see every commit, and take nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from agentbus import Agent, Bus, pool, topic
from agentbus.errors import BusClosed, WrongLoop
from tests.conformance.helpers import known, take, worker
from tests.conftest import Engine
from tests.support.clock import FakeClock


async def test_a_look_sees_what_another_bus_committed_before(engine: Engine) -> None:
    async with engine.connect() as bus, engine.connect() as other:
        for n in range(50):
            await other.state("s").set("k", n)
            assert await bus.state("s").get("k") == n
            await bus.state("s").set("k", -n)
            assert await other.state("s").get("k") == -n


async def test_an_agents_record_is_seen_as_it_is(engine: Engine) -> None:
    async with engine.connect() as bus, engine.connect() as other:
        a = await worker(other, "a")
        for percent in (1, 50, 100):
            await a.progress(percent)
            assert (await known(bus, "a")).progress == percent
        assert await bus.agents.get("nobody") is None


async def test_whether_a_message_waits(bus: Bus, clock: FakeClock) -> None:
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


async def test_a_task_that_only_looks_lets_the_others_work(bus: Bus) -> None:
    """It never waits for anything, and what it looks for must come all the same."""

    async def set_soon() -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        await bus.state("s").set("ready", True)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(set_soon)
        with anyio.fail_after(10):
            while not await bus.state("s").get("ready"):
                pass


async def test_a_task_that_only_looks_can_be_cancelled(bus: Bus) -> None:
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


@pytest.mark.parametrize("look", LOOKS)
async def test_a_closed_bus_says_so(engine: Engine, look: Callable[[Bus, Agent], Awaitable[Any]]) -> None:
    async with engine.connect() as bus:
        a = await worker(bus, "a")
    with pytest.raises(BusClosed):
        await look(bus, a)


async def test_a_bus_that_was_never_opened_says_so(engine: Engine) -> None:
    with pytest.raises(BusClosed):
        await engine.connect().state("s").get("k")


async def test_a_bus_of_another_loop_says_so(bus: Bus) -> None:
    with pytest.raises(WrongLoop):
        await asyncio.to_thread(lambda: asyncio.run(bus.state("s").get("k")))
    assert await bus.state("s").get("k") is None
