"""Removing what is archived: only what is still as it was when it was found, in one transaction for each portion."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from agentbus.clock import Now
from agentbus.limits import session_scope
from agentbus.operations import Op, Outcome, Query, one_by_one
from agentbus.operations.budget import Budget
from agentbus.operations.deletion import Rest, bury_letters, remove_agents
from agentbus.operations.events import event, record
from agentbus.operations.fencing import LIVE, standings
from agentbus.operations.retention import Piece, read_marks
from agentbus.operations.state import clear_state
from agentbus.operations.task_archives import delete_tasks


class RemoveRequest(msgspec.Struct, frozen=True):
    """What may go now that it is in this archive. ``rest`` is what the step before left."""

    archive: str
    pieces: tuple[Piece, ...]
    rest: Rest | None = None

    @property
    def weight(self) -> int:
        return sum(piece.size for piece in self.pieces)


class Removed(msgspec.Struct, frozen=True):
    """What went. With a ``rest`` there was more than goes at once: find it again, and go on."""

    pieces: list[Piece]
    rest: Rest | None = None


class _Step:
    """One request while it is carried out."""

    def __init__(self, rest: Rest | None, now: Now) -> None:
        self.now = now
        self.budget = Budget()
        self.rest: Rest | None = None
        self._before = rest

    def clear(self, scope: str) -> Op[None]:
        """Bury the state of a scope, or as much as goes at once."""
        change = self._before.change if self._before is not None and self._before.agent == scope else 0
        change = yield from clear_state(scope, change, self.budget, self.now)
        if self.budget.spent:
            self.rest = Rest(scope, change)


@one_by_one(durable=True)
def remove(request: RemoveRequest, now: Now) -> Op[Outcome[Removed]]:
    """Let go of what is still as it was archived; the outcome says what went."""
    step = _Step(request.rest, now)
    gone: list[Piece] = []
    for kind, removal in _REMOVALS.items():
        pieces = [piece for piece in request.pieces if piece.kind == kind]
        if pieces and step.rest is None:
            gone += yield from removal(pieces, step)
    if gone:
        facts = {"archive": request.archive, "counts": dict(Counter(piece.kind for piece in gone))}
        yield from record([event(now.wall, "retention_applied", ("bus", "retention"), None, **facts)])
    return Removed(gone, step.rest)


def _remove_checkpoints(pieces: Sequence[Piece], step: _Step) -> Op[list[Piece]]:
    """Those of which newer ones stay, and those of an owner that has ended."""
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
    return _those(pieces, rows)


def _has_ended(kind: object, owner: object) -> Op[bool]:
    if kind in {"session", "composite"}:
        rows = yield Query("session_ended", (owner,))
        return bool(rows) and rows[0][0] is not None
    if kind == "task":
        rows = yield Query("task_mark", (owner,))
        return all(ended is not None for ended, _ in rows)
    found = yield from standings([str(owner)])
    return all(standing.status not in LIVE for standing in found.values())


def _remove_messages(pieces: Sequence[Piece], step: _Step) -> Op[list[Piece]]:
    # A dead letter that was requeued meanwhile is not finished, or has finished later than all of these.
    latest = max(piece.mark[0] for piece in pieces)
    rows = yield Query("message_remove", ([piece.key for piece in pieces], latest))
    return _those(pieces, rows)


def _remove_documents(pieces: Sequence[Piece], step: _Step) -> Op[list[Piece]]:
    rows = yield Query("document_remove", ([piece.key for piece in pieces],))
    return _those(pieces, rows)


def _remove_agents(pieces: Sequence[Piece], step: _Step) -> Op[list[Piece]]:
    marks = yield from read_marks([piece.key for piece in pieces])
    going: list[Piece] = []
    for piece in pieces:
        mark = marks.get(piece.key)
        if mark is None or mark.status in LIVE or mark.as_it_is != piece.mark[1:]:
            continue
        alone = piece.mark[0]
        if mark.checkpoints or (alone and mark.needed):
            continue
        yield from step.clear(piece.key)
        yield from bury_letters(piece.key, step.budget, step.now)
        if step.budget.spent:
            step.rest = step.rest or Rest(piece.key, mark.change)
            break
        going.append(piece)
    yield from remove_agents(dict.fromkeys((piece.key for piece in going), 0), step.now)
    return going


def _remove_tasks(pieces: Sequence[Piece], step: _Step) -> Op[list[Piece]]:
    """Those that nobody has done anything with since."""
    going: list[Piece] = []
    for piece in pieces:
        rows = yield Query("task_mark", (piece.key,))
        if rows == [piece.mark]:
            going.append(piece)
    yield from delete_tasks([piece.key for piece in going], step.now)
    return going


def _remove_sessions(pieces: Sequence[Piece], step: _Step) -> Op[list[Piece]]:
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


def _remove_events(pieces: Sequence[Piece], step: _Step) -> Op[list[Piece]]:
    rows = yield Query("event_remove", ([piece.key for piece in pieces],))
    return _those(pieces, rows)


def _remove_processes(pieces: Sequence[Piece], step: _Step) -> Op[list[Piece]]:
    rows = yield Query("process_remove", ([piece.key for piece in pieces],))
    return _those(pieces, rows)


def _remove_tombstones(pieces: Sequence[Piece], step: _Step) -> Op[list[Piece]]:
    """Their scopes keep the highest version, so that none is given out twice."""
    marks = [(piece.key, piece.mark[0]) for piece in pieces]
    yield Query("state_raise_floors", (marks,))
    rows = yield Query("state_remove_tombstones", (marks,))
    return _those(pieces, rows)


def _those(pieces: Sequence[Piece], rows: Sequence[tuple[object, ...]]) -> list[Piece]:
    gone = {key for (key,) in rows}
    return [piece for piece in pieces if piece.key in gone]


_REMOVALS = {
    # What belongs to a session goes before it.
    "checkpoint": _remove_checkpoints,
    "document": _remove_documents,
    "agent": _remove_agents,
    "task": _remove_tasks,
    "session": _remove_sessions,
    "message": _remove_messages,
    "event": _remove_events,
    "process": _remove_processes,
    "tombstone": _remove_tombstones,
}
