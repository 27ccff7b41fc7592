"""Delivery into running agents over HTTP: receipts, reach, and steering."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

pytest.importorskip("uvicorn", reason="the extra agentbus[web] is not installed")

from agentbus import Bus
from tests.api.helpers import running, soon
from tests.web.client import Client


async def test_what_a_response_delivered_is_seen(client: Client, bus: Bus) -> None:
    await client.post("agents/a/register", {"type": "worker"})
    sent = await client.post("messages", {"to": "a", "type": "note", "payload": 1, "message_id": "x"})
    assert (sent.status, sent.json["reach"]) == (201, "unknown")
    unseen = await client.get("messages/x/receipts")
    assert (unseen.json["seen"], unseen.json["receipts"]) == (False, [])
    async with running(client.get("messages/x/receipts?timeout=30")) as waiting:
        await asyncio.sleep(0)
        found = await client.post("agents/a/receive", {"client": "s-1"})
        assert [one["message_id"] for one in found.json["messages"]] == ["x"]
        report = (await soon(waiting)).json
    assert report["seen"] is True
    assert [(one["agent"], one["channel"], one["client"]) for one in report["receipts"]] == [("a", "http", "s-1")]
    record = (await client.get("messages/x")).json
    assert (record["seen"], record["receipts"]) == (report["receipts"][0]["at"], report["receipts"])
    assert (await client.get("messages/nothing/receipts")).code == "unknown_message"
    assert (await client.get("messages/x/receipts?timeout=56")).code == "invalid_request"


async def test_an_adapter_declares_reach_and_marks_messages(
    client: Client, token: Callable[[str], Awaitable[str]]
) -> None:
    for agent in ("a", "b"):
        await client.post(f"agents/{agent}/register", {"type": "worker"})
    own = client.with_token(await token("agent:a"))
    assert (await own.post("agents/a/reach", {"wakes": "tool", "channel": "hook"})).status == 200
    assert (await client.get("agents/a/reach")).json["reach"] == "next_tool"
    urgent = await client.post("agents/b/send", {"to": "a", "type": "note", "payload": 0, "priority": 7})
    sent = await client.post("agents/b/send", {"to": "a", "type": "note", "payload": 1})
    assert [urgent.json["reach"], sent.json["reach"]] == ["next_tool", "next_turn"]
    for agent, code in (("a", ""), ("b", "not_recipient")):
        caller = client.with_token(await token(f"agent:{agent}"))
        marked = await caller.post(f"agents/{agent}/seen", {"messages": [sent.json["message_id"]], "channel": "hook"})
        assert (marked.status, marked.code if code else "") == (403 if code else 200, code)
    assert (await client.get("agents/nobody/reach")).code == "unknown_agent"
    assert (await own.post("agents/a/reach", {"wakes": "now"})).code == "invalid_request"


async def test_an_operator_steers_an_agent(client: Client, bus: Bus, token: Callable[[str], Awaitable[str]]) -> None:
    a = await bus.register_visitor("a", type="worker")
    async with running(
        client.post("agents/a/steer", {"text": "faster", "stop_after": True, "timeout": 30})
    ) as steering:
        (message,) = await soon(a.receive(timeout=60))
        assert (message.type, message.payload["stop_after"]) == ("steer", True)
        await a.seen(message.message_id, channel="hook")
        steered = await soon(steering)
    assert (steered.status, steered.json["seen"], steered.json["message_id"]) == (201, True, message.message_id)
    late = (await client.post("agents/a/steer", {"text": "faster", "timeout": 0})).json
    assert (late["seen"], late["reach"]["reach"], late["reach"]["status"]) == (False, "unknown", "running")
    own = client.with_token(await token("agent:a"))
    assert (await own.post("agents/a/steer", {"text": "faster"})).code == "forbidden"
    forged = await own.post("agents/a/send", {"to": "a", "type": "steer", "payload": {"text": "obey"}})
    assert (forged.status, forged.code) == (403, "not_an_operator")
