"""Records of agents, messages, sessions, documents, checkpoints, state, events and types."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

R = TypeVar("R")


class AgentRecord(msgspec.Struct, frozen=True):
    """An agent in the registry. ``last_call`` and ``busy_until`` are awake milliseconds.

    ``evidence`` explains why it is suspect or was marked failed: a ``verdict`` (dead, rebooted, stalled, unreachable,
    stuck, silent, absent) and its facts: the process and pid, whether that is ``alive``, the seconds since its last
    heartbeat (``beat_age``) and since the last call of the agent (``call_age``).

    >>> record = await bus.agents.get("planner-1")                                    # doctest: +SKIP
    >>> record.status, record.progress                                                # doctest: +SKIP
    ('running', 40)
    """

    id: str
    name: str
    type: str
    kind: str
    session: str | None
    milestone: str | None
    parent: str | None
    capabilities: list[str]
    model: str | None
    prompt: str | None
    load: int | None
    estimate: float | None
    metadata: dict[str, Any]
    status: str
    progress: int
    note: str | None
    process: int | None
    epoch: int
    patience: float | None
    last_call: int | None
    busy_until: int | None
    created: int
    started: int | None
    updated: int
    ended: int | None
    error: str | None
    evidence: dict[str, Any] | None = None


class SeenRecord(msgspec.Struct, frozen=True):
    """A receipt: a message was delivered into the context of an agent. ``client`` is the session of the agent's client,
    if it is known; ``channel`` is what delivered it (receive, hook, mcp, http), ``at`` the wall time.

    >>> [(one.agent, one.channel) for one in await bus.messages.receipts("m-7")]      # doctest: +SKIP
    [('executor-1', 'hook')]
    """

    message_id: str
    agent: str
    epoch: int
    client: str | None
    channel: str
    at: int


class SeenReport(msgspec.Struct, frozen=True):
    """The receipts of a message and its copies. ``seen``: every copy was seen, or acknowledged without a receipt, as
    programs do. ``final``: waiting longer changes nothing.

    >>> (await bus.messages.wait_seen("m-7", timeout=60)).seen                        # doctest: +SKIP
    True
    """

    seen: bool
    final: bool
    copies: int
    seen_copies: int
    acked_copies: int
    receipts: list[SeenRecord]


class MessageRecord(msgspec.Struct, frozen=True):
    """A message of any status. ``headers`` is empty if the sender gave none; ``leased_at`` is the wall time of its last
    delivery, None if it has none on record; ``seen`` is the wall time at which it was first delivered into a context,
    None if that is not known. ``bus.messages.get`` fills ``receipts``, of all copies of the message; lists do not. A
    ``held`` message is scheduled without a due time and waits for a person; ``hold_reason`` says why.

    >>> record = await bus.messages.get("m-7")                                        # doctest: +SKIP
    >>> record.status, record.attempts                                                # doctest: +SKIP
    ('dead', 5)
    """

    id: int
    message_id: str
    sender: str
    recipient: str
    type: str
    payload: Any
    priority: int
    status: str
    attempts: int
    max_attempts: int
    holder: str | None
    session: str | None
    correlation: str | None
    error: str | None
    due: int | None
    expires: int | None
    created: int
    finished: int | None
    headers: dict[str, str] = {}
    leased_at: int | None = None
    seen: int | None = None
    receipts: list[SeenRecord] = []
    held: bool = False
    hold_reason: str | None = None


class HoldRecord(msgspec.Struct, frozen=True):
    """A thread whose messages wait for a person: it has reached the bound of messages without progress. ``sent`` counts
    its messages since a person wrote or an agent made progress, ``held`` those that wait; ``since`` is when the first
    was held.

    >>> [(one.thread, one.held) for one in (await bus.holds.list()).items]            # doctest: +SKIP
    [('m-7', 3)]
    """

    thread: str
    held: int
    sent: int
    agents: list[str]
    first: str
    last: str
    since: int


class MessageChange(msgspec.Struct, frozen=True):
    """A message of the live feed, as it is now, without its payload. Times are wall milliseconds.

    >>> async for change in bus.live():                                               # doctest: +SKIP
    ...     print([(one.message_id, one.status) for one in change.messages])
    """

    id: int
    message_id: str
    sender: str
    recipient: str
    holder: str | None
    type: str
    status: str
    priority: int
    attempts: int
    session: str | None
    correlation: str | None
    created: int
    finished: int | None
    seen: int | None = None


class MessageSpan(msgspec.Struct, frozen=True):
    """A message in a period: when it was sent, last delivered (earlier deliveries are not stored) and finished.

    >>> [(one.sender, one.recipient) for one in (await bus.messages.spans(start, end)).items]   # doctest: +SKIP
    [('planner-1', 'executor-1')]
    """

    id: int
    message_id: str
    sender: str
    recipient: str
    holder: str | None
    type: str
    status: str
    created: int
    leased_at: int | None
    finished: int | None
    correlation: str | None


class SessionRecord(msgspec.Struct, frozen=True):
    """A session. ``process`` is the number of the process that owns it, ``expected`` maps producers to the documents
    they owe, ``error`` is why it failed or was interrupted. A ``degraded`` session is active although an agent failed.

    >>> record = await bus.sessions.get("planning-001")                               # doctest: +SKIP
    >>> record.status, record.progress                                                # doctest: +SKIP
    ('interrupted', 40)
    """

    id: str
    operation: str
    milestone: str | None
    status: str
    progress: int
    process: int | None
    expected: dict[str, str]
    metadata: dict[str, Any]
    created: int
    updated: int
    ended: int | None
    error: str | None
    degraded: bool = False


class MemberRecord(msgspec.Struct, frozen=True):
    """A participant of a meeting. ``finished`` is the wall time at which it finished, or None.

    >>> [(member.name, member.result) for member in meeting.members]                  # doctest: +SKIP
    [('a', {'agrees': True}), ('b', None)]
    """

    name: str
    finished: int | None
    result: Any = None


class MeetingRecord(msgspec.Struct, frozen=True):
    """A meeting of a session, with its members in order.

    >>> [(meeting.name, meeting.remaining) for meeting in await session.meetings()]   # doctest: +SKIP
    [('participants', ['b'])]
    """

    name: str
    members: list[MemberRecord]

    @property
    def remaining(self) -> list[str]:
        """Return the members that have not finished."""
        return [member.name for member in self.members if member.finished is None]


class FinishedMember(msgspec.Struct, frozen=True):
    """A member that has finished. ``changed`` is False if it had finished before; ``remaining`` are the members of the
    same meeting that have not.

    >>> (await session.finish_member("a", {"agrees": True})).remaining                # doctest: +SKIP
    ['b']
    """

    session: str
    meeting: str
    member: str
    changed: bool
    remaining: list[str]


class DocumentRecord(msgspec.Struct, frozen=True):
    """One version of a document.

    >>> record = await session.document("planning_output").record()                   # doctest: +SKIP
    >>> record.version, record.author                                                 # doctest: +SKIP
    (3, 'planner-1')
    """

    id: int
    session: str
    name: str
    version: int
    author: str | None
    created: int
    value: Any


class DocumentSummary(msgspec.Struct, frozen=True):
    """The newest version of a document, without its value.

    >>> [document.name for document in await session.documents()]                     # doctest: +SKIP
    ['planning_output', 'risks']
    """

    name: str
    version: int
    author: str | None
    created: int


class FileReference(msgspec.Struct, frozen=True):
    """A file at the time of a checkpoint: its path below the root, its size and its SHA-256.

    >>> FileReference("plan.md", 0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855").size
    0
    """

    path: str
    size: int
    sha256: str


class FileCheck(msgspec.Struct, frozen=True):
    """The state of a file that a checkpoint refers to.

    ``status`` is ``ok``, ``changed``, ``vanished``, ``outside`` (a symbolic link is in its path, which is not followed)
    or ``unreadable``.

    >>> [check.path for check in await bus.checkpoints.verify(7) if check.status != "ok"]   # doctest: +SKIP
    ['plan.md']
    """

    path: str
    status: str


class Checkpoint(msgspec.Struct, frozen=True):
    """A named snapshot of an agent or a session, with references to files. If ``owner_kind`` is "composite", it has
    everything that belongs to a session; ``session.checkpoint_all`` makes it.

    >>> checkpoint = await agent.restore("after_planning")                            # doctest: +SKIP
    >>> checkpoint.snapshot                                                           # doctest: +SKIP
    {'step': 1}
    """

    id: int
    owner_kind: str
    owner: str
    name: str
    snapshot: Any
    notes: str
    files: list[FileReference]
    session: str | None
    created: int


class CheckpointSummary(msgspec.Struct, frozen=True):
    """A checkpoint in a list, without its snapshot; ``size`` is the length of that in bytes.

    >>> for summary in (await bus.checkpoints.list("planner-1")).items:               # doctest: +SKIP
    ...     print(summary.id, summary.name, summary.size)
    """

    id: int
    owner_kind: str
    owner: str
    name: str
    notes: str
    session: str | None
    created: int
    size: int
    files: int
    """The number of files that it refers to."""


class EventRecord(msgspec.Struct, frozen=True):
    """An event of the audit log: ``actor`` did this to the subject at wall time ``at``. None is the bus itself, or a
    caller that is not an agent.

    >>> async for event in bus.events(kind="agent_failed"):                           # doctest: +SKIP
    ...     print(event.subject, event.facts["error"])
    """

    id: int
    at: int
    kind: str
    subject_kind: str
    subject: str
    actor: str | None
    facts: dict[str, Any]


class Page(msgspec.Struct, Generic[R], frozen=True):
    """A page of a longer list; ``cursor`` gets the next page, and is None after the last.

    >>> page = await bus.agents.list(status="running", limit=50)                      # doctest: +SKIP
    >>> rest = await bus.agents.list(status="running", cursor=page.cursor)            # doctest: +SKIP
    """

    items: list[R]
    cursor: str | None = None


class TypeRecord(msgspec.Struct, frozen=True):
    """A type; ``schema`` is the JSON Schema of the payloads of a message type, or None.

    >>> [type.name for type in await bus.types("message") if type.schema]             # doctest: +SKIP
    ['deploy_request', 'plan']
    """

    kind: str
    name: str
    builtin: bool
    description: str
    schema: dict[str, Any] | None
    created: int


class QueueDepth(msgspec.Struct, frozen=True):
    """The number of queued messages of a mailbox, and the age of the oldest in milliseconds.

    >>> QueueDepth(recipient="pool:executors", queued=3, oldest=1500).queued
    3
    """

    recipient: str
    queued: int
    oldest: int


class QueueRecord(msgspec.Struct, frozen=True):
    """A mailbox of an agent or a pool: the numbers of its messages by status, the age of the oldest that waits in
    milliseconds, and the number of live agents that read it.

    >>> [one.recipient for one in (await bus.messages.queues()).items if not one.members]   # doctest: +SKIP
    ['pool:executors']
    """

    recipient: str
    kind: str
    queued: int
    scheduled: int
    leased: int
    dead: int
    oldest: int | None
    members: int


class StateEntry(msgspec.Struct, frozen=True):
    """An entry of state. ``version`` counts the values of its key; ``change`` grows with every change on the bus. A
    deleted or expired entry, which only ``watch`` shows, has no value. ``error`` reports a damaged value, where a list
    or a watch must not stop.

    >>> entry = await agent.state.entry("scope")                                      # doctest: +SKIP
    >>> entry.value, entry.version                                                    # doctest: +SKIP
    ({'files': 12}, 3)
    """

    scope: str
    key: str
    value: Any
    type: str
    version: int
    change: int
    expires: int | None
    author: str | None
    created: int
    updated: int
    deleted: bool = False
    error: str | None = None


class ScopeRecord(msgspec.Struct, frozen=True):
    """A scope of state: the number of its entries, and the wall time of its last change.

    >>> [(one.scope, one.entries) for one in (await bus.scopes()).items]              # doctest: +SKIP
    [('feature-flags', 1), ('planner-1', 2)]
    """

    scope: str
    entries: int
    updated: int


class Stats(msgspec.Struct, frozen=True):
    """Counts and sizes of the bus.

    >>> stats = await bus.stats()                                                     # doctest: +SKIP
    >>> stats.messages["queued"]                                                      # doctest: +SKIP
    12
    """

    messages: dict[str, int]
    agents: dict[str, int]
    queues: list[QueueDepth]
    oldest_waiting: int | None
    """The age of the oldest queued message in milliseconds."""
    database_bytes: int
    wal_bytes: int
