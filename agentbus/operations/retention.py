"""Retention: the policy, and the data that it allows to remove, a page at a time; ``removal`` removes it once it is
archived.

Each page has the cursor of the next one, so that a dry run, which removes nothing, finds the same as a real one. The
policy is stored in the database, so that all processes share it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from agentbus.core.clock import Now
from agentbus.core.codec import decode, plain
from agentbus.errors import StoreError
from agentbus.operations.common import LIVE
from agentbus.operations.events import event, record
from agentbus.operations.protocol import Op, Outcome, Query, Row, single_operation
from agentbus.records import RetentionPolicy

_DAY = 24 * 3600 * 1000
_PAGE = 1000
_GROUPS = 50
_AGENTS = 200
_NEVER = -1
"""A wall time before all others."""
_POLICY = "retention"
_APPLIED = "retention_applied"


class Piece(msgspec.Struct, frozen=True):
    """An item that may be removed: its kind, key and size in bytes, and the condition that must still hold."""

    kind: str
    key: Any
    size: int = 0
    mark: tuple[Any, ...] = ()


class RetentionQuery(msgspec.Struct, frozen=True):
    """The policy, and the cursor of the page."""

    policy: RetentionPolicy
    cursor: Any = None


class RetentionPage(msgspec.Struct, frozen=True):
    """Items that may be removed, and the cursor of the next page; None after the last."""

    pieces: Sequence[Piece]
    cursor: Any = None


def cutoff(now: Now, seconds: float | None) -> int:
    """Return the wall time of this many seconds ago."""
    return _NEVER if seconds is None else now.wall - round(seconds * 1000)


def find_checkpoints(wanted: RetentionQuery, now: Now) -> Op[RetentionPage]:
    """Find checkpoints that are neither among the newest of their owner and name nor the last of their day."""
    policy = wanted.policy
    groups = yield Query("checkpoint_groups", (*(wanted.cursor or ("", "", "")), policy.checkpoints_last, _GROUPS))
    pieces: list[Piece] = []
    for group in groups:
        rows = yield Query("checkpoint_ages", group)
        for id, size, keeper in find_surplus(rows, policy, now):
            pieces.append(Piece("checkpoint", id, size, (*group, policy.checkpoints_last, keeper)))
    return RetentionPage(pieces, groups[-1] if len(groups) == _GROUPS else None)


def find_surplus(rows: Sequence[Row], policy: RetentionPolicy, now: Now) -> Iterator[tuple[int, int, int | None]]:
    """Yield, of checkpoints (id, wall time, size) newest first, those that may be removed: id, size, and the later one
    of the same day that stays instead, if any."""
    days = policy.checkpoints_daily
    oldest = _NEVER if days is None else now.wall - days * _DAY
    keepers: dict[int, int] = {}
    for position, (id, created, size) in enumerate(rows):
        keeper = keepers.setdefault(created // _DAY, id)
        if position < policy.checkpoints_last or (keeper == id and created > oldest):
            continue
        yield id, size, keeper if created > oldest else None


def find_messages(wanted: RetentionQuery, now: Now) -> Op[RetentionPage]:
    """Find messages that finished before the cutoff, or exceed the maximum. Ids grow with age, roughly: the search ends
    with a page without old ones."""
    policy = wanted.policy
    if wanted.cursor is None:
        excess = yield from _excess(policy.messages_most)
        last = 0
    else:
        last, *excess = wanted.cursor
    limits = cutoff(now, policy.messages), cutoff(now, policy.dead_letters)
    rows = yield Query("message_ages", (last, _PAGE))
    pieces: list[Piece] = []
    for id, status, finished, _, size in rows:
        if finished is not None:
            dead = int(status == "dead")
            if finished <= limits[dead] or excess[dead] > 0:
                excess[dead] -= 1
                pieces.append(Piece("message", id, size, (finished,)))
    more = len(rows) == _PAGE and (max(excess) > 0 or any(created <= max(limits) for _, _, _, created, _ in rows))
    return RetentionPage(pieces, (rows[-1][0], *excess) if more else None)


def find_agents(wanted: RetentionQuery, now: Now) -> Op[RetentionPage]:
    """Find agents that ended before the cutoff, whose session has ended, and that nothing refers to: no checkpoint of
    their own or of their session, no message to or from them that waits."""
    limit = cutoff(now, wanted.policy.agents)
    last, senders = wanted.cursor or ("", None)
    rows = yield Query("agent_expendable", (last, limit, _AGENTS))
    if not rows:
        return RetentionPage([])
    if senders is None:
        found = yield Query("message_senders")
        senders = frozenset(sender for (sender,) in found)
    marks = yield from read_marks([id for (id,) in rows])
    pieces = yield from _agent_pieces(
        (mark for mark in marks.values() if not mark.needed and mark.id not in senders), alone=True
    )
    return RetentionPage(pieces, (rows[-1][0], senders) if len(rows) == _AGENTS else None)


def find_sessions(wanted: RetentionQuery, now: Now) -> Op[RetentionPage]:
    """Find the next session that ended before the cutoff, preceded by everything that belongs to it."""
    policy = wanted.policy
    limits = cutoff(now, policy.sessions), cutoff(now, policy.failed_sessions)
    rows = yield Query("session_expendable", (wanted.cursor or "", *limits))
    if not rows:
        return RetentionPage([])
    ((session, ended, size),) = rows
    members = yield Query("session_members", (session,))
    agents = [id for id, _ in members]
    pieces: list[Piece] = []
    tasks = yield Query("task_of_session", (session,))
    if not LIVE & {status for _, status in members} and all(ended is not None for _, ended, *_ in tasks):
        marks = yield from read_marks(agents)
        for kind, owners in (("agent", agents), ("session", [session]), ("composite", [session])):
            rows = yield Query("checkpoint_sizes", (kind, owners))
            pieces += [Piece("checkpoint", id, bytes, (kind, owner)) for id, owner, bytes in rows]
        rows = yield Query("document_sizes", (session,))
        pieces += [Piece("document", id, bytes) for id, bytes in rows]
        pieces += yield from _agent_pieces(marks.values(), alone=False)
        pieces += yield from _task_pieces(tasks)
        pieces.append(Piece("session", session, size, (ended,)))
    return RetentionPage(pieces, session)


def find_tasks(wanted: RetentionQuery, now: Now) -> Op[RetentionPage]:
    """Find tasks that ended before the cutoff together with their sub-tasks, preceded by everything that belongs to
    them."""
    limit = cutoff(now, wanted.policy.tasks)
    rows = yield Query("task_expendable", (*(wanted.cursor or (-1, 0)), limit, _GROUPS))
    pieces: list[Piece] = []
    for _, _, id in rows:
        lineage = yield Query("task_lineage", (id,))
        if all(ended is not None and ended <= limit for _, ended, *_ in lineage):
            pieces += yield from _task_pieces(lineage)
    return RetentionPage(pieces, rows[-1][:2] if len(rows) == _GROUPS else None)


def find_events(wanted: RetentionQuery, now: Now) -> Op[RetentionPage]:
    """Find events before the cutoff; each is marked if retention itself wrote it."""
    limit = cutoff(now, wanted.policy.events)
    rows = yield Query("event_ages", (wanted.cursor or 0, _PAGE))
    pieces = [Piece("event", id, size, (kind == "retention_applied",)) for id, at, size, kind in rows if at <= limit]
    return RetentionPage(pieces, rows[-1][0] if pieces and len(rows) == _PAGE else None)


def find_processes(wanted: RetentionQuery, now: Now) -> Op[RetentionPage]:
    """Find processes that ended before the cutoff, each with the agents and sessions that refer to it."""
    limit = cutoff(now, wanted.policy.processes)
    rows = yield Query("process_ended", (wanted.cursor or 0, limit, _PAGE))
    ids = [id for (id,) in rows]
    named = (yield Query("process_references", (ids,))) if ids else []
    references: dict[int, list[tuple[str, str]]] = {id: [] for id in ids}
    for process, kind, name in named:
        references[process].append((kind, name))
    pieces = [Piece("process", id, 200, tuple(references[id])) for id in ids]
    return RetentionPage(pieces, ids[-1] if len(ids) == _PAGE else None)


def find_tombstones(wanted: RetentionQuery, now: Now) -> Op[RetentionPage]:
    limit = cutoff(now, wanted.policy.tombstones)
    rows = yield Query("state_tombstones", (*(wanted.cursor or (-1, 0)), limit, _PAGE))
    pieces = [Piece("tombstone", id, 200, (change,)) for id, _, change in rows]
    return RetentionPage(pieces, (rows[-1][1], rows[-1][0]) if len(rows) == _PAGE else None)


def find_histories(wanted: RetentionQuery, now: Now) -> Op[RetentionPage]:
    """Find histories that were last written before the cutoff."""
    if wanted.policy.histories is None:
        return RetentionPage([])
    limit = cutoff(now, wanted.policy.histories)
    rows = yield Query("history_expendable", (wanted.cursor or 0, limit, _PAGE))
    pieces = [Piece("history", id, size, (version,)) for id, version, size in rows]
    return RetentionPage(pieces, rows[-1][0] if len(rows) == _PAGE else None)


TIERS = (
    find_checkpoints,
    find_messages,
    find_agents,
    find_tasks,
    find_sessions,
    find_events,
    find_processes,
    find_tombstones,
    find_histories,
)
"""In this order: a process may be removed after the agents and sessions that refer to it."""


class AgentMark(msgspec.Struct, frozen=True):
    """The values of an agent that must not have changed at its removal, and the references that prevent it."""

    id: str
    status: str
    epoch: int
    ended: int | None
    updated: int
    change: int
    """The last change of its state."""
    checkpoints: bool
    """True if it has one."""
    in_checkpoints: bool
    """True if its session has one, which may refer to it."""
    awaited: bool = False
    """True if a message waits for it."""

    @property
    def version(self) -> tuple[Any, ...]:
        return self.epoch, self.ended, self.updated, self.change

    @property
    def needed(self) -> bool:
        return bool(self.awaited or self.checkpoints or self.in_checkpoints)


def read_marks(agents: Sequence[str]) -> Op[dict[str, AgentMark]]:
    rows = yield Query("agent_marks", (list(agents),))
    waiting = yield Query("agent_awaited", (list(agents),))
    awaited = {agent for (agent,) in waiting}
    found = (AgentMark(*row) for row in rows)
    return {mark.id: msgspec.structs.replace(mark, awaited=mark.id in awaited) for mark in found}


def _agent_pieces(marks: Iterable[AgentMark], alone: bool) -> Op[list[Piece]]:
    """Return agents to remove, on their own or with their session."""
    going = list(marks)
    rows = yield Query("state_sizes", ([mark.id for mark in going],))
    sizes: dict[str, int] = dict(rows)
    return [Piece("agent", mark.id, 500 + sizes.get(mark.id, 0), (alone, *mark.version)) for mark in going]


def _task_pieces(rows: Sequence[Row]) -> Op[list[Piece]]:
    """Return tasks (id, times of end and last change, size), preceded by their checkpoints."""
    found = yield Query("checkpoint_sizes", ("task", [row[0] for row in rows]))
    pieces = [Piece("checkpoint", id, bytes, ("task", owner)) for id, owner, bytes in found]
    return pieces + [Piece("task", id, size, (ended, updated)) for id, ended, updated, size in rows]


def _excess(most: int | None) -> Op[list[int]]:
    """Return the numbers of finished messages and of dead letters above the maximum."""
    if most is None:
        return [0, 0]
    ((span,),) = yield Query("message_span")
    if span <= most:
        # There are at most as many rows as ids, and counting takes time.
        return [0, 0]
    ((finished, dead),) = yield Query("message_finished_counts")
    return [max(0, finished - most), max(0, dead - most)]


class ChangePolicyRequest(msgspec.Struct, frozen=True):
    """Change the named settings of the policy; the others stay."""

    changes: dict[str, Any]
    by: str | None = None


class TurnRequest(msgspec.Struct, frozen=True):
    """A request to apply the policy, unless that was done within ``every`` milliseconds."""

    every: int


def read_policy(_: None, now: Now) -> Op[RetentionPolicy]:
    """Return the current policy: the defaults with the changes."""
    rows = yield Query("meta_get", (_POLICY,))
    if not rows:
        return RetentionPolicy()
    try:
        return msgspec.json.decode(rows[0][0], type=RetentionPolicy)
    except msgspec.DecodeError as error:
        reason = f"it cannot be read ({error}); bus.retention.change(…) starts again with the defaults"
        raise StoreError(path="the retention policy of this bus", reason=reason) from None


def is_due(every: int, now: Now) -> Op[bool]:
    """Return whether the policy was not applied within ``every`` milliseconds. A clock that was set back delays
    nothing."""
    rows = yield Query("meta_get", (_APPLIED,))
    return not rows or not 0 <= now.wall - int(rows[0][0]) < every


@single_operation(durable=True)
def change_policy(request: ChangePolicyRequest, now: Now) -> Op[Outcome[RetentionPolicy]]:
    """Change the policy; the outcome is the new one."""
    try:
        before = yield from read_policy(None, now)
        rows = yield Query("meta_get", (_POLICY,))
    except StoreError:
        before, rows = RetentionPolicy(), []
    after = msgspec.structs.replace(before, **request.changes)
    changed = {name: value for name, value in request.changes.items() if value != getattr(before, name)}
    # Only changed settings are stored: the others follow the defaults of the version that reads them.
    kept = {**(decode(rows[0][0]) if rows else {}), **request.changes}
    yield Query("meta_set", (_POLICY, plain(kept)))
    if changed:
        facts = {"before": {name: getattr(before, name) for name in changed}, "after": changed}
        yield from record([event(now.wall, "retention_changed", ("bus", "retention"), request.by, **facts)])
    return after


@single_operation(durable=False)
def claim_turn(request: TurnRequest, now: Now) -> Op[Outcome[bool]]:
    """Return whether the caller is to apply the policy now: of concurrent callers, the first."""
    due = yield from is_due(request.every, now)
    if due:
        yield Query("meta_set", (_APPLIED, str(now.wall)))
    return due
