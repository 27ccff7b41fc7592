"""The HTTP benchmark: ``python -m benchmarks.web [--quick]``. Tables in Markdown on stdout.

Requests per second of 32 clients over HTTP, against the same calls in-process in the same run; the delay from a commit
to a dashboard; and the cost of 100 open dashboards. The server runs in a process of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import agentbus

CLIENTS = 32
DASHBOARDS = 100
_TOKENS = 4
"""Tokens that the dashboards share: each may have 32 streams."""
SERVER = """
import asyncio, json, sys
import agentbus
from agentbus.web.server import ServerSettings, serve
async def main():
    async with agentbus.connect(sys.argv[1]) as bus:
        tokens = [(await bus.tokens.create("operate", operator="bench")).secret for _ in range(int(sys.argv[2]))]
        say = lambda ready: print(json.dumps([ready.port, tokens]), flush=True)
        await serve(bus, ServerSettings(port=0, monitor=False), "bench", say)
asyncio.run(main())
"""


class Connection:
    """A connection that is kept alive, as API clients do."""

    def __init__(self, port: int, token: str) -> None:
        self._port = port
        self._head = f"host: 127.0.0.1:{port}\r\nauthorization: Bearer {token}\r\ncontent-type: application/json\r\n"

    async def open(self) -> Connection:
        self.reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    def close(self) -> None:
        self._writer.close()

    async def call(self, method: str, path: str, body: bytes = b"") -> bytes:
        await self.ask(method, path, body)
        head = await self.reader.readuntil(b"\r\n\r\n")
        assert head.split()[1] in {b"200", b"201"}, head
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        return await self.reader.readexactly(length)

    async def ask(self, method: str, path: str, body: bytes = b"") -> None:
        size = f"content-length: {len(body)}\r\n" if body else ""
        self._writer.write(f"{method} /api/v1/{path} HTTP/1.1\r\n{self._head}{size}\r\n".encode() + body)
        await self._writer.drain()


async def rate(calls: list[Callable[[], Awaitable[object]]], seconds: float) -> float:
    """Return the calls per second of concurrent callers."""
    end = time.perf_counter() + seconds
    done = 0

    async def repeat(call: Callable[[], Awaitable[object]]) -> None:
        nonlocal done
        while time.perf_counter() < end:
            await call()
            done += 1

    start = time.perf_counter()
    await asyncio.gather(*(repeat(call) for call in calls))
    return done / (time.perf_counter() - start)


def usage(pid: int) -> tuple[float, float]:
    """Return the CPU seconds and the megabytes of a process."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(") ")[2].split()
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        pages = int(file.read().split()[1])
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), pages * os.sysconf("SC_PAGE_SIZE") / 2**20


async def measure(directory: Path, quick: bool) -> None:
    seconds = 1.0 if quick else 5.0
    url = str(directory / "bus")
    async with agentbus.connect(url) as bus, AsyncExitStack() as stack:
        agent = await bus.register("bench", type="worker")
        server = await asyncio.create_subprocess_exec(
            sys.executable, "-c", SERVER, url, str(_TOKENS), stdout=subprocess.PIPE,
            env={**os.environ, "XDG_STATE_HOME": str(directory)},
        )  # fmt: skip
        stack.push_async_callback(server.wait)
        stack.callback(server.terminate)
        assert server.stdout is not None
        port, tokens = json.loads(await server.stdout.readline())
        clients = [await Connection(port, tokens[0]).open() for _ in range(CLIENTS)]
        message = b'{"to":"bench","type":"note","payload":{"text":"' + b"x" * 200 + b'"}}'
        payload = {"text": "x" * 200}
        print(f"| {CLIENTS} clients | HTTP, a second | in-process, a second | ratio |\n|---|---|---|---|")
        measured: dict[str, tuple[list[Callable[[], Awaitable[object]]], Callable[[], Awaitable[object]]]] = {
            "get an agent": (
                [partial(one.call, "GET", "agents/bench") for one in clients], partial(bus.agents.get, "bench"),
            ),
            "send a message": (
                [partial(one.call, "POST", "agents/bench/send", message) for one in clients],
                partial(agent.send, "bench", "note", payload),
            ),
        }  # fmt: skip
        for name, (remote, local) in measured.items():
            over_http = await rate(remote, seconds)
            here = await rate([local] * CLIENTS, seconds)
            print(f"| {name} | {over_http:,.0f} | {here:,.0f} | {over_http / here:.2f} |")
        for one in clients:
            one.close()
        await dashboards(bus, agent, server.pid, port, tokens, quick)


async def dashboards(
    bus: agentbus.Bus, agent: agentbus.Agent, pid: int, port: int, tokens: list[str], quick: bool
) -> None:
    before = usage(pid)
    streams = [await Connection(port, tokens[number % _TOKENS]).open() for number in range(DASHBOARDS)]
    for one in streams:
        await one.ask("GET", "live")
        await one.reader.readuntil(b"event: change")
    await asyncio.sleep(1)
    idle, start = usage(pid), time.perf_counter()
    await asyncio.sleep(3 if quick else 15)
    after = usage(pid)
    load = (after[0] - idle[0]) / (time.perf_counter() - start) * 100
    delays: list[float] = []
    for number in range(20 if quick else 100):
        mark = f"delay-{number}"
        seen = [asyncio.ensure_future(one.reader.readuntil(f'"{mark}"'.encode())) for one in streams]
        start = time.perf_counter()
        await agent.send("bench", "note", 1, message_id=mark)
        committed = time.perf_counter()
        await asyncio.gather(*seen)
        delays.append((time.perf_counter() - committed) * 1000)
        assert committed >= start
        await asyncio.sleep(0.05)
    ordered = sorted(delays)
    print(f"\n| {DASHBOARDS} open dashboards | |\n|---|---|")
    print(f"| CPU of the server while idle | {load:.2f} % of a core |")
    print(f"| memory of the server | {after[1]:.0f} MB, {after[1] - before[1]:+.1f} MB for the dashboards |")
    print(f"| commit to the last dashboard, p50 | {statistics.median(ordered):.0f} ms |")
    print(f"| commit to the last dashboard, p99 | {ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]:.0f} ms |")
    for one in streams:
        one.close()


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="agentbus-bench-") as directory:
        asyncio.run(measure(Path(directory), "--quick" in sys.argv))


if __name__ == "__main__":
    main()
