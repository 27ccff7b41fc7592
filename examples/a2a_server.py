"""Serve an agent of the bus to agents of other vendors by the Agent2Agent protocol; kill the server and restart it.

A translator works on the bus. A gateway process is the A2A server: it passes messages to the translator as requests,
and stores A2A tasks on the bus. A client of the A2A SDK, which knows nothing of agentbus, reads the agent card, sends a
message and gets the translation. The server is killed with kill -9; a new one still has the task.

    python examples/a2a_server.py        # on a temporary bus; needs the extras a2a and web
    python examples/a2a_server.py BUS    # a directory, or postgresql://user@host/database
"""

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

try:
    import httpx
    import uvicorn
    from a2a.client import Client, ClientConfig, ClientFactory
    from a2a.helpers import get_artifact_text, new_text_message
    from a2a.server.request_handlers import DefaultRequestHandler
    from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
    from a2a.types.a2a_pb2 import (
        AgentCapabilities,
        AgentCard,
        AgentInterface,
        AgentSkill,
        GetTaskRequest,
        Role,
        SendMessageRequest,
        Task,
    )
    from starlette.applications import Starlette
except ModuleNotFoundError as error:
    raise SystemExit(f"{error}; in the checkout: python -m pip install '.[a2a,web]'") from None

import agentbus
from agentbus.integrations.a2a import AgentBusExecutor, AgentBusTaskStore

WORDS = {"good": "buon", "morning": "giorno", "night": "notte"}


def card(url: str) -> AgentCard:
    return AgentCard(
        name="Translator",
        description="Translates English into Italian",
        version="1.0",
        supported_interfaces=[AgentInterface(url=url, protocol_binding="JSONRPC", protocol_version="1.0")],
        capabilities=AgentCapabilities(streaming=False),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="translate", name="Translate", description="English to Italian", tags=["text"])],
    )


async def serve(listening: socket.socket) -> None:
    """Run the A2A server on a socket that listens already."""
    async with agentbus.connect() as bus, bus.agent("a2a-gateway", type="worker") as gateway:
        public = card(url_of(listening))
        executor = AgentBusExecutor(gateway, "pool:translators", timeout=60)
        handler = DefaultRequestHandler(executor, AgentBusTaskStore(bus), public)
        app = Starlette(routes=[*create_agent_card_routes(public), *create_jsonrpc_routes(handler, "/")])
        print(f"  server {os.getpid()} is ready", flush=True)
        await uvicorn.Server(uvicorn.Config(app, log_level="warning")).serve([listening])


async def translate() -> None:
    """Run the translator: an agent of the bus, which knows nothing of A2A."""
    async with agentbus.connect() as bus, bus.agent("translator", type="worker", pools=["translators"]) as translator:
        async for message in translator.inbox():
            async with message:
                words = message.payload["question"].lower().split()
                print(f"the translator got a {message.type} from {message.sender}", flush=True)
                answer = " ".join(WORDS.get(word, word) for word in words)
                await message.reply("coordination_response", {"answer": answer})


@asynccontextmanager
async def calling(url: str) -> AsyncIterator[Client]:
    """A client of the A2A SDK, made from the agent card."""
    async with httpx.AsyncClient(timeout=60) as http:
        yield await ClientFactory(ClientConfig(httpx_client=http, streaming=False)).create_from_url(url)


async def ask(url: str) -> Task:
    """Call the agent as an agent of another vendor does."""
    async with calling(url) as caller:
        request = SendMessageRequest(message=new_text_message("Good night", role=Role.ROLE_USER))
        async for response in caller.send_message(request):
            task = response.task
        print(f"the client got: {get_artifact_text(task.artifacts[0])!r}")
        return task


async def look_up(url: str, task: str) -> None:
    async with calling(url) as caller:
        found = await caller.get_task(GetTaskRequest(id=task))
        print(f"the new server has the task: {get_artifact_text(found.artifacts[0])!r}")


def url_of(listening: socket.socket) -> str:
    return f"http://127.0.0.1:{listening.getsockname()[1]}/"


@contextmanager
def server(listening: socket.socket) -> Iterator[None]:
    """A server process, which is killed at the end. Both servers have the socket from here: no call is refused."""
    number = listening.fileno()
    with subprocess.Popen([sys.executable, __file__, "--serve", str(number)], pass_fds=[number]) as process:
        try:
            yield
        finally:
            process.kill()


async def story() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        async with agentbus.connect() as bus:
            worker = asyncio.create_task(translate())
            with server(listening):
                task = await ask(url_of(listening))
            print("the server was killed")
            with server(listening):
                await look_up(url_of(listening), task.id)
            worker.cancel()
            with suppress(asyncio.CancelledError):
                await worker
            for history in (await bus.histories.list("a2a")).items:
                print(f"on the bus: an A2A task in {history.meta['state']}")


def main(arguments: list[str]) -> None:
    match arguments:
        case ["--serve", number]:
            asyncio.run(serve(socket.socket(fileno=int(number))))
        case [url]:
            os.environ["AGENTBUS_URL"] = url  # connect() uses it
            asyncio.run(story())
        case _:
            with tempfile.TemporaryDirectory(prefix="agentbus-") as directory:
                main([directory])


if __name__ == "__main__":
    main(sys.argv[1:])
