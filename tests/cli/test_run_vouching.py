"""What ``agentbus run`` says of its command to the bus, with a guard of the test's own."""

from __future__ import annotations

import json
import signal
import socket
from typing import Any, cast

import anyio

from agentbus import Bus, pool
from agentbus.interfaces.running.guard import Guard, Line
from agentbus.interfaces.running.job import Ended, Job
from agentbus.interfaces.running.resident import Resident
from agentbus.interfaces.running.streams import Streams, Tail
from tests.support.clock import FakeClock


class Pretender:
    """A guard and streams without a process: what it was told, and reports that the test makes."""

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

    types = False
    attached = False

    def attach(self) -> bool:
        return False

    def detach(self) -> None: ...

    def forget(self) -> None: ...

    def finish(self, seconds: float | None = None) -> None: ...

    def end(self) -> None:
        self.line.socket.close()
        self._its.close()


def resident(bus: Bus, pretender: Pretender, **options: Any) -> Resident:
    job = Job(["sleep"], {}, "a", "worker", {"pools": ["p"]}, **options)
    return Resident(bus, cast(Guard, pretender), cast(Streams, pretender), job, print)


async def looked(condition: Any) -> None:
    with anyio.fail_after(30):
        while not condition():  # noqa: ASYNC110 - nobody tells it
            await anyio.sleep(0.005)


async def test_a_command_that_stands_still_is_not_vouched_for(bus: Bus) -> None:
    pretender = Pretender()
    run = resident(bus, pretender)
    ended: list[Any] = []

    async def go() -> None:
        ended.append(await run.run())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(go)
        await looked(lambda: pretender.told == ["a#1"])
        pretender.report(started=1234)
        await looked(lambda: run.agent.waiting == 1)
        # By hand, not by a key: then we go on, and say nothing in its favour.
        pretender.report(stopped=signal.SIGSTOP)
        await looked(lambda: run.agent.waiting == 0)
        pretender.report(continued=1)
        await looked(lambda: run.agent.waiting == 1)
        pretender.report(exited=3)
    (end,) = ended
    assert isinstance(end, Ended)
    assert (end.status, end.code, run.agent.waiting) == ("failed", 3, 0)
    record = await bus.agents.get("a")
    assert record is not None
    assert record.error == "exit code 3: bye"


async def test_what_the_command_holds_stays_its_own_while_it_runs(bus: Bus, clock: FakeClock) -> None:
    """However long it thinks between two calls."""
    pretender = Pretender()
    run = resident(bus, pretender, lease=0.1)
    async with bus.agent("other", type="worker", pools=["p"]) as other, anyio.create_task_group() as tasks:
        tasks.start_soon(run.run)
        await looked(lambda: pretender.told == ["a#1"])
        pretender.report(started=1234)
        await looked(lambda: run.agent.waiting == 1)
        await other.send(pool("p"), "note", 1)
        message = await run.agent.receive(timeout=0, lease=0.1)
        assert message is not None
        for _ in range(5):
            clock.advance(0.09)
            # At least one visit begins and ends: they come every 25 milliseconds of real time.
            await anyio.sleep(0.1)
            assert await other.receive(timeout=0) is None
        pretender.report(stopped=signal.SIGSTOP)
        await looked(lambda: run.agent.waiting == 0)
        clock.advance(0.2)
        again = await other.receive(timeout=0)
        assert again is not None
        await again.ack()
        pretender.report(exited=0)
