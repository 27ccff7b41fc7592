"""What an archive holds: a line for each row that goes, and how a line becomes a row again.

A line has all that its row had, but for what only counts within a boot (leases, beats) and for the numbers of mailboxes
and processes, which another bus gives out in another way. Payloads stay the text that they were, so that their
checksums hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from agentbus.clock import Now
from agentbus.errors import AgentBusError, ArchiveDiffers, UnknownSession, UnknownType, WrongState
from agentbus.limits import session_scope
from agentbus.operations import Each, Op, Outcome, Query, Row, Wake, operation
from agentbus.operations.events import event, record
from agentbus.operations.state import state_channel, take_change_numbers

FORMAT = 1


class _Line(msgspec.Struct, frozen=True, tag_field="record", forbid_unknown_fields=True):
    """The fields are the columns, in the order of the queries that read and write them."""

    def row(self) -> Row:
        return msgspec.structs.astuple(self)


class Header(_Line, frozen=True, tag="archive"):
    """The first line of every part of an archive."""

    format: int
    created: int


class ArchivedMessage(_Line, frozen=True, tag="message"):
    id: int
    message_id: str | None
    mailbox_kind: str
    mailbox_name: str
    mailbox_owner: str
    sender: str
    type: str
    checksum: int
    priority: int
    status: str
    attempts: int
    max_attempts: int
    lease: int
    holder: str | None
    expires: int | None
    correlation: str | None
    session: str | None
    error: str | None
    created: int
    finished: int
    payload: str


class ArchivedCheckpoint(_Line, frozen=True, tag="checkpoint"):
    id: int
    owner_kind: str
    owner: str
    name: str
    session: str | None
    created: int
    checksum: str
    size: int
    file_count: int
    notes: str
    files: str
    snapshot: str


class ArchivedAgent(_Line, frozen=True, tag="agent"):
    id: str
    name: str
    type: str
    kind: str
    session: str | None
    milestone: str | None
    parent: str | None
    capabilities: str
    model: str | None
    prompt: str | None
    load: int | None
    estimate: int | None
    metadata: str
    status: str
    progress: int
    note: str | None
    epoch: int
    patience: int | None
    error: str | None
    evidence: str | None
    created: int
    started: int | None
    updated: int
    ended: int | None


class ArchivedSession(_Line, frozen=True, tag="session"):
    id: str
    operation: str
    milestone: str | None
    status: str
    progress: int
    troubled: int
    expected: str
    metadata: str
    error: str | None
    created: int
    updated: int
    ended: int


class ArchivedDocument(_Line, frozen=True, tag="document"):
    session: str
    name: str
    version: int
    checksum: str
    author: str | None
    created: int
    value: str


class ArchivedParticipant(_Line, frozen=True, tag="participant"):
    session: str
    meeting: str
    member: str
    position: int
    created: int
    finished: int | None
    checksum: int | None
    result: str | None


class ArchivedState(_Line, frozen=True, tag="state"):
    """An entry, or (without a value) a tombstone."""

    scope: str
    key: str
    type: str
    version: int
    checksum: int | None
    expires: int | None
    author: str | None
    created: int
    updated: int
    value: str | None


class ArchivedEvent(_Line, frozen=True, tag="event"):
    id: int
    at: int
    kind: str
    subject_kind: str
    subject: str
    actor: str | None
    facts: str


class ArchivedProcess(_Line, frozen=True, tag="process"):
    id: int
    host: str
    boot: str
    pid: int
    started: str
    status: str
    created: int
    ended: int


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
)


def kind_of(line: Line) -> str:
    return str(line.__struct_config__.tag)


# Questions: the lines of what will go


def load_messages(ids: Sequence[int], now: Now) -> Op[list[Line]]:
    rows = yield Query("message_archive", (list(ids),))
    return [ArchivedMessage(*row) for row in rows]


def load_checkpoints(ids: Sequence[int], now: Now) -> Op[list[Line]]:
    rows = yield Query("checkpoint_archive", (list(ids),))
    return [ArchivedCheckpoint(*row) for row in rows]


def load_documents(ids: Sequence[int], now: Now) -> Op[list[Line]]:
    rows = yield Query("document_archive", (list(ids),))
    return [ArchivedDocument(*row) for row in rows]


def load_agents(ids: Sequence[str], now: Now) -> Op[list[Line]]:
    """Agents with their state."""
    rows = yield Query("agent_archive", (list(ids),))
    entries = yield from _load_state(ids)
    return [*(ArchivedAgent(*row) for row in rows), *entries]


def load_sessions(ids: Sequence[str], now: Now) -> Op[list[Line]]:
    """Sessions with their participants and their state."""
    rows = yield Query("session_archive", (list(ids),))
    members = yield Query("participant_archive", (list(ids),))
    entries = yield from _load_state([session_scope(id) for id in ids])
    return [*(ArchivedSession(*row) for row in rows), *(ArchivedParticipant(*row) for row in members), *entries]


def load_events(ids: Sequence[int], now: Now) -> Op[list[Line]]:
    rows = yield Query("event_archive", (list(ids),))
    return [ArchivedEvent(*row) for row in rows]


def load_processes(ids: Sequence[int], now: Now) -> Op[list[Line]]:
    rows = yield Query("process_archive", (list(ids),))
    return [ArchivedProcess(*row) for row in rows]


def load_tombstones(ids: Sequence[int], now: Now) -> Op[list[Line]]:
    rows = yield Query("state_archive_tombstones", (list(ids),))
    return [ArchivedState(*row) for row in rows]


def _load_state(scopes: Sequence[str]) -> Op[list[Line]]:
    rows = yield Query("state_archive", (list(scopes),))
    return [ArchivedState(*row) for row in rows]


# The way back


class RestoreRequest(msgspec.Struct, frozen=True):
    """A line that shall be a row again."""

    line: Line
    weight: int


class ImportedRequest(msgspec.Struct, frozen=True):
    """An archive was read to its end."""

    name: str
    counts: dict[str, int]


@operation(durable=True)
def restore(requests: Sequence[RestoreRequest], now: Now) -> Op[list[Outcome[bool]]]:
    """Put rows back that are not there. The outcome says whether the row is new; what is there is never changed, but
    for a tombstone of the very value that the line has."""
    outcomes: list[Outcome[bool]] = []
    for request in requests:
        line = request.line
        error = yield from _cannot_restore(line)
        outcomes.append(error or (yield from _restore(line, now)))
    return outcomes


@operation(durable=True)
def note_import(requests: Sequence[ImportedRequest], now: Now) -> Op[list[Outcome[None]]]:
    """A line in the trail for each archive that was imported."""
    yield from record([
        event(now.wall, "archive_imported", ("bus", "archive"), None, archive=request.name, counts=request.counts)
        for request in requests
    ])  # fmt: skip
    return [None] * len(requests)


def _cannot_restore(line: Line) -> Op[AgentBusError | None]:
    """What the database would refuse for a reason that people should read."""
    if isinstance(line, ArchivedMessage | ArchivedAgent):
        kind = "message" if isinstance(line, ArchivedMessage) else "agent"
        known = yield Query("type_known", (kind, [line.type]))
        if not known:
            return UnknownType(kind=kind, name=line.type)
    if isinstance(line, ArchivedAgent) and line.ended is None and line.status != "pending":
        advice = "no archive of a bus has such a line; leave it out"
        return WrongState(
            what="agent", name=line.id, status=line.status, action="import it: it would look alive", advice=advice
        )
    if isinstance(line, ArchivedDocument | ArchivedParticipant):
        rows = yield Query("session_status", (line.session,))
        if not rows:
            return UnknownSession(session=line.session)
    return None


def _restore(line: Line, now: Now) -> Op[Outcome[bool]]:
    if isinstance(line, ArchivedState):
        return (yield from _restore_state(line))
    if isinstance(line, ArchivedMessage):
        return (yield from _restore_message(line, now))
    if isinstance(line, ArchivedAgent):
        # One that is there is a later life, or the same: both know better.
        if (yield Query("agent_life", (line.id,))):
            return False
        boxes = yield from _mailboxes([("agent", line.id, line.id), ("replies", line.id, line.id)], now)
        yield Query("agent_restore", (*line.row(), *(mailbox for (mailbox,) in boxes)))
        return True
    if isinstance(line, ArchivedParticipant):
        rows = yield Query("participant_restore", line.row())
        return bool(rows)
    if isinstance(line, ArchivedCheckpoint):
        rows = yield Query("checkpoint_restore", line.row())
        same = rows or (yield Query("checkpoint_same", (line.id, line.created, line.checksum)))
    elif isinstance(line, ArchivedSession):
        rows = yield Query("session_restore", line.row())
        same = rows or (yield Query("session_same", (line.id, line.created)))
    elif isinstance(line, ArchivedDocument):
        rows = yield Query("document_restore", line.row())
        same = rows or (yield Query("document_same", (line.session, line.name, line.version, line.checksum)))
    elif isinstance(line, ArchivedEvent):
        rows = yield Query("event_restore", line.row())
        same = rows or (yield Query("event_same", (line.id, line.at, line.kind, line.subject)))
    else:
        rows = yield Query("process_restore", line.row())
        same = rows or (yield Query("process_same", (line.id, line.pid, line.created)))
    return bool(rows) if same else ArchiveDiffers(what=kind_of(line), id=getattr(line, "id", line.row()[:3]))


def _restore_message(line: ArchivedMessage, now: Now) -> Op[Outcome[bool]]:
    there = yield Query("message_same", (line.id, line.created, line.checksum))
    if there:
        return False if there[0][0] else ArchiveDiffers(what="message", id=line.id)
    box = (line.mailbox_kind, line.mailbox_name, line.mailbox_owner)
    ((mailbox,),) = yield from _mailboxes([box], now)
    id, message_id, _, _, _, *rest = line.row()
    rows = yield Query("message_restore", (id, message_id, mailbox, *rest))
    if not rows:
        # Another message has its message_id.
        return ArchiveDiffers(what="message", id=line.message_id)
    # What is sent from now on must get a number of its own.
    yield Query("counter_raise", ("message", line.id))
    return True


def _restore_state(line: ArchivedState) -> Op[bool]:
    """A value comes back where there is nothing, or the tombstone of that value; never over a later one."""
    rows = yield Query("state_row", (line.scope, line.key))
    if rows:
        ((id, version, gone),) = rows
        if not gone or version != line.version or line.value is None:
            return False
    change = yield from take_change_numbers(1)
    scope, key, type, version, *rest = line.row()
    values = (type, version, change, *rest)
    if rows:
        yield Each("state_update", [(*values, id)])
    else:
        yield Each("state_insert", [(*values, scope, key)])
    yield Wake((state_channel(line.scope),))
    return True


def _mailboxes(wanted: Sequence[tuple[str, str, str]], now: Now) -> Op[list[Row]]:
    yield Each("mailbox_ensure", [(*box, now.wall) for box in wanted])
    found: list[Row] = []
    for box in wanted:
        found += yield Query("mailbox_find", box)
    return found
