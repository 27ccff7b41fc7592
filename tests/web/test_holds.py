"""Held messages over HTTP: the sender is told, an operator decides, an agent may not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

pytest.importorskip("uvicorn", reason="the extra agentbus[web] is not installed")

from agentbus import Bus
from tests.web.client import Client


async def test_an_operator_releases_and_discards_what_agents_may_not(
    client: Client, bus: Bus, token: Callable[[str], Awaitable[str]]
) -> None:
    await client.post("agents/a/register", {"type": "worker"})
    assert (await client.send("PATCH", "quotas", {"thread": 1})).json["thread"] == 1
    agent = client.with_token(await token("agent:a"))
    message = {"to": "a", "type": "note", "correlation": "t/1"}
    sent = [(await agent.post("agents/a/send", message)).json for _ in range(3)]
    assert [one["held"] for one in sent] == [False, True, True]
    assert "agentbus holds release t/1" in sent[1]["hold_reason"]
    (hold,) = (await agent.get("holds")).json["items"]
    assert (hold["thread"], hold["held"], hold["sent"], hold["agents"]) == ("t/1", 2, 3, ["a"])
    waiting = (await client.get("overview")).json["waiting"]
    assert [one["command"] for one in waiting if one["kind"] == "thread"] == ["agentbus holds release t/1"]
    assert (await client.get(f"messages/{sent[1]['message_id']}")).json["held"]
    for path in ("holds/t%2F1/release", "holds/t%2F1/discard"):
        assert (await agent.post(path, {} if path.endswith("discard") else None)).status == 403
    assert (await agent.send("PATCH", "quotas", {"thread": None})).status == 403
    assert (await client.post("holds/t%2F1/release")).json["count"] == 2
    assert (await client.post("holds/t%2F1/release")).code == "nothing_held"
    # Released, the thread has its bound again.
    sent = [(await agent.post("agents/a/send", message)).json for _ in range(2)]
    assert [one["held"] for one in sent] == [False, True]
    assert (await client.post("holds/t%2F1/discard", {"reason": "enough"})).json["count"] == 1
    assert (await client.get("holds")).json["items"] == []
