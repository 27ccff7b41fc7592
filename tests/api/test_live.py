"""The live feed: events and changes of messages, woken by doorbells, resumed by a cursor."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from agentbus import Bus, pool
from agentbus.errors import OutOfRange
from agentbus.records import LiveChange
from tests.api.helpers import running, soon, take, worker
from tests.conftest import Engine


class Feed:
    """A feed that is read in the background."""

    def __init__(self) -> None:
        self.changes: list[LiveChange] = []
        self.arrived = asyncio.Event()

    async def read(self, bus: Bus, after: str | None = None) -> None:
        async for change in bus.live(after=after, coalesce=0):
            self.changes.append(change)
            self.arrived.set()

    @property
    def statuses(self) -> list[tuple[str, str]]:
        return [(one.message_id, one.status) for change in self.changes for one in change.messages]

    @property
    def kinds(self) -> list[str]:
        return [event.kind for change in self.changes for event in change.events]

    async def until(self, *wanted: tuple[str, str], kind: str | None = None) -> None:
        """Wait for statuses of messages and for an event, which may be in different changes."""

        async def found() -> None:
            while not set(wanted) <= set(self.statuses) or (kind is not None and kind not in self.kinds):
                self.arrived.clear()
                await self.arrived.wait()

        await soon(found())


@asynccontextmanager
async def following(bus: Bus, after: str | None = None) -> AsyncIterator[Feed]:
    feed = Feed()
    async with running(feed.read(bus, after)):
        await soon(feed.arrived.wait())
        yield feed


async def test_sends_leases_acknowledgements_and_deaths_are_told(bus: Bus) -> None:
    a = await worker(bus, "a")
    async with following(bus) as feed:
        await a.send("a", "note", {"secret": 1}, message_id="x")
        await feed.until(("x", "queued"))
        message = await take(a)
        await feed.until(("x", "leased"))
        await message.ack()
        await feed.until(("x", "acked"))
        await a.send("a", "note", 2, message_id="y")
        await (await take(a)).reject("broken")
        await feed.until(("y", "dead"), kind="message_dead")
        leased = next(one for change in feed.changes for one in change.messages if one.status == "leased")
        assert (leased.holder, leased.recipient, leased.type) == ("a", "a", "note")
        assert "secret" not in str(feed.changes)


async def test_changes_by_another_process_are_told(engine: Engine) -> None:
    async with engine.connect() as bus, engine.connect() as other:
        a = await worker(other, "a", pools=["p"])
        async with following(bus) as feed:
            await a.send(pool("p"), "note", 1, message_id="x")
            await feed.until(("x", "queued"))

            async def work_until_it_is_told() -> None:
                # A process learns within a second that a feed is open.
                while "acked" not in {status for _, status in feed.statuses}:
                    await a.send(pool("p"), "note", 2)
                    await (await take(a)).ack()
                    await asyncio.sleep(0.02)

            await soon(work_until_it_is_told())


async def test_a_feed_resumes_after_its_cursor(bus: Bus) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note", 1, message_id="x")
    async with following(bus) as feed:
        cursor = feed.changes[-1].cursor
        assert feed.statuses == []
    await a.send("a", "note", 2, message_id="y")
    await bus.expect("b", type="worker")
    async with following(bus, cursor) as feed:
        assert feed.statuses == [("y", "queued")]
        assert feed.kinds == ["agent_expected"]
        assert not feed.changes[0].missed


async def test_more_than_a_change_can_name_is_said_so(bus: Bus) -> None:
    a = await worker(bus, "a")
    async with following(bus) as feed:
        cursor = feed.changes[-1].cursor
    await a.send_many([("a", "note", number) for number in range(1500)])
    async with following(bus, cursor) as feed:
        assert feed.changes[0].missed
        # It continues behind what it did not name.
        assert feed.changes[0].cursor.partition(".")[2] == "1500"


@pytest.mark.parametrize("after", ["", "1", "x.y", "1.2.3", "-1.2", "9" * 30 + ".1"])
@pytest.mark.one_engine
async def test_a_cursor_of_another_form_is_refused(bus: Bus, after: str) -> None:
    with pytest.raises(OutOfRange):
        bus.live(after=after)


async def test_the_time_of_the_last_delivery_is_on_record(bus: Bus) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note", 1, message_id="x")
    record = await bus.messages.get("x")
    assert record is not None
    assert record.leased_at is None
    message = await take(a)
    record = await bus.messages.get("x")
    assert record is not None
    assert record.leased_at == bus._engine.clock.now().wall
    await message.ack()
    (span,) = (await bus.messages.spans(0, record.leased_at)).items
    assert (span.created, span.leased_at, span.finished) == (record.created, record.leased_at, record.leased_at)


async def test_a_change_of_busy_is_an_event(bus: Bus) -> None:
    a = await worker(bus, "a")
    await a.busy(600)
    await a.busy(0)
    found = [event async for event in bus.events(kind="agent_busy")]
    wall = bus._engine.clock.now().wall
    assert [(one.subject, one.facts["seconds"], one.facts["until"]) for one in found] == [
        ("a", 600, wall + 600_000), ("a", 0, wall),
    ]  # fmt: skip


async def test_queues_show_their_messages_and_readers(bus: Bus) -> None:
    a = await worker(bus, "a", pools=["p"])
    await bus.declare(pool("q"))
    await a.send(pool("p"), "note", 1)
    await a.send(pool("q"), "note", 1)
    await a.send(pool("q"), "note", 1, delay=60)
    await a.send("a", "note", 1, priority=9)
    await take(a)
    found = {one.recipient: one for one in (await bus.messages.queues()).items}
    assert {name: (one.queued, one.scheduled, one.leased, one.members) for name, one in found.items()} == {
        "a": (0, 0, 1, 1), "pool:p": (1, 0, 0, 1), "pool:q": (1, 1, 0, 0),
    }  # fmt: skip
    first = await bus.messages.queues(limit=1)
    rest = await bus.messages.queues(cursor=first.cursor)
    assert [*first.items, *rest.items] == list(found.values())
