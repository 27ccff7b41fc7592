"""People send messages as ``operator:NAME``, without being registered, and have a mailbox for the replies."""

from __future__ import annotations

import asyncio

import pytest

from agentbus import Bus
from agentbus.api.agents import ProfileOptions
from agentbus.errors import InvalidName, QuotaExceeded, UnknownOperator, UnknownRecipient
from agentbus.sync.bus import open_bus
from tests.api.helpers import queued, take, worker
from tests.conftest import Engine
from tests.support.cases import each
from tests.support.clock import FakeClock


async def test_a_person_sends_and_gets_the_reply(bus: Bus) -> None:
    a = await worker(bus, "a", pools=["p"])
    receipt = await bus.messages.send("a", "note", {"text": "stop"}, by="ada", priority=9, headers={"k": "v"})
    await bus.messages.send("pool:p", "note", 2, by="ada")
    assert receipt.delivered == 1
    message = await take(a)
    assert (message.sender, message.payload, message.priority) == ("operator:ada", {"text": "stop"}, 9)
    assert message.headers == {"k": "v"}
    async with message as unit:
        unit.reply(message, "note", "stopped")
    await a.send("operator:ada", "note", "and done")
    replies = (await bus.messages.list(to="operator:ada", status="queued")).items
    assert [(one.sender, one.payload) for one in reversed(replies)] == [("a", "stopped"), ("a", "and done")]
    assert (await bus.stats()).agents == {"running": 1}, "a person is no agent"


async def test_a_message_id_of_a_person_is_sent_once(bus: Bus) -> None:
    await worker(bus, "a")
    receipts = [await bus.messages.send("a", "note", 1, by="ada", message_id="mine") for _ in range(2)]
    assert [receipt.duplicate for receipt in receipts] == [False, True]
    assert len(await queued(bus, "a")) == 1


async def test_a_person_who_has_sent_nothing_has_no_mailbox(bus: Bus) -> None:
    a = await worker(bus, "a")
    with pytest.raises(UnknownOperator) as refused:
        await a.send("operator:ada", "note", 1)
    assert refused.value.operator == "operator:ada"
    with pytest.raises(UnknownRecipient):
        await bus.messages.send("nobody", "note", 1, by="ada")
    # The name is known from now on: raised means that no message was written.
    await a.send("operator:ada", "note", 2)
    assert await queued(bus, "operator:ada") == [2]


async def test_the_names_of_people_are_no_ids_of_agents(bus: Bus, engine: Engine) -> None:
    about: ProfileOptions = {}
    for attempt in (
        bus.register("operator:ada", type="worker"), bus.expect("operator:ada", type="worker", **about),
        bus.register("b", type="worker", parent="operator:ada"),
    ):  # fmt: skip
        with pytest.raises(InvalidName) as refused:
            await attempt
        assert "people" in str(refused.value.fix)
    await worker(bus, "a")
    assert not await engine.tamper("UPDATE agents SET id = 'operator:ada' WHERE id = 'a'")
    columns = "name, type, status, mailbox, replies, created, updated"
    assert not await engine.tamper(
        f"INSERT INTO agents (id, {columns}) SELECT 'operator:ada', {columns} FROM agents WHERE id = 'a'"
    )


@each("name", ["", "operator:ada", "a b", "a\n", "x" * 120, None, 7])
async def test_a_person_needs_a_valid_name(bus: Bus, name: object) -> None:
    with pytest.raises(InvalidName):
        await bus.messages.send("a", "note", 1, by=name)  # type: ignore[arg-type]
    assert (await bus.messages.list()).items == []


async def test_quotas_apply_to_people(bus: Bus) -> None:
    await worker(bus, "a")
    await bus.quotas.change(depth=1)
    await bus.messages.send("a", "note", 1, by="ada")
    with pytest.raises(QuotaExceeded):
        await bus.messages.send("a", "note", 2, by="ada")


async def test_a_person_receives_and_settles_without_an_event_loop(bus: Bus, engine: Engine, clock: FakeClock) -> None:
    a = await worker(bus, "a")

    def ask() -> str:
        with open_bus(engine.url, clock=clock) as here:
            ada = here.operator("ada")
            ada.send("a", "note", 1)
            return ada.id

    assert await asyncio.to_thread(ask) == "operator:ada"
    message = await take(a)
    await message.reply("note", "done")
    await message.ack()

    def read() -> list[object]:
        with open_bus(engine.url, clock=clock) as here:
            ada = here.operator("ada")
            found = ada.receive_many(2)
            held = [str(one.lease) for one in ada.in_hand()]
            ada.ack(*held)
            return [(one.sender, one.payload) for one in found]

    assert await asyncio.to_thread(read) == [("a", "done")]
    assert await queued(bus, "operator:ada") == []
