"""The MCP server over stdio: start-up, memory and calls, against the command line and the official SDK in one run.

``python -m benchmarks.mcp`` prints a table. The SDK is measured if ``make conformance`` has installed it.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
COMMAND = str(Path(sys.executable).with_name("agentbus"))
SDK = ROOT / "build" / "conformance" / "venv" / "bin" / "python"
ROUNDS = 11
CALLS = 500
META = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
# A tool that does nothing, written with the SDK as its documentation shows.
SDK_SERVER = """
import anyio
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp_types import CallToolResult, ListToolsResult, TextContent, Tool

async def list_tools(ctx, params):
    return ListToolsResult(tools=[Tool(name="state", description="", input_schema={"type": "object"})])

async def call_tool(ctx, params):
    return CallToolResult(content=[TextContent(type="text", text="{}")])

async def main():
    server = Server("sdk", on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())

anyio.run(main)
"""


class Server:
    """A server at two pipes."""

    def __init__(self, words: Sequence[str], directory: str) -> None:
        self.started = time.perf_counter()
        self.process = subprocess.Popen(
            list(words), cwd=directory, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": META}}
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        assert "result" in answer, answer
        return answer

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        return self.ask("tools/call", name=tool, arguments=arguments)

    def memory(self) -> float:
        """Return the resident memory in MB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def milliseconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return (time.perf_counter() - begun) * 1000


def command(directory: str) -> dict[str, float]:
    words = [COMMAND, "send", "a", "note", "1", "--agent", "a"]
    done = lambda: subprocess.run(words, cwd=directory, check=True, capture_output=True)  # noqa: E731
    return {"first answer": milliseconds(done)}


def own(directory: str) -> dict[str, float]:
    server = Server([COMMAND, "mcp"], directory)
    server.ask("server/discover")
    figures = {"first answer": (time.perf_counter() - server.started) * 1000}
    server.call("join", name=f"agent-{os.urandom(4).hex()}")
    figures["first call"] = (time.perf_counter() - server.started) * 1000
    server.call("state", action="set", key="k", value=1)
    get = [milliseconds(lambda: server.call("state", action="get", key="k")) for _ in range(CALLS)]
    send = [milliseconds(lambda: server.call("send", to="a", payload={"text": "x"})) for _ in range(CALLS // 10)]
    figures |= {"call that reads": statistics.median(get), "call that sends": statistics.median(send)}
    figures["memory"] = server.memory()
    server.close()
    return figures


def sdk(directory: str) -> dict[str, float]:
    server = Server([str(SDK), "-c", SDK_SERVER], directory)
    server.ask("server/discover")
    figures = {"first answer": (time.perf_counter() - server.started) * 1000}
    server.call("state")
    figures["first call"] = (time.perf_counter() - server.started) * 1000
    get = [milliseconds(lambda: server.call("state")) for _ in range(CALLS)]
    figures |= {"call that does nothing": statistics.median(get), "memory": server.memory()}
    server.close()
    return figures


def main() -> None:
    contestants: dict[str, Callable[[str], dict[str, float]]] = {"agentbus send": command, "agentbus mcp": own}
    if SDK.exists():
        contestants["mcp SDK"] = sdk
    found: dict[str, dict[str, list[float]]] = {name: {} for name in contestants}
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run([COMMAND, "init"], cwd=directory, check=True, capture_output=True)
        subprocess.run([COMMAND, "register", "a", "--type", "worker"], cwd=directory, check=True, capture_output=True)
        for _ in range(ROUNDS):
            # They take turns, so that a burst of other load affects all of them.
            for name, measure in contestants.items():
                for figure, value in measure(directory).items():
                    found[name].setdefault(figure, []).append(value)
        server = Server([COMMAND, "mcp"], directory)
        text = json.dumps(server.ask("tools/list")["result"]["tools"], separators=(",", ":"))
        server.close()
    print(f"tools/list: {len(text)} characters")
    for name, figures in found.items():
        for figure, values in figures.items():
            unit = "MB" if figure == "memory" else "ms"
            print(f"{name:14} {figure:24} {statistics.median(values):8.2f} {unit}  (best {min(values):.2f})")


if __name__ == "__main__":
    main()
