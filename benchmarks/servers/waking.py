"""Waking up: how long a message takes from its sender to a receiver that has been waiting, both on connections of
their own and nothing else going on."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import asyncpg

import agentbus
from benchmarks.measure import Progress, Results, Series
from benchmarks.servers.contestants import CLAIM, INSERT, PlainAsyncpg, Procrastinate, contestants, fresh_url

PAUSE = 0.02
UNIT = "ms, p50"


async def _measured(send: Callable[[float], Awaitable[None]], received: asyncio.Queue[float], count: int) -> float:
    """The median in milliseconds; what is received is when it was sent."""
    times: list[float] = []
    for number in range(count + 5):
        await asyncio.sleep(PAUSE)
        await send(time.perf_counter())
        sent = await received.get()
        if number >= 5:
            times.append((time.perf_counter() - sent) * 1000)
    return statistics.median(times)


async def _bus(count: int) -> float:
    url = fresh_url()
    async with agentbus.connect(url) as one, agentbus.connect(url) as other:
        sender, reader = await one.register("s", type="worker"), await other.register("r", type="worker")
        received: asyncio.Queue[float] = asyncio.Queue()

        async def read() -> None:
            while True:
                message = await reader.receive()
                assert message is not None
                received.put_nowait(message.payload)
                await message.ack()

        task = asyncio.create_task(read())

        async def send(moment: float) -> None:
            await sender.send("r", "note", moment)

        try:
            return await _measured(send, received, count)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def _plain(count: int) -> float:
    """An insert, then a notification; whoever listens claims."""
    url = fresh_url()
    async with agentbus.connect(url) as bus:
        await bus.expect("r", type="worker")
    dsn, _, schema = url.partition("&schema=")
    connections = [await asyncpg.connect(dsn, server_settings={"search_path": schema}) for _ in range(3)]
    sender, listener, claimer = connections
    mailbox = await sender.fetchval("SELECT mailbox FROM agents")
    received: asyncio.Queue[float] = asyncio.Queue()
    rung = asyncio.Event()

    def ring(*_: Any) -> None:
        rung.set()

    await listener.add_listener("bench", ring)

    async def read() -> None:
        while True:
            await rung.wait()
            rung.clear()
            for id, payload in await claimer.fetch(CLAIM, mailbox, 1):
                received.put_nowait(json.loads(payload))
                await claimer.execute("UPDATE messages SET status = 'acked', finished = 0 WHERE id = $1", id)

    task = asyncio.create_task(read())

    async def send(moment: float) -> None:
        await sender.execute(INSERT, mailbox, json.dumps(moment), 0)
        await sender.execute("NOTIFY bench")

    try:
        return await _measured(send, received, count)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for connection in connections:
            await connection.close()


async def _jobs(count: int) -> float:
    async with Procrastinate().open(Path(), 1) as (box,):
        received: asyncio.Queue[float] = asyncio.Queue()

        async def read() -> None:
            while True:
                message = await box.receive()
                received.put_nowait(box.payload(message))
                await box.ack(message)

        task = asyncio.create_task(read())
        try:
            return await _measured(box.send, received, count)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def measure(rounds: int, count: int, results: Results, progress: Progress) -> None:
    """Each in turn, round after round."""
    series = {
        about.key: results.add(Series("wake", about.key, UNIT, title=f"idle wake-up: {about.title}"))
        for about in contestants()
    }
    runs = {"agentbus": _bus, PlainAsyncpg().key: _plain, Procrastinate().key: _jobs}
    for number in range(1, rounds + 1):
        for key, one in series.items():
            progress.say(f"waking up: round {number} of {rounds}, {key}")
            one.values.append(asyncio.run(runs[key](count)))
