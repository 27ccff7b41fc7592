"""Benchmark the HTTP server and the dashboard: ``python -m benchmarks.web``, or ``make bench BENCH_ARGS="--only web"``.

Gets and sends of 32 clients over HTTP, against the same calls in-process in the same run; the delay from a commit to
100 open dashboards, and their cost; and the time until a real browser shows the data of a large bus. The server runs in
a process of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import agentbus
from benchmarks.command import Options, Suite
from benchmarks.measure import Results, Series
from benchmarks.progress import Progress
from benchmarks.report import Check
from benchmarks.run import main

GET, SEND, DASHBOARDS, PAINT = "get", "send", "dashboards", "paint"
HTTP, LOCAL = "http", "in-process"
CLIENTS = 32
OPEN = 100
AGENTS, MESSAGES = 10_000, 100_000
MAX_PAINT = 1000.0
"""Milliseconds in which the data of a large bus must be seen, on an idle machine."""
_TOKENS = 4
"""Tokens that the dashboards share: each may have 32 streams."""
_BROWSERS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
_SCREENS = {"now": ".counts b", "agents": "[data-key]", "queues": "[data-key]", "messages": "[data-key]"}
"""Screens, and what shows that their data is there."""
_SEEN = """(found) => {
    const look = () => {
        if (window.seen || !document.querySelector(found)) return;
        requestAnimationFrame(() => requestAnimationFrame(() => { window.seen ??= performance.now(); }));
    };
    new MutationObserver(look).observe(document, { childList: true, subtree: true });
}"""
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


@asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[tuple[int, int, list[str]]]:
    """Serve the bus of a directory; yield the process, the port and tokens of the server."""
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVER, str(directory / "bus"), str(_TOKENS), stdout=subprocess.PIPE,
        env={**os.environ, "XDG_STATE_HOME": str(directory)},
    )  # fmt: skip
    try:
        assert server.stdout is not None
        port, tokens = json.loads(await server.stdout.readline())
        yield server.pid, port, tokens
    finally:
        server.terminate()
        await server.wait()


def measure(options: Options, directory: Path, results: Results, progress: Progress) -> dict[str, Any]:
    asyncio.run(_measure(options, directory, results, progress))
    return {"load": [round(one, 1) for one in os.getloadavg()]}


async def _measure(options: Options, directory: Path, results: Results, progress: Progress) -> None:
    progress.expect(len(options.chosen))
    async with agentbus.connect(str(directory / "bus")) as bus, AsyncExitStack() as stack:
        agent = await bus.register("bench", type="worker")
        if PAINT in options.chosen:
            progress.say("a large bus")
            await _fill(bus, agent, *((500, 5000) if options.quick else (AGENTS, MESSAGES)))
        pid, port, tokens = await stack.enter_async_context(serving(directory))
        for name in (GET, SEND):
            if name in options.chosen:
                progress.say(name)
                await _requests(name, bus, agent, port, tokens, options, results)
        if DASHBOARDS in options.chosen:
            progress.say(f"{OPEN} dashboards")
            await _dashboards(agent, pid, port, tokens, options.quick, results)
        if PAINT in options.chosen:
            progress.say("a browser")
            await _paint(port, tokens[0], options, results)


async def _requests(
    name: str,
    bus: agentbus.Bus,
    agent: agentbus.Agent,
    port: int,
    tokens: list[str],
    options: Options,
    results: Results,
) -> None:
    """Count the calls of concurrent clients, over HTTP and in-process in turn."""
    clients = [await Connection(port, tokens[0]).open() for _ in range(CLIENTS)]
    message = b'{"to":"bench","type":"note","payload":{"text":"' + b"x" * 200 + b'"}}'
    remote: list[Callable[[], Awaitable[object]]]
    local: Callable[[], Awaitable[object]]
    if name == GET:
        remote = [partial(one.call, "GET", "agents/bench") for one in clients]
        local = partial(bus.agents.get, "bench")
    else:
        remote = [partial(one.call, "POST", "agents/bench/send", message) for one in clients]
        local = partial(agent.send, "bench", "note", {"text": "x" * 200})
    over_http = results.add(Series(name, HTTP, "calls/s", title=f"HTTP, {CLIENTS} clients"))
    here = results.add(Series(name, LOCAL, "calls/s", title=f"in-process, {CLIENTS} callers"))
    for _ in range(1 if options.quick else options.rounds):
        over_http.values.append(await rate(remote, 0.5 if options.quick else 3.0))
        here.values.append(await rate([local] * CLIENTS, 0.5 if options.quick else 3.0))
    for one in clients:
        one.close()


async def _dashboards(
    agent: agentbus.Agent, pid: int, port: int, tokens: list[str], quick: bool, results: Results
) -> None:
    before = usage(pid)
    streams = [await Connection(port, tokens[number % _TOKENS]).open() for number in range(OPEN)]
    for one in streams:
        await one.ask("GET", "live")
        await one.reader.readuntil(b"event: change")
    await asyncio.sleep(1)
    idle, start = usage(pid), time.perf_counter()
    await asyncio.sleep(2 if quick else 15)
    after = usage(pid)
    load = (after[0] - idle[0]) / (time.perf_counter() - start) * 100
    first: list[float] = []
    last: list[float] = []
    for number in range(10 if quick else 100):
        mark = f'"delay-{number}"'.encode()
        seen: list[float] = []

        async def read(one: Connection, mark: bytes = mark, seen: list[float] = seen) -> None:
            await one.reader.readuntil(mark)
            seen.append(time.perf_counter())

        reading = [asyncio.ensure_future(read(one)) for one in streams]
        await agent.send("bench", "note", 1, message_id=f"delay-{number}")
        committed = time.perf_counter()
        await asyncio.gather(*reading)
        first.append(max(0.0, min(seen) - committed) * 1000)
        last.append((max(seen) - committed) * 1000)
        await asyncio.sleep(0.05)
    for title, unit, value in (
        ("CPU of the idle server", "% of a core", load),
        ("memory of the server", "MB", after[1]),
        ("memory for the dashboards", "MB", after[1] - before[1]),
        ("commit to the first dashboard, p50", "ms", statistics.median(first)),
        ("commit to the first dashboard, p99", "ms", _p99(first)),
        ("commit to the last dashboard, p50", "ms", statistics.median(last)),
        ("commit to the last dashboard, p99", "ms", _p99(last)),
    ):
        results.add(Series(DASHBOARDS, title, unit, title=title, values=[value]))
    for one in streams:
        one.close()


def _p99(values: list[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * 0.99))]


async def _fill(bus: agentbus.Bus, agent: agentbus.Agent, agents: int, messages: int) -> None:
    """Put agents and messages on the bus."""
    for start in range(0, agents, 500):
        await asyncio.gather(*(bus.expect(f"agent-{one:05}", type="worker") for one in range(start, start + 500)))
    for start in range(0, messages, 1000):
        await agent.send_many([
            (f"agent-{one % agents:05}", "note", {"n": one, "text": "x" * 80}) for one in range(start, start + 1000)
        ])  # fmt: skip


async def _paint(port: int, token: str, options: Options, results: Results) -> None:
    """Time real Chromium from the navigation until the frame after the data was drawn."""
    from playwright.async_api import async_playwright

    path = os.environ.get("AGENTBUS_BROWSER") or next((one for name in _BROWSERS if (one := shutil.which(name))), None)
    if path is None:
        raise RuntimeError("no Chromium is installed; set AGENTBUS_BROWSER")
    url = f"http://127.0.0.1:{port}/"
    series = {name: results.add(Series(PAINT, name, "ms", title=f"{name}: data on the screen")) for name in _SCREENS}
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        for _ in range(1 if options.quick else options.rounds):
            for name, found in _SCREENS.items():
                # A browser that has never been here, but for its cookie.
                context = await browser.new_context()
                await context.request.post(f"{url}api/v1/login", data={"token": token}, headers={"X-Agentbus": "1"})
                page = await context.new_page()
                await page.add_init_script(f"({_SEEN})({json.dumps(found)})")
                await page.goto(f"{url}#/{name}")
                seen = await page.wait_for_function("() => window.seen", timeout=60_000)
                series[name].values.append(float(await seen.json_value()))
                await context.close()
        await browser.close()


def checks(results: Results) -> list[Check]:
    found = []
    for name in (GET, SEND):
        ratio = results.ratio_of_medians(name, HTTP, LOCAL)
        if ratio is not None:
            found.append(Check(f"{name} over HTTP, against in-process", ratio, "x"))
    for series in results.of(PAINT):
        found.append(Check(f"{series.contestant}: data on the screen", series.median, "ms", most=MAX_PAINT))
    return found


SUITE = Suite(
    name="web",
    title="The HTTP server and the dashboard",
    about="Measure requests, open dashboards and a real browser against a server in a process of its own.",
    choices=(GET, SEND, DASHBOARDS, PAINT),
    rate="calls/s",
    titles={GET: "get an agent", SEND: "send a message", DASHBOARDS: f"{OPEN} open dashboards", PAINT: "first paint"},
    notes=lambda: (
        f"Paint: {AGENTS:,} agents and {MESSAGES:,} messages, a browser without a cache, from the navigation until the "
        "frame after the data was drawn.",
    ),
    measure=measure,
    checks=checks,
    long=frozenset({GET, SEND, DASHBOARDS, PAINT}),
)

if __name__ == "__main__":
    sys.exit(main(SUITE))
