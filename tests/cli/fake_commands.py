"""A run whose command the test pretends to be."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio

from agentbus import Bus
from agentbus.cli.run.agent import Job, Resident
from agentbus.cli.run.supervisor import Line, Supervisor
from agentbus.cli.run.terminal import Streams, Tail


class Pretender:
    """A supervisor and streams without a process: they record calls, and the test makes the reports."""

    def __init__(self) -> None:
        ours, self._its = socket.socketpair()
        self.line = Line(ours)
        self.pid = 1
        self.told: list[Any] = []
        self.tail = Tail()
        self.last_line = "bye"

    def report(self, **message: int) -> None:
        self._its.sendall(json.dumps(message).encode() + b"\n")

    def start(self, command: list[str], environment: dict[str, str]) -> None:
        self.told.append(environment["AGENTBUS_AGENT"])

    def signal(self, number: int, *, group: bool) -> None:
        self.told.append((number, group))

    def terminal(self, taken: bool) -> None: ...

    interactive = False
    attached = False

    def attach(self) -> bool:
        return False

    def detach(self) -> None: ...

    def clear(self) -> None: ...

    def finish(self, seconds: float | None = None) -> None: ...

    def end(self) -> None:
        self.line.socket.close()
        self._its.close()


def resident(bus: Bus, pretender: Pretender, **options: Any) -> Resident:
    job = Job(["sleep"], {}, "a", "worker", {"pools": ["p"]}, **options)
    return Resident(bus, cast(Supervisor, pretender), cast(Streams, pretender), job, print)


async def looked(condition: Any) -> None:
    with anyio.fail_after(60):
        while not condition():  # noqa: ASYNC110 - there is no event to wait for
            await anyio.sleep(0.005)


@asynccontextmanager
async def going(run: Resident, pretender: Pretender) -> AsyncIterator[list[Any]]:
    """A run whose command has begun; how it ended is in the list after the block."""
    ended: list[Any] = []

    async def go() -> None:
        ended.append(await run.run())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(go)
        await looked(lambda: pretender.told == ["a#1"])
        pretender.report(started=1234)
        await looked(lambda: run.agent._waiting == 1)
        yield ended
