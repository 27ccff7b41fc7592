"""The MCP server of a bus over HTTP, for independent clients: ``python http_server.py DIRECTORY PORT``.

``agentbus serve`` does the same with tokens. Here the header ``X-Agent`` names the agent.
"""

from __future__ import annotations

import sys
from typing import Any

from agentbus.mcp.endpoint import MCPEndpoint
from agentbus.mcp.identity import FixedIdentity
from agentbus.mcp.server import MCPServer
from agentbus.sync.bus import open_bus


def application(server: MCPServer) -> Any:
    """Return the application with the endpoint at ``/mcp``."""
    from starlette.applications import Starlette
    from starlette.routing import Route

    async def identify(scope: Any) -> FixedIdentity:
        names = [value.decode() for name, value in scope["headers"] if name == b"x-agent"]
        return FixedIdentity(names[0] if names else None)

    return Starlette(routes=[Route("/mcp", MCPEndpoint(server.dispatcher, identify))])


if __name__ == "__main__":
    import uvicorn

    served = MCPServer(lambda: open_bus(f"{sys.argv[1]}/.agentbus"))
    uvicorn.run(application(served), host="127.0.0.1", port=int(sys.argv[2]), log_level="warning")
