"""What people see of the monitor, retention, archives, backups and the doctor."""

from __future__ import annotations

from typing import Any

import msgspec

from agentbus.errors import OutOfRange
from agentbus.limits import MAX_SECONDS, check_range, check_seconds

DAY = 24 * 3600.0
MOST_KEPT = 1_000_000_000


class RetentionPolicy(msgspec.Struct, frozen=True):
    """What is kept, and for how long; what goes is archived first.

    ``checkpoints_last`` and ``messages_most`` are counts, ``checkpoints_daily`` is days, all others are seconds. None
    keeps things for ever (``messages_most``: any number of them); but for ``failed_sessions``, where it means "no
    earlier than other sessions". 0 keeps nothing that has ended.

    >>> RetentionPolicy(messages=24 * 3600, events=None).checkpoints_last
    24
    """

    checkpoints_last: int = 24
    """A count, at least 1: of each owner and name, the newest so many stay, however old."""
    checkpoints_daily: int | None = 30
    """Days: of the checkpoints before those, the last one of each day (UTC) stays for so many days."""
    messages: float | None = 7 * DAY
    """Seconds since a message was acknowledged or expired."""
    dead_letters: float | None = 7 * DAY
    """Seconds since a message became a dead letter."""
    messages_most: int | None = 100_000
    """A count: so many finished messages stay at most, the newest; and as many dead letters."""
    agents: float | None = 7 * DAY
    """Seconds since an agent ended, if its session has ended too and no checkpoint and no open message refers to it."""
    sessions: float | None = 30 * DAY
    """Seconds since a session ended; it goes with its documents, participants, state, checkpoints, agents and
    tasks, once those have ended."""
    failed_sessions: float | None = None
    """Seconds since a session failed, if those shall go earlier than others, for example after a day."""
    tasks: float | None = 30 * DAY
    """Seconds since a task ended, and all its sub-tasks; it goes with its steps, approvals and checkpoints."""
    events: float | None = 90 * DAY
    """Seconds since an event of the audit trail."""
    processes: float | None = 7 * DAY
    """Seconds since a process left or died, once no agent and no session names it."""
    tombstones: float | None = 30 * DAY
    """Seconds since an entry of state was deleted or expired: whoever watches from a change before that misses it."""

    def __post_init__(self) -> None:
        check_range(self.checkpoints_last, "checkpoints_last", 1, MOST_KEPT)
        for name in ("checkpoints_daily", "messages_most"):
            if getattr(self, name) is not None:
                check_range(getattr(self, name), name, 0, MOST_KEPT)
        for name in _SECONDS:
            if getattr(self, name) is not None:
                check_seconds(getattr(self, name), name, zero=True, high=10 * MAX_SECONDS)


_SECONDS = (
    "messages", "dead_letters", "agents", "sessions", "failed_sessions", "tasks", "events", "processes", "tombstones",
)  # fmt: skip


class QuotaPolicy(msgspec.Struct, frozen=True):
    """What may be taken of the bus; None: any amount. A message over a quota is refused with a named error, and
    whoever sends it again later, under the same message_id, sends it once.

    >>> QuotaPolicy(rate=50).depth is None
    True
    """

    depth: int | None = None
    """A count: so many messages may wait in one mailbox. Replies always queue. Counting them takes a while: with
    10,000 waiting, about a tenth of a millisecond for each commit."""
    rate: float | None = None
    """Messages a second that one agent may send; those of ten seconds may come at once."""
    size: int | None = None
    """Bytes: a bus that has them takes no more messages. All else goes on, so that it can be cleaned up."""

    def __post_init__(self) -> None:
        if self.depth is not None:
            check_range(self.depth, "depth", 1, MOST_KEPT)
        if self.size is not None:
            check_range(self.size, "size", 1, 2**62)
        if self.rate is not None and (type(self.rate) not in {int, float} or not 0.001 <= self.rate <= 1e6):
            raise OutOfRange(what="rate", value=self.rate, allowed="messages a second from 0.001 to 1000000")


class RetentionReport(msgspec.Struct, frozen=True):
    """What retention removed, or would remove: how many of each kind (checkpoint, message, agent, task, session,
    document, event, process, tombstone), and the file that they were archived in.

    ``kept`` are those that changed while they were being archived, and so stayed.

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
    """Something that was not imported, or (``taken``) not as it was, and why. ``file`` is the path below what was
    imported, empty for itself; ``line`` a line of an archive, an entry of a list or a row of a table, and 0 stands for
    all of it.

    >>> ImportProblem("agents/a b.json", 0, "the agent id 'a b' became 'a-b'", taken=True).file
    'agents/a b.json'
    """

    file: str
    line: int
    reason: str
    taken: bool = False


class ImportedFile(msgspec.Struct, frozen=True):
    """What became of one file: what it was taken for, how many of each kind it brought, how many were there already,
    and how many were refused.

    >>> ImportedFile("agents/planner-1.json", "agent", {"agent": 1}, 0, 0).format
    'agent'
    """

    path: str
    format: str
    imported: dict[str, int]
    present: int
    refused: int


class ImportReport(msgspec.Struct, frozen=True):
    """What an import brought: how many of each kind, how many were there already, how many were refused, and how many
    were taken otherwise than they were, the first hundred of both with the reason; and the first thousand of the files
    that something was found in.

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
    """An archive of the bus, or of a session: where it is, its bytes, and how many of each kind it has.

    >>> (await bus.export("bus.jsonl.gz")).exported                                   # doctest: +SKIP
    {'type': 23, 'session': 2, 'agent': 7, 'message': 120, 'event': 48}
    """

    path: str
    size: int
    exported: dict[str, int]
    created: int


class CopiedTable(msgspec.Struct, frozen=True):
    """A table that was copied: how many rows both have, and the checksum of them all, in their order, that both have.

    >>> CopiedTable("messages", 120, "c0ffee00c0ffee00c0ffee00c0ffee00").rows
    120
    """

    name: str
    rows: int
    checksum: str


class CopyReport(msgspec.Struct, frozen=True):
    """A whole bus that was copied, from where to where, and what both were found to have. ``resumed``: a copy that was
    cut off before went on.

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
    """A verified backup: where it is, its bytes, and the wall time at which it was begun.

    >>> (await bus.backup()).path                                                     # doctest: +SKIP
    '/home/me/project/.agentbus/backups/bus-20260101T000000.000Z-1a2b3c4d.db'
    """

    path: str
    size: int
    created: int


class Check(msgspec.Struct, frozen=True):
    """One thing that the doctor looked at. ``status`` is ``ok``, ``warning`` or ``error``; ``fix`` says what to do.

    >>> [check.name for check in await bus.doctor() if check.status == "error"]       # doctest: +SKIP
    []
    """

    name: str
    status: str
    text: str
    fix: str | None = None


class Finding(msgspec.Struct, frozen=True):
    """Something that the monitor found, at wall time ``at``. ``severity`` is info, warning or error; ``subject`` is
    written like ``agent:planner-1``.

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
    """What one pass over the bus found and did. ``counts`` says how many agents it suspected and failed, processes it
    struck off, sessions it interrupted, leases and tasks it freed, messages and entries of state it expired.

    >>> sweep = await bus.sweep()                                                     # doctest: +SKIP
    >>> sweep.counts["agents_failed"], [finding.text for finding in sweep.findings]   # doctest: +SKIP
    (1, ['planner-1 failed: its process died'])
    """

    at: int
    seconds: float
    counts: dict[str, int]
    findings: list[Finding]
