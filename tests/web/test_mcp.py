"""The MCP server at ``/mcp``: the same tokens, and one agent a token."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from agentbus import Bus
from agentbus.mcp.server import MCPServer
from agentbus.sync.bus import open_bus
from tests.conftest import Engine
from tests.mcp.conftest import with_meta
from tests.support.clock import FakeClock
from tests.web.client import Client
from tests.web.conftest import serving


async def call(client: Client, secret: str | None, tool: str, **arguments: Any) -> tuple[int, Any]:
    """Call a tool; return the status, and the content of the answer."""
    message = {
        "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": with_meta({"name": tool, "arguments": arguments}),
    }  # fmt: skip
    headers = {
        "accept": "application/json, text/event-stream", "mcp-protocol-version": "2026-07-28",
        "mcp-method": "tools/call", "mcp-name": tool,
    }  # fmt: skip
    answer = await client.with_token(secret).send("POST", "/mcp", message, headers=headers)
    found = json.loads(answer.body)
    result = found.get("result")
    return answer.status, found if result is None else json.loads(result["content"][0]["text"])


async def test_a_client_is_the_agent_of_its_token_and_no_other(
    bus: Bus, engine: Engine, clock: FakeClock, token: Callable[[str], Awaitable[str]]
) -> None:
    mcp = MCPServer(lambda: open_bus(engine.url, clock=clock))
    await bus.expect("executor-1", type="executor")
    planner, reader = await token("agent:planner-1"), await token("read")
    try:
        async with serving(bus, mcp=mcp) as client:
            status, joined = await call(client, planner, "join", name="someone-else", type="planner")
            assert (status, joined["agent"].partition("#")[0]) == (200, "planner-1"), joined
            status, sent = await call(client, planner, "send", to="executor-1", type="note", payload={"n": 1})
            assert status == 200, sent
            (message,) = (await bus.messages.list()).items
            assert (message.sender, message.payload) == ("planner-1", {"n": 1})
            for secret in (reader, client.token):
                status, refused = await call(client, secret, "send", to="executor-1", type="note", payload=2)
                assert (status, refused["error"]["code"]) == (200, "no_agent_identity"), refused
            for secret in (None, "wrong"):
                status, refused = await call(client, secret, "send", to="executor-1", type="note", payload=3)
                assert (status, refused["status"]) == (401, 401), refused
        async with serving(bus, mcp=mcp, read_only=True) as client:
            status, refused = await call(client, planner, "send", to="executor-1", type="note", payload=4)
            assert (status, refused["error"]["code"]) == (200, "no_agent_identity"), refused
        assert len((await bus.messages.list()).items) == 1
    finally:
        await asyncio.to_thread(mcp.close)
