"""A client of ``/mcp`` on the wire."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from agentbus.mcp.protocol import CAPABILITIES_KEY, MODERN, TASKS, VERSION_KEY
from tests.web.client import TIMEOUT, Answer, Client, Stream, read_head

EVERYTHING: dict[str, Any] = {"elicitation": {}, "extensions": {TASKS: {}}}
ACCEPT = "application/json, text/event-stream"
_NAMED = {"tools/call": "name", "resources/read": "uri", "tasks/get": "taskId", "tasks/update": "taskId",
          "tasks/cancel": "taskId"}  # fmt: skip


class MCPClient:
    """Sends messages with the token of a client, without a handshake unless it names a version."""

    def __init__(self, client: Client, token: str | None = None, version: str | None = MODERN) -> None:
        self.http = client if token is None else client.with_token(token)
        self.version = version

    def request(self, method: str, params: dict[str, Any]) -> tuple[bytes, dict[str, str]]:
        """Return the body and the headers of a request."""
        headers = {"accept": ACCEPT}
        if self.version is not None:
            headers["mcp-protocol-version"] = self.version
        if self.version == MODERN:
            params = {**params, "_meta": {VERSION_KEY: MODERN, CAPABILITIES_KEY: EVERYTHING}}
            headers["mcp-method"] = method
            if method in _NAMED:
                headers["mcp-name"] = str(params[_NAMED[method]])
        return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode(), headers

    async def ask(self, method: str, **params: Any) -> Answer:
        body, headers = self.request(method, params)
        return await self.post(body, headers)

    async def post(self, body: bytes, headers: dict[str, str] | None = None) -> Answer:
        return await self.http.send("POST", f"{self.http.base}/mcp", body, headers=headers or {"accept": ACCEPT})

    async def call(self, tool: str, **arguments: Any) -> Any:
        """Call a tool, and return its result, or its error."""
        found = await self.ask("tools/call", name=tool, arguments=arguments)
        assert found.status == 200, found
        return json.loads(found.json["result"]["content"][0]["text"])

    @asynccontextmanager
    async def open(self, method: str, **params: Any) -> AsyncIterator[Stream]:
        """Send a request, and read the head of its response."""
        body, headers = self.request(method, params)
        reader, writer = await asyncio.open_connection("127.0.0.1", self.http.port)
        try:
            writer.write(self.http.head("POST", f"{self.http.base}/mcp", body, headers) + body)
            async with asyncio.timeout(TIMEOUT):
                status, found = await read_head(reader)
            yield Stream(status, found, reader)
        finally:
            writer.close()

    @asynccontextmanager
    async def listening(self, *uris: str, tasks: list[str] | None = None) -> AsyncIterator[Stream]:
        """Subscribe, and read the acknowledgement."""
        wanted = {"resourceSubscriptions": list(uris), "taskIds": tasks or []}
        async with self.open("subscriptions/listen", notifications=wanted) as stream:
            assert stream.status == 200, stream.status
            first = (await stream.next())["data"]
            assert first["method"] == "notifications/subscriptions/acknowledged", first
            yield stream


def refusal(answer: Answer) -> str:
    """Return the code of an error, of the server or of a tool; "" for a request that was carried out."""
    if answer.headers.get("content-type") == "application/problem+json":
        return answer.code
    found = answer.json
    if "error" in found:
        return str((found["error"].get("data") or {}).get("code", found["error"]["code"]))
    result = found["result"]
    if result.get("isError"):
        return str(json.loads(result["content"][0]["text"])["error"]["code"])
    return ""
