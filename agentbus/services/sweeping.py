"""One pass over the bus: gather evidence, judge, tidy up, and say what was found.

What is quiet costs a few indexed look-ups, and writes nothing. Any number of processes may sweep at once, and be killed
in the middle of it: every step is one commit, and the next sweep, by whomever, goes on from there.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

import msgspec

from agentbus.engine import presence
from agentbus.engine.interface import Engine
from agentbus.operations.events import EventFilter, last_event, read_events
from agentbus.operations.liveness import JudgeRequest, Rules, convict, suspect
from agentbus.operations.tasks import free_lapsed_tasks
from agentbus.operations.tidying import Survey, SurveyRequest, TidyRequest, survey, tidy
from agentbus.records import EventRecord, Finding, Sweep
from agentbus.services.expiry import expire_state
from agentbus.services.findings import Memory, Thresholds, conditions, from_events, old_transaction, silent_hosts
from agentbus.services.presence import is_gone

_PAGE = 500
_LOOK_AT_QUEUES_EVERY = 60_000
"""Milliseconds: how deep queues are costs by how many there are."""
_COUNTED = (
    "processes_dead", "agents_failed", "agents_suspected", "sessions_interrupted", "leases_freed", "messages_expired",
    "tasks_freed", "state_expired",
)  # fmt: skip


class Sweeper:
    """Sweeps, and remembers what it told: events after the first sweep began, and conditions that last."""

    def __init__(self, engine: Engine, rules: Rules, thresholds: Thresholds) -> None:
        self._engine = engine
        self._host = presence.host_key()
        self._rules = msgspec.structs.replace(rules, host=self._host)
        self._thresholds = thresholds
        self._told = Memory()
        self._seen: int | None = None
        """The last event that was looked at."""
        self._looked: int | None = None
        """When it last looked at the depth of queues (awake)."""
        self._deep: Sequence[str] = ()

    async def begin(self) -> None:
        """Whatever happens from now on is told of."""
        self._seen = await self._engine.read(last_event, None)

    async def sweep(self) -> Sweep:
        """One pass."""
        begun = time.perf_counter()
        if self._seen is None:
            await self.begin()
        counts = Counter(dict.fromkeys(_COUNTED, 0))
        around = await self._look_around()
        hosts = silent_hosts(around, self._rules)
        if await self._judge(around, counts):
            around = await self._look_around()
        await self._tidy(around, counts)
        await self._engine.checkpoint()
        _, log = await self._engine.sizes()
        warnings = conditions(around, self._thresholds, log, self._engine.free_space())
        warnings += old_transaction(await self._engine.oldest_transaction(), self._thresholds, around.now.wall)
        findings = [*await self._news(), *self._told.news([*hosts, *warnings])]
        return Sweep(around.now.wall, time.perf_counter() - begun, dict(counts), findings)

    async def _look_around(self) -> Survey:
        awake = self._engine.clock.now().awake
        looking = self._looked is None or awake - self._looked >= _LOOK_AT_QUEUES_EVERY
        request = SurveyRequest(self._engine.process, self._rules, self._thresholds.queue if looking else None)
        around = await self._engine.read(survey, request)
        if looking:
            self._looked, self._deep = awake, around.deep
        return msgspec.structs.replace(around, deep=self._deep)

    async def _judge(self, around: Survey, counts: Counter[str]) -> bool:
        """Gather evidence of processes, and let it and what was seen be judged; whether there was anything to judge."""
        engine = self._engine
        gone, stalled, unseen = [], [], []
        for other in around.others:
            silent = other.silent(self._rules, around.now)
            if other.neighbour.host != self._host:
                if silent:
                    unseen.append(other.neighbour)
            elif is_gone(other.neighbour):
                gone.append(other.neighbour)
            elif silent:
                stalled.append(other.neighbour)
        request = JudgeRequest(
            self._rules,
            tuple(other.process for other in gone),
            tuple(other.process for other in stalled),
            tuple(other.process for other in unseen),
            tuple(trouble.session for trouble in around.troubles if not trouble.live),
        )
        silent_processes = bool(stalled or unseen)
        convicting = bool(around.guilty or gone or silent_processes or request.sessions)
        while convicting:
            convicted = await engine.write(convict, request)
            counts["processes_dead"] += len(convicted.processes)
            counts["agents_failed"] += len(convicted.agents)
            counts["sessions_interrupted"] += len(convicted.sessions)
            convicting = convicted.more
            request = msgspec.structs.replace(request, gone=(), sessions=())
        engine.remove_bells(other.bell for other in gone)
        suspecting = around.suspicious or silent_processes
        while suspecting:
            suspected = await engine.write(suspect, request)
            counts["agents_suspected"] += len(suspected.agents)
            suspecting = suspected.more
        return counts.total() > 0

    async def _tidy(self, around: Survey, counts: Counter[str]) -> None:
        engine = self._engine
        more = around.lapsed or bool(around.expiring)
        while more:
            # In steps, so that nobody waits long for the lock.
            tidied = await engine.write(tidy, TidyRequest(around.expiring))
            counts["leases_freed"] += tidied.freed
            counts["messages_expired"] += tidied.expired
            more = tidied.more
        if around.tasks:
            counts["tasks_freed"] += await engine.write(free_lapsed_tasks, None)
        counts["state_expired"] += await expire_state(engine)

    async def _news(self) -> list[Finding]:
        """What happened since the last sweep, whoever did it: another monitor, a neighbour, an agent itself."""
        wanted = EventFilter(self._seen or 0, limit=_PAGE)
        events: list[EventRecord] = []
        while True:
            page = await self._engine.read(read_events, wanted)
            events += page
            if len(page) < _PAGE:
                break
            wanted = msgspec.structs.replace(wanted, after=page[-1].id)
        if events:
            self._seen = events[-1].id
        return from_events(events)
