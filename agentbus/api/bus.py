"""The bus: an open connection to the store, and everything that is reached through it; ``connect`` and ``doctor``."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Unpack

from msgspec import Struct

from agentbus import core
from agentbus.api import events
from agentbus.api.agent import Agent
from agentbus.api.agents import (
    AgentOptions,
    Agents,
    ProfileOptions,
    VisitorOptions,
    declaration,
    expectation,
    register_agent,
    registration,
)
from agentbus.api.block import Block
from agentbus.api.checkpoints import Checkpoints
from agentbus.api.heartbeat import Heartbeat, Renewer
from agentbus.api.histories import Histories
from agentbus.api.holds import Holds
from agentbus.api.live import live, parse_cursor
from agentbus.api.maintenance.archive import Limits
from agentbus.api.maintenance.doctor import check_closed, run_checks
from agentbus.api.maintenance.export import export
from agentbus.api.maintenance.importer import importer
from agentbus.api.maintenance.retention import Retention, apply_when_due
from agentbus.api.messages import Messages, Quotas
from agentbus.api.monitor import Callback, Monitor, PeriodicJob, Sweeper, Thresholds
from agentbus.api.notifications import Deliverer, Notifications
from agentbus.api.overview import capacity_limits
from agentbus.api.recovery import Ask, Recovery, auto_resume_decider
from agentbus.api.sending import PayloadChecker
from agentbus.api.session import Session, open_session
from agentbus.api.sessions import Sessions
from agentbus.api.state import Listening, State
from agentbus.api.tasks.client import Tasks
from agentbus.api.tokens import Tokens
from agentbus.api.types import Vocabulary, definition
from agentbus.api.visitor import Visitor
from agentbus.api.watchdog import MAX_BLOCKED
from agentbus.core.addresses import Address
from agentbus.core.cancellation import Threads, check_callback, complete, finish_shielded, fire_and_forget
from agentbus.core.clock import Clock
from agentbus.core.files import check_path
from agentbus.core.threads import running_loop
from agentbus.core.validation import (
    DURABILITIES,
    DURABILITY,
    FAIL_AFTER,
    HEARTBEAT_INTERVAL,
    LOCK_TIMEOUT,
    MAX_ID,
    MAX_PAGE,
    MAX_PAYLOAD,
    MAX_SNAPSHOT,
    PAGE_SIZE,
    SUSPECT_AFTER,
    SWEEP_INTERVAL,
    VISITOR_LEASE,
    Durability,
    check_choice,
    check_name,
    check_number,
    check_range,
    check_scope,
    check_seconds,
    check_text,
    error_text,
    read_flag,
)
from agentbus.engine.interface import Engine, Progress
from agentbus.engine.processes import evict_dead_processes
from agentbus.engine.url import choose_engine
from agentbus.errors import AgentBusError, AgentFenced, Misuse, OutOfRange, UnknownAgent
from agentbus.operations.agent_identity import Registration, current_registration
from agentbus.operations.agents import EndRequest, RegisterRequest, declare, finish
from agentbus.operations.archive_rows import bus_name
from agentbus.operations.capacity import read_writer_load
from agentbus.operations.liveness import Rules
from agentbus.operations.lookups import count, newest_message
from agentbus.operations.processes import LeaveRequest, leave
from agentbus.operations.protocol import Actor
from agentbus.operations.state import list_scopes
from agentbus.operations.types import define, list_types
from agentbus.records import (
    BackupRecord,
    Check,
    EventRecord,
    ExportReport,
    ImportReport,
    LiveChange,
    MetricFamily,
    Page,
    ScopeRecord,
    Stats,
    Sweep,
    TypeRecord,
)

log = logging.getLogger("agentbus")

KEEP_BACKUPS = 10
_MAX_QUEUE = 1_000_000_000
_RETENTION_CHECK_INTERVAL = 60.0
"""Seconds between two checks whether retention is due."""


class Bus:
    """An open bus. Made by ``connect``. Its attributes are the parts of the bus.

    >>> async with agentbus.connect() as bus:                                         # doctest: +SKIP
    ...     async with bus.agent("worker-1", type="worker") as worker:
    ...         message = await worker.receive(timeout=5)
    """

    agents: Agents
    """The registry of agents."""
    sessions: Sessions
    """The sessions."""
    messages: Messages
    """The messages of all mailboxes."""
    checkpoints: Checkpoints
    """The checkpoints of agents, sessions and tasks."""
    tasks: Tasks
    """The durable tasks."""
    tokens: Tokens
    """The tokens of HTTP clients."""
    recovery: Recovery
    """The recovery of interrupted work."""
    retention: Retention
    """The policy by which old data is removed."""
    quotas: Quotas
    """The limits of queues."""
    holds: Holds
    """The messages that wait for a person."""
    histories: Histories
    """The conversations and runs that agent frameworks store."""
    notifications: Notifications
    """The notifiers of users, and what they delivered."""

    _renewer: Renewer

    def __init__(
        self,
        engine: Engine,
        *,
        max_payload: int,
        max_snapshot: int,
        beat_every: float,
        max_blocked: float = MAX_BLOCKED,
        ask: Ask | None = None,
    ) -> None:
        self._engine = engine
        engine.beat_every = beat_every
        self._beat_every = beat_every
        """Seconds between two heartbeats."""
        self._max_payload = max_payload
        self._max_snapshot = max_snapshot
        self._vocabulary = Vocabulary(max_payload)
        self._checker = PayloadChecker(self._vocabulary)
        self._listening = Listening(engine)
        self._threads = Threads()
        """The threads on which functions of the caller run."""
        self._ask = ask
        self._heartbeat = Heartbeat(engine, beat_every, max_blocked)
        self._watchdog = self._heartbeat.watchdog
        self._opened = False

        self.agents = Agents(engine, max_payload)
        self.sessions = Sessions(self)
        self.messages = Messages(self)
        self.checkpoints = Checkpoints(engine, max_snapshot)
        self.tasks = Tasks(self)
        self.recovery = Recovery(engine, max_payload, max_snapshot)
        self.retention = Retention(engine)
        self.quotas = Quotas(engine)
        self.holds = Holds(engine)
        self.histories = Histories(engine, max_snapshot)
        self.notifications = Notifications(engine)
        self.tokens = Tokens(engine)

    async def __aenter__(self) -> Bus:
        if self._opened:
            raise Misuse(reason="this bus was opened before; connect() again")
        running_loop()
        core.trace_if_asked()
        self._opened = True
        try:
            entry = await self._engine.open()
            await evict_dead_processes(self._engine, entry.peers)
            self._renewer = await self._heartbeat.start()
            await self._backup_on_open()
            await self.recovery._on_open(self._ask)
            if core.tracer is not None:
                await core.tracer.opened(self)
        except BaseException:
            await complete(self._close())
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._opened:
            return
        try:
            self._engine.check()
        except Misuse as misuse:
            # Only the process and the event loop that opened the bus can close it.
            if error is None:
                raise
            log.warning("the bus was not closed: %s", misuse)
            return
        # A cancellation must leave no connection and no thread behind.
        ending = await complete(self._close())
        if isinstance(ending, Exception) and error is None:
            raise ending

    # A type checker rejects these uses, and must not find the methods.
    if not TYPE_CHECKING:

        def __await__(self) -> NoReturn:
            raise Misuse(
                reason="agentbus.connect() returns a bus to open, which is not awaited: "
                "write `async with agentbus.connect() as bus:`"
            )

        def __enter__(self) -> NoReturn:
            raise Misuse(
                reason="agentbus.connect() is for coroutines: write `async with agentbus.connect() as bus:`, or "
                "without an event loop `with agentbus.sync.connect() as bus:`"
            )

        def __exit__(self, *error: object) -> None: ...

    async def _close(self) -> BaseException | None:
        """Stop everything; return the exception that had ended the background task, if any."""
        if core.tracer is not None:
            core.tracer.closed(self)
        left = not self._engine.process
        # Leases are still renewed while the threads finish.
        await self._threads.finish()
        ending = await self._heartbeat.stop()
        if self._engine.process:
            # If this times out, the engine records it when it closes: the agents must not seem alive.
            with suppress(AgentBusError):
                left = await finish_shielded(self._engine, self._leave())
        if not left or not self._engine.process:
            self._engine.stop_waiting()
        await self._engine.close(left=left)
        return ending

    async def _leave(self) -> None:
        await self._engine.write(leave, LeaveRequest((self._engine.process,), False, "the bus was closed"))

    # Sessions

    def session(
        self,
        operation: str,
        *,
        milestone: str | None = None,
        id: str | None = None,
        expects: Mapping[str, str] | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> AbstractAsyncContextManager[Session]:
        """Open a session for the length of a block: one coordinated operation with its agents and documents.

        Leaving the block ends it: completed; failed, with the error, after an exception; interrupted when cancelled.
        The ``id`` of an interrupted session resumes it (``session.continued``); if its owner is alive, that is an
        error. ``expects`` maps agents to the documents that they owe: ``session.missing()`` lists those not yet saved.

        >>> async with bus.session("planning", milestone="ms-123", id="planning-001",           # doctest: +SKIP
        ...                        expects={"scope-analyzer": "planning-scope"}) as session:
        ...     await session.progress(10)
        """
        opening = open_session(self, operation, milestone, id, expects, metadata)
        return Block(opening, Session, "bus.session(…)", "session", "`await bus.sessions.open(id)` to only take part")

    # Agents

    def agent(self, id: str, *, type: str, **options: Unpack[AgentOptions]) -> AbstractAsyncContextManager[Agent]:
        """Register an agent for the length of a block; the options are those of ``register``.

        Leaving the block ends it: completed; failed, with the error, after an exception; stopped when cancelled.

        >>> async with bus.agent("executor-1", type="executor", pools=["executors"]) as executor:   # doctest: +SKIP
        ...     async for message in executor.inbox():
        ...         ...
        """
        return self._agent_block(id, type, options, "bus.agent(…)")

    def _agent_block(self, id: str, type: str, options: AgentOptions, call: str) -> AbstractAsyncContextManager[Agent]:
        otherwise = "`agent = await bus.register(…)` for an agent that outlives a block"
        return Block(self._run_agent(id, type, options), Agent, call, "agent", otherwise)

    @asynccontextmanager
    async def _run_agent(self, id: str, type: str, options: AgentOptions) -> AsyncIterator[Agent]:
        agent = await self.register(id, type=type, **options)
        try:
            yield agent
            if not agent.ended:
                await agent.complete()
        except BaseException as error:
            await finish_shielded(self._engine, _end_after(agent, error))
            raise
        finally:
            self._forget(agent)

    async def register(self, id: str, *, type: str, **options: Unpack[AgentOptions]) -> Agent:
        """Register an agent that runs in this process until it is ended, or the bus is closed.

        ``agentbus.api.agents.AgentOptions`` describes the options: ``session``, ``pools`` and ``topics`` to join, and
        the description of the agent.

        An id that ended before starts a new incarnation with its state and mailbox, in its old session if that is open
        and no other is given (``agent.restored`` is the checkpoint to resume from). An id that is alive elsewhere is an
        error; with ``takeover=True`` the old incarnation is fenced instead.

        >>> worker = await bus.register("worker-1", type="worker", capabilities=["python"])   # doctest: +SKIP
        """
        request = registration(self._max_payload, id, type, self._engine.process, options)
        agent = Agent(self, await self._register(request))
        self._heartbeat.agents.add(agent)
        return agent

    async def register_visitor(self, id: str, *, type: str, **options: Unpack[VisitorOptions]) -> Visitor:
        """Register a visiting agent: a program elsewhere that calls now and then. Each call is its heartbeat. The
        options are those of ``register``, with ``lease``, the seconds that leases on its messages last from its last
        call (600), and ``by``, the operator whom the audit log shows instead of the agent.

        >>> visitor = await bus.register_visitor("planner-1", type="planner")         # doctest: +SKIP
        """
        lease = options.pop("lease", VISITOR_LEASE)
        request = registration(self._max_payload, id, type, None, options, kind="visiting")
        found = await register_agent(self._engine, request)
        return Visitor(self, found, found.epoch, lease=lease, visited=True)

    async def visitor(self, id: str, *, epoch: int | None = None, lease: float = VISITOR_LEASE) -> Visitor:
        """Return a visiting agent that is registered, to act in its name. Without an ``epoch`` it acts in its current
        incarnation; with one, it is fenced once another incarnation has taken over.

        >>> visitor = await bus.visitor("planner-1", epoch=3)                         # doctest: +SKIP
        """
        found = await self._engine.read_inline(current_registration, check_name(id, "agent"))
        if found is None:
            raise UnknownAgent(agent=id)
        number = found.epoch if epoch is None else check_range(epoch, "epoch", 0, MAX_ID)
        return Visitor(self, found, number, lease=lease)

    async def expect(
        self,
        id: str,
        *,
        type: str,
        session: str | None = None,
        within: float | None = None,
        **about: Unpack[ProfileOptions],
    ) -> None:
        """Announce an agent that will register later: it is pending, and its mailbox exists. With ``within`` it is
        spawning, and a monitor fails it if it does not register within this many seconds.

        >>> await bus.expect("executor-1", type="executor")                           # doctest: +SKIP
        """
        await self._register(expectation(self._max_payload, id, type, session, within, about))

    async def declare(self, *addresses: Address) -> None:
        """Create pools and topics before an agent joins them.

        >>> await bus.declare(agentbus.pool("executors"), agentbus.topic("plans"))    # doctest: +SKIP
        """
        await self._engine.write(declare, declaration(addresses))

    async def define(
        self,
        what: str | type[Struct],
        *,
        kind: Literal["agent", "message"] = "message",
        description: str = "",
        schema: dict[str, Any] | None = None,
    ) -> None:
        """Define a type, or change its description or schema.

        Every payload of a message type with a JSON ``schema`` is checked against it when it is sent;
        ``agentbus.core.jsonschema`` lists the keywords. A Struct stands for the type that its tag names (or its
        class, in snake case), with its own schema, and this bus decodes messages of that type as this Struct.

        >>> await bus.define("deploy_request", description="please deploy this")      # doctest: +SKIP
        >>> await bus.define("deploy_result", schema={"required": ["url"]})           # doctest: +SKIP
        >>> await bus.define(Plan)                                                    # doctest: +SKIP
        """
        check_choice(kind, "kind", ("agent", "message"))
        request = definition(what, kind, check_text(description, "description"), schema, self._vocabulary)
        await self._engine.write(define, request)
        self._vocabulary.remember([request])

    async def types(self, kind: Literal["agent", "message"] | None = None) -> list[TypeRecord]:
        """Return the built-in types and those that were defined.

        >>> [type.name for type in await bus.types("agent")]                          # doctest: +SKIP
        ['coordinator', 'estimation-agent', 'executor', …]
        """
        if kind is not None:
            check_choice(kind, "kind", ("agent", "message"))
        return await self._engine.read(list_types, kind)

    def state(self, scope: str) -> State:
        """Return the entries of any scope: the id of an agent, or another name. Entries written here have no author.

        The scope of an agent's id is that agent's state, and is deleted with the agent.

        >>> await bus.state("planner-1").get("scope")                                 # doctest: +SKIP
        {'files': 12}
        >>> await bus.state("builds").increment("count")                              # doctest: +SKIP
        17
        """
        return State(self, check_scope(scope))

    async def scopes(self, *, cursor: str | None = None, limit: int = PAGE_SIZE) -> Page[ScopeRecord]:
        """Return the scopes of state that have entries, ordered by name.

        >>> [one.scope for one in (await bus.scopes()).items]                         # doctest: +SKIP
        ['feature-flags', 'planner-1']
        """
        after = "" if cursor is None else check_scope(cursor)
        return await self._engine.read(list_scopes, (after, check_range(limit, "limit", 1, MAX_PAGE)))

    async def read_id(self) -> str:
        """Return the random id of this bus, which its copies and backups share.

        >>> await bus.read_id()                                                       # doctest: +SKIP
        '5f2c81d09a3b7e46'
        """
        return await self._engine.read(bus_name, None) or "unnamed"

    async def newest_message(self) -> int:
        """Return the highest number of a message; they are numbered in the order in which they are sent.

        >>> await bus.newest_message()                                                # doctest: +SKIP
        4711
        """
        return await self._engine.read(newest_message, None)

    async def lock_waits(self) -> float:
        """Return the seconds per minute that all writers together waited for the lock recently; 0 on a server.

        >>> await bus.lock_waits()                                                    # doctest: +SKIP
        0.25
        """
        return (await self._engine.read(read_writer_load, None)).waits

    async def stats(self, *, deepest: int = 20) -> Stats:
        """Return counts by status, the deepest queues, and sizes.

        >>> (await bus.stats()).messages                                              # doctest: +SKIP
        {'acked': 120, 'queued': 3}
        """
        counts = await self._engine.read(count, check_range(deepest, "deepest", 1, 1000))
        database, log_size = await self._engine.sizes()
        return Stats(counts.messages, counts.agents, counts.queues, counts.oldest_waiting, database, log_size)

    async def metrics(self) -> list[MetricFamily]:
        """Return the metrics of the bus and of this process; ``agentbus.api.metrics.render`` writes them as text.

        >>> [family.name for family in await bus.metrics()][:2]                       # doctest: +SKIP
        ['agentbus_build', 'agentbus_messages_sent']
        """
        from agentbus.api.metrics import collect

        return await collect(self, self._engine.home, process=True)

    def events(
        self,
        *,
        after: int | Literal["now"] = 0,
        follow: bool = False,
        kind: str | None = None,
        subject: str | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[EventRecord]:
        """Iterate over the audit log in its order.

        ``after`` is the id of the last known event; "now" skips all existing ones. With ``follow`` it waits for new
        events indefinitely, of other processes as well. ``subject`` is written like ``agent:planner-1``.

        >>> async for event in bus.events(after=last, follow=True):                   # doctest: +SKIP
        ...     print(event.id, event.kind, event.subject, event.actor, event.facts)
        """
        return events.events(self._engine, self._listening, after, follow, kind, subject, limit)

    async def recent_events(
        self,
        *,
        kind: str | None = None,
        subject: str | None = None,
        cursor: str | None = None,
        limit: int = PAGE_SIZE,
    ) -> Page[EventRecord]:
        """Return the audit log from its end, newest first.

        >>> [event.kind for event in (await bus.recent_events(subject="agent:planner-1")).items]   # doctest: +SKIP
        ['agent_failed', 'agent_registered']
        """
        return await events.recent_events(self._engine, kind, subject, cursor, limit)

    def live(self, *, after: str | None = None, coalesce: float = 0.1) -> AsyncGenerator[LiveChange, None]:
        """Iterate over what happens on the bus: events, and messages that were sent, leased, acknowledged, released or
        dead-lettered, without payloads. Changes within ``coalesce`` seconds are one.

        ``after`` is the ``cursor`` of the last change; without it the feed starts now. Events and sent messages since
        then are reported. Leases and acknowledgements are reported only as they happen: after a reconnect, read again
        what you show, as after a change with ``missed``.

        >>> async for change in bus.live():                                           # doctest: +SKIP
        ...     print(change.cursor, [(one.message_id, one.status) for one in change.messages])
        """
        check_number(coalesce, "coalesce", 0, 60)
        if after is not None:
            parse_cursor(after)
        return live(self, after, coalesce)

    # Maintenance

    def monitor(
        self,
        *,
        interval: float = SWEEP_INTERVAL,
        suspect_after: float = SUSPECT_AFTER,
        fail_after: float = FAIL_AFTER,
        fail_stuck_after: float | None = None,
        deep_queue: int = 1000,
        log_file: str | os.PathLike[str] | None = None,
        on_finding: Callback | None = None,
        notify: bool = True,
    ) -> Monitor:
        """Run a monitor for the length of a block: every ``interval`` seconds it sweeps, as ``sweep`` does, and reports
        its findings to ``on_finding`` (which may be async), to ``monitor.findings()``, to the logger
        ``agentbus.monitor`` and to ``log_file``. About once an hour, but not in its first ``interval``, it applies
        ``bus.retention``, unless another process did. Any number of monitors may run.

        It delivers notifications to the notifiers that the user has set up for this bus in
        ``~/.config/agentbus/notifications.toml``, unless ``notify`` is False: of several monitors, one delivers each.

        >>> async with bus.monitor(fail_stuck_after=600, log_file="monitor.log", on_finding=print):   # doctest: +SKIP
        ...     await work()
        """
        seconds = check_seconds(interval, "interval") / 1000
        sweeper = self._sweeper(suspect_after, fail_after, fail_stuck_after, deep_queue)
        if on_finding is not None:
            check_callback(on_finding, "on_finding", "finding")
        job = PeriodicJob("retention", _RETENTION_CHECK_INTERVAL, lambda: apply_when_due(self._engine))
        return Monitor(
            self._engine, sweeper, interval=seconds, log_file=log_file, on_finding=on_finding, jobs=(job,),
            threads=self._threads, deliverer=Deliverer(self._engine) if notify else None,
        )  # fmt: skip

    async def sweep(
        self,
        *,
        suspect_after: float = SUSPECT_AFTER,
        fail_after: float = FAIL_AFTER,
        fail_stuck_after: float | None = None,
        deep_queue: int = 1000,
    ) -> Sweep:
        """Sweep the bus once: fail the agents of processes that died; suspect those that were silent for
        ``suspect_after`` seconds of awake time, and fail them after ``fail_after`` seconds if their
        process cannot be observed, or after ``fail_stuck_after`` (default: never) if it exists; release expired leases,
        expire messages, maintain the log.

        >>> [finding.text for finding in (await bus.sweep()).findings]                # doctest: +SKIP
        ['planner-1 failed: its process died']
        """
        return await self._sweeper(suspect_after, fail_after, fail_stuck_after, deep_queue).sweep()

    def _sweeper(
        self, suspect_after: float, fail_after: float, fail_stuck_after: float | None, deep_queue: int
    ) -> Sweeper:
        least = check_seconds(suspect_after, "suspect_after")
        if least < 2000 * self._beat_every:
            # Otherwise every agent would be suspect between two heartbeats.
            allowed = f"at least twice the heartbeat interval, which is {self._beat_every:g} s"
            raise OutOfRange(what="suspect_after", value=suspect_after, allowed=allowed)
        rules = Rules(
            least,
            _later(fail_after, "fail_after", least),
            None if fail_stuck_after is None else _later(fail_stuck_after, "fail_stuck_after", least),
        )
        return Sweeper(self._engine, rules, Thresholds(queue=check_range(deep_queue, "deep_queue", 1, _MAX_QUEUE)))

    async def import_path(
        self, path: str | os.PathLike[str], *, progress: importer.Progress | None = None
    ) -> ImportReport:
        """Import existing data: a folder of JSON files (agents, sessions, checkpoints, outputs, loose temp files), an
        SQLite database of home-made coordination, or an archive. Importing is idempotent.

        Existing data is never changed. Running agents are imported as failed and active sessions as interrupted,
        without notifications; unread messages are queued. Invalid names are changed and unknown types defined; the
        report lists what was skipped, and why. ``progress`` is called with (done, total, file) in bytes.

        >>> report = await bus.import_path("old/state")                               # doctest: +SKIP
        >>> report.imported, report.problems                                          # doctest: +SKIP
        ({'agent': 12, 'state': 3}, [ImportProblem(file='x.json', line=0, reason='it is empty', taken=False)])
        """
        limits = Limits(self._max_payload, self._max_snapshot)
        return await importer.import_path(self._engine, path, limits, progress)

    async def export(
        self,
        path: str | os.PathLike[str],
        *,
        session: str | None = None,
        progress: importer.Progress | None = None,
    ) -> ExportReport:
        """Write the bus, or one session with its agents and their data, to a file that ``import_path`` reads: at a
        ``path`` that does not exist yet, or in a folder.

        The bus stays in use: each row is written as it is when it is read. ``bus.backup`` is a consistent copy.
        ``progress`` is called with (done, total, kind) in rows.

        >>> (await bus.export("planning-001.jsonl.gz", session="planning-001")).exported   # doctest: +SKIP
        {'session': 1, 'agent': 3, 'document': 2, 'checkpoint': 9, 'message': 14, 'event': 12}
        """
        return await export(self._engine, path, session, progress)

    async def import_archive(self, path: str | os.PathLike[str]) -> ImportReport:
        """Restore the rows of an archive of ``bus.retention`` that the bus does not have. Restoring is idempotent.

        Lines are reported and skipped that are damaged, whose id or name is in use for something else, or that belong
        to an earlier session of the same name or an earlier incarnation of an agent that is alive. An empty bus accepts
        the archive of any bus. Restored rows keep their age, so the next retention removes them again: to keep them,
        restore them into another bus.

        >>> await bus.import_archive(".agentbus/archive/20260101T000000.000Z-1a2b3c4d.jsonl.gz")   # doctest: +SKIP
        """
        limits = Limits(self._max_payload, self._max_snapshot)
        return await importer.import_archive(self._engine, path, limits)

    async def backup(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        keep: int = KEEP_BACKUPS,
        progress: Progress | None = None,
    ) -> BackupRecord:
        """Make a verified copy of the bus while it is in use, with everything committed before it started.

        It is saved in ``backups/`` of the bus, where the newest ``keep`` are kept; or at a ``path`` that does not exist
        yet, or in a directory. ``agentbus.restore_backup`` restores it. ``progress`` is called with (done, total) from
        another thread. With ``AGENTBUS_BACKUP_ON_OPEN=1`` every opening makes one.

        A cancelled call leaves a complete backup under its final name, or none. The thread that copies stops at its
        next step; until then there is a hidden ``.agentbus-….unfinished`` file, which is not listed, restored or
        counted. Closing the bus waits for the thread; the next backup removes what a killed process left.

        >>> (await bus.backup()).path                                                 # doctest: +SKIP
        '/home/me/project/.agentbus/backups/bus-20260101T000000.000Z-1a2b3c4d.db'
        """
        check_range(keep, "keep", 1, 1_000_000)
        return await self._engine.backup(None if path is None else check_path(path), keep, progress)

    async def doctor(self, *, outgrown: Mapping[str, float] | None = None) -> list[Check]:
        """Check the bus for problems: the database, its contents, the disk, the clock. Changes nothing and blocks no
        writer. ``agentbus.doctor`` does the same for a bus that is not, or cannot be, opened.

        ``outgrown`` sets the limits of a bus in one file: ``waits`` (seconds per minute that all writers together wait
        for the lock: 30), ``writers`` (processes that have it open: 32), ``size`` (bytes: 4 GiB). The defaults are
        AGENTBUS_OUTGROWN_WAITS, _WRITERS and _SIZE.

        >>> for check in await bus.doctor():                                          # doctest: +SKIP
        ...     print(check.status, check.name, check.text, check.fix or "")
        """
        return await run_checks(self._engine, capacity_limits(outgrown))

    async def _backup_on_open(self) -> None:
        """Make a backup if the environment asks for one. An error is logged: the bus can be used without it."""
        if read_flag("AGENTBUS_BACKUP_ON_OPEN"):
            try:
                record = await self.backup()
            except AgentBusError as error:
                log.warning("no backup on opening: %s", error)
            else:
                log.info("backed up to %s", record.path)

    # Internal

    def _forget(self, agent: Agent) -> None:
        """Send no more heartbeats for an agent: it has ended."""
        self._heartbeat.agents.discard(agent)

    async def _register(self, request: RegisterRequest) -> Registration:
        registered = await register_agent(self._engine, request, self._stop_orphan if request.alive else None)
        if registered.left is not None:
            session, status = registered.left
            log.warning("%s left session %s, which is %s and no longer has this agent", request.agent, session, status)
        return registered

    def _stop_orphan(self, registered: Registration) -> None:
        """Stop an agent whose registration was cancelled: its caller has no handle to end it."""
        actor = Actor(registered.agent, registered.epoch)
        request = EndRequest(actor, "stopped", "cancelled while registering")
        with suppress(AgentBusError):
            fire_and_forget(self._engine.write(finish, request))


def _later(value: float, what: str, least: int) -> int:
    milliseconds = check_seconds(value, what)
    if milliseconds < least:
        raise OutOfRange(what=what, value=value, allowed="seconds, not less than suspect_after")
    return milliseconds


async def _end_after(agent: Agent, error: BaseException) -> None:
    """Mark an agent failed after an exception, and stopped after a cancellation."""
    try:
        if isinstance(error, Exception):
            await agent.fail(error_text(error))
        else:
            await agent._end("stopped", None)
    except (AgentFenced, Misuse):
        log.debug("%s had ended already", agent.id)
    except AgentBusError as problem:
        # The exception of the block matters more.
        log.warning("%s could not be ended: %s", agent.id, problem)


def connect(
    url: str | os.PathLike[str] | None = None,
    *,
    durability: Durability = DURABILITY,
    clock: Clock | None = None,
    max_payload: int = MAX_PAYLOAD,
    max_snapshot: int = MAX_SNAPSHOT,
    lock_timeout: float = LOCK_TIMEOUT,
    beat_every: float = HEARTBEAT_INTERVAL,
    max_blocked: float = MAX_BLOCKED,
    auto_resume: bool | Ask | None = None,
    create: bool = True,
) -> Bus:
    """Return a bus to be used with ``async with``.

    ``url`` is the directory of the bus, or ``postgresql://user:password@host/database`` for one that several machines
    share (``?schema=`` selects the schema, default ``agentbus``). The default is ``AGENTBUS_URL``, or ``.agentbus/`` in
    the working directory or one above it. A bus that does not exist is created; with ``create=False`` that is
    ``NoBus``. With ``durability="process"`` nothing is fsynced: commits survive the death of any process, but not a
    power failure.

    Every ``beat_every`` seconds the process sends a heartbeat and checks the other processes of its host. While code
    blocks the event loop, a thread renews the leases of this process, for ``max_blocked`` lease periods at most.

    With ``auto_resume=True`` (or ``AGENTBUS_AUTO_RESUME=1``) interrupted sessions are resumed if that is their
    likeliest option: on a terminal it asks first. A function decides instead: it gets the ``records.RecoveryRecord`` of
    each and returns True or False. It runs on a thread, so it may block; an async one is awaited.

    >>> async with agentbus.connect() as bus:                                         # doctest: +SKIP
    ...     print(await bus.stats())
    >>> agentbus.connect(auto_resume=lambda record: record.session.operation == "build")   # doctest: +SKIP
    """
    check_choice(durability, "durability", DURABILITIES)
    check_range(max_payload, "max_payload", 1, 512 * 1024 * 1024)
    check_range(max_snapshot, "max_snapshot", 1, 512 * 1024 * 1024)
    check_seconds(lock_timeout, "lock_timeout", zero=True)
    check_seconds(beat_every, "beat_every")
    check_number(max_blocked, "max_blocked", 0, 1_000_000)
    return Bus(
        choose_engine(url, create=create, durability=durability, clock=clock, lock_timeout=lock_timeout),
        max_payload=max_payload,
        max_snapshot=max_snapshot,
        beat_every=beat_every,
        max_blocked=max_blocked,
        ask=auto_resume_decider(auto_resume),
    )


async def doctor(
    url: str | os.PathLike[str] | None = None,
    *,
    clock: Clock | None = None,
    outgrown: Mapping[str, float] | None = None,
) -> list[Check]:
    """Check a bus without opening it, also one that cannot be opened: damaged, locked, of a newer agentbus, or missing.
    ``url`` is as for ``connect``, ``outgrown`` as for ``bus.doctor``. Nothing is created or changed, and problems are
    returned, not raised.

    >>> for check in await agentbus.doctor(".agentbus"):                              # doctest: +SKIP
    ...     if check.status != "ok":
    ...         print(check.status, check.name, check.text, check.fix or "")
    """
    running_loop()
    return await check_closed(url, clock, capacity_limits(outgrown))
