"""Typed payloads: a Struct carries its type, which its first use defines, and is decoded as the same Struct."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from msgspec import Struct

import agentbus
from agentbus import Agent, Bus, Message, Unit
from agentbus.errors import AgentFenced, InvalidInput, PayloadMismatch, RequestTimedOut, UnknownRecipient
from tests.api.helpers import count, nothing_for, refusing, running, soon, stored, take, take_all, worker
from tests.api.structs import PLAN, TABLE, Answer, Plan, Row, Shape, Step, TaskAssignment, types
from tests.conftest import Engine
from tests.support.cases import each
from tests.support.clock import FakeClock

# There and back


@pytest.mark.one_engine
@each(
    ("sent", "type"),
    [(PLAN, "plan"), (Shape(1.5), "shape/circle"), (Answer(True), "answer"), (Row(1, "x"), "row"), (TABLE, "table")],
)
async def test_a_struct_carries_its_type_and_comes_back_as_itself(bus: Bus, sent: Struct, type: str) -> None:
    a = await worker(bus, "a", takeover=True)
    receipt = await a.send("a", sent, priority=7)
    message = await take(a)
    assert (message.type, message.payload, message.priority) == (type, sent, 7)
    assert message.payload is message.payload
    assert message.raw == msgspec.to_builtins(sent, str_keys=True)
    await message.ack()
    assert (await stored(bus, receipt.message_id)).payload == message.raw


@pytest.mark.one_engine
async def test_every_way_of_sending_takes_a_struct(bus: Bus) -> None:
    a = await worker(bus, "a", topics=["t"])
    await a.send("a", PLAN)
    await a.send("a", "plan", PLAN)
    await a.send_many([("a", PLAN), ["a", "plan", PLAN], {"to": "a", "type": PLAN}, {"to": "a", "type": "note"}])
    await a.publish("t", PLAN)
    async with a.unit() as unit:
        unit.send("a", PLAN)
        unit.send("a", "plan", PLAN)
        unit.publish("t", PLAN)
    received = await take_all(a)
    assert [(message.type, message.payload) for message in received] == [
        *[("plan", PLAN)] * 5, ("note", None), *[("plan", PLAN)] * 4,
    ]  # fmt: skip


@pytest.mark.one_engine
async def test_a_request_and_its_reply_are_typed(bus: Bus) -> None:
    a, b = await worker(bus, "a"), await worker(bus, "b")
    seen: list[Any] = []

    async def handle(message: Message, unit: Unit) -> None:
        seen.append(message.payload)
        if message.payload.files == 1:
            await message.reply(Answer(False))
        else:
            unit.reply(message, Answer(True))

    async with running(b.serve(handle)):
        for files in (1, 2):
            reply = await soon(a.request("b", Plan(files), timeout=30))
            assert (reply.type, reply.payload) == ("answer", Answer(files == 2))
    assert seen == [Plan(1), Plan(2)]


@pytest.mark.one_engine
async def test_a_request_that_times_out_names_its_type(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    async with running(a.request("a", PLAN, timeout=5)) as asking:
        await clock.settle()
        clock.advance(6)
        with pytest.raises(RequestTimedOut, match="'plan'"):
            await soon(asking)


@pytest.mark.one_engine
async def test_a_receiver_without_the_struct_gets_plain_json_and_can_decode_it(engine: Engine) -> None:
    async with engine.connect() as bus, engine.connect() as other:
        a, b = await worker(bus, "a"), await worker(other, "b")
        await a.send("b", PLAN)
        message = await take(b)
        assert message.payload == message.raw == msgspec.to_builtins(PLAN)
        assert message.decode(Plan) == PLAN
        assert message.decode(dict[str, Any])["files"] == 12
        await message.ack()
        await other.define(Plan)
        await a.send("b", PLAN)
        assert (await take(b)).payload == PLAN


@pytest.mark.one_engine
async def test_plain_json_of_other_senders_is_read_as_a_struct(engine: Engine) -> None:
    async with engine.connect() as bus, engine.connect() as other:
        await bus.define(Plan)
        a, b = await worker(bus, "a"), await worker(other, "b")
        await b.send("a", "plan", {"files": 3, "steps": [{"name": "x"}]})
        assert (await take(a)).payload == Plan(3, [Step("x")])


@pytest.mark.one_engine
async def test_a_changed_raw_does_not_change_the_message(bus: Bus) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note", {"x": 1})
    message = await take(a)
    message.raw["x"] = 2
    assert message.payload == message.raw == {"x": 1}


@pytest.mark.one_engine
async def test_a_struct_sent_as_another_type_is_just_its_payload(bus: Bus) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note", PLAN)
    await a.send("a", "task_assignment", TaskAssignment("design"))
    first, second = await take_all(a)
    assert (first.payload, second.payload) == (msgspec.to_builtins(PLAN), {"phase": "design"})
    assert await types(bus) == set()


# The first use defines it


async def test_the_first_use_of_a_struct_defines_it(bus: Bus) -> None:
    a = await worker(bus, "a")
    assert await types(bus) == set()
    await a.send("a", PLAN)
    assert await types(bus) == {"plan"}
    (record,) = [type for type in await bus.types() if type.name == "plan"]
    assert record.schema is not None
    assert record.schema["$defs"]["Plan"]["required"] == ["files"]


async def test_a_definition_and_its_first_message_are_one_commit(bus: Bus) -> None:
    a = await worker(bus, "a")
    async with refusing(bus, a, UnknownRecipient):
        await a.send("nobody", PLAN)
    async with refusing(bus, a, UnknownRecipient):
        await a.send_many([("a", PLAN), ("nobody", Answer(True))])
    async with refusing(bus, a, UnknownRecipient), a.unit() as unit:
        unit.send("a", PLAN)
        unit.send("nobody", Answer(True))
    assert await types(bus) == set()
    await a.send_many([("a", PLAN), ("a", Answer(True))])
    assert await types(bus) == {"plan", "answer"}


async def test_a_unit_defines_what_it_sends_with_everything_else(bus: Bus) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note")
    async with await take(a) as unit:
        unit.send("a", PLAN)
        unit.send("a", Shape(2.0))
        unit.progress(50)
        assert await types(bus) == set(), "nothing is written before the end"
    assert await types(bus) == {"plan", "shape/circle"}
    assert [message.payload for message in await take_all(a)] == [PLAN, Shape(2.0)]


async def test_an_agent_that_was_fenced_defines_nothing(engine: Engine) -> None:
    async with engine.connect() as bus, engine.connect() as other:
        a = await worker(bus, "a")
        await worker(other, "a", takeover=True)
        with pytest.raises(AgentFenced):
            await a.send("a", PLAN)
        assert await types(bus) == set()


async def test_many_first_uses_at_once_are_one_definition(engine: Engine) -> None:
    async with engine.connect() as one, engine.connect() as two:
        agents = [await worker(bus, f"a-{number}") for number, bus in enumerate([one, two] * 5)]
        await asyncio.gather(*(agent.send(agent.id, Plan(number)) for number, agent in enumerate(agents)))
        assert [(await take(agent)).payload for agent in agents] == [Plan(number) for number in range(10)]


async def test_many_units_with_first_uses_at_once_all_commit(bus: Bus) -> None:
    agents = [await worker(bus, f"a-{number}") for number in range(8)]

    async def work(number: int, agent: Agent) -> None:
        async with agent.unit() as unit:
            if number % 2:
                unit.progress(number)
            unit.send(agent.id, Plan(number) if number % 3 else Answer(True))

    await asyncio.gather(*(work(number, agent) for number, agent in enumerate(agents)))
    assert await count(bus) == 8
    assert await types(bus) == {"plan", "answer"}


@pytest.mark.one_engine
async def test_decoding_as_what_is_no_type_is_an_error(bus: Bus) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note", {"x": 1})
    message = await take(a)
    for odd in ("Plan", 3, complex):
        with pytest.raises(InvalidInput):
            message.decode(odd)
    with pytest.raises(PayloadMismatch, match="list"):
        message.decode(list)
    await message.ack()
    assert await nothing_for(a)


@pytest.mark.one_engine
async def test_pools_take_structs_too(bus: Bus) -> None:
    a = await worker(bus, "a", pools=["p"])
    await a.send(agentbus.pool("p"), PLAN)
    assert (await take(a)).payload == PLAN
