"""Numbers outside their range are refused, and the bounds are accepted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from agentbus import Agent, Bus, Priority
from agentbus.errors import InvalidInput, OutOfRange
from tests.api.helpers import known, stored, take, worker
from tests.api.refusals import refused_each
from tests.conftest import Engine
from tests.support.cases import each

NAN, INF = float("nan"), float("inf")
TEN_YEARS = 10 * 365 * 24 * 3600
NO_NUMBER: list[Any] = [True, False, "5", [5], object(), 5j]

Use = Callable[[Agent, Any], Awaitable[object]]


async def _refused(bus: Bus, use: Use, values: list[Any], what: str) -> None:
    a = await worker(bus, "a", takeover=True)
    errors = await refused_each(bus, a, OutOfRange, partial(use, a), values)
    for value, refused in zip(values, errors, strict=True):
        assert refused.code == "out_of_range"
        assert refused.what == what, value
        assert refused.allowed


@pytest.mark.one_engine
async def test_a_priority_out_of_range_is_refused(bus: Bus) -> None:
    bad = [-1, 10, 100, 2**70, 5.0, NAN, None, *NO_NUMBER]
    await _refused(bus, lambda a, value: a.send("a", "note", priority=value), bad, "priority")


@each("priority", [0, 9, *Priority])
async def test_every_priority_in_range_is_taken(bus: Bus, priority: int) -> None:
    a = await worker(bus, "a", takeover=True)
    await a.send("a", "note", priority=priority)
    message = await take(a)
    assert message.priority == priority
    await message.ack()


@pytest.mark.one_engine
async def test_a_time_to_live_out_of_range_is_refused(bus: Bus) -> None:
    bad = [0, 0.0, 0.0004, -1, NAN, INF, -INF, TEN_YEARS + 1, 2**70, *NO_NUMBER]
    await _refused(bus, lambda a, value: a.send("a", "note", ttl=value), bad, "ttl")


@pytest.mark.one_engine
async def test_a_delay_out_of_range_is_refused(bus: Bus) -> None:
    bad = [-1, -0.001, NAN, INF, -INF, TEN_YEARS + 1, 2**70, *NO_NUMBER]
    await _refused(bus, lambda a, value: a.send("a", "note", delay=value), bad, "delay")


async def test_the_edges_of_delay_and_ttl_are_taken(bus: Bus) -> None:
    a = await worker(bus, "a")
    receipt = await a.send("a", "note", delay=TEN_YEARS, ttl=TEN_YEARS)
    record = await stored(bus, receipt.message_id)
    assert record.due == record.created + TEN_YEARS * 1000
    assert record.expires == record.created + 2 * TEN_YEARS * 1000
    await a.send("a", "note", "short", ttl=0.001)
    assert (await take(a)).payload == "short"


@pytest.mark.one_engine
async def test_a_number_of_attempts_out_of_range_is_refused(bus: Bus) -> None:
    bad = [0, -1, 1001, 1.5, NAN, None, *NO_NUMBER]
    await _refused(bus, lambda a, value: a.send("a", "note", max_attempts=value), bad, "max_attempts")


@pytest.mark.one_engine
async def test_progress_out_of_range_is_refused(bus: Bus) -> None:
    bad = [-1, 101, 50.5, NAN, None, *NO_NUMBER]
    await _refused(bus, lambda a, value: a.progress(value), bad, "progress")


@each("percent", [0, 1, 99, 100])
async def test_the_edges_of_progress_are_taken(bus: Bus, percent: int) -> None:
    await (await worker(bus, "a", takeover=True)).progress(percent)
    assert (await known(bus, "a")).progress == percent


@pytest.mark.one_engine
async def test_a_note_that_is_no_text_is_refused(bus: Bus) -> None:
    bad = ["nul \0", "lone \ud800", "x" * 100_001, 5, b"x"]
    await _refused(bus, lambda a, value: a.progress(5, value), bad, "note")


@pytest.mark.one_engine
async def test_a_busy_time_out_of_range_is_refused(bus: Bus) -> None:
    bad = [-1, NAN, INF, TEN_YEARS + 1, None, *NO_NUMBER]
    await _refused(bus, lambda a, value: a.busy(value), bad, "seconds")


@pytest.mark.one_engine
async def test_a_lease_out_of_range_is_refused(bus: Bus) -> None:
    uses: list[Use] = [
        lambda a, value: a.receive(timeout=0, lease=value),
        lambda a, value: a.receive_many(5, timeout=0, lease=value),
        lambda a, value: anext(a.inbox(lease=value)),
    ]
    for use in uses:
        await _refused(bus, use, [0, -1, 0.0004, NAN, INF, TEN_YEARS + 1, None, *NO_NUMBER], "lease")


@pytest.mark.one_engine
async def test_a_timeout_out_of_range_is_refused_and_acknowledges_nothing(bus: Bus) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note")
    done = await a.receive_many(1)
    bad = [-1, -0.001, NAN, INF, TEN_YEARS + 1, *NO_NUMBER]
    uses: list[Callable[[Any], Awaitable[object]]] = [
        lambda value: a.receive(timeout=value),
        lambda value: a.receive_many(5, timeout=value, ack=done),
    ]
    for use in uses:
        errors = await refused_each(bus, a, OutOfRange, use, bad)
        assert {error.what for error in errors} == {"timeout"}
    await a.ack(done)


@pytest.mark.one_engine
@each(
    "options",
    [
        {"durability": "maybe"},
        {"durability": None},
        {"max_payload": 0},
        {"max_payload": -1},
        {"max_payload": 2**40},
        {"max_payload": 1.5},
        {"max_snapshot": 0},
        {"max_snapshot": 2**40},
        {"lock_timeout": -1},
        {"lock_timeout": NAN},
        {"lock_timeout": "5"},
        {"beat_every": 0},
        {"beat_every": -1},
        {"beat_every": NAN},
        {"beat_every": "5"},
    ],
)
def test_options_of_a_bus_out_of_range_are_refused_before_it_opens(engine: Engine, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as refused:
        engine.connect(**options)
    assert refused.value.code == "out_of_range"
