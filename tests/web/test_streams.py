"""Streams of server-sent events: what happened since, then what happens; heartbeats; slow clients; the end."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from itertools import count

import pytest

pytest.importorskip("uvicorn", reason="the extra agentbus[web] is not installed")

from agentbus import Bus
from agentbus.web import streams
from tests.api.helpers import running
from tests.web.client import Client
from tests.web.conftest import eventually, serving


async def test_a_stream_sends_what_happened_since_and_then_lives(client: Client, bus: Bus) -> None:
    await bus.expect("a", type="worker")
    await bus.expect("b", type="worker")
    async with client.stream("events/stream?after=0") as stream:
        assert (stream.status, stream.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        first, second = await stream.next(), await stream.next()
        assert [first["data"]["subject"], second["data"]["subject"]] == ["a", "b"]
        assert first["id"] == str(first["data"]["id"])
        await bus.expect("c", type="worker")
        assert (await stream.next())["data"]["subject"] == "c"
    async with client.stream("events/stream?after=0", Last_Event_ID=second["id"]) as stream:
        assert (await stream.next())["data"]["subject"] == "c"


async def test_a_stream_from_now_skips_the_past(client: Client, bus: Bus) -> None:
    await bus.expect("a", type="worker")
    async with client.stream("events/stream?subject=agent:c") as stream:
        # The stream has started once its first bytes are there.
        await bus.expect("b", type="worker")
        await bus.expect("c", type="worker")
        assert (await stream.next())["data"]["subject"] == "c"


@pytest.mark.one_engine
async def test_the_head_of_a_stream_is_answered_at_once(bus: Bus) -> None:
    async with serving(bus, max_streams=0) as client:
        for path in ("events/stream", "live", "state/s/watch"):
            found = await client.send("HEAD", path)
            assert (found.status, found.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        assert (await client.with_token(None).send("HEAD", "live")).status == 401


async def test_changes_of_state_are_streamed_and_resumed(client: Client, bus: Bus) -> None:
    await bus.state("s").set("a", 1)
    async with client.stream("state/s/watch") as stream:
        first = await stream.next()
        assert (first["data"]["key"], first["data"]["value"]) == ("a", 1)
        await bus.state("s").set("b", 2)
        assert (await stream.next())["data"]["key"] == "b"
    await bus.state("s").delete("a")
    async with client.stream("state/s/watch", Last_Event_ID=first["id"]) as stream:
        seen = [await stream.next(), await stream.next()]
        assert {one["data"]["key"]: one["data"]["deleted"] for one in seen} == {"a": True, "b": False}


@pytest.mark.one_engine
async def test_an_idle_stream_sends_heartbeats(client: Client, bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    set_default(monkeypatch, heartbeat=0.02)
    async with client.stream("events/stream") as stream, running(stream.next()):
        await eventually(lambda: stream.comments.count("heartbeat") >= 2)


@pytest.mark.one_engine
async def test_a_client_that_does_not_read_is_disconnected(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    set_default(monkeypatch, send_timeout=0.2)
    state = bus.state("s")
    for number in range(40):
        await state.set(f"k{number}", "x" * 500_000)
    async with serving(bus, max_streams=1) as client:
        with socket.create_connection(("127.0.0.1", client.port)) as connection:
            connection.send(client.head("GET", "state/s/watch"))
            # While it is open, there is room for no other; nothing is read here.
            async with asyncio.timeout(20):
                while (await status_of(client)) == 200:
                    pass
                while (await status_of(client)) == 429:  # noqa: ASYNC110 - seen by requests only
                    await asyncio.sleep(0.02)


async def status_of(client: Client) -> int:
    async with client.stream("events/stream") as stream:
        return stream.status


def set_default(monkeypatch: pytest.MonkeyPatch, **values: float) -> None:
    """Set the time limits of streams."""
    before = streams.EventStream.__init__.__kwdefaults__ or {}
    monkeypatch.setattr(streams.EventStream.__init__, "__kwdefaults__", {**before, **values})


async def test_the_server_stops_without_waiting_for_streams_and_polls(bus: Bus) -> None:
    await bus.register_visitor("a", type="worker")
    server = AsyncExitStack()
    client = await server.enter_async_context(serving(bus))
    async with client.stream("events/stream") as first, client.stream("state/s/watch") as second:
        poll = asyncio.create_task(client.post("agents/a/receive", {"timeout": 50}))
        await eventually(lambda: bool(bus._engine.waiters.channels))
        before = time.monotonic()
        await server.aclose()
        # Two seconds on an idle machine; the poll waits for 50.
        assert time.monotonic() - before < 30
        assert await first.ended()
        assert await second.ended()
        assert (await poll).code == "bus_closed"


@pytest.mark.one_engine
async def test_a_token_has_a_bounded_number_of_streams(bus: Bus, token: Callable[[str], Awaitable[str]]) -> None:
    async with serving(bus, max_streams=2) as client:
        one, other = client.with_token(await token("read")), client.with_token(await token("read"))
        async with one.stream("events/stream"):
            async with one.stream("events/stream"):
                refused = await one.get("events/stream")
                assert (refused.status, refused.code) == (429, "too_many_streams")
                async with other.stream("events/stream") as stream:
                    assert stream.status == 200
            # One that was closed makes room.
            async with asyncio.timeout(20):
                while True:
                    async with one.stream("events/stream") as stream:
                        if stream.status == 200:
                            break


@pytest.mark.one_engine
async def test_streams_that_are_opened_at_the_same_time_count(bus: Bus, token: Callable[[str], Awaitable[str]]) -> None:
    async with serving(bus, max_streams=2) as server:
        for path, refused in (("events/stream", "after=x"), ("live", "after=x"), ("state/s/watch", "after=-1")):
            client = server.with_token(await token("read"))
            # A request that fails releases its slot.
            for _ in range(3):
                assert (await client.get(f"{path}?{refused}")).status == 422
            assert sorted(await opened_together(client, path, 12)) == [200] * 2 + [429] * 10


async def opened_together(client: Client, path: str, count: int) -> list[int]:
    """Return the statuses of streams that are open at the same time."""
    async with AsyncExitStack() as stack:
        opening = [stack.enter_async_context(client.stream(path)) for _ in range(count)]
        return [stream.status for stream in await asyncio.gather(*opening)]


@pytest.mark.one_engine
async def test_a_revoked_token_ends_its_streams(client: Client, bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    set_default(monkeypatch, heartbeat=0.02)
    made = await bus.tokens.create("read", operator="grace")
    async with client.with_token(made.secret).stream("events/stream") as stream:
        await bus.tokens.revoke(made.token.id)
        assert await stream.ended()
    assert (await client.with_token(made.secret).get("agents")).code == "unauthorized"


@pytest.mark.one_engine
async def test_a_revoked_token_ends_a_busy_stream(client: Client, bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    set_default(monkeypatch, heartbeat=0.2)
    made = await bus.tokens.create("read", operator="grace")

    async def act() -> None:
        for number in count():
            await bus.expect(f"agent-{number}", type="worker")

    async with client.with_token(made.secret).stream("events/stream") as stream:
        acting = asyncio.create_task(act())
        await bus.tokens.revoke(made.token.id)
        assert await stream.ended()
        acting.cancel()
