"""The server over HTTP: one dispatcher for both transports, headers that repeat the message, and who a client is."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Route

from agentbus.core import process_info
from agentbus.mcp.endpoint import MCPEndpoint
from agentbus.mcp.identity import FixedIdentity
from agentbus.mcp.protocol import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    UNSUPPORTED_VERSION,
)
from agentbus.mcp.server import MCPServer
from agentbus.operations.agent_identity import processes_of_host
from agentbus.sync.bus import BlockingBus, open_bus
from tests.mcp.conftest import TIMEOUT, content, with_meta

ACCEPT = "application/json, text/event-stream"


def application(server: MCPServer) -> Starlette:
    """Return an application that embeds the endpoint at ``/mcp``. The header ``X-Agent`` names the agent."""

    async def identify(scope: Any) -> FixedIdentity:
        names = [value.decode() for name, value in scope["headers"] if name == b"x-agent"]
        return FixedIdentity(names[0] if names else None)

    return Starlette(routes=[Route("/mcp", MCPEndpoint(server.dispatcher, identify))])


class Site:
    """A client of the endpoint."""

    def __init__(self, port: int) -> None:
        self.port = port

    def open(self, agent: str | None, method: str, **params: Any) -> http.client.HTTPConnection:
        """Send a request as an agent, and return its connection."""
        named = {"tools/call": "name", "resources/read": "uri"}.get(method)
        headers = {"Mcp-Method": method, "MCP-Protocol-Version": "2026-07-28"}
        if named is not None:
            headers["Mcp-Name"] = params[named]
        if agent is not None:
            headers["X-Agent"] = agent
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": with_meta(params)}
        return self.post(json.dumps(message).encode(), headers)

    def post(
        self, body: bytes, headers: dict[str, str] | None = None, method: str = "POST"
    ) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)
        given = {"Content-Type": "application/json", "Accept": ACCEPT, **(headers or {})}
        connection.request(method, "/mcp", body, {name: value for name, value in given.items() if value})
        return connection

    def call(self, agent: str | None, tool: str, **arguments: Any) -> Any:
        status, answer = read(self.open(agent, "tools/call", name=tool, arguments=arguments))
        assert status == 200
        return content(answer["result"])


def read(connection: http.client.HTTPConnection) -> tuple[int, Any]:
    """Return the status and the message of a response."""
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response.status, json.loads(body) if body else None


@pytest.fixture
def site(directory: Path) -> Iterator[Site]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        served = MCPServer(lambda: open_bus(directory / ".agentbus"))
        config = uvicorn.Config(application(served), log_level="error", lifespan="off", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        listener.listen()
        yield Site(listener.getsockname()[1])
        server.should_exit = True
        thread.join(TIMEOUT)
        served.close()


def test_two_agents_talk_over_http(site: Site) -> None:
    assert site.call("one", "join", name="whatever")["agent"] == "one"
    site.call("two", "join", name="two")
    waiting = site.open("two", "tools/call", name="receive", arguments={"wait": 30})
    assert site.call("one", "send", to="two", payload="hello")["delivered"] == 1
    _, answer = read(waiting)
    (message,) = content(answer["result"])["messages"]
    assert message["payload"] == "hello"
    assert site.call("two", "settle", lease=message["lease"], outcome="done")["status"] == "acked"
    assert site.call(None, "receive")["error"]["code"] == "no_agent_identity"
    # A client of the handshake era, which states its version in a header or not at all.
    status, answer = read(
        site.post(
            b'{"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18",'
            b' "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}}'
        )
    )
    assert (status, answer["result"]["protocolVersion"]) == (200, "2025-06-18")
    assert answer["result"]["capabilities"]["resources"] == {}
    for headers in ({}, {"MCP-Protocol-Version": "2025-06-18"}):
        status, answer = read(site.post(b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}', headers))
        assert (status, len(answer["result"]["tools"])) == (200, 7)
    assert read(site.post(b'{"jsonrpc": "2.0", "method": "notifications/initialized"}')) == (202, None)


def test_requests_that_break_the_rules_are_refused_with_their_status(site: Site) -> None:
    listing = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": with_meta({})}).encode()
    good = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/list"}
    assert read(site.post(listing, good))[0] == 200
    cases: list[tuple[bytes, dict[str, str], int, int | None]] = [
        (listing, {}, 400, HEADER_MISMATCH),
        (listing, {**good, "Mcp-Method": "tools/call"}, 400, HEADER_MISMATCH),
        (listing, {**good, "Mcp-Method": ""}, 400, HEADER_MISMATCH),
        (listing, {**good, "MCP-Protocol-Version": "2025-11-25"}, 400, HEADER_MISMATCH),
        (listing, {**good, "Content-Type": "text/plain"}, 415, None),
        (listing, {**good, "Accept": "application/json"}, 406, None),
        (listing, {**good, "Host": "evil.example"}, 403, None),
        (listing, {**good, "Origin": "https://evil.example"}, 403, None),
        (b"{", good, 400, PARSE_ERROR),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}', good, 400, INVALID_PARAMS),
        (listing.replace(b"tools/list", b"no/method"), {**good, "Mcp-Method": "no/method"}, 404, METHOD_NOT_FOUND),
        (
            listing.replace(b"2026-07-28", b"1900-01-01"),
            {**good, "MCP-Protocol-Version": "1900-01-01"},
            400,
            UNSUPPORTED_VERSION,
        ),
    ]
    for body, headers, status, code in cases:
        found, answer = read(site.post(body, headers))
        assert (found, headers) == (status, headers), answer
        if code is not None:
            assert answer["error"]["code"] == code, answer
    for method in ("GET", "DELETE"):
        assert read(site.post(b"", good, method=method)) == (405, None)


def test_a_client_that_closes_its_connection_takes_nothing(site: Site, local: BlockingBus) -> None:
    sender = local.register("sender", type="worker")
    site.call("a", "join", name="a")
    waiting = site.open("a", "tools/call", name="receive", arguments={"wait": 50})
    while not _processes(local):
        pass
    waiting.close()
    while _processes(local):
        pass
    sender.send("a", "note", "kept")
    assert site.call("a", "receive")["messages"][0]["payload"] == "kept"


def _processes(bus: BlockingBus) -> list[Any]:
    """Return the processes that wait."""
    return list(bus.read(processes_of_host, process_info.host_key()))


def test_a_subscription_is_a_stream(site: Site, local: BlockingBus) -> None:
    sender = local.register("sender", type="worker")
    site.call("a", "join", name="a")
    wanted = {"resourceSubscriptions": ["bus://inbox/a"]}
    connection = site.open("a", "subscriptions/listen", notifications=wanted)
    response = connection.getresponse()
    assert response.getheader("content-type") == "text/event-stream"
    events = _events(response)
    first = next(events)
    assert first["method"] == "notifications/subscriptions/acknowledged"
    assert first["params"]["notifications"] == wanted
    sender.send("a", "note", 1)
    assert next(events)["params"]["uri"] == "bus://inbox/a"
    connection.close()


def _events(response: http.client.HTTPResponse) -> Iterator[Any]:
    while line := response.readline():
        if line.startswith(b"data: "):
            yield json.loads(line[6:])


def test_nothing_is_taken_from_the_body_that_the_header_does_not_say(site: Site) -> None:
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call",
            "params": with_meta({"name": "join", "arguments": {"name": "a"}})}  # fmt: skip
    body = json.dumps(call).encode()
    headers = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "X-Agent": "a"}
    for name, status in {"": 400, "send": 400, "join": 200, "=?base64?am9pbg==?=": 200, "=?base64?!!?=": 400}.items():
        found, answer = read(site.post(body, {**headers, "Mcp-Name": name}))
        assert (name, found) == (name, status), answer
