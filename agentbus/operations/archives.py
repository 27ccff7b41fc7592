"""What an archive holds: a line for each row. ``restoring`` makes rows of them again.

A line has all that its row had, but for what only counts within a boot (leases, beats) and for the numbers of mailboxes
and processes, which another bus gives out in another way. Payloads stay the text that they were, so that their
checksums hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from agentbus.clock import Now
from agentbus.limits import session_scope
from agentbus.operations import Op, Query, Row

FORMAT = 1


class _Line(msgspec.Struct, frozen=True, tag_field="record", forbid_unknown_fields=True):
    """The fields are the columns, in the order of the queries that read and write them."""

    def row(self) -> Row:
        return msgspec.structs.astuple(self)


class Header(_Line, frozen=True, tag="archive"):
    """The first line of every part of an archive; ``bus`` says which bus it is of."""

    format: int
    created: int
    bus: str | None = None


class ArchivedType(_Line, frozen=True, tag="type"):
    kind: str
    name: str
    description: str
    schema: str | None


class ArchivedPlace(_Line, frozen=True, tag="place"):
    """A pool or a topic."""

    kind: str
    name: str


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
    finished: int | None
    payload: str
    due: int | None = None
    reply_to: str | None = None
    """The agent that waits for the reply."""


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
    ended: int | None


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
    | ArchivedType
    | ArchivedPlace
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
