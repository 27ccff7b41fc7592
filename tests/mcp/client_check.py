"""The official Python client against the server, in both eras and over both transports.

Run by ``tests.mcp.conformance`` in an environment that has the package ``mcp``:
``client_check.py COMMAND URL TOKEN TOKEN READER``, with the tokens of the agents ``http-auto`` and ``http-legacy``, and
one that only reads.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

TOOLS = ["join", "send", "receive", "settle", "state", "report", "task"]


async def talk(client: Any, name: str) -> None:
    """Join, send a message to oneself, receive and settle it; read a resource."""
    listed = await client.list_tools()
    assert [tool.name for tool in listed.tools] == TOOLS, listed
    joined = await call(client, "join", name=name)
    assert joined["agent"] == name, joined
    sent = await call(client, "send", to=name, payload={"text": "hello"})
    assert sent["delivered"] == 1, sent
    (message,) = (await call(client, "receive", wait=5))["messages"]
    assert message["payload"] == {"text": "hello"}, message
    assert (await call(client, "settle", lease=message["lease"], outcome="done"))["status"] == "acked"
    refused = await client.call_tool("settle", {"lease": "m-999#1", "outcome": "done"})
    assert refused.is_error, refused
    agents = await client.read_resource("bus://agents")
    assert name in agents.contents[0].text, agents


async def call(client: Any, tool: str, **arguments: Any) -> Any:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result
    return json.loads(result.content[0].text)


async def look(client: Any) -> None:
    """Read a resource with a token that may not change anything."""
    prime = await client.read_resource("bus://prime")
    assert "agentbus" in prime.contents[0].text, prime
    status = await client.read_resource("bus://status")
    assert "http-auto" in status.contents[0].text, status
    for tool, arguments in {"receive": {}, "task": {"action": "start", "workflow": "w"}}.items():
        refused = await client.call_tool(tool, arguments)
        assert refused.is_error, refused
        assert '"forbidden"' in refused.content[0].text, refused


async def main(command: str, url: str, *tokens: str) -> None:
    import httpx2 as httpx
    from mcp import Client, StdioServerParameters
    from mcp.client.streamable_http import streamable_http_client

    done = []
    for mode, token in zip(("auto", "legacy"), tokens, strict=False):
        async with Client(StdioServerParameters(command=command, args=["mcp"]), mode=mode) as client:
            await talk(client, f"stdio-{mode}")
            done.append(f"stdio {client.protocol_version}")
        for secret in (token, tokens[-1]):
            async with (
                httpx.AsyncClient(headers={"Authorization": f"Bearer {secret}"}, timeout=30) as http,
                Client(streamable_http_client(url, http_client=http), mode=mode) as client,
            ):
                await (look(client) if secret == tokens[-1] else talk(client, f"http-{mode}"))
                version = client.protocol_version
        done.append(f"HTTP {version}")
    print(", ".join(done))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
