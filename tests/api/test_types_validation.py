"""Payloads of a type with a schema are checked on every path of sending."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec import Struct

import agentbus
from agentbus import Agent, Bus
from agentbus.errors import AgentFenced, InvalidPayload, UnknownRecipient
from tests.api.helpers import count, known, nothing_for, refusing, stored, take, take_all, worker
from tests.conftest import Engine
from tests.support.cases import each

SCHEMA = {
    "type": "object",
    "properties": {
        "files": {"type": "integer", "minimum": 0},
        "names": {"items": {"type": "string", "pattern": "^[a-z]"}},
    },
    "required": ["files"],
    "additionalProperties": False,
}
GOOD: dict[str, Any] = {"files": 12, "names": ["a.py"]}
BAD: list[tuple[Any, str]] = [
    (None, "$"),
    ([], "$"),
    ({}, "$"),
    ({"files": "twelve"}, "$.files"),
    ({"files": True}, "$.files"),
    ({"files": -1}, "$.files"),
    ({"files": 1, "names": ["a.py", "B.py"]}, "$.names[1]"),
    ({"files": 1, "extra": 1}, "$"),
]


class Plan(Struct):
    files: int
    names: list[str] = []


async def sent(agent: Agent, way: str, payload: Any) -> None:
    if way == "send":
        await agent.send("a", "plan", payload)
    elif way == "send_many":
        await agent.send_many([("a", "plan", GOOD), ("a", "note", 1), ("a", "plan", payload), ("a", "plan", [])])
    elif way == "publish":
        await agent.publish("t", "plan", payload)
    elif way == "pool":
        await agent.send(agentbus.pool("p"), "plan", payload)
    elif way == "request":
        await agent.request("a", "plan", payload, timeout=5)
    else:
        async with agent.unit() as unit:
            unit.send("a", "note", 1)
            unit.progress(50)
            unit.send("a", "plan", payload)


@pytest.mark.one_engine
@each("way", ["send", "send_many", "publish", "pool", "request", "unit"])
async def test_a_payload_that_does_not_fit_is_refused_however_it_is_sent(bus: Bus, way: str) -> None:
    a = await worker(bus, "a", pools=["p"], topics=["t"], takeover=True)
    await bus.define("plan", schema=SCHEMA)
    async with refusing(bus, a, InvalidPayload) as refused:
        await sent(a, way, {"files": "twelve"})
    error = refused.value
    assert (error.code, error.type, error.path) == ("invalid_payload", "plan", "$.files")
    assert error.item == {"send_many": 2, "unit": 1}.get(way, 0)
    assert "must be an integer, is a string" in str(error)
    assert "twelve" not in str(error)


@pytest.mark.one_engine
@each(("payload", "path"), BAD)
async def test_an_invalid_payload_is_refused_with_its_path(bus: Bus, payload: Any, path: str) -> None:
    a = await worker(bus, "a", takeover=True)
    await bus.define("plan", schema=SCHEMA)
    async with refusing(bus, a, InvalidPayload) as refused:
        await a.send("a", "plan", payload)
    assert refused.value.path == path


@pytest.mark.one_engine
async def test_a_valid_payload_is_sent(bus: Bus) -> None:
    a = await worker(bus, "a")
    await bus.define("plan", schema=SCHEMA)
    payloads = [GOOD, {"files": 0}, {"files": 3.0}]
    for payload in payloads:
        await a.send("a", "plan", payload)
    assert [message.payload for message in await take_all(a)] == payloads


@pytest.mark.one_engine
async def test_a_reply_is_checked_too(bus: Bus) -> None:
    a = await worker(bus, "a")
    await bus.define("plan", schema=SCHEMA)
    await a.send("a", "note")
    message = await take(a)
    with pytest.raises(InvalidPayload):
        await message.reply("plan", {"files": "twelve"})
    with pytest.raises(InvalidPayload):
        async with message as unit:
            unit.reply(message, "plan", {"files": "twelve"})
    assert await count(bus) == 1
    assert (await stored(bus, message.message_id)).attempts == 1


async def test_a_unit_with_an_invalid_payload_writes_nothing_and_releases_its_message(bus: Bus) -> None:
    a = await worker(bus, "a")
    await bus.define("plan", schema=SCHEMA)
    await a.send("a", "note")
    message = await take(a)
    with pytest.raises(InvalidPayload):
        async with message as unit:
            unit.progress(70)
            unit.send("a", "note", 2)
            unit.send("a", "plan", {})
    assert (await known(bus, "a")).progress == 0
    record = await stored(bus, message.message_id)
    assert (record.status, await count(bus)) == ("scheduled", 1)
    assert "InvalidPayload" in (record.error or "")


@pytest.mark.one_engine
async def test_a_sender_without_the_struct_must_match_its_schema(engine: Engine) -> None:
    async with engine.connect() as bus, engine.connect() as other:
        a, b = await worker(bus, "a"), await worker(other, "b")
        await a.send("b", Plan(1))
        async with refusing(other, b, InvalidPayload) as refused:
            await b.send("a", "plan", {"files": "twelve"})
        assert refused.value.path == "$.files"
        await b.send("a", "plan", {"files": 2, "unknown": "is fine for a Struct"})
        assert (await take(a)).payload == Plan(2)


async def test_an_invalid_send_does_not_affect_others(bus: Bus) -> None:
    agents = [await worker(bus, f"a-{number}") for number in range(20)]
    await bus.define("plan", schema=SCHEMA)
    outcomes = await asyncio.gather(
        *(agent.send(agent.id, "plan", {"files": n if n % 3 else "x"}) for n, agent in enumerate(agents)),
        return_exceptions=True,
    )
    assert [isinstance(outcome, InvalidPayload) for outcome in outcomes] == [n % 3 == 0 for n in range(20)]
    assert [await nothing_for(agent) for agent in agents] == [n % 3 == 0 for n in range(20)]


async def test_a_schema_may_come_change_and_go(bus: Bus) -> None:
    a = await worker(bus, "a")
    await bus.define("plan")
    await a.send("a", "plan", "anything")
    await bus.define("plan", schema={"type": "integer"})
    with pytest.raises(InvalidPayload):
        await a.send("a", "plan", "anything")
    await bus.define("plan", schema={"type": "string"})
    await a.send("a", "plan", "anything")
    await bus.define("plan", schema={})
    await a.send("a", "plan", [None])
    # What was there before is read and settled as it was.
    assert [message.payload for message in await take_all(a)] == ["anything", "anything", [None]]


async def test_a_repeated_send_of_a_message_older_than_the_schema_is_still_deduplicated(bus: Bus) -> None:
    a = await worker(bus, "a")
    await bus.define("plan")
    first = await a.send("a", "plan", "anything", message_id="mine")
    await bus.define("plan", schema={"type": "integer"})
    again = await a.send("a", "plan", "anything", message_id="mine")
    assert (again.id, again.duplicate) == (first.id, True)


async def test_a_dead_letter_of_an_older_schema_can_be_requeued(bus: Bus) -> None:
    a = await worker(bus, "a")
    await bus.define("plan")
    await a.send("a", "plan", "anything", message_id="mine")
    await (await take(a)).reject("not now")
    await bus.define("plan", schema={"type": "integer"})
    assert await bus.messages.requeue("mine") == 1
    assert (await take(a)).payload == "anything"


async def test_other_mistakes_are_named_first(engine: Engine) -> None:
    async with engine.connect() as bus, engine.connect() as other:
        a = await worker(bus, "a")
        await bus.define("plan", schema=SCHEMA)
        with pytest.raises(UnknownRecipient):
            await a.send("nobody", "plan", {})
        await worker(other, "a", takeover=True)
        with pytest.raises(AgentFenced):
            await a.send("a", "plan", {})


@pytest.mark.one_engine
async def test_a_payload_whose_check_is_unbounded_is_refused_early(bus: Bus) -> None:
    a = await worker(bus, "a")
    await bus.define("slug", schema={"type": "string", "pattern": "^(([a-z])+.)+[A-Z]([a-z])+$"})
    async with refusing(bus, a, InvalidPayload):
        await a.send("a", "slug", "a" * 5000)
    await a.send("a", "slug", "aa.Bb")
