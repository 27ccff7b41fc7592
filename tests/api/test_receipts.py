"""Receipts: a message knows into which context it was delivered. Acknowledging it is another fact."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from agentbus import Bus
from agentbus.errors import AgentFenced, InvalidName, NotRecipient, OutOfRange, UnknownMessage
from tests.api.helpers import running, soon, stored, take, worker
from tests.api.retention_helpers import DAY, applied, lines
from tests.conftest import Engine
from tests.support.clock import FakeClock


async def test_the_first_delivery_into_a_context_counts(bus: Bus, clock: FakeClock) -> None:
    a = await bus.register_visitor("a", type="worker")
    b = await worker(bus, "b")
    await b.send("a", "note", 1, message_id="x")
    assert ((await stored(bus, "x")).seen, await bus.messages.receipts("x")) == (None, [])
    first = clock.now().wall
    await a.seen("x", channel="hook", client="s-1")
    clock.advance(5)
    await a.seen("x", channel="http", client="s-1")
    await a.seen("x", channel="mcp", client="s-2")
    again = await bus.register_visitor("a", type="worker", takeover=True)
    await again.seen("x#1", channel="mcp", client="s-2")
    record = await stored(bus, "x")
    assert (record.status, record.seen, record.finished) == ("queued", first, None)
    assert [(one.epoch, one.client, one.channel, one.at - first) for one in record.receipts] == [
        (1, "s-1", "hook", 0), (1, "s-2", "mcp", 5000), (2, "s-2", "mcp", 5000),
    ]  # fmt: skip
    assert list(await bus.messages.receipts("x")) == record.receipts
    (listed,) = (await bus.messages.list(to="a")).items
    assert (listed.seen, listed.receipts) == (first, [])


async def test_only_a_reader_of_its_mailbox_can_mark_a_message(bus: Bus) -> None:
    a = await bus.register_visitor("a", type="worker", pools=["p"], topics=["t"])
    b = await bus.register_visitor("b", type="worker")
    old = await bus.visitor("a")
    await b.send("a", "note", 1, message_id="own")
    await b.send("pool:p", "note", 2, message_id="pooled")
    await b.send("topic:t", "note", 3, message_id="copied")
    await a.seen("own", "pooled", "copied", channel="hook")
    for message in ("own", "pooled", "copied"):
        with pytest.raises(NotRecipient) as refused:
            await b.seen(message, channel="hook")
        assert (refused.value.message_id, refused.value.agent) == (message, "b")
    with pytest.raises(UnknownMessage):
        await a.seen("own", "m-99", channel="hook")
    # What an agent holds is its own, also after it has left the pool.
    (taken,) = [one for one in await a.receive(10) if one.message_id == "pooled"]
    await a.change_membership(pools=["p"], leave=True)
    await a.seen(taken.message_id, channel="http", client="s")
    await bus.register_visitor("a", type="worker", takeover=True)
    with pytest.raises(AgentFenced):
        await old.seen("own", channel="forged")
    assert [one.agent for one in await bus.messages.receipts("own")] == ["a"]
    assert [one.channel for one in await bus.messages.receipts("pooled")] == ["hook", "http"]


@pytest.mark.one_engine
async def test_invalid_receipts_are_refused(bus: Bus) -> None:
    a = await bus.register_visitor("a", type="worker")
    await a.send("a", "note", 1, message_id="x")
    for channel in ("", "Hook", "x" * 33, "a b"):
        with pytest.raises(InvalidName):
            await a.seen("x", channel=channel)
    with pytest.raises(OutOfRange):
        await a.seen("x", channel="hook", client="x" * 201)
    with pytest.raises(InvalidName):
        await a.seen("x y", channel="hook")
    await a.seen(channel="hook")
    assert (await stored(bus, "x")).seen is None


async def test_a_receipt_follows_its_message(bus: Bus, engine: Engine, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    for name in ("kept", "purged"):
        await a.send("a", "note", name, message_id=name)
        await a.seen(name, channel="receive", client="s")
        await (await take(a)).ack()
        clock.advance(DAY)
    before = await stored(bus, "kept")
    assert (before.status, len(before.receipts)) == ("acked", 1)
    clock.advance(5.5 * DAY)
    report = await applied(bus)
    assert [line["receipts"] for line in lines(report) if line["record"] == "message"] == [
        [{"agent": "a", "epoch": 1, "client": "s", "channel": "receive", "at": before.seen}]
    ]
    assert await bus.messages.purge() == 1
    assert await engine.tamper("INSERT INTO meta (key, value) SELECT '', '' FROM receipts"), "no receipt is left"
    await bus.import_path(str(report.archive))
    assert await stored(bus, "kept") == before
    with pytest.raises(UnknownMessage):
        await bus.messages.receipts("purged")
    # A later message never gets the receipts of an earlier one.
    assert [one.message_id for one in (await bus.messages.list()).items if one.seen is not None] == ["kept"]


async def test_a_wait_ends_when_the_message_is_seen(engine: Engine) -> None:
    async with engine.connect() as bus, engine.connect() as other:
        a = await other.register_visitor("a", type="worker")
        await bus.messages.send("a", "note", 1, by="ada", message_id="x")
        async with running(bus.messages.wait_seen("x", timeout=60)) as waiting:
            while "seen" not in bus._listening._announced:  # noqa: ASYNC110 - other tasks of the loop do it
                await asyncio.sleep(0)
            await a.seen("x", channel="hook")
            report = await soon(waiting)
        assert (report.seen, report.copies, [one.agent for one in report.receipts]) == (True, 1, ["a"])
        assert await bus.messages.wait_seen("x", timeout=0) == report


async def test_a_wait_ends_without_a_receipt(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a", topics=["t"])
    b = await worker(bus, "b", topics=["t"])
    await a.publish("t", "note", 1, message_id="x")
    async with running(bus.messages.wait_seen("x", timeout=3)) as waiting:
        await clock.settle()
        await a.seen("x", channel="receive")
        await clock.settle()
        clock.advance(3)
        late = await soon(waiting)
    assert (late.seen, late.final, late.copies, late.seen_copies) == (False, False, 2, 1)
    async with running(bus.messages.wait_seen("x")) as waiting:
        await clock.settle()
        await (await take(b)).ack()
        clock.advance(5)
        done = await soon(waiting)
    # A program that acknowledges writes no receipt.
    assert (done.seen, done.seen_copies, done.acked_copies) == (True, 1, 1)
    await a.send("a", "note", 2, message_id="dead")
    for message in await a.receive_many(10, timeout=0):
        await message.reject("no")
    assert await soon(bus.messages.wait_seen("dead")) == await bus.messages.wait_seen("dead", timeout=0)
    assert not (await bus.messages.wait_seen("dead")).seen
    with pytest.raises(UnknownMessage):
        await bus.messages.wait_seen("nothing", timeout=1)


async def test_a_purge_leaves_no_receipt_of_a_message_that_is_gone(engine: Engine) -> None:
    async with engine.connect() as bus, engine.connect() as other:
        a = await bus.register_visitor("a", type="worker")
        marking = await other.visitor("a")

        async def mark(name: str) -> None:
            with suppress(UnknownMessage):
                await marking.seen(name, channel="hook")

        for number in range(10):
            names = [f"x{number}-{copy}" for copy in range(5)]
            for name in names:
                await a.send("a", "note", 1, message_id=name)
            await a.ack(*(str(one.lease) for one in await a.receive(10)))
            await soon(asyncio.gather(bus.messages.purge(), *(mark(name) for name in names)))
            await bus.messages.purge()
        assert (await bus.stats()).messages == {}
    assert await engine.tamper("INSERT INTO meta (key, value) SELECT '', '' FROM receipts"), "no receipt is left"
