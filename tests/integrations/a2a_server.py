"""An A2A server process on a socket that the test listens on: its tasks are on a bus, and an agent of the bus works."""

from __future__ import annotations

import asyncio
import socket
import sys

import uvicorn
from a2a.server.context import ServerCallContext
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.routes.common import DefaultServerCallContextBuilder
from starlette.applications import Starlette
from starlette.requests import Request

import agentbus
from agentbus.integrations.a2a import AgentBusExecutor, AgentBusTaskStore
from examples.a2a_server import card, url_of


class Tenants(DefaultServerCallContextBuilder):
    """Tell the tenants apart by a header."""

    def build(self, request: Request) -> ServerCallContext:
        context = super().build(request)
        context.state["tenant"] = request.headers.get("x-tenant", "")
        return context


async def main(url: str, number: int) -> None:
    listening = socket.socket(fileno=number)
    async with agentbus.connect(url) as bus, bus.agent("gateway", type="worker") as gateway:
        public = card(url_of(listening))
        store = AgentBusTaskStore(bus, owner_resolver=lambda context: str(context.state["tenant"]))
        handler = DefaultRequestHandler(AgentBusExecutor(gateway, "pool:translators", timeout=60), store, public)
        routes = [*create_agent_card_routes(public), *create_jsonrpc_routes(handler, "/", context_builder=Tenants())]
        await uvicorn.Server(uvicorn.Config(Starlette(routes=routes), log_level="warning")).serve([listening])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
