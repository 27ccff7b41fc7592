"""The live feed over HTTP: cursors, many dashboards, rates."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

pytest.importorskip("uvicorn", reason="the extra agentbus[web] is not installed")

from agentbus import Bus, pool
from agentbus.web import live, rates
from agentbus.web.shared import SharedReads
from tests.api.helpers import take, worker
from tests.web.client import Client, Stream
from tests.web.conftest import eventually, serving


async def until(stream: Stream, message_id: str, status: str) -> dict[str, object]:
    """Return the message of the feed with this status."""
    while True:
        change = (await stream.next())["data"]
        for one in change["messages"]:
            if (one["message_id"], one["status"]) == (message_id, status):
                found: dict[str, object] = one
                return found


async def test_messages_and_events_are_told_as_they_happen(client: Client, bus: Bus) -> None:
    a = await worker(bus, "a")
    async with client.stream("live") as stream:
        first = await stream.next()
        assert first["event"] == "change"
        assert first["id"] == first["data"]["cursor"]
        await a.send("a", "note", {"text": "top-secret"}, message_id="x")
        found = await until(stream, "x", "queued")
        assert "payload" not in found
        message = await take(a)
        assert (await until(stream, "x", "leased"))["holder"] == "a"
        await message.ack()
        await until(stream, "x", "acked")
        await bus.expect("b", type="worker")
        while not (change := (await stream.next())["data"])["events"]:
            pass
        assert change["events"][0]["subject"] == "b"


async def test_a_feed_resumes_with_both_cursors(client: Client, bus: Bus) -> None:
    a = await worker(bus, "a")
    async with client.stream("live") as stream:
        last = (await stream.next())["id"]
    await a.send("a", "note", 1, message_id="x")
    await bus.expect("b", type="worker")
    async with client.stream("live", Last_Event_ID=last) as stream:
        change = (await stream.next())["data"]
        assert [one["message_id"] for one in change["messages"]] == ["x"]
        assert [one["subject"] for one in change["events"]] == ["b"]
    refused = await client.get("live", Last_Event_ID="x")
    assert (refused.status, refused.code) == (422, "out_of_range")


@pytest.mark.one_engine
async def test_many_dashboards_share_one_feed(bus: Bus) -> None:
    a = await worker(bus, "a")
    async with serving(bus, max_streams=20) as client, AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(client.stream("live")) for _ in range(20)]
        for stream in streams:
            await stream.next()
        await a.send("a", "note", 1, message_id="x")
        await asyncio.gather(*(until(stream, "x", "queued") for stream in streams))


@pytest.mark.one_engine
async def test_a_dashboard_that_does_not_keep_up_is_disconnected(
    client: Client, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MAX_QUEUE", 0)
    a = await worker(bus, "a")
    async with client.stream("live") as stream:
        await stream.next()
        await a.send("a", "note", 1)
        assert await stream.ended()


async def test_rates_are_counted_since_the_server_started(
    client: Client, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = await worker(bus, "a")
    await a.send_many([("a", "note", number) for number in range(5)])
    for message in await a.receive_many(3, timeout=0):
        await message.ack()
    found = (await client.get("rates")).json
    assert found["since"] == bus._engine.clock.now().wall
    (minute,) = found["minutes"]
    assert (minute["sent"], minute["leased"], minute["acked"]) == (5, 3, 3)
    # Depths were sampled when the server started, and serve all dashboards for some seconds.
    assert minute["depths"] == {}
    monkeypatch.setattr(rates, "FRESH", 0)
    (minute,) = (await client.get("rates")).json["minutes"]
    assert (minute["sent"], minute["depths"]) == (5, {"a": 2})
    assert minute["database_bytes"] > 0


async def test_pictures_over_time_have_their_data(client: Client, bus: Bus) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note", 1, message_id="x")
    await (await take(a)).ack()
    wall = bus._engine.clock.now().wall
    (span,) = (await client.get(f"message-spans?start={wall - 1000}&end={wall}")).json["items"]
    assert (span["message_id"], span["leased_at"], span["finished"]) == ("x", wall, wall)
    (queue,) = (await client.get("queues")).json["items"]
    assert (queue["recipient"], queue["members"], queue["queued"]) == ("a", 1, 0)
    await bus.declare(pool("p"))
    assert [one["recipient"] for one in (await client.get("queues?kind=pool")).json["items"]] == ["pool:p"]


async def test_what_is_read_and_followed_from_the_cursor_misses_nothing(client: Client, bus: Bus) -> None:
    a = await worker(bus, "a")
    cursor = (await client.get("identity")).json["cursor"]
    await bus.expect("b", type="worker")
    await a.send("a", "note", 1, message_id="x")
    async with client.stream(f"live?after={cursor}") as stream:
        change = (await stream.next())["data"]
        assert [one["subject"] for one in change["events"]] == ["b"]
        assert [one["message_id"] for one in change["messages"]] == ["x"]


async def test_equal_reads_at_one_time_are_one_and_see_every_commit_before_them() -> None:
    """A hundred dashboards that an event wakes cost two reads."""
    shared = SharedReads()
    commits, reads = 0, 0
    free = asyncio.Event()

    async def read() -> bytes:
        nonlocal reads
        reads += 1
        found = commits
        await free.wait()
        return b"%d" % found

    first = asyncio.create_task(shared.read("agents", read))
    await eventually(lambda: reads == 1)
    commits += 1
    others = [asyncio.create_task(shared.read("agents", read)) for _ in range(100)]
    apart = asyncio.create_task(shared.read("queues", read))
    await eventually(lambda: reads == 2)
    # One that leaves does not take the read from the others.
    others.pop(0).cancel()
    free.set()
    assert (await first, await apart) == (b"0", b"1")
    assert set(await asyncio.gather(*others)) == {b"1"}
    assert reads == 3
    assert await shared.read("agents", read) == b"1"
    await shared.close()
