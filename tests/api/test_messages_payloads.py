"""Payloads: one codec defines valid JSON, and payloads are received unchanged."""

from __future__ import annotations

import datetime
import enum
import math
import uuid
from decimal import Decimal
from typing import Any

import pytest

from agentbus import Bus
from agentbus.errors import InvalidInput, InvalidPayload, PayloadTooLarge
from tests.api.helpers import known, refusing, take, worker
from tests.api.refusals import refused_each
from tests.conftest import Engine
from tests.support.cases import each
from tests.support.values import NOT_JSON, Point, nested


class Colour(enum.Enum):
    RED = "red"


@pytest.mark.one_engine
async def test_a_payload_that_is_not_json_is_refused(bus: Bus) -> None:
    a = await worker(bus, "a")
    bad = list(NOT_JSON.values())
    for refused in await refused_each(bus, a, InvalidPayload, lambda value: a.send("a", "note", value), bad):
        assert refused.code == "invalid_payload"
        assert isinstance(refused, ValueError)
    await refused_each(bus, a, InvalidPayload, lambda value: a.send_many([("a", "note", 1), ("a", "note", value)]), bad)
    await refused_each(bus, a, InvalidPayload, lambda value: a.request("a", "note", value, timeout=5), bad)
    await refused_each(bus, a, InvalidInput, lambda value: bus.agents.update("a", metadata={"value": value}), bad)


GOOD: list[Any] = [
    None, True, False, 0, -1, 1.5, -0.0, 1e308, 5e-324, 0.1 + 0.2, 2**63 - 1, -(2**63), 2**64 - 1, 2**53 + 1,
    "", "text", "ü 🚌 \u200b", "nul \0 inside", "\x1f\x7f", '"\\/', "[" * 500, "x" * 100_000,
    [], {}, [[]], {"": ""}, {"a": {"b": [1, 2.5, None, "x"]}}, [[] for _ in range(300)], [{} for _ in range(300)],
    nested(128, "list"), nested(128, "dict"), nested(128, "mixed"),
]  # fmt: skip


async def test_valid_json_is_received_equal_and_of_the_same_type(bus: Bus) -> None:
    a = await worker(bus, "a")
    await a.send_many(("a", "note", value) for value in GOOD)
    received = [message.payload for message in await a.receive_many(len(GOOD))]
    assert received == GOOD
    assert [type(value) for value in received] == [type(value) for value in GOOD]
    assert math.copysign(1, received[6]) == -1, "also the sign of zero"


@pytest.mark.one_engine
@each(
    ("sent", "received"),
    [
        ((1, (2, 3)), [1, [2, 3]]),
        ({7}, [7]),
        (frozenset(["x"]), ["x"]),
        (Point(1.5, 2.0), {"x": 1.5, "y": 2.0}),
        ([Point(1.0)], [{"x": 1.0, "y": 0.0}]),
        (datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC), "2026-01-02T03:04:05Z"),
        (datetime.date(2026, 1, 2), "2026-01-02"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (b"abc", "YWJj"),
        (Colour.RED, "red"),
        ({Colour.RED: 1}, {"red": 1}),
        (Decimal("1.50"), "1.50"),
    ],
)
async def test_values_without_a_json_form_are_sent_as_their_usual_text(bus: Bus, sent: Any, received: Any) -> None:
    a = await worker(bus, "a", takeover=True)
    await a.send("a", "note", sent)
    message = await take(a)
    await message.ack()
    assert message.payload == received


async def test_a_payload_up_to_the_limit_is_taken(bus: Bus) -> None:
    a = await worker(bus, "a")
    text = "x" * (1024 * 1024 - 2)  # with its quotes, exactly 1 MiB
    await a.send("a", "note", text)
    assert (await take(a)).payload == text


@pytest.mark.one_engine
async def test_a_payload_over_the_limit_is_refused(bus: Bus) -> None:
    a = await worker(bus, "a")
    async with refusing(bus, a, PayloadTooLarge) as refused:
        await a.send("a", "note", "x" * (1024 * 1024 - 1))
    assert refused.value.code == "payload_too_large"
    assert (refused.value.size, refused.value.limit) == (1024 * 1024 + 1, 1024 * 1024)
    assert "max_payload" in (refused.value.fix or "")


@pytest.mark.one_engine
async def test_the_limit_counts_bytes_not_characters(engine: Engine) -> None:
    async with engine.connect(max_payload=10) as bus:
        a = await worker(bus, "a")
        await a.send("a", "note", "ü" * 4)
        with pytest.raises(PayloadTooLarge):
            await a.send("a", "note", "ü" * 5)


@pytest.mark.one_engine
async def test_the_limit_is_settable(engine: Engine) -> None:
    async with engine.connect(max_payload=3 * 1024 * 1024) as large, engine.connect(max_payload=100) as small:
        a, b = await worker(large, "a"), await worker(small, "b")
        await a.send("b", "note", "x" * (2 * 1024 * 1024))
        with pytest.raises(PayloadTooLarge):
            await b.send("a", "note", "x" * 200)
        assert len((await take(b)).payload) == 2 * 1024 * 1024, "the limit is for what is sent"


async def test_metadata_comes_out_equal(bus: Bus) -> None:
    metadata = {"ü": [1, 2.5, None, {"deep": True}], "nul": "\0"}
    await worker(bus, "a", metadata=metadata)
    assert (await known(bus, "a")).metadata == metadata


@pytest.mark.one_engine
async def test_the_sender_may_change_what_it_sent(bus: Bus) -> None:
    a = await worker(bus, "a")
    payload = {"n": [1]}
    async with a.unit() as unit:
        unit.send("a", "note", payload)
        payload["n"].append(2)
    assert (await take(a)).payload == {"n": [1]}, "a unit takes what it was given when it was given"
