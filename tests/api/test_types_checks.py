"""Typed payloads are checked when they are sent; mismatches are refused and named."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import pytest
from msgspec import Meta, Struct

from agentbus import Agent, Bus
from agentbus.errors import (
    BuiltInType,
    InvalidInput,
    InvalidName,
    InvalidPayload,
    InvalidSchema,
    PayloadTooLarge,
    UnknownType,
)
from tests.api.helpers import refusing, take, worker
from tests.api.structs import PLAN, Answer, Plan, Row, Shape, Step, TaskAssignment, types
from tests.conftest import Engine
from tests.support.cases import each

pytestmark = pytest.mark.one_engine  # payloads are checked before the engine


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


@each("how", ["send", "send_many", "publish", "request", "unit"])
async def test_a_struct_that_is_not_what_it_says_is_refused(bus: Bus, how: str) -> None:
    a = await worker(bus, "a", topics=["t"], takeover=True)
    async with refusing(bus, a, InvalidPayload) as found:
        await refused(a, Plan(files="twelve"), how)  # type: ignore[arg-type]
    assert (found.value.type, found.value.path) == ("plan", "$.files")
    assert found.value.facts.get("item") == (1 if how == "send_many" else None)
    assert await types(bus) == set()


@each(
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
async def test_the_error_of_an_invalid_struct_has_its_path(bus: Bus, sent: Struct, path: str | None) -> None:
    a = await worker(bus, "a", takeover=True)
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


@each(
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
async def test_an_invalid_type_or_payload_is_refused(
    bus: Bus, type: Any, payload: Any, expected: type[InvalidInput]
) -> None:
    a = await worker(bus, "a", takeover=True)
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
