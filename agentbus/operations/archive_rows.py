"""Lines of an archive: one for each row, and one for a task with its steps, approvals and signals.

A line has all columns except those that only apply within a boot (leases, heartbeats) and the numbers of mailboxes and
processes, which differ in another bus. Payloads keep their text, so that their checksums match.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, get_type_hints

import msgspec

from agentbus.core.clock import Now
from agentbus.core.validation import MAX_HISTORY_META, MAX_HISTORY_TEXT, TASK_ENDED, session_scope
from agentbus.errors import ArchiveDiffers
from agentbus.operations.events import event, record
from agentbus.operations.protocol import ExecuteMany, Op, Outcome, Query, Row
from agentbus.operations.rows import (
    ADDED,
    AGENT_JSON,
    MESSAGE_JSON,
    StoredAgent,
    StoredMessage,
    common_fields,
    stored_message,
)
from agentbus.operations.task_ownership import HeldTask, apply_redos, known_task
from agentbus.records import FileReference, TaskProblem

FORMAT = 1
MAX_NUMBER = 2**53
"""The largest number in an archive: an id or an epoch near the end of its range would leave none for others."""
Number = Annotated[int, msgspec.Meta(ge=0, le=MAX_NUMBER)]
Id = Annotated[int, msgspec.Meta(ge=1, le=MAX_NUMBER)]
HistoryKindName = Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9._:@/-]{1,64}$")]
HistoryText = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_HISTORY_TEXT)]
HistoryMeta = Annotated[str, msgspec.Meta(max_length=MAX_HISTORY_META)]
_NUMBERS: dict[Any, Any] = {int: Number, int | None: Number | None}


class _Line(msgspec.Struct, frozen=True, tag_field="record", forbid_unknown_fields=True):
    """A line whose fields are columns, in the order of the queries that read and write them."""

    def row(self) -> Row:
        return msgspec.structs.astuple(self)


class Header(_Line, frozen=True, tag="archive"):
    """The first line of every part of an archive; ``bus`` is the name of the bus."""

    format: Number
    created: Number
    bus: str | None = None


class ArchivedType(_Line, frozen=True, tag="type"):
    kind: str
    name: str
    description: str
    schema: str | None


class ArchivedMailbox(_Line, frozen=True, tag="place"):
    """A pool or a topic."""

    kind: str
    name: str


def _line_of(kind: type[msgspec.Struct], name: str, without: Set[str], **own: Any) -> Any:
    """Return the class of the lines of a table: its columns without some of them, and ``own`` fields in their place."""
    hints = get_type_hints(kind, include_extras=True)
    columns = {column: _NUMBERS.get(hints[column], hints[column]) for column in kind.__struct_fields__}
    fields = {column: type for column, type in columns.items() if column not in without} | own
    return msgspec.defstruct(
        f"Archived{name.title()}",
        [(field, type, None) if field in ADDED else (field, type) for field, type in fields.items()],
        bases=(_Line,), tag=name, frozen=True, kw_only=True, module=__name__,
    )  # fmt: skip


class ArchivedReceipt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A receipt of an archived message."""

    agent: Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
    epoch: Number
    client: Annotated[str, msgspec.Meta(max_length=200)]
    channel: Annotated[str, msgspec.Meta(pattern="^[a-z0-9_-]{1,32}$")]
    at: Number


if TYPE_CHECKING:

    class ArchivedMessage(StoredMessage, _Line, frozen=True):
        """A message, with the names of its mailbox, and its receipts. ``reply_to`` is the agent that waits for the
        reply."""

        mailbox_kind: str
        mailbox_name: str
        mailbox_owner: str
        reply_to: str | None  # type: ignore[assignment]
        receipts: list[ArchivedReceipt] | None

        def __init__(self, **values: Any) -> None: ...

    class ArchivedAgent(StoredAgent, _Line, frozen=True):
        """An agent."""

        def __init__(self, **values: Any) -> None: ...

else:
    ArchivedMessage = _line_of(
        StoredMessage, "message", {"mailbox", "lease_until"},
        id=Id, mailbox_kind=str, mailbox_name=str, mailbox_owner=str, reply_to=str | None,
        receipts=list[ArchivedReceipt] | None,
    )  # fmt: skip
    ArchivedAgent = _line_of(
        StoredAgent, "agent", {"process", "last_call", "busy_until", "cut_off", "mailbox", "replies"}
    )


class ArchivedCheckpoint(_Line, frozen=True, tag="checkpoint"):
    id: Id
    owner_kind: str
    owner: str
    name: str
    session: str | None
    created: Number
    checksum: str
    size: Number
    file_count: Number
    notes: str
    files: str
    snapshot: str


class ArchivedSession(_Line, frozen=True, tag="session"):
    id: str
    operation: str
    milestone: str | None
    status: str
    progress: Number
    troubled: Number
    expected: str
    metadata: str
    error: str | None
    created: Number
    updated: Number
    ended: Number | None


class ArchivedDocument(_Line, frozen=True, tag="document"):
    session: str
    name: str
    version: Number
    checksum: str
    author: str | None
    created: Number
    value: str


class ArchivedParticipant(_Line, frozen=True, tag="participant"):
    session: str
    meeting: str
    member: str
    position: Number
    created: Number
    finished: Number | None
    checksum: Number | None
    result: str | None


class ArchivedHistory(_Line, frozen=True, tag="history"):
    """A history; its items have lines of their own, which follow it."""

    kind: HistoryKindName
    name: HistoryText
    version: Id
    last: Number
    created: Number
    updated: Number
    meta: HistoryMeta


class ArchivedHistoryItem(_Line, frozen=True, tag="history_item"):
    """An item of a history. ``version`` and ``history_updated`` are those of the history when the item was read;
    ``history_created``: when the history was created."""

    kind: HistoryKindName
    history: HistoryText
    version: Id
    history_created: Number
    part: Annotated[str, msgspec.Meta(max_length=MAX_HISTORY_TEXT)]
    key: HistoryText
    number: Id
    encoding: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    checksum: Number
    created: Number
    meta: HistoryMeta
    body: bytes
    history_updated: Number | None = None


class ArchivedState(_Line, frozen=True, tag="state"):
    """An entry of state, or (without a value) a tombstone."""

    scope: str
    key: str
    type: str
    version: Number
    checksum: Number | None
    expires: Number | None
    author: str | None
    created: Number
    updated: Number
    value: str | None


class ArchivedEvent(_Line, frozen=True, tag="event"):
    id: Id
    at: Number
    kind: str
    subject_kind: str
    subject: str
    actor: str | None
    facts: str


class ArchivedProcess(_Line, frozen=True, tag="process"):
    id: Id
    host: str
    boot: str
    pid: Number
    started: str
    status: str
    created: Number
    ended: Number


class ArchivedStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A step of an archived task."""

    kind: str
    key: str
    superseded: Number
    name: str
    position: Number
    status: str
    main: Number
    once: Number
    attempt: Number
    failures: Number
    digest: str
    progress: Number | None
    note: str | None
    child: str | None
    due: Number | None
    error: str | None
    started: Number
    finished: Number | None
    checksum: Number | None
    validation: str | None
    result: str | None
    seen: Number | None = None
    ending: Number | None = None
    message: Number | None = None
    trace: str | None = None


class ArchivedSignal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A signal to an archived task, received or not."""

    name: str
    signal_id: str | None
    sender: str | None
    position: Number | None
    created: Number
    checksum: Number
    value: str


class ArchivedApproval(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An approval of an archived task."""

    key: str
    superseded: Number
    name: str
    position: Number
    status: str
    auto: Number
    notify: str | None
    expires: Number | None
    created: Number
    decided: Number | None
    decided_by: str | None
    reason: str | None
    checksum: Number
    shown: str
    seen: Number | None = None
    ending: Number | None = None


class ArchivedDependency(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A dependency of an archived task."""

    dependency: str
    completed: Number | None = None


class ArchivedTask(_Line, frozen=True, tag="task"):
    """A task with its steps, approvals, signals and dependencies: it is restored as a whole, or not at all."""

    id: str
    workflow: str
    name: str
    session: str | None
    parent: str | None
    status: str
    phase: str | None
    auto: Number
    progress: Number
    note: str | None
    generation: Number
    lease: Number
    restarts: Number
    backoff: Number
    restarted: Number
    error: str | None
    created: Number
    started: Number | None
    updated: Number
    ended: Number | None
    notes: str
    context: str
    settings: str
    waits: str
    checksum: Number
    arguments: str
    result_sum: Number | None
    result: str | None
    losses: Number = 0
    max_losses: Number = 5
    manual: Number = 0
    priority: Number = 5
    on_failed: str | None = None
    not_before: Number = 0
    trace: str | None = None
    redo: str | None = None
    steps: list[ArchivedStep] = []
    approvals: list[ArchivedApproval] = []
    signals: list[ArchivedSignal] = []
    dependencies: list[ArchivedDependency] = []


Line: TypeAlias = (
    ArchivedMessage
    | ArchivedCheckpoint
    | ArchivedAgent
    | ArchivedSession
    | ArchivedDocument
    | ArchivedParticipant
    | ArchivedState
    | ArchivedEvent
    | ArchivedProcess
    | ArchivedType
    | ArchivedMailbox
    | ArchivedTask
    | ArchivedHistory
    | ArchivedHistoryItem
)


ArchivedPart: TypeAlias = ArchivedStep | ArchivedApproval | ArchivedSignal | ArchivedReceipt
"""A row that is archived as a part of another."""
JSON_FIELDS: dict[type, dict[str, Any]] = {
    ArchivedMessage: MESSAGE_JSON,
    ArchivedAgent: AGENT_JSON,
    ArchivedSession: {"expected": dict[str, str], "metadata": dict[str, Any]},
    ArchivedCheckpoint: {"files": list[FileReference]},
    ArchivedEvent: {"facts": dict[str, Any]},
    ArchivedType: {"schema": dict[str, Any]},
    ArchivedTask: {
        "notes": dict[str, str], "context": dict[str, Any], "settings": dict[str, Any], "waits": list[str],
        "error": TaskProblem, "arguments": dict[str, Any],
    },
    ArchivedStep: {"error": TaskProblem},
    ArchivedHistory: {"meta": dict[str, Any]},
    ArchivedHistoryItem: {"meta": dict[str, Any]},
}  # fmt: skip
"""The type of each text that is JSON, besides payloads."""


def kind_of(line: Line) -> str:
    return str(line.__struct_config__.tag)


def bus_name(_: None, now: Now) -> Op[str | None]:
    """Return the name of the bus in its archives."""
    rows = yield Query("meta_get", ("bus",))
    return str(rows[0][0]) if rows else None


def line_loader(query: str, kind: Callable[..., Line]) -> Callable[[Sequence[Any], Now], Op[list[Line]]]:
    """Return a question for the lines of one kind, by their ids."""

    def load(ids: Sequence[Any], now: Now) -> Op[list[Line]]:
        rows = yield Query(query, (list(ids),))
        return [kind(*row) for row in rows]

    return load


def archived_message(*row: Any) -> ArchivedMessage:
    """Return the line of a row: all columns of the message, its mailbox, and the agent that waits for a reply."""
    message = stored_message(row)
    values = {name: getattr(message, name) for name in common_fields(ArchivedMessage)}
    kind, name, owner, waiting = row[-4:]
    values.update(mailbox_kind=kind, mailbox_name=name, mailbox_owner=owner, reply_to=waiting)
    return ArchivedMessage(**values)


def archived_agent(*row: Any) -> ArchivedAgent:
    """Return the line of a row of all columns."""
    agent = StoredAgent(*row)
    return ArchivedAgent(**{name: getattr(agent, name) for name in ArchivedAgent.__struct_fields__})


def with_receipts(
    load: Callable[[Sequence[Any], Now], Op[list[Line]]],
) -> Callable[[Sequence[Any], Now], Op[list[Line]]]:
    """Return a question for messages with their receipts, made of one for messages alone."""

    def load_both(ids: Sequence[Any], now: Now) -> Op[list[Line]]:
        lines = yield from load(ids, now)
        receipts: dict[int, list[ArchivedReceipt]] = {}
        for id, *receipt in (yield Query("receipt_archive", (list(ids),))):
            receipts.setdefault(id, []).append(ArchivedReceipt(*receipt))
        return [
            msgspec.structs.replace(line, receipts=receipts.get(line.id)) if isinstance(line, ArchivedMessage) else line
            for line in lines
        ]

    return load_both


load_messages = with_receipts(line_loader("message_archive", archived_message))
load_checkpoints = line_loader("checkpoint_archive", ArchivedCheckpoint)
load_documents = line_loader("document_archive", ArchivedDocument)
load_histories = line_loader("history_archive", ArchivedHistory)
load_history_items = line_loader("history_item_archive", ArchivedHistoryItem)
_ITEMS = 100


def find_history_items(wanted: tuple[int, int], now: Now) -> Op[tuple[list[tuple[int, int]], int | None]]:
    """Return the ids and sizes of the next items of a history after an id, and the last id; None after the end."""
    rows = yield Query("history_item_sizes", (*wanted, _ITEMS))
    return [(id, size) for id, size in rows], rows[-1][0] if len(rows) == _ITEMS else None


load_events = line_loader("event_archive", ArchivedEvent)
load_processes = line_loader("process_archive", ArchivedProcess)
load_tombstones = line_loader("state_archive_tombstones", ArchivedState)


def load_agents(wanted: Sequence[tuple[str, int]], now: Now) -> Op[list[Line]]:
    """Return agents with their state after a change."""
    rows = yield Query("agent_archive", ([id for id, _ in wanted],))
    entries = yield from _load_state(wanted)
    return [*(archived_agent(*row) for row in rows), *entries]


def load_sessions(wanted: Sequence[tuple[str, int]], now: Now) -> Op[list[Line]]:
    """Return sessions with their participants, and their state after a change."""
    ids = [id for id, _ in wanted]
    rows = yield Query("session_archive", (ids,))
    members = yield Query("participant_archive", (ids,))
    entries = yield from _load_state([(session_scope(id), after) for id, after in wanted])
    return [*(ArchivedSession(*row) for row in rows), *(ArchivedParticipant(*row) for row in members), *entries]


def _load_state(scopes: Sequence[tuple[str, int]]) -> Op[list[Line]]:
    rows = yield Query("state_archive", (list(scopes),))
    return [ArchivedState(*row) for row in rows]


def load_tasks(ids: Sequence[str], now: Now) -> Op[list[Line]]:
    """Return tasks with their steps, approvals and signals."""
    lines: list[Line] = []
    for id in ids:
        for row in (yield Query("task_archive", (id,))):
            steps = yield Query("step_archive", (id,))
            approvals = yield Query("approval_archive", (id,))
            signals = yield Query("signal_archive", (id,))
            task = ArchivedTask(*row)
            dependencies = [] if task.on_failed is None else (yield Query("dependency_archive", (id,)))
            lines.append(
                msgspec.structs.replace(
                    task,
                    steps=[ArchivedStep(*one) for one in steps],
                    approvals=[ArchivedApproval(*one) for one in approvals],
                    signals=[ArchivedSignal(*one) for one in signals],
                    dependencies=[ArchivedDependency(*one) for one in dependencies],
                )
            )
    return lines


def restore_task(line: ArchivedTask, now: Now) -> Op[Outcome[bool]]:
    """Restore a task, unless one of its id exists. A task that had not ended is halted until a person resumes it."""
    if (yield Query("task_known", ([line.id],))):
        same = yield Query("task_same", (line.id, line.workflow, line.created))
        return False if same else ArchiveDiffers(what="task", id=line.id)
    if line.session is not None and not (yield Query("session_status", (line.session,))):
        line = msgspec.structs.replace(line, session=None)
    open_ = line.status not in TASK_ENDED
    if open_:
        line = msgspec.structs.replace(line, status="halted")
    ((number,),) = yield Query("task_restore", line.row()[:-5])
    yield ExecuteMany("step_restore", [(number, *msgspec.structs.astuple(step)) for step in line.steps])
    yield ExecuteMany("approval_restore", [(number, *msgspec.structs.astuple(one)) for one in line.approvals])
    yield ExecuteMany("signal_restore", [(number, *msgspec.structs.astuple(one)) for one in line.signals])
    yield ExecuteMany("dependency_insert", [(number, *msgspec.structs.astuple(one)) for one in line.dependencies])
    if open_:
        yield ExecuteMany("step_interrupt", [(number,)])
        yield from _apply_waiting_redos(line, now)
    return True


def _apply_waiting_redos(line: ArchivedTask, now: Now) -> Op[None]:
    """Apply the redos that waited when a task was archived: no step runs concurrently here."""
    found = None if line.redo is None else (yield from known_task(line.id))
    if isinstance(found, HeldTask):
        yield from apply_redos(msgspec.structs.replace(found, redo=line.redo), now)


def delete_tasks(ids: Sequence[str], now: Now) -> Op[None]:
    """Delete ended tasks."""
    rows = [(id,) for id in ids]
    yield ExecuteMany("step_delete", rows)
    yield ExecuteMany("approval_delete", rows)
    yield ExecuteMany("signal_delete", rows)
    yield ExecuteMany("dependency_delete", rows)
    yield ExecuteMany("task_delete", rows)
    yield from record([event(now.wall, "task_deleted", ("task", id), None) for id in ids])
