"""Typed payloads: a Struct carries its type, is checked when it is sent, and is read back as what it was."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
import pytest
from msgspec import Meta, Struct

import agentbus
from agentbus import Agent, Bus, Message, Unit
from agentbus.errors import (
    AgentFenced,
    BuiltInType,
    InvalidInput,
    InvalidName,
    InvalidPayload,
    InvalidSchema,
    PayloadMismatch,
    PayloadTooLarge,
    RequestTimedOut,
    UnknownRecipient,
    UnknownType,
)
from tests.conformance.helpers import count, nothing_for, refusing, running, soon, stored, take, take_all, worker
from tests.conftest import Engine
from tests.support.clock import FakeClock


class Step(Struct):
    name: str
    done: bool = False


class Plan(Struct):
    files: int
    steps: list[Step] = []
    due: datetime | None = None


class Shape(Struct, tag="shape/circle"):
    radius: Annotated[float, Meta(gt=0)]


class Answer(Struct, frozen=True):
    ready: bool


class Row(Struct, array_like=True):
    id: int
    name: str


class Table(Struct):
    rows: dict[int, dict[float, bytes]]
    seen: set[int]


class Other(Struct, tag="plan"):
    """Of the same name as Plan, but something else."""

    title: str


class TaskAssignment(Struct):
    phase: str


PLAN = Plan(12, [Step("design", True), Step("build")], datetime(2024, 5, 1, tzinfo=UTC))


TABLE = Table({1: {2.5: b"x"}}, {3, 4})


async def types(bus: Bus) -> set[str]:
    """The types that are not built in."""
    return {type.name for type in await bus.types() if not type.builtin}


# There and back


@pytest.mark.parametrize(
    ("sent", "type"),
    [(PLAN, "plan"), (Shape(1.5), "shape/circle"), (Answer(True), "answer"), (Row(1, "x"), "row"), (TABLE, "table")],
)
async def test_a_struct_carries_its_type_and_comes_back_as_itself(bus: Bus, sent: Struct, type: str) -> None:
    a = await worker(bus, "a")
    receipt = await a.send("a", sent, priority=7)
    message = await take(a)
    assert (message.type, message.payload, message.priority) == (type, sent, 7)
    assert message.payload is message.payload
    assert message.raw == msgspec.to_builtins(sent, str_keys=True)
    await message.ack()
    assert (await stored(bus, receipt.message_id)).payload == message.raw


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


async def test_a_request_that_times_out_names_its_type(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    async with running(a.request("a", PLAN, timeout=5)) as asking:
        await clock.settle()
        clock.advance(6)
        with pytest.raises(RequestTimedOut, match="'plan'"):
            await soon(asking)


async def test_who_does_not_know_the_struct_gets_plain_json_and_can_decode_it(engine: Engine) -> None:
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


async def test_what_others_send_as_plain_json_is_read_as_a_struct(engine: Engine) -> None:
    async with engine.connect() as bus, engine.connect() as other:
        await bus.define(Plan)
        a, b = await worker(bus, "a"), await worker(other, "b")
        await b.send("a", "plan", {"files": 3, "steps": [{"name": "x"}]})
        assert (await take(a)).payload == Plan(3, [Step("x")])


async def test_a_changed_raw_does_not_change_the_message(bus: Bus) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note", {"x": 1})
    message = await take(a)
    message.raw["x"] = 2
    assert message.payload == message.raw == {"x": 1}


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


# What is sent is checked at once


async def refused(agent: Agent, sent: Any, how: str) -> Any:
    if how == "send":
        return await agent.send(agent.id, sent)
    if how == "send_many":
        return await agent.send_many([(agent.id, "note"), (agent.id, sent)])
    if how == "publish":
        return await agent.publish("t", sent)
    if how == "request":
        return await agent.request(agent.id, sent, timeout=1)
    async with agent.unit() as unit:
        unit.send(agent.id, "note")
        unit.send(agent.id, sent)
    return None


@pytest.mark.parametrize("how", ["send", "send_many", "publish", "request", "unit"])
async def test_a_struct_that_is_not_what_it_says_is_refused(bus: Bus, how: str) -> None:
    a = await worker(bus, "a", topics=["t"])
    async with refusing(bus, a, InvalidPayload) as found:
        await refused(a, Plan(files="twelve"), how)  # type: ignore[arg-type]
    assert (found.value.type, found.value.path) == ("plan", "$.files")
    assert found.value.facts.get("item") == (1 if how == "send_many" else None)
    assert await types(bus) == set()


@pytest.mark.parametrize(
    ("sent", "path"),
    [
        (Plan(1, [Step("x"), Step(2)]), "$.steps[1].name"),  # type: ignore[arg-type]
        (Plan(1, due="tomorrow"), "$.due"),  # type: ignore[arg-type]
        (Shape(0), "$.radius"),
        (Shape(float("nan")), None),
        (Row(1, None), "$[1]"),  # type: ignore[arg-type]
        (Plan(2**70), None),
        (Answer(1j), "$"),  # type: ignore[arg-type]
        (Answer("lone \ud800"), None),  # type: ignore[arg-type]
    ],
)
async def test_what_is_wrong_with_a_struct_is_named(bus: Bus, sent: Struct, path: str | None) -> None:
    a = await worker(bus, "a")
    async with refusing(bus, a, InvalidPayload) as found:
        await a.send("a", sent)
    assert found.value.facts.get("path") == path


async def test_a_struct_sent_as_another_type_is_checked_too(bus: Bus) -> None:
    a = await worker(bus, "a")
    async with refusing(bus, a, InvalidPayload):
        await a.send("a", "note", Plan(files="twelve"))  # type: ignore[arg-type]


class Unreadable(Struct):
    value: NoSuchType  # type: ignore[name-defined]  # noqa: F821


async def test_as_the_payload_of_another_type_a_struct_needs_no_name_but_must_be_readable(bus: Bus) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note", Foreign(value=1))
    assert (await take(a)).payload == {"value": 1}
    async with refusing(bus, a, InvalidPayload):
        await a.send("a", "note", Unreadable(1))
    async with refusing(bus, a, InvalidSchema):
        await a.send("a", Unreadable(1))


async def test_a_constraint_that_only_the_schema_has_holds_for_structs_too(bus: Bus) -> None:
    class Strict(Struct):
        number: Annotated[int, Meta(extra_json_schema={"minimum": 3})]

    a = await worker(bus, "a")
    await a.send("a", Strict(3))
    async with refusing(
        bus,
        a,
        InvalidPayload,
    ) as found:
        await a.send("a", Strict(2))
    assert found.value.path == "$.number"


class Custom(Struct):
    value: complex


Foreign = msgspec.defstruct("Ünï", [("value", int)])


@pytest.mark.parametrize(
    ("type", "payload", "expected"),
    [
        (PLAN, {"files": 1}, InvalidInput),
        (PLAN, PLAN, InvalidInput),
        (Plan, None, InvalidInput),
        (Plan, PLAN, InvalidInput),
        ("plan", PLAN.__class__, InvalidPayload),
        (None, PLAN, InvalidName),
        ("two words", PLAN, InvalidName),
        (TaskAssignment("x"), None, BuiltInType),
        (Custom(1j), None, InvalidSchema),
        (Foreign(value=1), None, InvalidName),
        ("no-such-type", PLAN, UnknownType),
    ],
)
async def test_what_cannot_be_sent_is_refused(bus: Bus, type: Any, payload: Any, expected: type[InvalidInput]) -> None:
    a = await worker(bus, "a")
    async with refusing(bus, a, expected):
        await a.send("a", type, payload)
    async with refusing(bus, a, expected), a.unit() as unit:
        unit.send("a", type, payload)
    assert await types(bus) == set()


async def test_a_struct_over_the_limit_is_refused(engine: Engine) -> None:
    async with engine.connect(max_payload=100) as bus:
        a = await worker(bus, "a")
        async with refusing(bus, a, PayloadTooLarge):
            await a.send("a", Plan(1, [Step("x" * 100)]))


# Structs change


def versions() -> tuple[type[Struct], type[Struct], type[Struct], type[Struct]]:
    """Plan as it was, with an optional field more, with a field renamed, and with a required one more."""

    def make(*fields: Any) -> type[Struct]:
        return msgspec.defstruct("Plan", fields)

    files = ("files", int)
    return (
        make(files),
        make(files, ("owner", str, "nobody")),
        make(("file_count", int)),
        make(files, ("owner", str)),
    )


async def test_a_struct_with_an_optional_field_more_reads_old_payloads(engine: Engine) -> None:
    old, new, *_ = versions()
    async with engine.connect() as bus, engine.connect() as later:
        a, b = await worker(bus, "a"), await worker(later, "b")
        await a.send("b", old(files=1))
        await later.define(new)
        message = await take(b)
        assert message.payload == new(files=1, owner="nobody")
        await message.ack()
        # And the old one reads what the new one sends, which the old process may still send itself.
        await b.send("a", new(files=2, owner="ada"))
        assert (await take(a)).payload == old(files=2)
        await a.send("b", old(files=3))
        assert (await take(b)).payload == new(files=3, owner="nobody")


Settle = Callable[[Message], Awaitable[Any]]
SETTLING: dict[str, tuple[Settle, str]] = {
    "ack": (lambda message: message.ack(), "acked"),
    "nack": (lambda message: message.nack(0), "queued"),
    "reject": (lambda message: message.reject("cannot be read"), "dead"),
}


@pytest.mark.parametrize("how", SETTLING)
async def test_a_struct_that_does_not_read_old_payloads_is_an_error_when_reading_not_before(
    engine: Engine, how: str
) -> None:
    old, _, renamed, _ = versions()
    async with engine.connect() as bus, engine.connect() as later:
        a, b = await worker(bus, "a"), await worker(later, "b")
        receipt = await a.send("b", old(files=1))
        await later.define(renamed)
        message = await take(b)
        for _ in range(2):
            with pytest.raises(PayloadMismatch, match="file_count") as mismatch:
                _ = message.payload
        error = mismatch.value
        assert (error.code, error.type) == ("payload_mismatch", "Plan")
        assert message.message_id in error.what
        assert message.raw == {"files": 1}
        assert message.decode(old) == old(files=1)
        settle, status = SETTLING[how]
        await settle(message)
        assert (await stored(bus, receipt.message_id)).status == status


async def test_a_handler_that_cannot_read_its_message_makes_a_dead_letter_of_it(
    engine: Engine, clock: FakeClock
) -> None:
    old, _, renamed, _ = versions()
    async with engine.connect() as bus, engine.connect() as later:
        a, b = await worker(bus, "a"), await worker(later, "b")
        receipt = await a.send("b", old(files=1), max_attempts=1)
        await a.send("b", "note", "next")
        await later.define(renamed)
        seen: list[Any] = []

        async def handle(message: Message, unit: Unit) -> None:
            seen.append(message.payload)

        async with running(b.serve(handle)):
            while not seen:
                await clock.settle()
        record = await stored(bus, receipt.message_id)
        assert (seen, record.status) == (["next"], "dead")
        assert "PayloadMismatch" in (record.error or "")


async def test_what_a_later_definition_asks_for_holds_for_everyone(engine: Engine) -> None:
    old, _, _, stricter = versions()
    async with engine.connect() as bus, engine.connect() as later:
        a, b = await worker(bus, "a"), await worker(later, "b")
        await a.send("b", old(files=1))
        await b.send("a", stricter(files=2, owner="ada"))
        async with refusing(bus, a, InvalidPayload) as found:
            await a.send("b", old(files=3))
        assert "'owner'" in str(found.value)


async def test_two_structs_of_one_name_do_not_define_each_other_away_again_and_again(bus: Bus) -> None:
    a = await worker(bus, "a")
    await a.send("a", PLAN)
    await a.send("a", Other("x"))
    (record,) = [type for type in await bus.types() if type.name == "plan"]
    async with refusing(bus, a, InvalidPayload):
        await a.send("a", PLAN)
    assert [type for type in await bus.types() if type.name == "plan"] == [record]


async def test_decoding_as_what_is_no_type_is_an_error(bus: Bus) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note", {"x": 1})
    message = await take(a)
    for odd in ("Plan", 3, complex):
        with pytest.raises(InvalidInput):
            message.decode(odd)
    with pytest.raises(PayloadMismatch, match="does not fit list"):
        message.decode(list)
    await message.ack()
    assert await nothing_for(a)


async def test_pools_take_structs_too(bus: Bus) -> None:
    a = await worker(bus, "a", pools=["p"])
    await a.send(agentbus.pool("p"), PLAN)
    assert (await take(a)).payload == PLAN
