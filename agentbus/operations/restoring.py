"""The way back: how a line of an archive becomes a row again. ``adopting`` takes what comes from elsewhere, by the same
rules.

What is there already is never changed, and nothing of an earlier session or life comes into a later one of its name.
Whoever was at work when it was written down is not at work here: its agents failed, its sessions were cut off, its
leases are over; nobody is told, for nobody here was waiting for them.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from agentbus.clock import Now
from agentbus.errors import AgentBusError, ArchiveDiffers, Outdated, UnknownSession
from agentbus.limits import scope_session
from agentbus.operations import Each, Op, Outcome, Query, Wake, mailbox_channel, one_by_one, operation, several
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
    ArchivedTask,
    ArchivedType,
    Line,
    kind_of,
)
from agentbus.operations.events import event, record
from agentbus.operations.fencing import LIVE
from agentbus.operations.state import state_channel, take_change_numbers
from agentbus.operations.task_archives import restore_task
from agentbus.operations.vocabulary import DefineRequest, Unchecked, define

_AT_WORK = LIVE | {"spawning"}
IMPORTED = "imported"
"""Why an agent failed, or a session was cut off, that was at work when it was written down."""
OF_SESSIONS = {"session", "composite"}
"""The checkpoints that belong to a session."""


class RestoreRequest(msgspec.Struct, frozen=True):
    """A line that shall be a row again. ``home``: it comes from an archive of this very bus; ``fits``: the schema that
    the payload of a message is known to fit."""

    line: Line
    weight: int
    home: bool = False
    fits: str | None = None


class ImportedRequest(msgspec.Struct, frozen=True):
    """Something was imported to its end; ``name`` is the last part of its path."""

    name: str
    counts: dict[str, int]


@operation(durable=True)
def note_import(requests: Sequence[ImportedRequest], now: Now) -> Op[list[Outcome[None]]]:
    """A line in the trail for each import that brought something."""
    yield from record([
        event(now.wall, "archive_imported", ("bus", "archive"), None, archive=request.name, counts=request.counts)
        for request in requests
    ])  # fmt: skip
    return [None] * len(requests)


def settled(line: ArchivedAgent, now: Now) -> ArchivedAgent:
    """An agent that was at work, as one that failed; one that was only expected is expected still."""
    if line.ended is not None or line.status not in _AT_WORK:
        return line
    return msgspec.structs.replace(line, status="failed", error=IMPORTED, ended=now.wall)


def known_type(line: ArchivedMessage, now: Now, fits: str | None = None) -> Op[Unchecked | None]:
    """A type that nobody has defined here is defined. What somebody will receive must be what its type promises here;
    what was finished is history, and fitted what was promised then."""
    rows = yield _type_of(line)
    if not rows:
        yield from _define_type(line, now)
    elif line.finished is None and rows[0][1] not in {None, fits}:
        return Unchecked(type=line.type, item=0, schemas={line.type: rows[0][1]})
    return None


def _type_of(line: ArchivedMessage | ArchivedAgent) -> Query:
    return Query("type_known", ("message" if isinstance(line, ArchivedMessage) else "agent", [line.type]))


def _define_type(line: ArchivedMessage | ArchivedAgent, now: Now) -> Op[None]:
    kind = "message" if isinstance(line, ArchivedMessage) else "agent"
    yield from define.run([DefineRequest(kind, line.type, description=IMPORTED)], now)


def of_another_session(session: str, written: int, *, needed: bool, active: bool = False) -> Op[AgentBusError | None]:
    """What was written before a session began belongs to an earlier one of that name, and not into this. ``needed``: it
    cannot be without its session; ``active``: only one that goes on here is another."""
    rows = yield Query("session_made", (session,))
    if not rows:
        return UnknownSession(session=session) if needed else None
    ((made, status),) = rows
    other = made > written and (status == "active" or not active)
    return ArchiveDiffers(what="session", id=session) if other else None


def of_another_life(line: ArchivedState, *, active: bool = False) -> Op[AgentBusError | None]:
    """The same for the state of a session, and for that of an agent which has not ended. ``active``: only one that is
    at work here is another."""
    session = scope_session(line.scope)
    if session is not None:
        return (yield from of_another_session(session, line.updated, needed=False, active=active))
    rows = yield Query("agent_made", (line.scope,))
    other = bool(rows) and rows[0][0] > line.updated and (rows[0][1] in _AT_WORK or not active)
    return ArchiveDiffers(what="agent", id=line.scope) if other else None


def mailboxes(wanted: Sequence[tuple[str, str, str]], now: Now) -> Op[list[int]]:
    """Mailboxes, which are made if they are not there."""
    yield Each("mailbox_ensure", [(*box, now.wall) for box in wanted])
    found = yield from several(*(Query("mailbox_find", box) for box in wanted))
    return [id for ((id,),) in found]


def restore_agent(line: ArchivedAgent, now: Now) -> Op[Outcome[bool]]:
    # One that is there is a later life, or the same: both know better.
    there, type = yield from several(Query("agent_life", (line.id,)), _type_of(line))
    if there:
        return False
    if not type:
        yield from _define_type(line, now)
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


def state_floor(scope: str) -> Op[int]:
    """The highest version that was given out in a scope to what is gone without a trace."""
    floors = yield Query("state_floors", ([scope],))
    return max((int(version) for _, version in floors), default=0)


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


@one_by_one(durable=True, grows=True)
def restore(request: RestoreRequest, now: Now) -> Op[Outcome[bool]]:
    """Put rows back that are not there. The outcome says whether the row is new; what is there is never changed, but
    for a tombstone of the very value that the line has."""
    match request.line:
        case ArchivedState() as line:
            return (yield from _restore_state(line))
        case ArchivedMessage() as line:
            return (yield from _restore_message(line, request, now))
        case ArchivedAgent() as line:
            return (yield from restore_agent(line, now))
        case ArchivedSession() as line:
            return (yield from restore_session(line))
        case ArchivedTask() as line:
            return (yield from restore_task(line, now))
        case ArchivedType() as line:
            return (yield from _restore_type(line, now))
        case ArchivedPlace() as line:
            if (yield Query("mailbox_find", (line.kind, line.name, ""))):
                return False
            yield Each("mailbox_ensure", [(line.kind, line.name, "", now.wall)])
            return True
        case ArchivedParticipant() as line:
            error = yield from of_another_session(line.session, line.created, needed=True)
            return error or bool((yield Query("participant_restore", line.row())))
        case line:
            return (yield from _restore_numbered(line))


def _restore_numbered(
    line: ArchivedCheckpoint | ArchivedDocument | ArchivedEvent | ArchivedProcess,
) -> Op[Outcome[bool]]:
    """What has a number that nothing else can have."""
    error: AgentBusError | None = None
    if isinstance(line, ArchivedCheckpoint):
        if line.owner_kind in OF_SESSIONS:
            error = yield from of_another_session(line.owner, line.created, needed=False)
    elif isinstance(line, ArchivedDocument):
        error = yield from of_another_session(line.session, line.created, needed=True)
    if error is not None:
        return error
    if isinstance(line, ArchivedCheckpoint):
        rows = yield Query("checkpoint_restore", line.row())
        same = rows or (yield Query("checkpoint_same", (line.id, line.created, line.checksum)))
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


def _restore_type(line: ArchivedType, now: Now) -> Op[bool]:
    """Without an event: the trail that comes with the archive has it."""
    if (yield Query("type_get", (line.kind, line.name))):
        return False
    yield Query("type_define", (line.kind, line.name, line.description, line.schema, now.wall))
    return True


def _restore_message(line: ArchivedMessage, request: RestoreRequest, now: Now) -> Op[Outcome[bool]]:
    there = yield Query("message_same", (line.id, line.created, line.checksum))
    if there:
        return False if there[0][0] else ArchiveDiffers(what="message", id=line.id)
    if request.home and line.finished is None:
        ((last,),) = yield Query("counter_value", ("message",))
        if line.id <= last:
            # It was open when it was written down. Were it put back, its work would be done twice.
            return Outdated(what="message", id=line.id, reason="it was finished and removed since")
    unchecked = yield from known_type(line, now, request.fits)
    if unchecked is not None:
        return unchecked
    box = (line.mailbox_kind, line.mailbox_name, line.mailbox_owner)
    (mailbox,) = yield from mailboxes([box], now)
    if not (yield from insert_message(line, line.id, mailbox, now)):
        # Another message has its message_id.
        return ArchiveDiffers(what="message", id=line.message_id)
    # What is sent from now on must get a number of its own.
    yield Query("counter_raise", ("message", line.id))
    return True


def _restore_state(line: ArchivedState) -> Op[Outcome[bool]]:
    """A value comes back where there is nothing, or the tombstone of that value; never over a later one."""
    rows = yield Query("state_row", (line.scope, line.key))
    if rows:
        ((_, version, gone),) = rows
        if not gone or version != line.version or line.value is None:
            return False
    error = yield from of_another_life(line)
    if error is not None:
        return error
    floor = yield from state_floor(line.scope)
    if line.version < floor:
        # Its own may have been given out again since, to another value.
        line = msgspec.structs.replace(line, version=floor + 1)
    yield from insert_state(line, rows[0][0] if rows else None)
    return True
