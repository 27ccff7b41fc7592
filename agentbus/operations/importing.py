"""How a line of an archive becomes a row again: where there is none, and never over what is alive or came later."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from agentbus.clock import Now
from agentbus.errors import AgentBusError, ArchiveDiffers, UnknownSession, UnknownType, WrongState
from agentbus.limits import scope_session
from agentbus.operations import Each, Op, Outcome, Query, Row, Wake, operation
from agentbus.operations.archives import (
    ArchivedAgent,
    ArchivedCheckpoint,
    ArchivedDocument,
    ArchivedEvent,
    ArchivedMessage,
    ArchivedParticipant,
    ArchivedSession,
    ArchivedState,
    Line,
    kind_of,
)
from agentbus.operations.events import event, record
from agentbus.operations.state import state_channel, take_change_numbers


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
        return (yield from _of_another_session(line.session, line.created))
    if isinstance(line, ArchivedCheckpoint) and line.owner_kind in {"session", "composite"}:
        return (yield from _of_another_session(line.owner, line.created))
    return None


def _of_another_session(session: str, written: int) -> Op[AgentBusError | None]:
    """What was written before the session began belongs to an earlier one of that name, and not into this."""
    rows = yield Query("session_made", (session,))
    return ArchiveDiffers(what="session", id=session) if rows and rows[0][0] > written else None


def _of_another_life(line: ArchivedState) -> Op[AgentBusError | None]:
    """The same for the state of a session, and for that of an agent which is alive."""
    session = scope_session(line.scope)
    if session is not None:
        return (yield from _of_another_session(session, line.updated))
    rows = yield Query("agent_made", (line.scope,))
    return ArchiveDiffers(what="agent", id=line.scope) if rows and rows[0][0] > line.updated else None


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


def _restore_state(line: ArchivedState) -> Op[Outcome[bool]]:
    """A value comes back where there is nothing, or the tombstone of that value; never over a later one. Its version is
    one that was never given out to another value."""
    rows = yield Query("state_row", (line.scope, line.key))
    if rows:
        ((id, version, gone),) = rows
        if not gone or version != line.version or line.value is None:
            return False
    error = yield from _of_another_life(line)
    if error is not None:
        return error
    change = yield from take_change_numbers(1)
    scope, key, type, version, *rest = line.row()
    floors = yield Query("state_floors", ([scope],))
    if floors and version < floors[0][1]:
        version = floors[0][1] + 1
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
