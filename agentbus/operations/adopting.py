"""What comes from elsewhere and has no number here: it gets one, unless the same is there already.

All that one file has is taken in one commit. A line that cannot be taken is left out and says why; the others are not
held up by it, but for those that belong to a session which is another one here: they are left out with it. When things
were written is often guessed, so that what has ended here may get what seems older than itself; what is at work may
not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from agentbus.clock import Now
from agentbus.errors import AgentBusError, ArchiveDiffers, Outdated
from agentbus.limits import scope_session
from agentbus.operations import Op, Outcome, Query, operation
from agentbus.operations.archives import (
    ArchivedAgent,
    ArchivedCheckpoint,
    ArchivedDocument,
    ArchivedMessage,
    ArchivedParticipant,
    ArchivedSession,
    ArchivedState,
    ArchivedTask,
)
from agentbus.operations.restoring import (
    OF_SESSIONS,
    insert_message,
    insert_state,
    known_type,
    mailboxes,
    of_another_life,
    of_another_session,
    restore_agent,
    restore_session,
    state_floor,
)
from agentbus.operations.task_archives import restore_task

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
"""Their numbers and versions are 0: they get them here."""


class Adopted(msgspec.Struct, frozen=True):
    """A line from elsewhere. ``dated``: its time of creation is its own, and not one that was guessed; ``number``:
    where it stood in its file; ``fits``: the schema that the payload of a message is known to fit."""

    line: Foreign
    dated: bool = True
    number: int = 0
    fits: str | None = None


class AdoptRequest(msgspec.Struct, frozen=True):
    """What one file has, or a part of it that is large enough for a commit. ``others`` are sessions that are known to
    be others here."""

    items: tuple[Adopted, ...]
    weight: int
    others: frozenset[str] = frozenset()


@operation(durable=True, grows=True)
def adopt(requests: Sequence[AdoptRequest], now: Now) -> Op[list[Outcome[list[Outcome[bool]]]]]:
    """Take in what is not there; says of each line whether it is new, or why it is left out."""
    outcomes: list[Outcome[list[Outcome[bool]]]] = []
    for request in requests:
        results: list[Outcome[bool]] = []
        others = set(request.others)
        for item in request.items:
            session = session_of(item.line)
            if session in others:
                results.append(ArchiveDiffers(what="session", id=session))
                continue
            outcome = yield from _adopt(item, now)
            if isinstance(item.line, ArchivedSession) and isinstance(outcome, ArchiveDiffers):
                others.add(item.line.id)
            results.append(outcome)
        outcomes.append(results)
    return outcomes


def session_of(line: Foreign) -> str | None:
    """The session that a line is a part of. Agents and messages only name one: they are something without it."""
    match line:
        case ArchivedDocument() | ArchivedParticipant():
            return line.session
        case ArchivedState():
            return scope_session(line.scope)
        case ArchivedCheckpoint():
            return line.owner if line.owner_kind in OF_SESSIONS else None
        case _:
            return None


def _adopt(item: Adopted, now: Now) -> Op[Outcome[bool]]:
    match item.line:
        case ArchivedSession() as line:
            return (yield from restore_session(line, exact=item.dated))
        case ArchivedAgent() as line:
            return (yield from restore_agent(line, now))
        case ArchivedState() as line:
            return (yield from _adopt_state(line))
        case ArchivedCheckpoint() as line:
            return (yield from _adopt_checkpoint(line))
        case ArchivedMessage() as line:
            return (yield from _adopt_message(line, item.fits, now))
        case ArchivedTask() as line:
            return (yield from _adopt_task(line, item.dated, now))
        case ArchivedParticipant() as line:
            error = yield from of_another_session(line.session, line.created, needed=True, active=True)
            return error or bool((yield Query("participant_restore", line.row())))
        case ArchivedDocument() as line:
            return (yield from _adopt_document(line))


def _adopt_task(line: ArchivedTask, dated: bool, now: Now) -> Op[Outcome[bool]]:
    """It is known again by its id, its workflow and when it was made, if that is known."""
    if not dated:
        known = yield Query("task_known", ([line.id],))
        if any(workflow == line.workflow for _, workflow, *_ in known):
            return False
    return (yield from restore_task(line, now))


def _adopt_document(line: ArchivedDocument) -> Op[Outcome[bool]]:
    """The next version, unless one has the same content."""
    error: AgentBusError | None = yield from of_another_session(line.session, line.created, needed=True, active=True)
    if error is not None:
        return error
    if (yield Query("document_alike", (line.session, line.name, line.checksum))):
        return False
    values = (line.session, line.name, line.checksum, line.author, line.created, line.value)
    yield Query("document_insert", values)
    return True


def _adopt_state(line: ArchivedState) -> Op[Outcome[bool]]:
    """Where there is nothing. What was deleted here stays deleted."""
    rows = yield Query("state_checksum", (line.scope, line.key))
    if rows:
        same = rows[0][0] in {None, line.checksum}
        return False if same else ArchiveDiffers(what="value under", id=f"{line.key} of {line.scope}")
    error = yield from of_another_life(line, active=True)
    if error is not None:
        return error
    floor = yield from state_floor(line.scope)
    yield from insert_state(msgspec.structs.replace(line, version=floor + 1), None)
    return True


def _adopt_checkpoint(line: ArchivedCheckpoint) -> Op[Outcome[bool]]:
    """The newest number is the newest checkpoint, from which its owner goes on: one that is older than what is there
    would be taken for it."""
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
        return Outdated(what=what, id=line.owner, reason="it would be taken for the newest")
    _, *values = line.row()
    yield Query("checkpoint_insert", tuple(values))
    return True


def _adopt_message(line: ArchivedMessage, fits: str | None, now: Now) -> Op[Outcome[bool]]:
    """It is known again by its message_id."""
    box = (line.mailbox_kind, line.mailbox_name, line.mailbox_owner)
    (mailbox,) = yield from mailboxes([box], now)
    rows = yield Query("message_in_box", (line.message_id, mailbox))
    if rows:
        same = rows[0] == (line.checksum, line.type, line.sender)
        return False if same else ArchiveDiffers(what="message", id=line.message_id)
    unchecked = yield from known_type(line, now, fits)
    if unchecked is not None:
        return unchecked
    ((id,),) = yield Query("counter_take", ("message", 1))
    yield from insert_message(line, id, mailbox, now)
    return True
