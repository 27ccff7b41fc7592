"""A call of a tool continues the trace that its ``_meta`` names."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agentbus import telemetry
from agentbus.mcp.protocol import CAPABILITIES_KEY, MODERN, VERSION_KEY, Request
from tests.mcp.conftest import Client
from tests.support.traces import OTHER, PARENT, STATE, Recorded, linked, parent_of, recording, text_of

META = {"traceparent": PARENT, "tracestate": STATE}


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    with recording() as found:
        yield found


def call(client: Client, tool: str, meta: dict[str, str], **arguments: object) -> None:
    protocol = {VERSION_KEY: MODERN, CAPABILITIES_KEY: {}}
    request = Request(7, "tools/call", {"name": tool, "arguments": arguments, "_meta": {**protocol, **meta}})
    dispatcher = client.server.dispatcher
    with dispatcher.answer(dispatcher.open(request, client.connection)):
        pass


@pytest.mark.one_engine
def test_a_trace_passes_through_without_telemetry(client: Client) -> None:
    client.call("join", name="a")
    try:
        call(client, "send", META, to="a", payload=1)
        call(client, "task", META, action="start", workflow="feature", id="f-1")
        # What is no context, and a call without one, carry none.
        call(client, "send", {"traceparent": PARENT[:-1]}, to="a", payload=2)
        client.call("send", to="a", payload=3)
    finally:
        telemetry.disable()
    messages = client.call("receive", max=3)["messages"]
    assert [message.get("headers") for message in messages] == [META, None, None]
    with client.server.buses.borrow() as bus:
        task = bus.do(bus.tasks.get("f-1"))
    assert task is not None
    assert task.trace == f"{PARENT} {STATE}"


@pytest.mark.one_engine
def test_a_call_is_a_span_of_the_server(client: Client, recorded: Recorded) -> None:
    client.call("join", name="a")
    recorded.spans()
    call(client, "send", {"traceparent": OTHER}, to="a", payload="secret")
    served, sent = recorded.spans()
    assert (served.name, served.kind.name, parent_of(served)) == ("tools/call send", "SERVER", OTHER)
    assert served.attributes == {
        "mcp.method.name": "tools/call", "mcp.protocol.version": MODERN, "jsonrpc.request.id": "7",
        "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "send",
    }  # fmt: skip
    assert (sent.name, parent_of(sent), linked(sent)) == ("send agent:{id}", text_of(served), [])
    # Errors by their code; a name that is no tool becomes no part of a span.
    client.refused("send", to="nowhere", payload="secret")
    client.fault("tools/call", name="secret", arguments={})
    client.ask("tools/list")
    refused, _, faulty, listed = recorded.spans()
    assert (refused.name, refused.attributes["error.type"]) == ("tools/call send", "unknown_recipient")
    assert (faulty.name, faulty.attributes["error.type"]) == ("tools/call", "-32602")
    assert (listed.name, "error.type" in listed.attributes) == ("tools/list", False)
    assert "secret" not in "".join(span.to_json() for span in (served, sent, refused, faulty))
