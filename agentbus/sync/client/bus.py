"""The bus: an open connection to the store, and everything that is reached through it; ``connect`` and ``doctor``.

Written by ``make sync`` from ``agentbus.api.bus``: change that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from agentbus.api import bus as api
from agentbus.api.bus import KEEP_BACKUPS
from agentbus.api.watchdog import MAX_BLOCKED
from agentbus.core.validation import (
    DURABILITY,
    FAIL_AFTER,
    HEARTBEAT_INTERVAL,
    LOCK_TIMEOUT,
    MAX_PAYLOAD,
    MAX_SNAPSHOT,
    PAGE_SIZE,
    SUSPECT_AFTER,
    SWEEP_INTERVAL,
    VISITOR_LEASE,
)
from agentbus.sync.client.base import BusBase, run_alone

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager
    from typing import Any, Literal, Unpack

    from msgspec import Struct

    from agentbus.api.agents import AgentOptions, ProfileOptions, VisitorOptions
    from agentbus.api.maintenance.importer import importer
    from agentbus.api.monitor import Callback
    from agentbus.api.recovery import Ask
    from agentbus.core.addresses import Address
    from agentbus.core.clock import Clock
    from agentbus.core.validation import Durability
    from agentbus.engine.interface import Progress
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
    from agentbus.sync.client.agent import Agent
    from agentbus.sync.client.agents import Agents
    from agentbus.sync.client.checkpoints import Checkpoints
    from agentbus.sync.client.histories import Histories
    from agentbus.sync.client.holds import Holds
    from agentbus.sync.client.messages import Messages, Quotas
    from agentbus.sync.client.monitor import Monitor
    from agentbus.sync.client.notifications import Notifications
    from agentbus.sync.client.recovery import Recovery
    from agentbus.sync.client.retention import Retention
    from agentbus.sync.client.session import Session
    from agentbus.sync.client.sessions import Sessions
    from agentbus.sync.client.state import State
    from agentbus.sync.client.tasks import Tasks
    from agentbus.sync.client.tokens import Tokens
    from agentbus.sync.client.visitor import Visitor


class Bus(BusBase, wraps=api.Bus):
    """An open bus. Made by ``connect``. Its attributes are the parts of the bus.

    >>> with agentbus.sync.connect() as bus:                                         # doctest: +SKIP
    ...     with bus.agent("worker-1", type="worker") as worker:
    ...         message = worker.receive(timeout=5)
    """

    __slots__ = ()

    @property
    def agents(self) -> Agents:
        """The registry of agents."""
        return cast("Agents", self._wrap(self._inner.agents))

    @property
    def sessions(self) -> Sessions:
        """The sessions."""
        return cast("Sessions", self._wrap(self._inner.sessions))

    @property
    def messages(self) -> Messages:
        """The messages of all mailboxes."""
        return cast("Messages", self._wrap(self._inner.messages))

    @property
    def checkpoints(self) -> Checkpoints:
        """The checkpoints of agents, sessions and tasks."""
        return cast("Checkpoints", self._wrap(self._inner.checkpoints))

    @property
    def tasks(self) -> Tasks:
        """The durable tasks."""
        return cast("Tasks", self._wrap(self._inner.tasks))

    @property
    def tokens(self) -> Tokens:
        """The tokens of HTTP clients."""
        return cast("Tokens", self._wrap(self._inner.tokens))

    @property
    def recovery(self) -> Recovery:
        """The recovery of interrupted work."""
        return cast("Recovery", self._wrap(self._inner.recovery))

    @property
    def retention(self) -> Retention:
        """The policy by which old data is removed."""
        return cast("Retention", self._wrap(self._inner.retention))

    @property
    def quotas(self) -> Quotas:
        """The limits of queues."""
        return cast("Quotas", self._wrap(self._inner.quotas))

    @property
    def holds(self) -> Holds:
        """The messages that wait for a person."""
        return cast("Holds", self._wrap(self._inner.holds))

    @property
    def histories(self) -> Histories:
        """The conversations and runs that agent frameworks store."""
        return cast("Histories", self._wrap(self._inner.histories))

    @property
    def notifications(self) -> Notifications:
        """The notifiers of users, and what they delivered."""
        return cast("Notifications", self._wrap(self._inner.notifications))

    def session(
        self,
        operation: str,
        *,
        milestone: str | None = None,
        id: str | None = None,
        expects: Mapping[str, str] | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> AbstractContextManager[Session]:
        """Open a session for the length of a block: one coordinated operation with its agents and documents.

        Leaving the block ends it: completed; failed, with the error, after an exception; interrupted when cancelled.
        The ``id`` of an interrupted session resumes it (``session.continued``); if its owner is alive, that is an
        error. ``expects`` maps agents to the documents that they owe: ``session.missing()`` lists those not yet saved.

        >>> with bus.session("planning", milestone="ms-123", id="planning-001",           # doctest: +SKIP
        ...                        expects={"scope-analyzer": "planning-scope"}) as session:
        ...     session.progress(10)
        """
        return self._block(
            self._inner.session, operation, milestone=milestone, id=id, expects=expects, metadata=metadata
        )

    def agent(self, id: str, *, type: str, **options: Unpack[AgentOptions]) -> AbstractContextManager[Agent]:
        """Register an agent for the length of a block; the options are those of ``register``.

        Leaving the block ends it: completed; failed, with the error, after an exception; stopped when cancelled.

        >>> with bus.agent("executor-1", type="executor", pools=["executors"]) as executor:   # doctest: +SKIP
        ...     for message in executor.inbox():
        ...         ...
        """
        return self._block(self._inner.agent, id, type=type, **options)

    def register(self, id: str, *, type: str, **options: Unpack[AgentOptions]) -> Agent:
        """Register an agent that runs in this process until it is ended, or the bus is closed.

        ``agentbus.api.agents.AgentOptions`` describes the options: ``session``, ``pools`` and ``topics`` to join, and
        the description of the agent.

        An id that ended before starts a new incarnation with its state and mailbox, in its old session if that is open
        and no other is given (``agent.restored`` is the checkpoint to resume from). An id that is alive elsewhere is an
        error; with ``takeover=True`` the old incarnation is fenced instead.

        >>> worker = bus.register("worker-1", type="worker", capabilities=["python"])   # doctest: +SKIP
        """
        return cast("Agent", self._call_wrapping(self._inner.register, id, type=type, **options))

    def register_visitor(self, id: str, *, type: str, **options: Unpack[VisitorOptions]) -> Visitor:
        """Register a visiting agent: a program elsewhere that calls now and then. Each call is its heartbeat. The
        options are those of ``register``, with ``lease``, the seconds that leases on its messages last from its last
        call (600), and ``by``, the operator whom the audit log shows instead of the agent.

        >>> visitor = bus.register_visitor("planner-1", type="planner")         # doctest: +SKIP
        """
        return cast("Visitor", self._call_wrapping(self._inner.register_visitor, id, type=type, **options))

    def visitor(self, id: str, *, epoch: int | None = None, lease: float = VISITOR_LEASE) -> Visitor:
        """Return a visiting agent that is registered, to act in its name. Without an ``epoch`` it acts in its current
        incarnation; with one, it is fenced once another incarnation has taken over.

        >>> visitor = bus.visitor("planner-1", epoch=3)                         # doctest: +SKIP
        """
        return cast("Visitor", self._call_wrapping(self._inner.visitor, id, epoch=epoch, lease=lease))

    def expect(
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

        >>> bus.expect("executor-1", type="executor")                           # doctest: +SKIP
        """
        self._call(self._inner.expect, id, type=type, session=session, within=within, **about)

    def declare(self, *addresses: Address) -> None:
        """Create pools and topics before an agent joins them.

        >>> bus.declare(agentbus.pool("executors"), agentbus.topic("plans"))    # doctest: +SKIP
        """
        self._call(self._inner.declare, *addresses)

    def define(
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

        >>> bus.define("deploy_request", description="please deploy this")      # doctest: +SKIP
        >>> bus.define("deploy_result", schema={"required": ["url"]})           # doctest: +SKIP
        >>> bus.define(Plan)                                                    # doctest: +SKIP
        """
        self._call(self._inner.define, what, kind=kind, description=description, schema=schema)

    def types(self, kind: Literal["agent", "message"] | None = None) -> list[TypeRecord]:
        """Return the built-in types and those that were defined.

        >>> [type.name for type in bus.types("agent")]                          # doctest: +SKIP
        ['coordinator', 'estimation-agent', 'executor', …]
        """
        return self._call(self._inner.types, kind)

    def state(self, scope: str) -> State:
        """Return the entries of any scope: the id of an agent, or another name. Entries written here have no author.

        The scope of an agent's id is that agent's state, and is deleted with the agent.

        >>> bus.state("planner-1").get("scope")                                 # doctest: +SKIP
        {'files': 12}
        >>> bus.state("builds").increment("count")                              # doctest: +SKIP
        17
        """
        return cast("State", self._wrap(self._inner.state(scope)))

    def scopes(self, *, cursor: str | None = None, limit: int = PAGE_SIZE) -> Page[ScopeRecord]:
        """Return the scopes of state that have entries, ordered by name.

        >>> [one.scope for one in bus.scopes().items]                         # doctest: +SKIP
        ['feature-flags', 'planner-1']
        """
        return self._call(self._inner.scopes, cursor=cursor, limit=limit)

    def read_id(self) -> str:
        """Return the random id of this bus, which its copies and backups share.

        >>> bus.read_id()                                                       # doctest: +SKIP
        '5f2c81d09a3b7e46'
        """
        return self._call(self._inner.read_id)

    def newest_message(self) -> int:
        """Return the highest number of a message; they are numbered in the order in which they are sent.

        >>> bus.newest_message()                                                # doctest: +SKIP
        4711
        """
        return self._call(self._inner.newest_message)

    def lock_waits(self) -> float:
        """Return the seconds per minute that all writers together waited for the lock recently; 0 on a server.

        >>> bus.lock_waits()                                                    # doctest: +SKIP
        0.25
        """
        return self._call(self._inner.lock_waits)

    def stats(self, *, deepest: int = 20) -> Stats:
        """Return counts by status, the deepest queues, and sizes.

        >>> bus.stats().messages                                              # doctest: +SKIP
        {'acked': 120, 'queued': 3}
        """
        return self._call(self._inner.stats, deepest=deepest)

    def metrics(self) -> list[MetricFamily]:
        """Return the metrics of the bus and of this process; ``agentbus.api.metrics.render`` writes them as text.

        >>> [family.name for family in bus.metrics()][:2]                       # doctest: +SKIP
        ['agentbus_build', 'agentbus_messages_sent']
        """
        return self._call(self._inner.metrics)

    def events(
        self,
        *,
        after: int | Literal["now"] = 0,
        follow: bool = False,
        kind: str | None = None,
        subject: str | None = None,
        limit: int | None = None,
    ) -> Iterator[EventRecord]:
        """Iterate over the audit log in its order.

        ``after`` is the id of the last known event; "now" skips all existing ones. With ``follow`` it waits for new
        events indefinitely, of other processes as well. ``subject`` is written like ``agent:planner-1``.

        >>> for event in bus.events(after=last, follow=True):                   # doctest: +SKIP
        ...     print(event.id, event.kind, event.subject, event.actor, event.facts)
        """
        return self._iterate(self._inner.events, after=after, follow=follow, kind=kind, subject=subject, limit=limit)

    def recent_events(
        self, *, kind: str | None = None, subject: str | None = None, cursor: str | None = None, limit: int = PAGE_SIZE
    ) -> Page[EventRecord]:
        """Return the audit log from its end, newest first.

        >>> [event.kind for event in bus.recent_events(subject="agent:planner-1").items]   # doctest: +SKIP
        ['agent_failed', 'agent_registered']
        """
        return self._call(self._inner.recent_events, kind=kind, subject=subject, cursor=cursor, limit=limit)

    def live(self, *, after: str | None = None, coalesce: float = 0.1) -> Iterator[LiveChange]:
        """Iterate over what happens on the bus: events, and messages that were sent, leased, acknowledged, released or
        dead-lettered, without payloads. Changes within ``coalesce`` seconds are one.

        ``after`` is the ``cursor`` of the last change; without it the feed starts now. Events and sent messages since
        then are reported. Leases and acknowledgements are reported only as they happen: after a reconnect, read again
        what you show, as after a change with ``missed``.

        >>> for change in bus.live():                                           # doctest: +SKIP
        ...     print(change.cursor, [(one.message_id, one.status) for one in change.messages])
        """
        return self._iterate(self._inner.live, after=after, coalesce=coalesce)

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

        >>> with bus.monitor(fail_stuck_after=600, log_file="monitor.log", on_finding=print):   # doctest: +SKIP
        ...     work()
        """
        return cast(
            "Monitor",
            self._wrap(
                self._inner.monitor(
                    interval=interval,
                    suspect_after=suspect_after,
                    fail_after=fail_after,
                    fail_stuck_after=fail_stuck_after,
                    deep_queue=deep_queue,
                    log_file=log_file,
                    on_finding=on_finding,
                    notify=notify,
                )
            ),
        )

    def sweep(
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

        >>> [finding.text for finding in bus.sweep().findings]                # doctest: +SKIP
        ['planner-1 failed: its process died']
        """
        return self._call(
            self._inner.sweep,
            suspect_after=suspect_after,
            fail_after=fail_after,
            fail_stuck_after=fail_stuck_after,
            deep_queue=deep_queue,
        )

    def import_path(self, path: str | os.PathLike[str], *, progress: importer.Progress | None = None) -> ImportReport:
        """Import existing data: a folder of JSON files (agents, sessions, checkpoints, outputs, loose temp files), an
        SQLite database of home-made coordination, or an archive. Importing is idempotent.

        Existing data is never changed. Running agents are imported as failed and active sessions as interrupted,
        without notifications; unread messages are queued. Invalid names are changed and unknown types defined; the
        report lists what was skipped, and why. ``progress`` is called with (done, total, file) in bytes.

        >>> report = bus.import_path("old/state")                               # doctest: +SKIP
        >>> report.imported, report.problems                                          # doctest: +SKIP
        ({'agent': 12, 'state': 3}, [ImportProblem(file='x.json', line=0, reason='it is empty', taken=False)])
        """
        return self._call(self._inner.import_path, path, progress=progress)

    def export(
        self, path: str | os.PathLike[str], *, session: str | None = None, progress: importer.Progress | None = None
    ) -> ExportReport:
        """Write the bus, or one session with its agents and their data, to a file that ``import_path`` reads: at a
        ``path`` that does not exist yet, or in a folder.

        The bus stays in use: each row is written as it is when it is read. ``bus.backup`` is a consistent copy.
        ``progress`` is called with (done, total, kind) in rows.

        >>> bus.export("planning-001.jsonl.gz", session="planning-001").exported   # doctest: +SKIP
        {'session': 1, 'agent': 3, 'document': 2, 'checkpoint': 9, 'message': 14, 'event': 12}
        """
        return self._call(self._inner.export, path, session=session, progress=progress)

    def import_archive(self, path: str | os.PathLike[str]) -> ImportReport:
        """Restore the rows of an archive of ``bus.retention`` that the bus does not have. Restoring is idempotent.

        Lines are reported and skipped that are damaged, whose id or name is in use for something else, or that belong
        to an earlier session of the same name or an earlier incarnation of an agent that is alive. An empty bus accepts
        the archive of any bus. Restored rows keep their age, so the next retention removes them again: to keep them,
        restore them into another bus.

        >>> bus.import_archive(".agentbus/archive/20260101T000000.000Z-1a2b3c4d.jsonl.gz")   # doctest: +SKIP
        """
        return self._call(self._inner.import_archive, path)

    def backup(
        self, path: str | os.PathLike[str] | None = None, *, keep: int = KEEP_BACKUPS, progress: Progress | None = None
    ) -> BackupRecord:
        """Make a verified copy of the bus while it is in use, with everything committed before it started.

        It is saved in ``backups/`` of the bus, where the newest ``keep`` are kept; or at a ``path`` that does not exist
        yet, or in a directory. ``agentbus.restore_backup`` restores it. ``progress`` is called with (done, total) from
        another thread. With ``AGENTBUS_BACKUP_ON_OPEN=1`` every opening makes one.

        A cancelled call leaves a complete backup under its final name, or none. The thread that copies stops at its
        next step; until then there is a hidden ``.agentbus-….unfinished`` file, which is not listed, restored or
        counted. Closing the bus waits for the thread; the next backup removes what a killed process left.

        >>> bus.backup().path                                                 # doctest: +SKIP
        '/home/me/project/.agentbus/backups/bus-20260101T000000.000Z-1a2b3c4d.db'
        """
        return self._call(self._inner.backup, path, keep=keep, progress=progress)

    def doctor(self, *, outgrown: Mapping[str, float] | None = None) -> list[Check]:
        """Check the bus for problems: the database, its contents, the disk, the clock. Changes nothing and blocks no
        writer. ``agentbus.doctor`` does the same for a bus that is not, or cannot be, opened.

        ``outgrown`` sets the limits of a bus in one file: ``waits`` (seconds per minute that all writers together wait
        for the lock: 30), ``writers`` (processes that have it open: 32), ``size`` (bytes: 4 GiB). The defaults are
        AGENTBUS_OUTGROWN_WAITS, _WRITERS and _SIZE.

        >>> for check in bus.doctor():                                          # doctest: +SKIP
        ...     print(check.status, check.name, check.text, check.fix or "")
        """
        return self._call(self._inner.doctor, outgrown=outgrown)


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
    """Return a bus to be used with ``with``.

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

    >>> with agentbus.sync.connect() as bus:                                         # doctest: +SKIP
    ...     printbus.stats()
    >>> agentbus.sync.connect(auto_resume=lambda record: record.session.operation == "build")   # doctest: +SKIP
    """
    return Bus(
        api.connect(
            url,
            durability=durability,
            clock=clock,
            max_payload=max_payload,
            max_snapshot=max_snapshot,
            lock_timeout=lock_timeout,
            beat_every=beat_every,
            max_blocked=max_blocked,
            auto_resume=auto_resume,
            create=create,
        )
    )


def doctor(
    url: str | os.PathLike[str] | None = None,
    *,
    clock: Clock | None = None,
    outgrown: Mapping[str, float] | None = None,
) -> list[Check]:
    """Check a bus without opening it, also one that cannot be opened: damaged, locked, of a newer agentbus, or missing.
    ``url`` is as for ``connect``, ``outgrown`` as for ``bus.doctor``. Nothing is created or changed, and problems are
    returned, not raised.

    >>> for check in agentbus.sync.doctor(".agentbus"):                              # doctest: +SKIP
    ...     if check.status != "ok":
    ...         print(check.status, check.name, check.text, check.fix or "")
    """
    return run_alone(api.doctor, url, clock=clock, outgrown=outgrown)
