"""The story: a team plans and works, one of it is killed, then all of it; nothing is lost, nothing is done twice.

Whatever is told is read from the bus. The narrator only starts and kills processes, runs a monitor, and recovers.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import anyio
import msgspec

from agentbus.addresses import pool
from agentbus.bus import Bus
from agentbus.errors import AgentBusError
from agentbus.interfaces.demo.stage import Player, Stage
from agentbus.interfaces.demo.team import names
from agentbus.records import EventRecord, MessageRecord

T = TypeVar("T")

WORKERS = 3
PATIENCE = 60.0
INTERVAL = 0.5
"""Seconds between two looks of the monitor."""


class PlotLost(AgentBusError):
    """The story did not go on."""

    code = "demo_failed"
    text = "the demo came to a halt: not within {seconds} s: {what}"
    fix_text = "try again on a machine with less to do; if it stays so, please report it"


class Figures(msgspec.Struct):
    """What the bus knows in the end. ``acknowledged`` are the tasks of which a worker heard that they are committed;
    ``deliveries`` counts how often a task was handed out."""

    planned: int
    done: int
    acknowledged: int
    lost: int
    twice: int
    undone: int
    deliveries: int
    noticed: float
    """Seconds from the death of one worker to the monitor's word."""
    interrupted: float
    """The same for the whole team."""
    session: str
    seconds: float

    @property
    def holds(self) -> bool:
        """Whether the promise was kept."""
        return (self.lost, self.twice, self.undone, self.session) == (0, 0, 0, "completed")


class Story:
    """``tell(chapter, text)`` is given each step as it happens."""

    def __init__(self, bus: Bus, stage: Stage, url: str, suffix: str, pace: float, tell: Callable[[str, str], None]):
        self._bus = bus
        self._stage = stage
        self._url = url
        self._suffix = suffix
        self._pace = pace
        self._tell = tell
        called = names(suffix)
        self._session = called["demo"]
        self._pool = called["workers"]
        self._coordinator = called["coordinator"]
        self._workers = [f"worker-{number}{suffix}" for number in range(1, WORKERS + 1)]

    async def run(self) -> Figures:
        begun = time.monotonic()
        async with self._bus.monitor(interval=INTERVAL):
            team = await self._begin()
            noticed = await self._kill_one(team)
            interrupted = await self._kill_all(team)
            await self._recover()
            await self._finish()
        return await self._count(noticed, interrupted, time.monotonic() - begun)

    async def _begin(self) -> list[Player]:
        await self._bus.declare(pool(self._pool))
        team = await self._start()
        pids = ", ".join(f"{player.name} {player.pid}" for player in team)
        self._tell("plan", f"{len(team)} processes: {pids}")
        await self._until(self._planned, "the plan is there")
        tasks = await self._plan()
        self._tell(
            "plan", f"{self._coordinator} hands {len(tasks)} tasks to a pool of {WORKERS} workers, in one commit"
        )
        await self._until(self._has_done(len(tasks) // 4), "a quarter is done")
        self._tell("work", f"{len(await self._counts())} of {len(tasks)} tasks are done")
        return team

    async def _kill_one(self, team: list[Player]) -> float:
        """Kill a worker in the middle of a task; how long it took until that was noticed."""
        victim = team[2]
        before = await self._held_by(victim.name)
        held = await self._until(lambda: self._held_by(victim.name, before), f"{victim.name} begins a task")
        await anyio.sleep(self._pace / 3)
        since = self._now()
        victim.kill()
        task = held.payload["task"]
        self._tell("kill -9", f"{victim.name} (process {victim.pid}), in the middle of {task}")
        event = await self._until(lambda: self._event("agent_failed", victim.name, since), "it is noticed")
        noticed = (event.at - since) / 1000
        self._tell("monitor", f"{victim.name} failed: {event.facts['error']} (noticed after {noticed:.2f} s)")
        author = await self._until(lambda: self._author(task), f"{task} is done")
        record = await self._message(held.message_id)
        self._tell("work", f"{task} went back to the queue; {author} did it (hand-over {record.attempts})")
        return noticed

    async def _kill_all(self, team: list[Player]) -> float:
        half = len(await self._plan()) // 2
        await self._until(self._has_done(half), "half is done")
        since = self._now()
        left = [player for player in team if player.code is None]
        for player in left:
            player.kill()
        self._tell("kill -9", f"everybody: {', '.join(player.name for player in left)}")
        event = await self._until(
            lambda: self._event("session_interrupted", self._session, since), "the session is interrupted"
        )
        interrupted = (event.at - since) / 1000
        done = len(await self._counts())
        self._tell("monitor", f"session {self._session} is interrupted (noticed after {interrupted:.2f} s)")
        self._tell("monitor", f"{done} tasks are done, and stay so")
        return interrupted

    async def _recover(self) -> None:
        plan = await self._bus.recovery.plan(self._session)
        for agent in plan.agents:
            if agent.checkpoint is not None:
                saved = f"its last checkpoint is {agent.checkpoint.name!r} ({agent.checkpoint.id})"
                self._tell("recover", f"{agent.id} {agent.status}; {saved}")
        actions = [option.action for option in plan.options]
        self._tell("recover", f"what can be done, the likeliest first: {', '.join(actions)}")
        resumed = await plan.resume()
        self._tell("recover", f"resumed; the session waits for {', '.join(resumed.agents)}")

    async def _finish(self) -> None:
        team = await self._start()
        for player in team:
            checkpoint, known = player.words("ready")[0]
            self._tell(
                "work", f"{player.name} is back, process {player.pid}, from checkpoint {checkpoint}: {known} tasks"
            )
        await self._until(lambda: _all(player.code is not None for player in team), "everybody is through")

    async def _count(self, noticed: float, interrupted: float, seconds: float) -> Figures:
        tasks, done = await self._plan(), await self._counts()
        acknowledged = {task for player in self._stage.players for (task,) in player.words("done")}
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
            noticed=noticed,
            interrupted=interrupted,
            session="gone" if record is None else record.status,
            seconds=round(seconds, 1),
        )

    # What the bus says

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
        assert record is not None  # noqa: S101 - nobody deletes it
        return record

    async def _held_by(self, agent: str, other: MessageRecord | None = None) -> MessageRecord | None:
        """What an agent is at, if it is not that other task any more."""
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
        return self._bus.engine.clock.now().wall

    # Making it go on

    async def _start(self) -> list[Player]:
        coordinator = self._stage.start(self._coordinator, self._url, "coordinator", self._suffix)
        # The session that the workers take part in must be there.
        await self._until(lambda: _all([coordinator.words("ready")]), "the coordinator is there")
        workers = [
            self._stage.start(name, self._url, "worker", self._suffix, name, str(self._pace)) for name in self._workers
        ]
        await self._until(lambda: _all(player.words("ready") for player in workers), "the workers are there")
        return [coordinator, *workers]

    async def _until(self, look: Callable[[], Awaitable[T | None]], what: str) -> T:
        """Look at the bus until there is something to be seen."""
        deadline = time.monotonic() + PATIENCE
        while not (found := await look()):
            if time.monotonic() > deadline:
                raise PlotLost(what=what, seconds=PATIENCE)
            await anyio.sleep(0.02)
        return found


async def _all(conditions: Iterable[object]) -> bool:
    return all(conditions)
