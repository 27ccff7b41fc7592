"""State in units: committed with acknowledgements and messages, or not at all."""

from __future__ import annotations

import asyncio

import pytest

from agentbus import Bus
from agentbus.errors import LeaseLost, Misuse, UnknownRecipient, UnknownSession, VersionConflict, WrongState
from tests.api.helpers import count, stored, take, worker


async def test_a_message_and_the_state_of_its_handler_are_one_commit(bus: Bus) -> None:
    a = await worker(bus, "a")
    await a.send("a", "task_assignment", {"n": 7})
    message = await take(a)
    async with message as unit:
        unit.state.set("last", message.payload)
        unit.state.increment("handled", 2)
        unit.state.set("draft", 1, ttl=60, type="temp_data")
        unit.state_of("shared").set("by", "a")
        assert await a.state.get("last") is None
    assert await a.state.get("last") == {"n": 7}
    assert await a.state.get("handled") == 2
    entry = await bus.state("shared").entry("by")
    assert entry is not None
    assert (entry.value, entry.author) == ("a", "a")
    draft = await a.state.entry("draft")
    assert draft is not None
    assert draft.type == "temp_data"
    assert draft.expires is not None
    assert (await stored(bus, message.message_id)).status == "acked"


async def test_changes_of_a_unit_happen_in_their_order(bus: Bus) -> None:
    a = await worker(bus, "a")
    await a.state.set("gone", 1)
    async with a.unit() as unit:
        unit.state.set("k", 1, if_version=0)
        unit.state.set("k", 5, if_version=1)
        unit.state.increment("k", 10)
        unit.state.delete("gone")
        unit.state.set("gone", 2, if_version=0)
    assert (await a.state.get("k"), await a.state.get("gone")) == (15, 2)


async def test_an_exception_in_the_block_writes_nothing(bus: Bus) -> None:
    a = await worker(bus, "a")
    with pytest.raises(ZeroDivisionError):
        async with a.unit() as unit:
            unit.state.set("k", 1)
            _ = 1 / 0
    assert (await a.state.list()).items == []


async def test_a_conflict_undoes_the_whole_unit(bus: Bus) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note", 1)
    message = await take(a)
    await a.state.set("k", 1)
    with pytest.raises(VersionConflict):
        async with message as unit:
            unit.send("a", "note", 2)
            unit.state.set("other", 1)
            unit.state.set("k", 2, if_version=7)
    assert await a.state.get("other") is None
    assert await count(bus) == 1
    assert (await stored(bus, message.message_id)).status != "acked"


async def test_state_is_rolled_back_with_a_failed_part_of_its_unit(bus: Bus) -> None:
    a = await worker(bus, "a")
    with pytest.raises(UnknownRecipient):
        async with a.unit() as unit:
            unit.state.set("k", 1)
            unit.send("nobody", "note")
    with pytest.raises(UnknownSession):
        async with a.unit() as unit:
            unit.state.set("k", 1)
            unit.state_of("session:nowhere").set("k", 1)
    await a.state.set("text", "x")
    with pytest.raises(WrongState):
        async with a.unit() as unit:
            unit.state.set("k", 1)
            unit.state.increment("text")
    assert await a.state.get("k") is None


async def test_a_lost_lease_writes_no_state(bus: Bus) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note", 1)
    message = await take(a)
    await message.nack(delay=0)
    with pytest.raises(LeaseLost):
        async with a.unit() as unit:
            unit.ack(message)
            unit.state.set("k", 1)
    assert await a.state.get("k") is None


async def test_units_that_wait_together_do_not_undo_each_other(bus: Bus) -> None:
    agents = [await worker(bus, f"a{n}") for n in range(20)]

    async def work(n: int) -> None:
        async with agents[n].unit() as unit:
            unit.state_of("shared").increment("count")
            unit.state.set("n", n, if_version=0 if n % 4 else 9)

    results = await asyncio.gather(*(work(n) for n in range(20)), return_exceptions=True)
    assert [isinstance(result, VersionConflict) for result in results] == [n % 4 == 0 for n in range(20)]
    assert await bus.state("shared").get("count") == 15
    assert [await agent.state.get("n") for agent in agents] == [n if n % 4 else None for n in range(20)]


@pytest.mark.one_engine
async def test_a_unit_that_is_over_takes_no_state(bus: Bus) -> None:
    a = await worker(bus, "a")
    async with a.unit() as unit:
        state = unit.state
    with pytest.raises(Misuse):
        state.set("k", 1)
    with pytest.raises(Misuse):
        state.delete("k")
    with pytest.raises(Misuse):
        state.increment("k")
