"""Records of retention, quotas, imports, exports, copies, backups, the doctor and the monitor."""

from __future__ import annotations

from typing import Any

import msgspec

from agentbus.core.validation import MAX_SECONDS, THREAD_BOUND, check_range, check_seconds
from agentbus.errors import OutOfRange

DAY = 24 * 3600.0
_MAX_COUNT = 1_000_000_000


class RetentionPolicy(msgspec.Struct, frozen=True):
    """The retention policy: everything it removes is archived first.

    ``checkpoints_last`` and ``messages_most`` are counts, ``checkpoints_daily`` is days, all others are seconds. None
    keeps data indefinitely (``messages_most``: without limit), except for ``failed_sessions``, where it means "like
    other sessions". 0 keeps nothing that has ended.

    >>> RetentionPolicy(messages=24 * 3600, events=None).checkpoints_last
    24
    """

    checkpoints_last: int = 24
    """Newest checkpoints of each owner and name that stay regardless of age; at least 1."""
    checkpoints_daily: int | None = 30
    """Days for which, of older checkpoints, the last one of each day (UTC) stays."""
    messages: float | None = 7 * DAY
    """Seconds since a message was acknowledged or expired."""
    dead_letters: float | None = 7 * DAY
    """Seconds since a message became a dead letter."""
    messages_most: int | None = 100_000
    """Maximum number of finished messages, and of dead letters; the newest stay."""
    agents: float | None = 7 * DAY
    """Seconds since an agent ended, if its session has ended and no checkpoint or open message refers to it."""
    sessions: float | None = 30 * DAY
    """Seconds since a session ended. It is removed with its documents, participants, state, checkpoints, agents and
    tasks, once those have ended."""
    failed_sessions: float | None = None
    """Seconds since a session failed, to remove those earlier than others, for example after a day."""
    tasks: float | None = 30 * DAY
    """Seconds since a task and all its sub-tasks ended. It is removed with its steps, approvals and checkpoints."""
    events: float | None = 90 * DAY
    """Seconds since an event of the audit log."""
    processes: float | None = 7 * DAY
    """Seconds since a process left or died, once no agent or session refers to it."""
    tombstones: float | None = 30 * DAY
    """Seconds since a state entry was deleted or expired. A watcher that resumes from an earlier change misses it."""
    histories: float | None = None
    """Seconds since the last write of a history, which is removed with its items. They stay by default: frameworks
    continue them."""

    def __post_init__(self) -> None:
        check_range(self.checkpoints_last, "checkpoints_last", 1, _MAX_COUNT)
        for name in ("checkpoints_daily", "messages_most"):
            if getattr(self, name) is not None:
                check_range(getattr(self, name), name, 0, _MAX_COUNT)
        for name in _SECONDS:
            if getattr(self, name) is not None:
                check_seconds(getattr(self, name), name, zero=True, high=10 * MAX_SECONDS)


_SECONDS = (
    "messages", "dead_letters", "agents", "sessions", "failed_sessions", "tasks", "events", "processes", "tombstones",
    "histories",
)  # fmt: skip


class QuotaPolicy(msgspec.Struct, frozen=True):
    """Quotas of the bus; None is unlimited. A message over a quota is refused with a named error; sending it again
    later under the same message_id sends it once. One over the bound of its thread is accepted and held.

    >>> QuotaPolicy(rate=50).depth is None
    True
    """

    depth: int | None = None
    """Maximum number of messages that wait in one mailbox; replies are exempt. Counting takes about 0.1 ms per commit
    with 10,000 waiting."""
    rate: float | None = None
    """Messages per second that one agent may send, with a burst of ten seconds' worth."""
    size: int | None = None
    """Bytes at which the bus accepts no more messages. Everything else continues, so that it can be cleaned up."""
    thread: int | None = THREAD_BOUND
    """Messages of agents in one thread without progress or a person; further ones are held until a person releases them
    (``bus.holds``). 0 or None: no bound."""

    def __post_init__(self) -> None:
        if self.depth is not None:
            check_range(self.depth, "depth", 1, _MAX_COUNT)
        if self.size is not None:
            check_range(self.size, "size", 1, 2**62)
        if self.thread is not None:
            check_range(self.thread, "thread", 0, _MAX_COUNT)
        if self.rate is not None and (type(self.rate) not in {int, float} or not 0.001 <= self.rate <= 1e6):
            raise OutOfRange(what="rate", value=self.rate, allowed="messages a second from 0.001 to 1000000")


class RetentionReport(msgspec.Struct, frozen=True):
    """The result of retention: the number removed of each kind (checkpoint, message, agent, task, session, document,
    event, process, tombstone), and the archive file. ``kept`` counts those that changed while they were archived, and
    so stayed.

    >>> report = await bus.retention.apply(dry_run=True)                              # doctest: +SKIP
    >>> report.removed                                                                # doctest: +SKIP
    {'message': 1200, 'event': 310}
    """

    dry_run: bool
    removed: dict[str, int]
    kept: int
    archive: str | None
    archive_bytes: int


class ImportProblem(msgspec.Struct, frozen=True):
    """An item that was not imported, or (``taken``) imported with a change, and the reason.

    ``file`` is the path below the imported one, empty for itself; ``line`` a line of an archive, an entry of a list or
    a row of a table, 0 for all of it.

    >>> ImportProblem("agents/a b.json", 0, "the agent id 'a b' became 'a-b'", taken=True).file
    'agents/a b.json'
    """

    file: str
    line: int
    reason: str
    taken: bool = False


class ImportedFile(msgspec.Struct, frozen=True):
    """The result for one file: its detected format, the number imported of each kind, present already, and refused.

    >>> ImportedFile("agents/planner-1.json", "agent", {"agent": 1}, 0, 0).format
    'agent'
    """

    path: str
    format: str
    imported: dict[str, int]
    present: int
    refused: int


class ImportReport(msgspec.Struct, frozen=True):
    """The result of an import: the number imported of each kind, present already, refused, and changed; the first
    hundred problems; and the first thousand files with content.

    >>> report = await bus.import_path("old/state")                                   # doctest: +SKIP
    >>> report.imported, report.present, report.refused                               # doctest: +SKIP
    ({'agent': 12, 'state': 3, 'session': 1, 'document': 2}, 0, 0)
    """

    path: str
    imported: dict[str, int]
    present: int
    refused: int
    changed: int
    problems: list[ImportProblem]
    files: list[ImportedFile]
    file_count: int


class ExportReport(msgspec.Struct, frozen=True):
    """An archive of the bus or a session: its path, its size in bytes, and the number of items of each kind.

    >>> (await bus.export("bus.jsonl.gz")).exported                                   # doctest: +SKIP
    {'type': 23, 'session': 2, 'agent': 7, 'message': 120, 'event': 48}
    """

    path: str
    size: int
    exported: dict[str, int]
    created: int


class CopiedTable(msgspec.Struct, frozen=True):
    """A copied table: the number of rows and the checksum that source and target share.

    >>> CopiedTable("messages", 120, "c0ffee00c0ffee00c0ffee00c0ffee00").rows
    120
    """

    name: str
    rows: int
    checksum: str


class CopyReport(msgspec.Struct, frozen=True):
    """A copied bus: source, target and verified tables. ``resumed``: an interrupted copy was continued.

    >>> report = CopyReport("/home/me/.agentbus", "postgresql://me@server/agents", False, 120, [])
    >>> report.rows, report.resumed
    (120, False)
    """

    source: str
    target: str
    resumed: bool
    rows: int
    tables: list[CopiedTable]


class BackupRecord(msgspec.Struct, frozen=True):
    """A verified backup: its path, its size in bytes, and the wall time at which it was started.

    >>> (await bus.backup()).path                                                     # doctest: +SKIP
    '/home/me/project/.agentbus/backups/bus-20260101T000000.000Z-1a2b3c4d.db'
    """

    path: str
    size: int
    created: int


class Check(msgspec.Struct, frozen=True):
    """The result of one check of the doctor. ``status`` is ``ok``, ``warning`` or ``error``; ``fix`` says what to do.

    >>> [check.name for check in await bus.doctor() if check.status == "error"]       # doctest: +SKIP
    []
    """

    name: str
    status: str
    text: str
    fix: str | None = None


class Finding(msgspec.Struct, frozen=True):
    """A finding of the monitor at wall time ``at``. ``severity`` is info, warning or error; ``subject`` has the form
    ``agent:planner-1``.

    >>> async for finding in monitor.findings():                                      # doctest: +SKIP
    ...     print(finding.severity, finding.text)
    error planner-1 failed: its process died
    """

    kind: str
    subject: str
    severity: str
    text: str
    facts: dict[str, Any]
    at: int


class Sweep(msgspec.Struct, frozen=True):
    """The result of one sweep. ``counts`` has the numbers of agents suspected and failed, processes marked dead,
    sessions interrupted, leases and tasks released, messages and state entries expired.

    >>> sweep = await bus.sweep()                                                     # doctest: +SKIP
    >>> sweep.counts["agents_failed"], [finding.text for finding in sweep.findings]   # doctest: +SKIP
    (1, ['planner-1 failed: its process died'])
    """

    at: int
    seconds: float
    counts: dict[str, int]
    findings: list[Finding]
