"""The story of the demo: one worker of a team is killed, then all; no acknowledged work is lost or repeated.

It starts and kills processes, runs a monitor, and recovers the session. All figures are read from the bus.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import anyio
import msgspec

from agentbus.api.bus import Bus
from agentbus.cli.demo.team import DemoProcess, Processes, names
from agentbus.core.addresses import pool
from agentbus.errors import AgentBusError
from agentbus.records import EventRecord, MessageRecord

T = TypeVar("T")

WORKERS = 3
TIMEOUT = 60.0
INTERVAL = 0.5
"""Seconds between sweeps of the monitor."""


class DemoStuck(AgentBusError):
    """The demo did not reach its next step in time."""

    code = "demo_failed"
    text = "the demo did not continue within {seconds} s: {what}"
    fix_text = "try again on a less loaded machine; if it fails again, please report it"


class Figures(msgspec.Struct):
    """The figures at the end. ``acknowledged`` counts the tasks whose commit was confirmed to a worker, ``deliveries``
    the deliveries of tasks."""

    planned: int
    done: int
    acknowledged: int
    lost: int
    twice: int
    undone: int
    deliveries: int
    noticed: float
    """Seconds from the death of one worker to its detection."""
    interrupted: float
    """The same for the whole team."""
    session: str
    seconds: float

    @property
    def holds(self) -> bool:
        """True if no guarantee was violated."""
        return (self.lost, self.twice, self.undone, self.session) == (0, 0, 0, "completed")


class Story:
    """The sequence of the demo. ``narrate(chapter, text)`` is called for each step."""

    def __init__(
        self, bus: Bus, processes: Processes, url: str, suffix: str, pace: float, narrate: Callable[[str, str], None]
    ):
        self._bus = bus
        self._processes = processes
        self._url = url
        self._suffix = suffix
        self._pace = pace
        self._narrate = narrate
        ids = names(suffix)
        self._session = ids["demo"]
        self._pool = ids["workers"]
        self._coordinator = ids["coordinator"]
        self._workers = [f"worker-{number}{suffix}" for number in range(1, WORKERS + 1)]

    async def run(self) -> Figures:
        started = time.monotonic()
        async with self._bus.monitor(interval=INTERVAL):
            team = await self._plan_and_work()
            detected = await self._kill_one(team)
            interrupted = await self._kill_all(team)
            await self._recover()
            await self._finish()
        return await self._count(detected, interrupted, time.monotonic() - started)

    async def _plan_and_work(self) -> list[DemoProcess]:
        await self._bus.declare(pool(self._pool))
        team = await self._start()
        pids = ", ".join(f"{process.name} {process.pid}" for process in team)
        self._narrate("plan", f"{len(team)} processes: {pids}")
        await self._until(self._planned, "the plan exists")
        tasks = await self._plan()
        self._narrate(
            "plan", f"{self._coordinator} sends {len(tasks)} tasks to a pool of {WORKERS} workers in one commit"
        )
        await self._until(self._has_done(len(tasks) // 4), "a quarter of the tasks is completed")
        self._narrate("work", f"{len(await self._counts())} of {len(tasks)} tasks completed")
        return team

    async def _kill_one(self, team: list[DemoProcess]) -> float:
        """Kill a worker during a task. Return the seconds until its death was detected."""
        victim = team[2]
        before = await self._held_by(victim.name)
        held = await self._until(lambda: self._held_by(victim.name, before), f"{victim.name} starts a task")
        await anyio.sleep(self._pace / 3)
        since = self._now()
        victim.kill()
        task = held.payload["task"]
        self._narrate("kill -9", f"{victim.name} (process {victim.pid}), during {task}")
        event = await self._until(lambda: self._event("agent_failed", victim.name, since), "the death is detected")
        detected = (event.at - since) / 1000
        self._narrate("monitor", f"{victim.name} failed: {event.facts['error']} (detected after {detected:.2f} s)")
        author = await self._until(lambda: self._author(task), f"{task} is completed")
        record = await self._message(held.message_id)
        self._narrate("work", f"{task} was redelivered; {author} completed it (delivery {record.attempts})")
        return detected

    async def _kill_all(self, team: list[DemoProcess]) -> float:
        half = len(await self._plan()) // 2
        await self._until(self._has_done(half), "half of the tasks is completed")
        since = self._now()
        left = [process for process in team if process.code is None]
        for process in left:
            process.kill()
        self._narrate("kill -9", f"all processes: {', '.join(process.name for process in left)}")
        event = await self._until(
            lambda: self._event("session_interrupted", self._session, since), "the session is interrupted"
        )
        interrupted = (event.at - since) / 1000
        done = len(await self._counts())
        self._narrate("monitor", f"session {self._session} is interrupted (detected after {interrupted:.2f} s)")
        self._narrate("monitor", f"{done} tasks are completed")
        return interrupted

    async def _recover(self) -> None:
        plan = await self._bus.recovery.plan(self._session)
        for agent in plan.agents:
            if agent.checkpoint is not None:
                saved = f"last checkpoint {agent.checkpoint.name!r} ({agent.checkpoint.id})"
                self._narrate("recover", f"{agent.id} {agent.status}; {saved}")
        actions = [option.action for option in plan.options]
        self._narrate("recover", f"options, the likeliest first: {', '.join(actions)}")
        resumed = await plan.resume()
        self._narrate("recover", f"resumed; waiting for {', '.join(resumed.agents)}")

    async def _finish(self) -> None:
        team = await self._start()
        for process in team:
            checkpoint, known = process.reports("ready")[0]
            self._narrate(
                "work", f"{process.name} is back (process {process.pid}), from checkpoint {checkpoint}: {known} tasks"
            )
        await self._until(lambda: _all(process.code is not None for process in team), "all processes have ended")

    async def _count(self, detected: float, interrupted: float, seconds: float) -> Figures:
        tasks, done = await self._plan(), await self._counts()
        acknowledged = {task for process in self._processes.started for (task,) in process.reports("done")}
        record = await self._bus.sessions.get(self._session)
        messages = [one for one in await self._messages() if one.payload["task"] in tasks]
        return Figures(
            planned=len(tasks),
            done=len(done),
            acknowledged=len(acknowledged),
            lost=len(acknowledged - done.keys()),
            twice=sum(count > 1 for count in done.values()),
            undone=len(set(tasks) - done.keys()) + sum(one.status != "acked" for one in messages),
            deliveries=sum(one.attempts for one in messages),
            noticed=detected,
            interrupted=interrupted,
            session="deleted" if record is None else record.status,
            seconds=round(seconds, 1),
        )

    # Queries

    async def _plan(self) -> list[str]:
        session = await self._bus.sessions.open(self._session)
        tasks: list[str] = await session.document("plan").latest()
        return tasks

    async def _planned(self) -> bool:
        return bool(await self._messages())

    async def _messages(self) -> list[MessageRecord]:
        page = await self._bus.messages.list(session=self._session, type="task_assignment", limit=1000)
        return page.items

    async def _message(self, message_id: str) -> MessageRecord:
        record = await self._bus.messages.get(message_id)
        assert record is not None  # noqa: S101 - it is not deleted
        return record

    async def _held_by(self, agent: str, other: MessageRecord | None = None) -> MessageRecord | None:
        """Return the task that an agent holds, unless it is ``other``."""
        page = await self._bus.messages.list(session=self._session, type="task_assignment", status="leased")
        mine = [one for one in page.items if one.holder == agent and (other is None or one.id != other.id)]
        return mine[0] if mine else None

    async def _counts(self) -> dict[str, int]:
        page = await self._bus.state(self._session).list(limit=1000)
        return {entry.key: entry.value for entry in page.items}

    async def _author(self, task: str) -> str | None:
        entry = await self._bus.state(self._session).entry(task)
        return None if entry is None else entry.author

    def _has_done(self, count: int) -> Callable[[], Awaitable[bool]]:
        async def enough() -> bool:
            return len(await self._counts()) >= count

        return enough

    async def _event(self, kind: str, subject: str, since: int) -> EventRecord | None:
        async for event in self._bus.events(kind=kind):
            if event.subject == subject and event.at >= since:
                return event
        return None

    def _now(self) -> int:
        return self._bus._engine.clock.now().wall

    # Processes

    async def _start(self) -> list[DemoProcess]:
        coordinator = self._processes.start(self._coordinator, self._url, "coordinator", self._suffix)
        # The session that the workers join must exist.
        await self._until(lambda: _all([coordinator.reports("ready")]), "the coordinator is ready")
        workers = [
            self._processes.start(name, self._url, "worker", self._suffix, name, str(self._pace))
            for name in self._workers
        ]
        await self._until(lambda: _all(process.reports("ready") for process in workers), "the workers are ready")
        return [coordinator, *workers]

    async def _until(self, query: Callable[[], Awaitable[T | None]], what: str) -> T:
        """Query the bus until the result is true."""
        deadline = time.monotonic() + TIMEOUT
        while not (found := await query()):
            if time.monotonic() > deadline:
                raise DemoStuck(what=what, seconds=TIMEOUT)
            await anyio.sleep(0.02)
        return found


async def _all(conditions: Iterable[object]) -> bool:
    return all(conditions)
