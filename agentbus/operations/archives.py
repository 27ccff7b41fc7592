"""What an archive holds: a line for each row. ``restoring`` makes rows of lines again.

A line has all that its row had, but for what only counts within a boot (leases, beats) and for the numbers of mailboxes
and processes, which another bus gives out in another way. Payloads stay the text that they were, so that their
checksums hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeAlias

import msgspec

from agentbus.clock import Now
from agentbus.limits import session_scope
from agentbus.operations import Op, Query, Row

FORMAT = 1
MOST = 2**53
"""No number in an archive is beyond this: an id or an epoch near the end of its range would leave none for others."""
Number = Annotated[int, msgspec.Meta(ge=0, le=MOST)]
Id = Annotated[int, msgspec.Meta(ge=1, le=MOST)]


class _Line(msgspec.Struct, frozen=True, tag_field="record", forbid_unknown_fields=True):
    """The fields are the columns, in the order of the queries that read and write them."""

    def row(self) -> Row:
        return msgspec.structs.astuple(self)


class Header(_Line, frozen=True, tag="archive"):
    """The first line of every part of an archive; ``bus`` says which bus it is of."""

    format: Number
    created: Number
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
    id: Id
    message_id: str | None
    mailbox_kind: str
    mailbox_name: str
    mailbox_owner: str
    sender: str
    type: str
    checksum: Number
    priority: Number
    status: str
    attempts: Number
    max_attempts: Number
    lease: Number
    holder: str | None
    expires: Number | None
    correlation: str | None
    session: str | None
    error: str | None
    created: Number
    finished: Number | None
    payload: str
    due: Number | None = None
    reply_to: str | None = None
    """The agent that waits for the reply."""


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
    load: Number | None
    estimate: Number | None
    metadata: str
    status: str
    progress: Number
    note: str | None
    epoch: Number
    patience: Number | None
    error: str | None
    evidence: str | None
    created: Number
    started: Number | None
    updated: Number
    ended: Number | None


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


class ArchivedState(_Line, frozen=True, tag="state"):
    """An entry, or (without a value) a tombstone."""

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


class ArchivedTask(_Line, frozen=True, tag="task"):
    """A task with its steps and approvals: it comes back as a whole, or not at all."""

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
    redo: str | None = None
    steps: list[ArchivedStep] = []
    approvals: list[ArchivedApproval] = []


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
    | ArchivedTask
)


def kind_of(line: Line) -> str:
    return str(line.__struct_config__.tag)


def bus_name(_: None, now: Now) -> Op[str | None]:
    """The name that a bus has for itself, in its archives."""
    rows = yield Query("meta_get", ("bus",))
    return str(rows[0][0]) if rows else None


def loading(query: str, kind: Callable[..., Line]) -> Callable[[Sequence[Any], Now], Op[list[Line]]]:
    """A question for the lines of one kind, by their ids."""

    def load(ids: Sequence[Any], now: Now) -> Op[list[Line]]:
        rows = yield Query(query, (list(ids),))
        return [kind(*row) for row in rows]

    return load


load_messages = loading("message_archive", ArchivedMessage)
load_checkpoints = loading("checkpoint_archive", ArchivedCheckpoint)
load_documents = loading("document_archive", ArchivedDocument)
load_events = loading("event_archive", ArchivedEvent)
load_processes = loading("process_archive", ArchivedProcess)
load_tombstones = loading("state_archive_tombstones", ArchivedState)


def load_agents(wanted: Sequence[tuple[str, int]], now: Now) -> Op[list[Line]]:
    """Agents with their state, as far as it was changed after a change."""
    rows = yield Query("agent_archive", ([id for id, _ in wanted],))
    entries = yield from _load_state(wanted)
    return [*(ArchivedAgent(*row) for row in rows), *entries]


def load_sessions(wanted: Sequence[tuple[str, int]], now: Now) -> Op[list[Line]]:
    """Sessions with their participants, and with their state as far as it was changed after a change."""
    ids = [id for id, _ in wanted]
    rows = yield Query("session_archive", (ids,))
    members = yield Query("participant_archive", (ids,))
    entries = yield from _load_state([(session_scope(id), after) for id, after in wanted])
    return [*(ArchivedSession(*row) for row in rows), *(ArchivedParticipant(*row) for row in members), *entries]


def _load_state(scopes: Sequence[tuple[str, int]]) -> Op[list[Line]]:
    rows = yield Query("state_archive", (list(scopes),))
    return [ArchivedState(*row) for row in rows]
