"""Read a bus, or one session of it, for an export, a page at a time.

Rows inserted during the export are left out; rows that change are exported as they are when their page is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from agentbus.core.clock import Now
from agentbus.core.validation import session_scope
from agentbus.errors import UnknownSession
from agentbus.operations.archive_rows import (
    ArchivedMailbox,
    ArchivedParticipant,
    ArchivedSession,
    ArchivedState,
    ArchivedType,
    Line,
    archived_agent,
    archived_message,
    bus_name,
    line_loader,
    load_checkpoints,
    load_documents,
    load_events,
    load_histories,
    load_history_items,
    load_tasks,
    with_receipts,
)
from agentbus.operations.protocol import Op, Query

_PAGE = 1000


class Outline(msgspec.Struct, frozen=True):
    """The scope of an export: all, or a session with its agents; and the last row of each kind that grows."""

    bus: str | None
    session: str | None
    agents: tuple[str, ...]
    last: dict[str, int]


class Wanted(msgspec.Struct, frozen=True):
    """The rows of a kind after the cursor."""

    outline: Outline
    kind: str
    cursor: Any = None


class Found(msgspec.Struct, frozen=True):
    """Keys with the size of their rows, and the cursor of the next page; None after the last."""

    keys: Sequence[tuple[Any, int]]
    cursor: Any = None


def read_outline(session: str | None, now: Now) -> Op[Outline]:
    bus = yield from bus_name(None, now)
    agents: tuple[str, ...] = ()
    if session is not None:
        if not (yield Query("session_status", (session,))):
            raise UnknownSession(session=session)
        members = yield Query("session_members", (session,))
        agents = tuple(id for id, _ in members)
    (last,) = yield Query("bus_last_rows")
    return Outline(bus, session, agents, dict(zip(_GROWING, last, strict=True)))


def find(wanted: Wanted, now: Now) -> Op[Found]:
    """Return the next page of a kind."""
    if wanted.outline.session is not None and wanted.kind != "message":
        return Found((yield from _of_session(wanted.outline, wanted.kind)))
    match wanted.kind:
        case "session":
            rows = yield Query("session_after", (wanted.cursor or "", _PAGE))
        case "agent":
            rows = yield Query("agent_after", (wanted.cursor or "", _PAGE))
        case "task":
            found = yield Query("task_after", (wanted.cursor or 0, _PAGE))
            return Found([(id, size) for _, id, size in found], found[-1][0] if len(found) == _PAGE else None)
        case "state":
            rows = yield Query("state_after", (wanted.cursor or 0, wanted.outline.last["state"], _PAGE))
        case "document":
            rows = yield Query("document_after", (wanted.cursor or 0, wanted.outline.last["document"], _PAGE))
        case "checkpoint":
            rows = yield Query("checkpoint_after", (wanted.cursor or 0, wanted.outline.last["checkpoint"], _PAGE))
        case "history":
            rows = yield Query("history_after", (wanted.cursor or 0, wanted.outline.last["history"], _PAGE))
        case "history_item":
            rows = yield Query("history_item_after", (wanted.cursor or 0, wanted.outline.last["history_item"], _PAGE))
        case "message":
            return (yield from _messages(wanted))
        case _:
            rows = yield Query("event_after", (wanted.cursor or 0, wanted.outline.last["event"], _PAGE))
    return Found([(key, size) for key, size in rows], rows[-1][0] if len(rows) == _PAGE else None)


def load_vocabulary(_: None, now: Now) -> Op[list[Line]]:
    """Return the types that are not built in, the pools and the topics: the other lines refer to them."""
    types = yield Query("type_list", (None,))
    mailboxes = yield Query("mailbox_shared")
    return [
        *(ArchivedType(kind, name, text, schema) for kind, name, builtin, text, schema, _ in types if not builtin),
        *(ArchivedMailbox(*row) for row in mailboxes),
    ]


def _messages(wanted: Wanted) -> Op[Found]:
    rows = yield Query("message_after", (wanted.cursor or 0, wanted.outline.last["message"], _PAGE))
    only = wanted.outline.session
    keys = [(id, size) for id, session, size in rows if only in {None, session}]
    return Found(keys, rows[-1][0] if len(rows) == _PAGE else None)


def _of_session(outline: Outline, kind: str) -> Op[Sequence[tuple[Any, int]]]:
    """Return the keys of a kind that belong to one session."""
    session = str(outline.session)
    agents = list(outline.agents)
    tasks = yield Query("task_of_session", (session,))
    ids = [id for id, *_ in tasks]
    keys: list[tuple[Any, int]] = []
    if kind == "session":
        keys.append((session, 500))
    elif kind == "agent":
        keys += [(id, 1000) for id in agents]
    elif kind == "task":
        keys += [(id, size) for id, _, _, size in tasks]
        return keys
    elif kind == "state":
        rows = yield Query("state_of_scopes", ([session_scope(session), *agents],))
        keys += [(id, size) for id, size in rows]
    elif kind == "document":
        rows = yield Query("document_sizes", (session,))
        keys += [(id, size) for id, size in rows]
    elif kind == "checkpoint":
        whose = (("agent", agents), ("session", [session]), ("composite", [session]), ("task", ids))
        for owner_kind, owners in whose:
            rows = yield Query("checkpoint_sizes", (owner_kind, owners))
            keys += [(id, size) for id, _, size in rows]
    elif kind == "event":
        for subject_kind, subjects in (("agent", agents), ("session", [session]), ("task", ids)):
            rows = yield Query("event_of_subjects", (subject_kind, subjects))
            keys += [(id, size) for id, size in rows]
    return sorted(keys)


def _load_sessions(ids: Sequence[str], now: Now) -> Op[list[Line]]:
    rows = yield Query("session_archive", (list(ids),))
    members = yield Query("participant_archive", (list(ids),))
    return [*(ArchivedSession(*row) for row in rows), *(ArchivedParticipant(*row) for row in members)]


_GROWING = ("message", "checkpoint", "document", "state", "event", "history", "history_item")
LOADING: dict[str, Callable[[Sequence[Any], Now], Op[list[Line]]]] = {
    "session": _load_sessions,
    "agent": line_loader("agent_archive", archived_agent),
    "task": load_tasks,
    "state": line_loader("state_export", ArchivedState),
    "document": load_documents,
    "checkpoint": load_checkpoints,
    "history": load_histories,
    "history_item": load_history_items,
    "message": with_receipts(line_loader("message_export", archived_message)),
    "event": load_events,
}
"""In this order, because of the references between rows."""
