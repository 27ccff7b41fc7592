"""Headers travel with a message: text to text, small, and stored wherever the message is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import agentbus
from agentbus import Bus
from agentbus.core.validation import MAX_HEADERS
from agentbus.errors import InvalidInput
from tests.api.copy_helpers import Places
from tests.api.helpers import running, stored, take, take_all, worker
from tests.api.retention_helpers import DAY
from tests.support.cases import each
from tests.support.clock import FakeClock

TRACE = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "baggage": "user=grüße"}


async def test_a_receiver_gets_the_headers_of_the_sender(bus: Bus) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note", 1, message_id="job-1", headers=TRACE)
    await a.send("a", "note", 2)
    first, second = await take_all(a)
    assert (first.headers, second.headers) == (TRACE, {})
    assert (await stored(bus, "job-1")).headers == TRACE
    assert (await stored(bus, second.message_id)).headers == {}
    assert [record.headers for record in (await bus.messages.list()).items] == [{}, TRACE]


async def test_every_way_to_send_takes_headers(bus: Bus) -> None:
    a = await worker(bus, "a", topics=["news"])
    await a.send_many([{"to": "a", "type": "note", "headers": {"by": "send_many"}}])
    await a.publish("news", "note", headers={"by": "publish"})
    async with a.unit() as unit:
        unit.send("a", "note", headers={"by": "unit"})
    messages = await take_all(a)
    assert sorted(message.headers["by"] for message in messages) == ["publish", "send_many", "unit"]


async def test_a_reply_has_its_own_headers(bus: Bus) -> None:
    a, b = await worker(bus, "a"), await worker(bus, "b")

    async def answer(message: agentbus.Message, unit: agentbus.Unit) -> None:
        unit.reply(message, "note", message.headers, headers={"by": "reply"} if message.payload else None)

    async with running(b.serve(answer)):
        replies = [await a.request("b", "note", given, timeout=10, headers=TRACE) for given in (1, 0)]
    assert [(reply.payload, reply.headers) for reply in replies] == [(TRACE, {"by": "reply"}), (TRACE, {})]


@pytest.mark.one_engine
@each(
    "headers",
    [
        "text", [], 1, {"a": 1}, {"a": None}, {1: "a"}, {"": "a"}, {"a": "\0"}, {"\ud800": "a"}, {"a": b"x"},
        {"a": "x" * MAX_HEADERS}, {str(number): "ü" * 100 for number in range(20)},
    ],
)  # fmt: skip
async def test_what_are_no_headers_is_refused(bus: Bus, headers: Any) -> None:
    a = await worker(bus, "a", takeover=True)
    with pytest.raises(InvalidInput) as refused:
        await a.send("a", "note", 1, headers=headers)
    assert refused.value.code in {"invalid_input", "out_of_range"}
    with pytest.raises(InvalidInput) as refused:
        await a.send_many([("a", "note", 1), {"to": "a", "type": "note", "headers": headers}])
    assert refused.value.facts["item"] == 1
    assert (await bus.stats()).messages == {}


@pytest.mark.one_engine
async def test_headers_may_have_4_kib_as_json(bus: Bus) -> None:
    a = await worker(bus, "a")
    headers = {"k": "x" * (MAX_HEADERS - len('{"k":""}'))}
    await a.send("a", "note", 1, headers=headers)
    assert (await take(a)).headers == headers


async def test_headers_are_no_part_of_what_a_message_id_stands_for(bus: Bus) -> None:
    """A retry has a trace context of its own; the message sent first stays as it is."""
    a = await worker(bus, "a")
    await a.send("a", "note", 1, message_id="job-1", headers={"try": "1"})
    assert (await a.send("a", "note", 1, message_id="job-1", headers={"try": "2"})).duplicate
    assert (await take(a)).headers == {"try": "1"}


async def test_a_redelivered_and_a_requeued_message_has_its_headers(bus: Bus) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note", 1, message_id="job-1", headers=TRACE)
    await (await take(a)).nack(delay=0)
    message = await take(a)
    assert message.headers == TRACE
    await message.reject("bad")
    (dead,) = (await bus.messages.dead()).items
    assert dead.headers == TRACE
    await bus.messages.requeue("job-1")
    assert (await take(a)).headers == TRACE


async def test_an_archive_keeps_headers(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note", 1, message_id="job-1", headers=TRACE)
    await (await take(a)).ack()
    clock.advance(100 * DAY)
    report = await bus.retention.apply()
    assert await bus.messages.get("job-1") is None
    assert report.archive is not None
    await bus.import_archive(report.archive)
    assert (await stored(bus, "job-1")).headers == TRACE


async def test_an_export_keeps_headers(bus: Bus, clock: FakeClock, tmp_path: Path) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note", 1, message_id="job-1", headers=TRACE)
    await a.send("a", "note", 2, message_id="job-2")
    await bus.export(tmp_path / "all.jsonl.gz")
    async with agentbus.connect(tmp_path / "other", clock=clock) as other:
        report = await other.import_archive(tmp_path / "all.jsonl.gz")
        assert (report.refused, report.problems) == (0, [])
        assert (await stored(other, "job-1")).headers == TRACE
        assert (await stored(other, "job-2")).headers == {}


def test_a_copy_and_a_caller_without_a_loop_have_headers(places: Places) -> None:
    with places.visited(places.source) as bus:
        agent = bus.register("a", type="worker")
        agent.send("a", "note", 1, headers=TRACE)
        (peeked,) = agent.peek(1)
        assert peeked.headers == TRACE
    places.copy()
    with places.visited(places.target) as bus:
        (message,) = bus.agent("a").receive_many(1)
        assert message.headers == TRACE
