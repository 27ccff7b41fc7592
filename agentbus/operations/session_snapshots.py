"""Composite checkpoints: everything that belongs to a session in one snapshot, and rollback to it.

A composite contains the session's documents, the state of the session and its agents, and its participants; open
messages are only listed. It is composed inside the write transaction, so that it is consistent.
"""

from __future__ import annotations

import msgspec
from msgspec import Raw

from agentbus.core.clock import Now
from agentbus.core.codec import digest
from agentbus.core.validation import session_scope
from agentbus.errors import AgentBusError, SnapshotTooLarge, UnknownCheckpoint
from agentbus.operations.checkpoints import Owner, trim
from agentbus.operations.common import LIVE, closed_session_error
from agentbus.operations.events import event, record
from agentbus.operations.protocol import ExecuteMany, Op, Outcome, Query, Row, single_operation
from agentbus.operations.state import ChangeRequest, change_state
from agentbus.records import Rollback

KIND = "composite"
BEFORE_ROLLBACK = "before-rollback"
_MAX_MESSAGES = 1000
"""Open messages that are listed at most."""
_encode = msgspec.json.Encoder().encode

EntryKey = tuple[str, str]


class SavedDocument(msgspec.Struct, frozen=True):
    """The newest version of a document."""

    name: str
    version: int
    author: str | None
    created: int
    checksum: str
    value: Raw


class SavedEntry(msgspec.Struct, frozen=True):
    """An entry of state."""

    scope: str
    key: str
    type: str
    expires: int | None
    checksum: int
    author: str | None
    value: Raw


class SavedMember(msgspec.Struct, frozen=True):
    """A member of a meeting; the result is null until it has finished."""

    meeting: str
    member: str
    position: int
    created: int
    finished: int | None
    checksum: int | None
    result: Raw


class SavedAgent(msgspec.Struct, frozen=True):
    """An agent of the session, and its newest checkpoint."""

    id: str
    type: str
    status: str
    progress: int
    note: str | None
    checkpoint: int | None


class ListedMessage(msgspec.Struct, frozen=True):
    """An unfinished message."""

    id: int
    message_id: str
    sender: str
    agent: str
    type: str
    status: str


class Composite(msgspec.Struct, frozen=True):
    """Everything that belongs to a session at one moment."""

    session: str
    operation: str
    progress: int
    documents: list[SavedDocument]
    state: list[SavedEntry]
    participants: list[SavedMember]
    agents: list[SavedAgent]
    messages: list[ListedMessage]


class ComposeRequest(msgspec.Struct, frozen=True):
    """A composite checkpoint of a session, of at most ``limit`` bytes. ``unless`` is the digest of an earlier one: if
    nothing has changed, none is saved."""

    session: str
    name: str
    limit: int
    notes: str = ""
    keep: int | None = None
    unless: str | None = None


class Composed(msgspec.Struct, frozen=True):
    """The digest of a session's content, and the checkpoint that was saved; 0 if none was needed."""

    digest: str
    id: int = 0
    created: int = 0
    size: int = 0


class RollbackRequest(msgspec.Struct, frozen=True):
    """Roll a session back to this composite, which was read from the checkpoint of this id."""

    session: str
    checkpoint: int
    composite: Composite
    limit: int

    @property
    def data_size(self) -> int:
        return sum(len(bytes(document.value)) for document in self.composite.documents)


@single_operation(durable=True, stores_data=True)
def checkpoint_session(request: ComposeRequest, now: Now) -> Op[Outcome[Composed]]:
    """Save composite checkpoints of sessions."""
    error = yield from closed_session_error(request.session, "save a checkpoint of it")
    return error or (yield from _checkpoint(request, now))


@single_operation(durable=True, stores_data=True)
def rollback(request: RollbackRequest, now: Now) -> Op[Outcome[Rollback]]:
    """Roll sessions back to their composite checkpoints, saving their present content first."""
    error = yield from closed_session_error(request.session, "roll it back")
    return error or (yield from roll_back(request, now))


def roll_back(request: RollbackRequest, now: Now) -> Op[Outcome[Rollback]]:
    """Roll an open session back. If the outcome is an error, nothing was written."""
    rows = yield Query("checkpoint_owner", (request.checkpoint,))
    if not rows:
        # The checkpoint existed when it was read.
        return UnknownCheckpoint(id=request.checkpoint)
    too_large = yield from _exceeds(request.session, request.limit, now)
    if too_large is not None:
        return too_large
    present = yield from _compose(request.session, now)
    before = yield from _save(ComposeRequest(request.session, BEFORE_ROLLBACK, request.limit), present, now)
    if isinstance(before, AgentBusError):
        return before
    past = request.composite
    documents, removed = yield from _restore_documents(past, present, now)
    state = yield from _restore_state(past, present, now)
    participants = yield from _restore_participants(past, present)
    checkpoints, ahead = yield from _restore_checkpoints(past, present, now)
    yield Query("session_rewind", (past.progress, now.wall, request.session))
    open_now = yield Query("message_still_open", ([message.id for message in past.messages],))
    still = {id for (id,) in open_now}
    belonging = {agent.id for agent in present.agents}
    done = Rollback(
        request.session, request.checkpoint, before[0], documents, removed, state, participants, checkpoints, ahead,
        left=[agent.id for agent in past.agents if agent.id not in belonging],
        live=[agent.id for agent in present.agents if agent.status in LIVE],
        handled=[message.message_id for message in past.messages if message.id not in still],
    )  # fmt: skip
    facts = {
        "checkpoint": done.checkpoint, "saved": done.saved, "documents": len(documents), "removed": len(removed),
        "entries": sum(map(len, state.values())), "participants": sum(map(len, participants.values())),
    }  # fmt: skip
    yield from record([event(now.wall, "session_rolled_back", ("session", request.session), None, **facts)])
    return done


def _checkpoint(request: ComposeRequest, now: Now) -> Op[Outcome[Composed]]:
    too_large = yield from _exceeds(request.session, request.limit, now)
    if too_large is not None:
        return too_large
    composite = yield from _compose(request.session, now)
    # Open messages change constantly, and are not restored.
    content = digest(_encode(msgspec.structs.replace(composite, messages=[])))
    if content == request.unless:
        return Composed(content)
    saved = yield from _save(request, composite, now)
    return saved if isinstance(saved, AgentBusError) else Composed(content, *saved)


def _exceeds(session: str, limit: int, now: Now) -> Op[SnapshotTooLarge | None]:
    """Return whether the values alone exceed the limit, to fail before everything is composed."""
    ((size,),) = yield Query("session_size", (session, session_scope(session), now.wall))
    return SnapshotTooLarge(size=size, limit=limit) if size > limit else None


def _compose(session: str, now: Now) -> Op[Composite]:
    """Return everything that belongs to an existing session."""
    (row,) = yield Query("session_get", (session,))
    members = yield Query("agent_of_session", (session,))
    agents = [
        SavedAgent(id, type, status, progress, note, checkpoint)
        for id, type, status, _, progress, note, _, checkpoint, _ in members
    ]
    documents = yield Query("document_newest", (session,))
    scopes = [session_scope(session), *(agent.id for agent in agents)]
    state = yield Query("state_there", (scopes, now.wall))
    participants = yield Query("participant_of_session", (session,))
    messages = yield Query("message_open_of", (scopes[1:], _MAX_MESSAGES))
    return Composite(
        session,
        row[1],
        row[4],
        [SavedDocument(*_raw(row)) for row in documents],
        [SavedEntry(*_raw(row)) for row in state],
        [SavedMember(*_raw(row)) for row in participants],
        agents,
        [ListedMessage(id, message_id or f"m-{id}", *columns) for id, message_id, *columns in messages],
    )


def _raw(row: Row) -> Row:
    """Return a row whose last column is JSON as it is stored, so that a restored value is identical to the byte."""
    return (*row[:-1], Raw(b"null" if row[-1] is None else row[-1].encode()))


def _text(raw: Raw) -> str:
    return bytes(raw).decode()


def _save(request: ComposeRequest, composite: Composite, now: Now) -> Op[Outcome[tuple[int, int, int]]]:
    """Save a composite; return the checkpoint's id, time and size."""
    encoded = _encode(composite)
    size = len(encoded)
    if size > request.limit:
        return SnapshotTooLarge(size=size, limit=request.limit)
    session, name, notes = request.session, request.name, request.notes
    ((id,),) = yield Query(
        "checkpoint_insert",
        (KIND, session, name, session, now.wall, digest(encoded), size, 0, notes, "[]", encoded.decode()),
    )
    if request.keep is not None:
        yield from trim(Owner(KIND, session), name, request.keep)
    return id, now.wall, size


def _restore_documents(past: Composite, present: Composite, now: Now) -> Op[tuple[list[str], list[str]]]:
    """Save a new version of each document that differs; remove those that did not exist."""
    session = past.session
    there = {document.name: document for document in present.documents}
    restored: list[str] = []
    for document in past.documents:
        newest = there.pop(document.name, None)
        if newest is None or newest.checksum != document.checksum:
            value = _text(document.value)
            yield Query(
                "document_insert", (session, document.name, document.checksum, document.author, now.wall, value)
            )
            restored.append(document.name)
    for name in there:
        yield Query("document_floor", (session, name))
        yield Query("document_forget", (session, name))
    return restored, list(there)


def _restore_state(past: Composite, present: Composite, now: Now) -> Op[dict[str, list[str]]]:
    """Restore entries in the scopes of the session and of those agents that belonged to it and still do."""
    belonging = {agent.id for agent in present.agents}
    scopes = {session_scope(past.session), *(agent.id for agent in past.agents if agent.id in belonging)}
    then = _entries(past, scopes, now)
    there = _entries(present, scopes, now)
    requests = [
        ChangeRequest(
            entry.scope, entry.key, (_text(entry.value), entry.checksum), None, entry.type,
            None if entry.expires is None else entry.expires - now.wall, author=entry.author,
        )
        for key, entry in then.items()
        if key not in there or _differs(entry, there[key])
    ]  # fmt: skip
    requests += [ChangeRequest(*key) for key in there if key not in then]
    if requests:
        for outcome in (yield from change_state.run(requests, now)):
            if isinstance(outcome, AgentBusError):
                raise outcome
    changed: dict[str, list[str]] = {}
    for request in sorted(requests, key=lambda request: (request.scope, request.key)):
        changed.setdefault(request.scope, []).append(request.key)
    return changed


def _entries(composite: Composite, scopes: set[str], now: Now) -> dict[EntryKey, SavedEntry]:
    """Return the entries that have not expired."""
    return {
        (entry.scope, entry.key): entry
        for entry in composite.state
        if entry.scope in scopes and (entry.expires is None or entry.expires > now.wall)
    }


def _differs(one: SavedEntry, other: SavedEntry) -> bool:
    return (one.type, one.expires, bytes(one.value)) != (other.type, other.expires, bytes(other.value))


def _restore_participants(past: Composite, present: Composite) -> Op[dict[str, list[str]]]:
    def live_entries(composite: Composite) -> dict[EntryKey, tuple[int | None, bytes]]:
        return {
            (member.meeting, member.member): (member.finished, bytes(member.result))
            for member in composite.participants
        }

    then, there = live_entries(past), live_entries(present)
    changed: dict[str, list[str]] = {}
    for meeting, member in {**then, **there}:
        if then.get((meeting, member)) != there.get((meeting, member)):
            changed.setdefault(meeting, []).append(member)
    if changed:
        yield Query("participant_clear", (past.session,))
        yield ExecuteMany(
            "participant_put",
            [
                (
                    past.session, member.meeting, member.member, member.position, member.created, member.finished,
                    member.checksum, None if member.finished is None else _text(member.result),
                )
                for member in past.participants
            ],
        )  # fmt: skip
    return changed


def _restore_checkpoints(past: Composite, present: Composite, now: Now) -> Op[tuple[dict[str, int], list[str]]]:
    """Save the agents' checkpoints again as the newest, because an agent resumes from its newest one; nothing is
    deleted."""
    newest = {agent.id: agent.checkpoint for agent in present.agents}
    again: dict[str, int] = {}
    ahead: list[str] = []
    for agent in past.agents:
        if newest.get(agent.id) in {None, agent.checkpoint}:
            continue
        rows = yield Query("checkpoint_again", (now.wall, agent.checkpoint))
        if rows:
            ((again[agent.id],),) = rows
        else:
            ahead.append(agent.id)
    return again, ahead
