"""Clients of the MCP server: in this process, and over the pipes of a real one."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import pytest

from agentbus.mcp.dispatcher import Connection, Reply
from agentbus.mcp.identity import SessionIdentity
from agentbus.mcp.protocol import CAPABILITIES_KEY, MODERN, TASKS, VERSION_KEY, Fault, Request
from agentbus.mcp.server import MCPServer
from agentbus.sync.bus import BlockingBus, open_bus
from tests.conftest import Engine, copy_bus
from tests.support import zygote
from tests.support.clock import FakeClock

TIMEOUT = 30.0
EVERYTHING: dict[str, Any] = {"elicitation": {}, "extensions": {TASKS: {}}}


def with_meta(params: dict[str, Any], capabilities: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return parameters with the metadata of a request without a handshake."""
    return {**params, "_meta": {VERSION_KEY: MODERN, CAPABILITIES_KEY: capabilities or {}}}


def content(result: dict[str, Any]) -> Any:
    """Return the JSON of the result of a tool."""
    return json.loads(result["content"][0]["text"])


class Client:
    """A client in this process, without a transport: it calls the dispatcher as a transport does."""

    def __init__(self, server: MCPServer, identity: Any = None, capabilities: dict[str, Any] | None = None) -> None:
        self.server = server
        self.identity = SessionIdentity(None) if identity is None else identity
        self.connection = Connection(self.identity)
        self.capabilities = capabilities or {}
        self.sent: list[dict[str, Any]] = []

    def reply(self, method: str, **params: Any) -> Reply:
        request = Request(1, method, with_meta(params, self.capabilities))
        return self.server.dispatcher.answer(self.server.dispatcher.open(request, self.connection, self.sent.append))

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        with self.reply(method, **params) as reply:
            return reply.result

    def call(self, tool: str, **arguments: Any) -> Any:
        """Call a tool that succeeds."""
        result = self.ask("tools/call", name=tool, arguments=arguments)
        assert "isError" not in result, result
        return content(result)

    def refused(self, tool: str, **arguments: Any) -> dict[str, str]:
        """Call a tool that reports an error of the bus."""
        result = self.ask("tools/call", name=tool, arguments=arguments)
        assert result.get("isError") is True, result
        found: dict[str, str] = content(result)["error"]
        assert found["message"]
        return found

    def fault(self, method: str, **params: Any) -> Fault:
        """Make a request that is against the protocol."""
        with pytest.raises(Fault) as raised:
            self.ask(method, **params)
        return raised.value


@pytest.fixture
def server(engine: Engine, clock: FakeClock) -> Iterator[MCPServer]:
    """The server of an empty bus, on each engine, in fake time."""
    url = engine.url
    open_bus(url, create=True, clock=clock).close()
    server = MCPServer(lambda: open_bus(url, clock=clock))
    yield server
    server.close()


@pytest.fixture
def client(server: MCPServer) -> Client:
    return Client(server)


@pytest.fixture
def directory(template: Path) -> Iterator[Path]:
    """A directory with a bus. Not tmp_path: a short path leaves room for the doorbells."""
    with tempfile.TemporaryDirectory(prefix="agentbus-mcp-") as name:
        copy_bus(template, Path(name) / ".agentbus")
        yield Path(name)


@pytest.fixture
def local(directory: Path) -> Iterator[BlockingBus]:
    """The bus of the directory."""
    with open_bus(directory / ".agentbus") as bus:
        yield bus


class Process:
    """A server in a process of its own, and the client at its pipes."""

    def __init__(self, directory: Path, *words: str, **environment: str) -> None:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("AGENTBUS_", "CLAUDE"))}
        self.popen = zygote.Popen(
            [zygote.COMMAND, "mcp", *words],
            cwd=directory,
            env={**inherited, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.answers: Queue[dict[str, Any] | None] = Queue()
        self._early: dict[Any, dict[str, Any]] = {}
        self._id = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.popen.stdout is not None
        with suppress(ValueError):
            for line in self.popen.stdout:
                self.answers.put(json.loads(line))
        self.answers.put(None)

    def write(self, text: bytes) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(text)
        self.popen.stdin.flush()

    def send(self, method: str, capabilities: dict[str, Any] | None = None, **params: Any) -> int:
        """Send a request, and return its id."""
        self._id += 1
        message = {"jsonrpc": "2.0", "id": self._id, "method": method, "params": with_meta(params, capabilities)}
        self.write(json.dumps(message).encode() + b"\n")
        return self._id

    def next(self, timeout: float = TIMEOUT) -> dict[str, Any]:
        """Return the next message of the server."""
        message = self.answers.get(timeout=timeout)
        assert message is not None, self.popen.stderr.read() if self.popen.stderr else ""
        return message

    def answer(self, id: int | None) -> dict[str, Any]:
        """Return the answer to a request; those to others are kept."""
        while id not in self._early:
            message = self.next()
            self._early[message.get("id")] = message
        return self._early.pop(id)

    def call(self, tool: str, **arguments: Any) -> Any:
        answer = self.answer(self.send("tools/call", name=tool, arguments=arguments))
        assert "isError" not in answer["result"], answer
        return content(answer["result"])

    def is_silent(self) -> bool:
        try:
            self._early.setdefault(None, self.answers.get_nowait() or {})
        except Empty:
            return True
        return False

    def end(self) -> tuple[int, bytes]:
        """Close the pipe. Return the exit code and what the server wrote on standard error."""
        assert self.popen.stdin is not None
        assert self.popen.stderr is not None
        with suppress(BrokenPipeError):
            self.popen.stdin.close()
        code = self.popen.wait(TIMEOUT)
        return code, self.popen.stderr.read()

    def kill(self) -> None:
        self.popen.kill()
        self.close()

    def close(self) -> None:
        """End the process if it still runs, and close its pipes."""
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait(TIMEOUT)
        self._reader.join(TIMEOUT)
        for stream in (self.popen.stdin, self.popen.stdout, self.popen.stderr):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()


class Processes:
    """Starts servers, and ends those that still run."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._started: list[Process] = []

    def __call__(self, *words: str, **environment: str) -> Process:
        process = Process(self._directory, *words, **environment)
        self._started.append(process)
        return process

    def close(self) -> None:
        for process in self._started:
            process.close()


@pytest.fixture
def start(directory: Path) -> Iterator[Processes]:
    """Start servers of the bus in the directory."""
    processes = Processes(directory)
    yield processes
    processes.close()
