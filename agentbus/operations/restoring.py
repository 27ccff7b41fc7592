"""The way back: how a line of an archive becomes a row again, and how what comes from elsewhere becomes one.

What is there already is never changed. Whoever was at work when it was written down is not at work here: its agents
failed, its sessions were cut off, its leases are over; nobody is told, for nobody here was waiting for them.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from agentbus.clock import Now
from agentbus.errors import AgentBusError, ArchiveDiffers, Outdated, UnknownSession
from agentbus.operations import Each, Op, Outcome, Query, Row, Wake, mailbox_channel, operation
from agentbus.operations.archives import (
    ArchivedAgent,
    ArchivedCheckpoint,
    ArchivedDocument,
    ArchivedEvent,
    ArchivedMessage,
    ArchivedParticipant,
    ArchivedPlace,
    ArchivedProcess,
    ArchivedSession,
    ArchivedState,
    ArchivedType,
    Line,
    kind_of,
)
from agentbus.operations.events import event, record
from agentbus.operations.fencing import LIVE
from agentbus.operations.state import state_channel, take_change_numbers
from agentbus.operations.vocabulary import DefineRequest, define

_AT_WORK = LIVE | {"spawning"}
IMPORTED = "imported"
"""Why an agent failed, or a session was cut off, that was at work when it was written down."""


class RestoreRequest(msgspec.Struct, frozen=True):
    """A line that shall be a row again. ``home``: it comes from an archive of this very bus."""

    line: Line
    weight: int
    home: bool = False


class ImportedRequest(msgspec.Struct, frozen=True):
    """Something was imported to its end; ``name`` is the last part of its path."""

    name: str
    counts: dict[str, int]


@operation(durable=True)
def restore(requests: Sequence[RestoreRequest], now: Now) -> Op[list[Outcome[bool]]]:
    """Put rows back that are not there. The outcome says whether the row is new; what is there is never changed, but
    for a tombstone of the very value that the line has."""
    outcomes: list[Outcome[bool]] = []
    for request in requests:
        outcomes.append((yield from _restore(request.line, request.home, now)))
    return outcomes


@operation(durable=True)
def note_import(requests: Sequence[ImportedRequest], now: Now) -> Op[list[Outcome[None]]]:
    """A line in the trail for each import that brought something."""
    yield from record([
        event(now.wall, "archive_imported", ("bus", "archive"), None, archive=request.name, counts=request.counts)
        for request in requests
    ])  # fmt: skip
    return [None] * len(requests)


def bus_name(_: None, now: Now) -> Op[str | None]:
    """The name that a bus has for itself, in its archives."""
    rows = yield Query("meta_get", ("bus",))
    return str(rows[0][0]) if rows else None


def settled(line: ArchivedAgent, now: Now) -> ArchivedAgent:
    """An agent that was at work, as one that failed; one that was only expected is expected still."""
    if line.ended is not None or line.status not in _AT_WORK:
        return line
    return msgspec.structs.replace(line, status="failed", error=IMPORTED, ended=now.wall)


def known_type(line: ArchivedMessage | ArchivedAgent, now: Now) -> Op[None]:
    """A type that nobody has defined here is defined."""
    kind = "message" if isinstance(line, ArchivedMessage) else "agent"
    if not (yield Query("type_known", (kind, [line.type]))):
        yield from define.run([DefineRequest(kind, line.type, description="imported")], now)


def missing_session(line: ArchivedDocument | ArchivedParticipant) -> Op[AgentBusError | None]:
    rows = yield Query("session_status", (line.session,))
    return None if rows else UnknownSession(session=line.session)


def mailboxes(wanted: Sequence[tuple[str, str, str]], now: Now) -> Op[list[int]]:
    """Mailboxes, which are made if they are not there."""
    yield Each("mailbox_ensure", [(*box, now.wall) for box in wanted])
    found: list[Row] = []
    for box in wanted:
        found += yield Query("mailbox_find", box)
    return [id for (id,) in found]


def restore_agent(line: ArchivedAgent, now: Now) -> Op[Outcome[bool]]:
    # One that is there is a later life, or the same: both know better.
    if (yield Query("agent_life", (line.id,))):
        return False
    yield from known_type(line, now)
    boxes = yield from mailboxes([("agent", line.id, line.id), ("replies", line.id, line.id)], now)
    yield Query("agent_restore", (*settled(line, now).row(), *boxes))
    return True


def restore_session(line: ArchivedSession, exact: bool = True) -> Op[Outcome[bool]]:
    """``exact``: one that is there under this id is the same only if it began at the same moment."""
    if line.status == "active" and line.ended is None:
        line = msgspec.structs.replace(line, status="interrupted", error=line.error or IMPORTED)
    rows = yield Query("session_restore", line.row())
    same = rows or not exact or (yield Query("session_same", (line.id, line.created)))
    return bool(rows) if same else ArchiveDiffers(what="session", id=line.id)


def insert_message(line: ArchivedMessage, id: int, mailbox: int, now: Now) -> Op[bool]:
    """Whether its message_id was free in that mailbox. What was leased waits again: nobody here holds it."""
    if line.status == "leased":
        line = msgspec.structs.replace(line, status="queued", holder=None)
    reply_to = None
    if line.reply_to is not None:
        (reply_to,) = yield from mailboxes([("replies", line.reply_to, line.reply_to)], now)
    _, message_id, _, _, _, *rest, _ = line.row()
    rows = yield Query("message_restore", (id, message_id, mailbox, *rest, reply_to))
    if rows and line.finished is None:
        yield Wake([mailbox_channel(mailbox)])
    return bool(rows)


def insert_state(line: ArchivedState, row: int | None) -> Op[None]:
    """A new entry, or one in the place of a tombstone."""
    change = yield from take_change_numbers(1)
    scope, key, type, version, *rest = line.row()
    values = (type, version, change, *rest)
    if row is not None:
        yield Each("state_update", [(*values, row)])
    else:
        yield Each("state_insert", [(*values, scope, key)])
    yield Wake((state_channel(line.scope),))


def _restore(line: Line, home: bool, now: Now) -> Op[Outcome[bool]]:
    match line:
        case ArchivedState():
            return (yield from _restore_state(line))
        case ArchivedMessage():
            return (yield from _restore_message(line, home, now))
        case ArchivedAgent():
            return (yield from restore_agent(line, now))
        case ArchivedSession():
            return (yield from restore_session(line))
        case ArchivedType():
            return (yield from _restore_type(line, now))
        case ArchivedPlace():
            if (yield Query("mailbox_find", (line.kind, line.name, ""))):
                return False
            yield Each("mailbox_ensure", [(line.kind, line.name, "", now.wall)])
            return True
        case ArchivedParticipant():
            error = yield from missing_session(line)
            if error is not None:
                return error
            return bool((yield Query("participant_restore", line.row())))
        case _:
            return (yield from _restore_numbered(line))


def _restore_numbered(
    line: ArchivedCheckpoint | ArchivedDocument | ArchivedEvent | ArchivedProcess,
) -> Op[Outcome[bool]]:
    """What has a number that nothing else can have."""
    if isinstance(line, ArchivedCheckpoint):
        rows = yield Query("checkpoint_restore", line.row())
        same = rows or (yield Query("checkpoint_same", (line.id, line.created, line.checksum)))
    elif isinstance(line, ArchivedDocument):
        error = yield from missing_session(line)
        if error is not None:
            return error
        rows = yield Query("document_restore", line.row())
        same = rows or (yield Query("document_same", (line.session, line.name, line.version, line.checksum)))
    elif isinstance(line, ArchivedEvent):
        rows = yield Query("event_restore", line.row())
        same = rows or (yield Query("event_same", (line.id, line.at, line.kind, line.subject)))
    else:
        rows = yield Query("process_restore", line.row())
        same = rows or (yield Query("process_same", (line.id, line.pid, line.created)))
    return bool(rows) if same else ArchiveDiffers(what=kind_of(line), id=getattr(line, "id", line.row()[:3]))


def _restore_type(line: ArchivedType, now: Now) -> Op[bool]:
    """Without an event: the trail that comes with the archive has it."""
    if (yield Query("type_get", (line.kind, line.name))):
        return False
    yield Query("type_define", (line.kind, line.name, line.description, line.schema, now.wall))
    return True


def _restore_message(line: ArchivedMessage, home: bool, now: Now) -> Op[Outcome[bool]]:
    there = yield Query("message_same", (line.id, line.created, line.checksum))
    if there:
        return False if there[0][0] else ArchiveDiffers(what="message", id=line.id)
    if home and line.finished is None:
        ((last,),) = yield Query("counter_value", ("message",))
        if line.id <= last:
            # It was open when it was written down. Were it put back, its work would be done twice.
            return Outdated(what="message", id=line.id, reason="it was finished and removed since")
    yield from known_type(line, now)
    box = (line.mailbox_kind, line.mailbox_name, line.mailbox_owner)
    (mailbox,) = yield from mailboxes([box], now)
    if not (yield from insert_message(line, line.id, mailbox, now)):
        # Another message has its message_id.
        return ArchiveDiffers(what="message", id=line.message_id)
    # What is sent from now on must get a number of its own.
    yield Query("counter_raise", ("message", line.id))
    return True


def _restore_state(line: ArchivedState) -> Op[bool]:
    """A value comes back where there is nothing, or the tombstone of that value; never over a later one."""
    rows = yield Query("state_row", (line.scope, line.key))
    if rows:
        ((_, version, gone),) = rows
        if not gone or version != line.version or line.value is None:
            return False
    yield from insert_state(line, rows[0][0] if rows else None)
    return True
