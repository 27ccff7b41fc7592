"""Restore rows from the lines of an archive (``restore``), or from files of other programs (``import_rows``).

Existing rows never change, and nothing of an earlier session or incarnation enters a later one of the same name. Live
agents of an archive are restored as failed, active sessions as interrupted, and leased messages as queued; no process
is notified, because none here waited for them.

An imported row gets a number, unless the same row exists. A file is imported in one commit. A line that is refused is
skipped with an error, and with it the lines of a session that is another one here. The times of imported rows are often
guesses, so that an ended session or agent may get rows that seem older than itself; an active one may not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from agentbus.core.addresses import is_operator
from agentbus.core.clock import Now
from agentbus.core.validation import scope_session
from agentbus.errors import AgentBusError, ArchiveDiffers, InvalidName, Outdated, UnknownSession
from agentbus.operations.archive_rows import (
    ArchivedAgent,
    ArchivedCheckpoint,
    ArchivedDocument,
    ArchivedEvent,
    ArchivedHistory,
    ArchivedHistoryItem,
    ArchivedMailbox,
    ArchivedMessage,
    ArchivedParticipant,
    ArchivedProcess,
    ArchivedSession,
    ArchivedState,
    ArchivedTask,
    ArchivedType,
    Line,
    kind_of,
    restore_task,
)
from agentbus.operations.common import LIVE
from agentbus.operations.events import event, record
from agentbus.operations.histories import restore_history, restore_history_item
from agentbus.operations.notifications import skip_restored
from agentbus.operations.protocol import (
    ExecuteMany,
    Op,
    Outcome,
    Query,
    Wake,
    gather,
    mailbox_channel,
    operation,
    single_operation,
)
from agentbus.operations.rows import StoredAgent, StoredMessage, common_fields
from agentbus.operations.state import state_channel, take_change_numbers
from agentbus.operations.types import DefineRequest, Unchecked, define

_ACTIVE = LIVE | {"spawning"}
IMPORTED = "imported"
"""The error of agents and sessions that were active when they were archived."""
OF_SESSIONS = {"session", "composite"}
"""The kinds of owners whose checkpoints belong to a session."""


class RestoreRequest(msgspec.Struct, frozen=True):
    """A line to restore. ``home``: it is from an archive of this bus; ``fits``: the schema that the payload of a
    message is known to fit."""

    line: Line
    data_size: int
    home: bool = False
    fits: str | None = None


class ImportedRequest(msgspec.Struct, frozen=True):
    """A finished import; ``name`` is the last part of its path."""

    name: str
    counts: dict[str, int]


@operation(durable=True)
def note_import(requests: Sequence[ImportedRequest], now: Now) -> Op[list[Outcome[None]]]:
    """Record an event for each finished import."""
    yield from record([
        event(now.wall, "archive_imported", ("bus", "archive"), None, archive=request.name, counts=request.counts)
        for request in requests
    ])  # fmt: skip
    return [None] * len(requests)


def settle_agent(line: ArchivedAgent, now: Now) -> ArchivedAgent:
    """Return an active agent as failed; one that was only expected stays expected."""
    if line.ended is not None or line.status not in _ACTIVE:
        return line
    return msgspec.structs.replace(line, status="failed", error=IMPORTED, ended=now.wall)


def ensure_type(line: ArchivedMessage, now: Now, fits: str | None = None) -> Op[Unchecked | None]:
    """Define the type of a message if it is unknown here. An unfinished message must fit the schema of its type here;
    a finished one fitted the schema of its time."""
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
    """Return an error if a row is older than the session of its name here: it belongs to an earlier one. ``needed``:
    the row cannot exist without its session; ``active``: only an active session is another one."""
    rows = yield Query("session_made", (session,))
    if not rows:
        return UnknownSession(session=session) if needed else None
    ((made, status),) = rows
    other = made > written and (status == "active" or not active)
    return ArchiveDiffers(what="session", id=session) if other else None


def of_another_incarnation(line: ArchivedState, *, active: bool = False) -> Op[AgentBusError | None]:
    """Return an error if an entry is older than its session, or than its agent if that has not ended. ``active``: only
    an active one is another."""
    session = scope_session(line.scope)
    if session is not None:
        return (yield from of_another_session(session, line.updated, needed=False, active=active))
    rows = yield Query("agent_made", (line.scope,))
    other = bool(rows) and rows[0][0] > line.updated and (rows[0][1] in _ACTIVE or not active)
    return ArchiveDiffers(what="agent", id=line.scope) if other else None


def mailboxes(wanted: Sequence[tuple[str, str, str]], now: Now) -> Op[list[int]]:
    """Return mailboxes, creating those that do not exist."""
    yield ExecuteMany("mailbox_ensure", [(*box, now.wall) for box in wanted])
    found = yield from gather(*(Query("mailbox_find", box) for box in wanted))
    return [id for ((id,),) in found]


def restore_agent(line: ArchivedAgent, now: Now) -> Op[Outcome[bool]]:
    if is_operator(line.id):
        # Written before the prefix was reserved. What it owned is restored under its names.
        return InvalidName(what="agent", name=line.id, rule="operator: is for people")
    # An existing agent is the same or a later incarnation.
    existing, type = yield from gather(Query("agent_incarnation", (line.id,)), _type_of(line))
    if existing:
        return False
    if not type:
        yield from _define_type(line, now)
    mailbox, replies = yield from mailboxes([("agent", line.id, line.id), ("replies", line.id, line.id)], now)
    values = msgspec.structs.asdict(settle_agent(line, now))
    values.update(session=None, process=None, last_call=None, busy_until=None, mailbox=mailbox, replies=replies)
    agent = StoredAgent(cut_off=int(values["status"] in {"failed", "stopped"}), **values)
    yield Query("agent_restore", msgspec.structs.astuple(agent))
    yield Query("agent_restored", (line.id, line.session))
    return True


def restore_session(line: ArchivedSession, exact: bool = True) -> Op[Outcome[bool]]:
    """Restore a session. ``exact``: an existing one is the same only if it was created at the same time."""
    if line.status == "active" and line.ended is None:
        line = msgspec.structs.replace(line, status="interrupted", error=line.error or IMPORTED)
    rows = yield Query("session_restore", line.row())
    same = rows or not exact or (yield Query("session_same", (line.id, line.created)))
    return bool(rows) if same else ArchiveDiffers(what="session", id=line.id)


def insert_message(line: ArchivedMessage, id: int, mailbox: int, now: Now) -> Op[bool]:
    """Insert a message; return whether its message_id was free in that mailbox. A leased message is queued again."""
    if line.status == "leased":
        line = msgspec.structs.replace(line, status="queued", holder=None)
    reply_to = None
    if line.reply_to is not None:
        (reply_to,) = yield from mailboxes([("replies", line.reply_to, line.reply_to)], now)
    values = {name: getattr(line, name) for name in common_fields(ArchivedMessage)}
    values.update(id=id, mailbox=mailbox, reply_to=reply_to, lease_until=None)
    rows = yield Query("message_restore", msgspec.structs.astuple(StoredMessage(**values)))
    if rows and line.receipts:
        receipts = [(id, *msgspec.structs.astuple(receipt)) for receipt in line.receipts]
        yield ExecuteMany("receipt_insert", receipts)
    if rows and line.status == "scheduled" and line.due is None:
        # It was held for a person, and is here too: without this row it could not be released.
        yield ExecuteMany("hold_insert", [(id, line.correlation, None, now.wall)])
    if rows and line.finished is None:
        yield Wake([mailbox_channel(mailbox)])
    return bool(rows)


def state_floor(scope: str) -> Op[int]:
    """Return the highest version of removed tombstones of a scope."""
    floors = yield Query("state_floors", ([scope],))
    return max((int(version) for _, version in floors), default=0)


def insert_state(line: ArchivedState, row: int | None) -> Op[None]:
    """Insert an entry, or replace a tombstone by it."""
    change = yield from take_change_numbers(1)
    scope, key, type, version, *rest = line.row()
    values = (type, version, change, *rest)
    if row is not None:
        yield ExecuteMany("state_update", [(*values, row)])
    else:
        yield ExecuteMany("state_insert", [(*values, scope, key)])
    yield Wake((state_channel(line.scope),))


@single_operation(durable=True, stores_data=True)
def restore(request: RestoreRequest, now: Now) -> Op[Outcome[bool]]:
    """Restore a row that does not exist; the outcome is False if it does. Existing rows never change, except a
    tombstone of the same version."""
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
        case ArchivedMailbox() as line:
            if (yield Query("mailbox_find", (line.kind, line.name, ""))):
                return False
            yield ExecuteMany("mailbox_ensure", [(line.kind, line.name, "", now.wall)])
            return True
        case ArchivedHistory() as line:
            return (yield from restore_history(line))
        case ArchivedHistoryItem() as line:
            return (yield from restore_history_item(line))
        case ArchivedParticipant() as line:
            error = yield from of_another_session(line.session, line.created, needed=True)
            return error or bool((yield Query("participant_restore", line.row())))
        case line:
            return (yield from _restore_numbered(line, now))


def _restore_numbered(
    line: ArchivedCheckpoint | ArchivedDocument | ArchivedEvent | ArchivedProcess, now: Now
) -> Op[Outcome[bool]]:
    """Restore a row with a number of its own."""
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
        if rows:
            yield from skip_restored(line.id, now)
        same = rows or (yield Query("event_same", (line.id, line.at, line.kind, line.subject)))
    else:
        rows = yield Query("process_restore", line.row())
        same = rows or (yield Query("process_same", (line.id, line.pid, line.created)))
    return bool(rows) if same else ArchiveDiffers(what=kind_of(line), id=getattr(line, "id", line.row()[:3]))


def _restore_type(line: ArchivedType, now: Now) -> Op[bool]:
    """Restore a type without an event: the archive has one."""
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
            # It was open when it was archived. Restoring it would repeat its work.
            return Outdated(what="message", id=line.id, reason="it was finished and removed since")
    unchecked = yield from ensure_type(line, now, request.fits)
    if unchecked is not None:
        return unchecked
    box = (line.mailbox_kind, line.mailbox_name, line.mailbox_owner)
    (mailbox,) = yield from mailboxes([box], now)
    if not (yield from insert_message(line, line.id, mailbox, now)):
        # Another message has its message_id.
        return ArchiveDiffers(what="message", id=line.message_id)
    # Later messages must get other numbers.
    yield Query("counter_raise", ("message", line.id))
    return True


def _restore_state(line: ArchivedState) -> Op[Outcome[bool]]:
    """Restore a value where no entry exists, or only the tombstone of that version."""
    rows = yield Query("state_row", (line.scope, line.key))
    if rows:
        ((_, version, gone),) = rows
        if not gone or version != line.version or line.value is None:
            return False
    error = yield from of_another_incarnation(line)
    if error is not None:
        return error
    floor = yield from state_floor(line.scope)
    if line.version < floor:
        # Its version may have been issued again since, to another value.
        line = msgspec.structs.replace(line, version=floor + 1)
    yield from insert_state(line, rows[0][0] if rows else None)
    return True


Foreign: TypeAlias = (
    ArchivedAgent
    | ArchivedSession
    | ArchivedParticipant
    | ArchivedState
    | ArchivedDocument
    | ArchivedCheckpoint
    | ArchivedMessage
    | ArchivedTask
)
"""Lines of other programs. Their numbers and versions are 0; they get them here."""


class ImportedRow(msgspec.Struct, frozen=True):
    """A line of another program. ``dated``: its time of creation is not a guess; ``number``: its position in the file;
    ``fits``: the schema that the payload of a message is known to fit."""

    line: Foreign
    dated: bool = True
    number: int = 0
    fits: str | None = None


class ImportRowsRequest(msgspec.Struct, frozen=True):
    """The lines of one file, or a part of it that is large enough for a commit. ``others`` are sessions that are known
    to be other ones here."""

    items: tuple[ImportedRow, ...]
    data_size: int
    others: frozenset[str] = frozenset()


@operation(durable=True, stores_data=True)
def import_rows(requests: Sequence[ImportRowsRequest], now: Now) -> Op[list[Outcome[list[Outcome[bool]]]]]:
    """Import lines; the outcome has for each whether it is new, or the error with which it was skipped."""
    outcomes: list[Outcome[list[Outcome[bool]]]] = []
    for request in requests:
        results: list[Outcome[bool]] = []
        others = set(request.others)
        for item in request.items:
            session = session_of(item.line)
            if session in others:
                results.append(ArchiveDiffers(what="session", id=session))
                continue
            outcome = yield from _import_row(item, now)
            if isinstance(item.line, ArchivedSession) and isinstance(outcome, ArchiveDiffers):
                others.add(item.line.id)
            results.append(outcome)
        outcomes.append(results)
    return outcomes


def session_of(line: Foreign) -> str | None:
    """Return the session that a line belongs to. Agents and messages only name one: they exist without it."""
    match line:
        case ArchivedDocument() | ArchivedParticipant():
            return line.session
        case ArchivedState():
            return scope_session(line.scope)
        case ArchivedCheckpoint():
            return line.owner if line.owner_kind in OF_SESSIONS else None
        case _:
            return None


def _import_row(item: ImportedRow, now: Now) -> Op[Outcome[bool]]:
    match item.line:
        case ArchivedSession() as line:
            return (yield from restore_session(line, exact=item.dated))
        case ArchivedAgent() as line:
            return (yield from restore_agent(line, now))
        case ArchivedState() as line:
            return (yield from _import_state(line))
        case ArchivedCheckpoint() as line:
            return (yield from _import_checkpoint(line))
        case ArchivedMessage() as line:
            return (yield from _import_message(line, item.fits, now))
        case ArchivedTask() as line:
            return (yield from _import_task(line, item.dated, now))
        case ArchivedParticipant() as line:
            error = yield from of_another_session(line.session, line.created, needed=True, active=True)
            return error or bool((yield Query("participant_restore", line.row())))
        case ArchivedDocument() as line:
            return (yield from _import_document(line))


def _import_task(line: ArchivedTask, dated: bool, now: Now) -> Op[Outcome[bool]]:
    """Import a task, identified by its id, its workflow and its creation time, if that is known."""
    if not dated:
        known = yield Query("task_known", ([line.id],))
        if any(workflow == line.workflow for _, workflow, *_ in known):
            return False
    return (yield from restore_task(line, now))


def _import_document(line: ArchivedDocument) -> Op[Outcome[bool]]:
    """Import a document as its next version, unless a version has the same content."""
    error: AgentBusError | None = yield from of_another_session(line.session, line.created, needed=True, active=True)
    if error is not None:
        return error
    if (yield Query("document_alike", (line.session, line.name, line.checksum))):
        return False
    values = (line.session, line.name, line.checksum, line.author, line.created, line.value)
    yield Query("document_insert", values)
    return True


def _import_state(line: ArchivedState) -> Op[Outcome[bool]]:
    """Import an entry that does not exist. A deleted one stays deleted."""
    rows = yield Query("state_checksum", (line.scope, line.key))
    if rows:
        same = rows[0][0] in {None, line.checksum}
        return False if same else ArchiveDiffers(what="value under", id=f"{line.key} of {line.scope}")
    error = yield from of_another_incarnation(line, active=True)
    if error is not None:
        return error
    floor = yield from state_floor(line.scope)
    yield from insert_state(msgspec.structs.replace(line, version=floor + 1), None)
    return True


def _import_checkpoint(line: ArchivedCheckpoint) -> Op[Outcome[bool]]:
    """Import a checkpoint. Its owner resumes from the checkpoint with the newest number, so that one older than those
    that exist is refused."""
    owner = (line.owner_kind, line.owner, line.name)
    if (yield Query("checkpoint_alike", (*owner, line.created, line.checksum))):
        return False
    if line.owner_kind in OF_SESSIONS:
        error = yield from of_another_session(line.owner, line.created, needed=False, active=True)
        if error is not None:
            return error
    newest = yield Query("checkpoint_newest", owner)
    if newest and newest[0][1] > line.created:
        what = f"checkpoint {line.name!r} of {line.owner_kind}"
        return Outdated(what=what, id=line.owner, reason="it would become the newest")
    _, *values = line.row()
    yield Query("checkpoint_insert", tuple(values))
    return True


def _import_message(line: ArchivedMessage, fits: str | None, now: Now) -> Op[Outcome[bool]]:
    """Import a message, identified by its message_id."""
    box = (line.mailbox_kind, line.mailbox_name, line.mailbox_owner)
    (mailbox,) = yield from mailboxes([box], now)
    rows = yield Query("message_in_box", (line.message_id, mailbox))
    if rows:
        same = rows[0] == (line.checksum, line.type, line.sender)
        return False if same else ArchiveDiffers(what="message", id=line.message_id)
    unchecked = yield from ensure_type(line, now, fits)
    if unchecked is not None:
        return unchecked
    ((id,),) = yield Query("counter_take", ("message", 1))
    yield from insert_message(line, id, mailbox, now)
    return True
