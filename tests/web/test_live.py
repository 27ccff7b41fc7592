"""The live feed over HTTP: cursors, many dashboards, rates."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

pytest.importorskip("uvicorn", reason="the extra agentbus[web] is not installed")

from agentbus import Bus
from agentbus.web import live
from tests.api.helpers import take, worker
from tests.web.client import Client, Stream
from tests.web.conftest import serving


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


async def test_rates_are_counted_since_the_server_started(client: Client, bus: Bus) -> None:
    a = await worker(bus, "a")
    await a.send_many([("a", "note", number) for number in range(5)])
    for message in await a.receive_many(3, timeout=0):
        await message.ack()
    found = (await client.get("rates")).json
    assert found["since"] == bus._engine.clock.now().wall
    (minute,) = found["minutes"]
    assert (minute["sent"], minute["leased"], minute["acked"]) == (5, 3, 3)
    assert minute["depths"] == {"a": 2}
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
