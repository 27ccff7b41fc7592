"""Removal of archived data, if it has not changed since it was found; one transaction for each portion."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from agentbus.core.clock import Now
from agentbus.core.validation import session_scope
from agentbus.operations.agent_deletion import Rest, dead_letter_mailbox, remove_agents
from agentbus.operations.archive_rows import delete_tasks
from agentbus.operations.common import LIVE, Budget, read_agent_statuses
from agentbus.operations.events import event, record
from agentbus.operations.histories import remove_history
from agentbus.operations.protocol import Op, Outcome, Query, single_operation
from agentbus.operations.retention import Piece, read_marks
from agentbus.operations.state import clear_state
from agentbus.operations.task_mail import dead_letter_mail


class RemoveRequest(msgspec.Struct, frozen=True):
    """Archived data that may be removed. ``rest`` comes from the previous step."""

    archive: str
    pieces: tuple[Piece, ...]
    rest: Rest | None = None

    @property
    def data_size(self) -> int:
        return sum(piece.size for piece in self.pieces)


class Removed(msgspec.Struct, frozen=True):
    """The data that was removed. With a ``rest`` there was too much for one step: find it again, and repeat."""

    pieces: list[Piece]
    rest: Rest | None = None


class _Removal:
    """The progress of one request."""

    def __init__(self, rest: Rest | None, now: Now) -> None:
        self.now = now
        self.budget = Budget()
        self.rest: Rest | None = None
        self._before = rest

    def clear(self, scope: str) -> Op[None]:
        """Delete the state of a scope, as far as the budget allows."""
        change = self._before.change if self._before is not None and self._before.agent == scope else 0
        change = yield from clear_state(scope, change, self.budget, self.now)
        if self.budget.spent:
            self.rest = Rest(scope, change)


@single_operation(durable=True)
def remove(request: RemoveRequest, now: Now) -> Op[Outcome[Removed]]:
    """Remove data that is unchanged since it was archived; the outcome is what was removed."""
    step = _Removal(request.rest, now)
    gone: list[Piece] = []
    for kind, removal in _REMOVALS.items():
        pieces = [piece for piece in request.pieces if piece.kind == kind]
        if pieces and step.rest is None:
            gone += yield from removal(pieces, step)
    if gone:
        facts = {"archive": request.archive, "counts": dict(Counter(piece.kind for piece in gone))}
        yield from record([event(now.wall, "retention_applied", ("bus", "retention"), None, **facts)])
    return Removed(gone, step.rest)


def _remove_checkpoints(pieces: Sequence[Piece], step: _Removal) -> Op[list[Piece]]:
    """Remove those that have newer ones, and those of an owner that has ended."""
    expendable: list[Piece] = []
    groups: dict[tuple[object, ...], list[Piece]] = {}
    for piece in pieces:
        groups.setdefault(piece.mark[:4], []).append(piece)
    for group, alike in groups.items():
        if len(group) == 2:
            ended = yield from _has_ended(*group)
            expendable += alike if ended else []
            continue
        border = yield Query("checkpoint_border", group)
        keepers = {piece.mark[4] for piece in alike} - {None}
        rows = yield Query("checkpoint_present", (sorted(keepers),))
        present = {None, *(id for (id,) in rows)}
        oldest = border[0][0] if border else 0
        expendable += [piece for piece in alike if piece.key <= oldest and piece.mark[4] in present]
    rows = yield Query("checkpoint_remove_all", ([piece.key for piece in expendable],))
    return _removed(pieces, rows)


def _has_ended(kind: object, owner: object) -> Op[bool]:
    if kind in {"session", "composite"}:
        rows = yield Query("session_ended", (owner,))
        return bool(rows) and rows[0][0] is not None
    if kind == "task":
        rows = yield Query("task_mark", (owner,))
        return all(ended is not None for ended, _ in rows)
    found = yield from read_agent_statuses([str(owner)])
    return all(status.status not in LIVE for status in found.values())


def _remove_messages(pieces: Sequence[Piece], step: _Removal) -> Op[list[Piece]]:
    # A dead letter that has been requeued is not finished, or has finished later than all of these.
    latest = max(piece.mark[0] for piece in pieces)
    rows = yield Query("message_remove", ([piece.key for piece in pieces], latest))
    yield Query("receipt_delete", ([id for (id,) in rows],))
    return _removed(pieces, rows)


def _remove_documents(pieces: Sequence[Piece], step: _Removal) -> Op[list[Piece]]:
    rows = yield Query("document_remove", ([piece.key for piece in pieces],))
    return _removed(pieces, rows)


def _remove_agents(pieces: Sequence[Piece], step: _Removal) -> Op[list[Piece]]:
    marks = yield from read_marks([piece.key for piece in pieces])
    going: list[Piece] = []
    for piece in pieces:
        mark = marks.get(piece.key)
        if mark is None or mark.status in LIVE or mark.version != piece.mark[1:]:
            continue
        alone = piece.mark[0]
        if mark.checkpoints or (alone and mark.needed):
            continue
        yield from step.clear(piece.key)
        yield from dead_letter_mailbox(piece.key, step.budget, step.now)
        if step.budget.spent:
            step.rest = step.rest or Rest(piece.key, mark.change)
            break
        going.append(piece)
    yield from remove_agents(dict.fromkeys((piece.key for piece in going), 0), step.now)
    return going


def _remove_tasks(pieces: Sequence[Piece], step: _Removal) -> Op[list[Piece]]:
    """Remove those that have not changed since. Messages that wait for them become dead letters."""
    going: list[Piece] = []
    for piece in pieces:
        rows = yield Query("task_mark", (piece.key,))
        if rows == [piece.mark]:
            yield from dead_letter_mail(piece.key, step.budget, step.now)
            if step.budget.spent:
                step.rest = Rest(f"task:{piece.key}", 0)
                break
            going.append(piece)
    yield from delete_tasks([piece.key for piece in going], step.now)
    return going


def _remove_sessions(pieces: Sequence[Piece], step: _Removal) -> Op[list[Piece]]:
    going: list[Piece] = []
    for piece in pieces:
        rows = yield Query("session_left", (piece.key,))
        if rows == [(piece.mark[0], 0)]:
            yield from step.clear(session_scope(piece.key))
            if step.rest is not None:
                break
            going.append(piece)
            yield Query("participant_clear", (piece.key,))
            yield Query("session_delete", (piece.key,))
    yield from record([event(step.now.wall, "session_deleted", ("session", piece.key), None) for piece in going])
    return going


def _remove_events(pieces: Sequence[Piece], step: _Removal) -> Op[list[Piece]]:
    rows = yield Query("event_remove", ([piece.key for piece in pieces],))
    return _removed(pieces, rows)


def _remove_processes(pieces: Sequence[Piece], step: _Removal) -> Op[list[Piece]]:
    rows = yield Query("process_remove", ([piece.key for piece in pieces],))
    return _removed(pieces, rows)


def _remove_tombstones(pieces: Sequence[Piece], step: _Removal) -> Op[list[Piece]]:
    """Remove tombstones. Their scopes record the highest version, so that none is reused."""
    marks = [(piece.key, piece.mark[0]) for piece in pieces]
    yield Query("state_raise_floors", (marks,))
    rows = yield Query("state_remove_tombstones", (marks,))
    return _removed(pieces, rows)


def _remove_histories(pieces: Sequence[Piece], step: _Removal) -> Op[list[Piece]]:
    """Remove histories, each with all its items: half of one would be continued as if it were whole."""
    going: list[Piece] = []
    for piece in pieces:
        if (yield from remove_history(piece.key, piece.mark[0], step.now)):
            going.append(piece)
    return going


def _removed(pieces: Sequence[Piece], rows: Sequence[tuple[object, ...]]) -> list[Piece]:
    gone = {key for (key,) in rows}
    return [piece for piece in pieces if piece.key in gone]


_REMOVALS = {
    # The data of a session is removed before it.
    "checkpoint": _remove_checkpoints,
    "document": _remove_documents,
    "agent": _remove_agents,
    "task": _remove_tasks,
    "session": _remove_sessions,
    "message": _remove_messages,
    "event": _remove_events,
    "process": _remove_processes,
    "tombstone": _remove_tombstones,
    "history": _remove_histories,
}
