"""The state of the bus at a glance: what failed, what waits, counts, unfinished work by name, and capacity.

Shared by the interfaces. Imports no event loop: the synchronous API drives it too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from shlex import quote
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from agentbus.core.validation import read_number
from agentbus.errors import InvalidInput, OutOfRange
from agentbus.operations.capacity import WriterLoad, read_writer_load
from agentbus.operations.histories import list_kinds
from agentbus.operations.holds import HoldsQuery, list_holds
from agentbus.operations.lookups import count, failed_agents, last_seen
from agentbus.operations.task_lookups import unserved_workflows, unsettled_steps
from agentbus.records.entities import QueueDepth
from agentbus.records.histories import HistoryKind

if TYPE_CHECKING:
    from agentbus.api.agents import Agents
    from agentbus.api.messages import Messages
    from agentbus.api.sessions import Sessions
    from agentbus.api.tasks.client import Tasks
    from agentbus.engine.interface import Engine
    from agentbus.records import AgentRecord, HoldRecord, SessionRecord, TaskRecord

MAX_NAMED = 20
"""Agents, sessions, tasks and queues that are named."""
_PAGE = 100
_MAX_PAGES = 20
"""Pages of failed tasks that are searched for those that are not sub-tasks."""
_MAX_QUESTIONS = 1000
_UNFINISHED_TASKS = ("waiting", "halted", "running", "pending")
"""In the order in which they need attention."""
_UNFINISHED_SESSIONS = ("active", "paused", "interrupted")


class Source(Protocol):
    """An open bus, asynchronous or synchronous."""

    @property
    def _engine(self) -> Engine: ...
    @property
    def agents(self) -> Agents: ...
    @property
    def messages(self) -> Messages: ...
    @property
    def sessions(self) -> Sessions: ...
    @property
    def tasks(self) -> Tasks: ...


class Counts(msgspec.Struct, frozen=True):
    """Agents and messages by status."""

    agents: dict[str, int]
    messages: dict[str, int]


class AgentOverview(msgspec.Struct, frozen=True):
    """An agent that has not ended. ``seen`` is the time of its last sign of life."""

    id: str
    type: str
    status: str
    progress: int
    note: str | None
    session: str | None
    updated: int
    seen: int | None


class SessionOverview(msgspec.Struct, frozen=True):
    """A session that has not ended."""

    id: str
    operation: str
    milestone: str | None
    status: str
    degraded: bool
    progress: int
    updated: int


class TaskOverview(msgspec.Struct, frozen=True):
    """A task in brief."""

    id: str
    name: str
    workflow: str
    status: str
    phase: str | None
    progress: int
    waits: list[str]
    updated: int

    @classmethod
    def of(cls, task: TaskRecord) -> TaskOverview:
        return cls(*(getattr(task, name) for name in cls.__struct_fields__))


def describe_waits(waits: Sequence[str], after: Mapping[str, str] | None = None) -> str:
    """Return what a task waits for, in words; ``after`` is the status of its dependencies by id.

    >>> describe_waits(["signal:payment", "sleep:2026-11-21T09:00:00Z", "message"])
    'signal payment, sleep until 2026-11-21T09:00:00Z, message'
    >>> describe_waits(["after:build-1"], {"build-1": "running"})
    'after build-1 (running)'
    """
    kinds = {"sleep": "sleep until"}
    found: list[str] = []
    for kind, _, name in (wait.partition(":") for wait in waits):
        status = f" ({after.get(name, 'deleted')})" if kind == "after" and after is not None else ""
        found.append(f"{kinds.get(kind, kind)} {name}".rstrip() + status)
    return ", ".join(found)


class Question(msgspec.Struct, frozen=True):
    """A decision that a task waits for. ``kind`` is ``approval``, or ``step`` for one whose outcome is unknown.
    ``command`` is the command that answers; ``shown`` the value to decide on, which is not in the overview."""

    task: str
    kind: str
    name: str
    since: int
    expires: int | None
    command: str
    shown: Any = msgspec.UNSET


class Failure(msgspec.Struct, frozen=True):
    """Something that failed. ``kind`` is ``agent`` (also a suspect one), ``task``, ``session`` or ``message`` (a dead
    letter); ``command`` is the command that shows it."""

    kind: str
    name: str
    status: str
    at: int
    reason: str | None
    command: str


class Waiting(msgspec.Struct, frozen=True):
    """Something that waits. ``kind`` is ``approval``, ``step`` (one with an unknown outcome), ``session`` (an
    interrupted one), ``task`` (a halted one), ``workflow`` (one with pending tasks and without a worker), ``thread``
    (messages that the loop guard holds) or ``queue`` (messages of one recipient); ``command`` is the command that lets
    it continue, or shows the messages."""

    kind: str
    name: str
    since: int
    what: str
    command: str


class Capacity(msgspec.Struct, frozen=True):
    """The reasons why one file is too small for the bus, if there are any, and the advice."""

    why: list[str]
    fix: str | None


class Overview(msgspec.Struct, frozen=True):
    """The state of the bus at a glance. ``failed`` and ``waiting`` name the newest of each kind, at most MAX_NAMED,
    of workflows those that wait longest."""

    failed: list[Failure]
    waiting: list[Waiting]
    counts: Counts
    agents: list[AgentOverview]
    queues: list[QueueDepth]
    sessions: list[SessionOverview]
    tasks: list[TaskOverview]
    asked: list[Question]
    oldest_waiting: int | None
    database_bytes: int
    log_bytes: int
    outgrown: Capacity
    histories: list[HistoryKind] = []
    """Of each kind, at most 100 kinds."""


async def gather_overview(bus: Source, home: str | None, bounds: CapacityLimits) -> Overview:
    """Return the overview of a bus. ``home`` is its directory, or None for a bus on a server."""
    counts = await bus._engine.read(count, MAX_NAMED)
    database_bytes, log_bytes = await bus._engine.sizes()
    sessions = (await bus.sessions.list(status=_UNFINISHED_SESSIONS, limit=MAX_NAMED)).items
    interrupted = [one for one in sessions if one.status == "interrupted"]
    if len(sessions) == MAX_NAMED:
        # Newer sessions must not hide one that waits for a person.
        interrupted = (await bus.sessions.list(status="interrupted", limit=MAX_NAMED)).items
    tasks: list[TaskRecord] = []
    for status in _UNFINISHED_TASKS:
        tasks += (await bus.tasks.list(status=status, limit=MAX_NAMED)).items
    asked = await open_questions(bus)
    unserved = await bus._engine.read(unserved_workflows, MAX_NAMED)
    held = (await bus._engine.read(list_holds, HoldsQuery(limit=MAX_NAMED))).items
    return Overview(
        failed=await _failures(bus),
        waiting=_waiting(
            asked, held, interrupted, tasks, unserved, list(zip(counts.queues, counts.since, strict=True))
        ),
        counts=Counts(counts.agents, counts.messages),
        agents=await _unfinished_agents(bus),
        queues=list(counts.queues),
        sessions=[_session(one) for one in sessions],
        tasks=[TaskOverview.of(one) for one in tasks[:MAX_NAMED]],
        asked=asked,
        oldest_waiting=counts.oldest_waiting,
        database_bytes=database_bytes,
        log_bytes=log_bytes,
        outgrown=await _capacity(bus, home, database_bytes + log_bytes, bounds),
        histories=await bus._engine.read(list_kinds, None),
    )


async def open_questions(bus: Source, *, shown: bool = False) -> list[Question]:
    """Return the decisions that tasks wait for: approvals, and steps whose outcome is unknown. ``shown``: with the
    values to decide on, which may be long."""
    approvals: Sequence[Question] = [
        Question(
            one.task, "approval", one.key, one.created, one.expires, f"agentbus task approve {one.task} {one.key}",
            one.shown if shown else msgspec.UNSET,
        )
        for one in await bus.tasks.approvals(limit=_MAX_QUESTIONS)
    ]  # fmt: skip
    steps = [
        Question(task, "step", key, since, None, f"agentbus task settle {task} {key} --result JSON")
        for task, key, since in await bus._engine.read(unsettled_steps, _MAX_QUESTIONS)
    ]
    return [*approvals, *steps]


async def _failures(bus: Source) -> list[Failure]:
    agents = await bus._engine.read(failed_agents, MAX_NAMED)
    tasks = await _failed_tasks(bus)
    sessions = (await bus.sessions.list(status="failed", limit=MAX_NAMED)).items
    dead = (await bus.messages.dead(limit=MAX_NAMED)).items
    show = "agentbus {} {}".format
    return [
        *(
            Failure("agent", one.id, one.status, one.updated, _reason(one), show("agents show", one.id))
            for one in agents
        ),
        *(
            Failure("task", one.id, one.status, one.ended or one.updated,
                    None if one.error is None else f"{one.error.type}: {one.error.message}", show("task show", one.id))
            for one in tasks
        ),
        *(
            Failure("session", one.id, one.status, one.ended or one.updated, one.error, show("session status", one.id))
            for one in sessions
        ),
        *(
            Failure("message", one.message_id, one.status, one.finished or one.created,
                    f"{one.type} to {one.recipient}" + (f": {one.error}" if one.error else ""),
                    show("messages show", one.message_id))
            for one in dead
        ),
    ]  # fmt: skip


async def _failed_tasks(bus: Source) -> list[TaskRecord]:
    """Return the newest failed tasks. A sub-task that failed is a matter of the task that started it."""
    found: list[TaskRecord] = []
    cursor: str | None = None
    for _ in range(_MAX_PAGES):
        page = await bus.tasks.list(status="failed", cursor=cursor, limit=_PAGE)
        found += [one for one in page.items if one.parent is None]
        cursor = page.cursor
        if cursor is None or len(found) >= MAX_NAMED:
            break
    return found[:MAX_NAMED]


def _reason(agent: AgentRecord) -> str | None:
    """Return why an agent failed or is suspect."""
    if agent.error is not None or not agent.evidence:
        return agent.error
    return str(agent.evidence.get("verdict"))


def _waiting(
    asked: Sequence[Question],
    held: Sequence[HoldRecord],
    interrupted: Sequence[SessionRecord],
    tasks: Sequence[TaskRecord],
    unserved: Mapping[str, int],
    queues: Sequence[tuple[QueueDepth, int]],
) -> list[Waiting]:
    return [
        *(Waiting(one.kind, one.task, one.since, one.name, one.command) for one in asked[:MAX_NAMED]),
        *(
            Waiting("thread", one.thread, one.since, f"{one.held} held, without progress",
                    f"agentbus holds release {one.thread}")
            for one in held
        ),
        *(
            Waiting("session", one.id, one.updated, one.error or one.status, f"agentbus session recover {one.id}")
            for one in interrupted
        ),
        *(
            Waiting("task", one.id, one.updated, one.status, f"agentbus task continue {one.id}")
            for one in tasks if one.status == "halted"
        ),
        *(
            Waiting("workflow", name, since, "no running worker has it", f"agentbus worker MODULE:{quote(name)}")
            for name, since in unserved.items()
        ),
        *(
            Waiting("queue", one.recipient, since, f"{one.queued} queued",
                    f"agentbus messages list --to {one.recipient} --status queued")
            for one, since in queues
        ),
    ]  # fmt: skip


async def _unfinished_agents(bus: Source) -> list[AgentOverview]:
    agents = (await bus.agents.list(status="incomplete", limit=MAX_NAMED)).items
    seen = await bus._engine.read(last_seen, agents)
    return [
        AgentOverview(
            one.id, one.type, one.status, one.progress, one.note, one.session, one.updated, seen[one.id].at
        )
        for one in agents
    ]  # fmt: skip


def _session(one: SessionRecord) -> SessionOverview:
    return SessionOverview(one.id, one.operation, one.milestone, one.status, one.degraded, one.progress, one.updated)


async def _capacity(bus: Source, home: str | None, size: int, bounds: CapacityLimits) -> Capacity:
    if home is None:
        return Capacity([], None)
    why = capacity_warnings(await bus._engine.read(read_writer_load, None), size, bounds)
    return Capacity(why, migration_advice(home) if why else None)


class CapacityLimits(msgspec.Struct, frozen=True):
    """Limits above which a server is advised: seconds per minute that all writers together wait for the lock, processes
    that have the bus open, and bytes of the database.

    >>> capacity_warnings(WriterLoad(waits=75.0, writers=4), 2**20, CapacityLimits())
    ['writers waited for each other for 75 s of each minute']
    """

    waits: float = 30.0
    writers: float = 32
    size: float = 4 * 1024**3


def capacity_limits(given: Mapping[str, float] | None = None) -> CapacityLimits:
    """Return the limits: those given, else those of the environment (AGENTBUS_OUTGROWN_WAITS …), else the defaults.

    >>> capacity_limits({"writers": 8}).writers
    8
    """
    given = given or {}
    unknown = [name for name in given if name not in CapacityLimits.__struct_fields__]
    if unknown:
        known = ", ".join(CapacityLimits.__struct_fields__)
        raise InvalidInput(reason=f"unknown capacity limit {unknown[0]!r}; known are {known}")
    values = {
        name: given.get(name, read_number(f"AGENTBUS_OUTGROWN_{name.upper()}", default))
        for name, default in zip(CapacityLimits.__struct_fields__, CapacityLimits.__struct_defaults__, strict=True)
    }
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise OutOfRange(what=f"outgrown {name}", value=value, allowed="a number above 0")
    return CapacityLimits(**values)


def capacity_warnings(load: WriterLoad, size: int, limits: CapacityLimits) -> list[str]:
    """Return the reasons why one file is too small, if any."""
    found: list[str] = []
    if load.waits >= limits.waits:
        found.append(f"writers waited for each other for {load.waits:.0f} s of each minute")
    if load.writers >= limits.writers:
        have = "process has" if load.writers == 1 else "processes have"
        found.append(f"{load.writers} {have} it open")
    if size >= limits.size:
        found.append(f"it has {size / 2**20:,.0f} MiB")
    return found


def migration_advice(home: str) -> str:
    """Return the command that moves the bus to a server.

    >>> migration_advice(".agentbus")
    'stop all processes on the bus, then move it to a server: agentbus copy .agentbus postgresql://…'
    """
    return f"stop all processes on the bus, then move it to a server: agentbus copy {quote(home)} postgresql://…"
