"""A request over HTTP continues the trace that its headers name."""

from __future__ import annotations

import pytest

pytest.importorskip("uvicorn", reason="the extra agentbus[web] is not installed")

from agentbus import Bus, telemetry
from tests.support.traces import PARENT, STATE, TRACE, parent_of, recording, text_of
from tests.web.client import Client


@pytest.mark.one_engine
async def test_messages_and_tasks_of_a_request_carry_its_trace(client: Client, bus: Bus) -> None:
    await client.post("agents/a/register", {"type": "worker"})
    headers = {"traceparent": PARENT, "tracestate": STATE}
    try:
        sent = (await client.post("agents/a/send", {"to": "a", "type": "note"}, **headers)).json
        await client.post("tasks", {"workflow": "feature", "id": "f-1"}, **headers)
        other = (await client.post("agents/a/send", {"to": "a", "type": "note"}, traceparent="none")).json
    finally:
        telemetry.disable()
    assert (await client.get(f"messages/{sent['message_id']}")).json["headers"] == headers
    assert (await client.get(f"messages/{other['message_id']}")).json["headers"] == {}
    task = await bus.tasks.get("f-1")
    assert task is not None
    assert task.trace == TRACE
    with recording() as recorded:
        await client.post("agents/a/send", {"to": "nowhere", "type": "note"}, **headers)
        served, refused = recorded.spans()
    assert (served.name, served.kind.name) == ("POST /api/v1/agents/{agent}/send", "SERVER")
    assert (parent_of(served), parent_of(refused)) == (PARENT, text_of(served))
    assert served.attributes == {
        "http.request.method": "POST", "http.route": "/api/v1/agents/{agent}/send", "error.type": "unknown_recipient",
    }  # fmt: skip
