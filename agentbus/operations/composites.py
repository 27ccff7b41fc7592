"""Composite checkpoints: all that belongs to a session in one snapshot, and the way back to it.

In it are the session's documents, the state of the session and of its agents, and its participants; open messages are
only listed. It is made inside the write transaction, so that it shows one moment.
"""

from __future__ import annotations

import msgspec
from msgspec import Raw

from agentbus.clock import Now
from agentbus.codec import digest
from agentbus.errors import AgentBusError, SnapshotTooLarge, UnknownCheckpoint
from agentbus.limits import session_scope
from agentbus.operations import Each, Op, Outcome, Query, Row, one_by_one
from agentbus.operations.checkpoints import Owner, trim
from agentbus.operations.closed import not_open
from agentbus.operations.events import event, record
from agentbus.operations.fencing import LIVE
from agentbus.operations.state import ChangeRequest, change_state
from agentbus.records import Rollback

KIND = "composite"
BEFORE_ROLLBACK = "before-rollback"
_MOST_MESSAGES = 1000
"""Open messages that are listed."""
_encode = msgspec.json.Encoder().encode

Place = tuple[str, str]


class KeptDocument(msgspec.Struct, frozen=True):
    """The newest version of a document."""

    name: str
    version: int
    author: str | None
    created: int
    checksum: str
    value: Raw


class KeptEntry(msgspec.Struct, frozen=True):
    """An entry of state."""

    scope: str
    key: str
    type: str
    expires: int | None
    checksum: int
    author: str | None
    value: Raw


class KeptMember(msgspec.Struct, frozen=True):
    """One who takes part in a meeting; the result is null until it has finished."""

    meeting: str
    member: str
    position: int
    created: int
    finished: int | None
    checksum: int | None
    result: Raw


class KeptAgent(msgspec.Struct, frozen=True):
    """An agent of the session, and its newest checkpoint."""

    id: str
    type: str
    status: str
    progress: int
    note: str | None
    checkpoint: int | None


class ListedMessage(msgspec.Struct, frozen=True):
    """A message that was not finished."""

    id: int
    message_id: str
    sender: str
    agent: str
    type: str
    status: str


class Composite(msgspec.Struct, frozen=True):
    """All that belongs to a session at one moment."""

    session: str
    operation: str
    progress: int
    documents: list[KeptDocument]
    state: list[KeptEntry]
    participants: list[KeptMember]
    agents: list[KeptAgent]
    messages: list[ListedMessage]


class ComposeRequest(msgspec.Struct, frozen=True):
    """A composite checkpoint of a session, of at most ``limit`` bytes.

    ``unless`` is the digest of one that was made before: if nothing has changed since, none is saved.
    """

    session: str
    name: str
    limit: int
    notes: str = ""
    keep: int | None = None
    unless: str | None = None


class Composed(msgspec.Struct, frozen=True):
    """The digest of what belongs to a session; and the checkpoint of it that was saved, or 0 if none was needed."""

    digest: str
    id: int = 0
    created: int = 0
    size: int = 0


class RollbackRequest(msgspec.Struct, frozen=True):
    """A session goes back to this composite, which was read from the checkpoint of this id."""

    session: str
    checkpoint: int
    composite: Composite
    limit: int

    @property
    def weight(self) -> int:
        return sum(len(bytes(document.value)) for document in self.composite.documents)


@one_by_one(durable=True, grows=True)
def checkpoint_session(request: ComposeRequest, now: Now) -> Op[Outcome[Composed]]:
    """Save composite checkpoints of sessions."""
    error = yield from not_open(request.session, "save a checkpoint of it")
    return error or (yield from _checkpoint(request, now))


@one_by_one(durable=True, grows=True)
def rollback(request: RollbackRequest, now: Now) -> Op[Outcome[Rollback]]:
    """Take sessions back to their composite checkpoints; what they are now is saved first."""
    error = yield from not_open(request.session, "roll it back")
    return error or (yield from roll_back(request, now))


def roll_back(request: RollbackRequest, now: Now) -> Op[Outcome[Rollback]]:
    """Make an open session what it was. An outcome that is an error means that nothing was written."""
    rows = yield Query("checkpoint_owner", (request.checkpoint,))
    if not rows:
        # It was there when it was read.
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
    # What waits changes all the time, and is not restored.
    content = digest(_encode(msgspec.structs.replace(composite, messages=[])))
    if content == request.unless:
        return Composed(content)
    saved = yield from _save(request, composite, now)
    return saved if isinstance(saved, AgentBusError) else Composed(content, *saved)


def _exceeds(session: str, limit: int, now: Now) -> Op[SnapshotTooLarge | None]:
    """Whether the values alone are too much: nobody shall wait until all is composed to hear that."""
    ((size,),) = yield Query("session_size", (session, session_scope(session), now.wall))
    return SnapshotTooLarge(size=size, limit=limit) if size > limit else None


def _compose(session: str, now: Now) -> Op[Composite]:
    """All that belongs to a session that is there."""
    (row,) = yield Query("session_get", (session,))
    members = yield Query("agent_of_session", (session,))
    agents = [
        KeptAgent(id, type, status, progress, note, checkpoint)
        for id, type, status, _, progress, note, _, checkpoint, _ in members
    ]
    documents = yield Query("document_newest", (session,))
    scopes = [session_scope(session), *(agent.id for agent in agents)]
    state = yield Query("state_there", (scopes, now.wall))
    participants = yield Query("participant_of_session", (session,))
    messages = yield Query("message_open_of", (scopes[1:], _MOST_MESSAGES))
    return Composite(
        session,
        row[1],
        row[4],
        [KeptDocument(*_raw(row)) for row in documents],
        [KeptEntry(*_raw(row)) for row in state],
        [KeptMember(*_raw(row)) for row in participants],
        agents,
        [ListedMessage(id, message_id or f"m-{id}", *columns) for id, message_id, *columns in messages],
    )


def _raw(row: Row) -> Row:
    """A row whose last column is JSON, as it is stored: what is restored is the same to the byte."""
    return (*row[:-1], Raw(b"null" if row[-1] is None else row[-1].encode()))


def _text(raw: Raw) -> str:
    return bytes(raw).decode()


def _save(request: ComposeRequest, composite: Composite, now: Now) -> Op[Outcome[tuple[int, int, int]]]:
    """The id of the checkpoint, when it was made, and its size."""
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
    """A new version with the value of then where that is another one; what was not there goes."""
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
    """The entries of then, in the scopes of the session and of those agents that belonged to it and still do."""
    belonging = {agent.id for agent in present.agents}
    scopes = {session_scope(past.session), *(agent.id for agent in past.agents if agent.id in belonging)}
    then = _entries(past, scopes, now)
    there = _entries(present, scopes, now)
    requests = [
        ChangeRequest(
            entry.scope, entry.key, (_text(entry.value), entry.checksum), None, entry.type,
            None if entry.expires is None else entry.expires - now.wall, author=entry.author,
        )
        for place, entry in then.items()
        if place not in there or _differs(entry, there[place])
    ]  # fmt: skip
    requests += [ChangeRequest(*place) for place in there if place not in then]
    if requests:
        for outcome in (yield from change_state.run(requests, now)):
            if isinstance(outcome, AgentBusError):
                raise outcome
    changed: dict[str, list[str]] = {}
    for request in sorted(requests, key=lambda request: (request.scope, request.key)):
        changed.setdefault(request.scope, []).append(request.key)
    return changed


def _entries(composite: Composite, scopes: set[str], now: Now) -> dict[Place, KeptEntry]:
    """What has expired since is not there any more."""
    return {
        (entry.scope, entry.key): entry
        for entry in composite.state
        if entry.scope in scopes and (entry.expires is None or entry.expires > now.wall)
    }


def _differs(one: KeptEntry, other: KeptEntry) -> bool:
    return (one.type, one.expires, bytes(one.value)) != (other.type, other.expires, bytes(other.value))


def _restore_participants(past: Composite, present: Composite) -> Op[dict[str, list[str]]]:
    def standing(composite: Composite) -> dict[Place, tuple[int | None, bytes]]:
        return {
            (member.meeting, member.member): (member.finished, bytes(member.result))
            for member in composite.participants
        }

    then, there = standing(past), standing(present)
    changed: dict[str, list[str]] = {}
    for meeting, member in {**then, **there}:
        if then.get((meeting, member)) != there.get((meeting, member)):
            changed.setdefault(meeting, []).append(member)
    if changed:
        yield Query("participant_clear", (past.session,))
        yield Each(
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
    """An agent goes on from its newest checkpoint, so that the one of then must be that; nothing is deleted."""
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
