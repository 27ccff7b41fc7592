"""Retention: what may go. Questions only, a page at a time; ``removing`` lets it go once it is archived.

Each page says where the next one begins, so that a trial run, which removes nothing, sees the same as a real one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from agentbus.clock import Now
from agentbus.operations import Op, Query, Row
from agentbus.operations.fencing import LIVE
from agentbus.records import RetentionPolicy

_DAY = 24 * 3600 * 1000
_PAGE = 1000
_GROUPS = 50
_AGENTS = 200
_NEVER = -1
"""A wall time before everything."""


class Piece(msgspec.Struct, frozen=True):
    """Something that may go: its kind, its key, its size in bytes, and what must still hold when it goes."""

    kind: str
    key: Any
    size: int = 0
    mark: tuple[Any, ...] = ()


class Wanted(msgspec.Struct, frozen=True):
    """The policy, and where the page before ended."""

    policy: RetentionPolicy
    cursor: Any = None


class Found(msgspec.Struct, frozen=True):
    """What may go, and where the next page begins; None after the last."""

    pieces: Sequence[Piece]
    cursor: Any = None


def before(now: Now, seconds: float | None) -> int:
    """The wall time before which things have been there for longer than that."""
    return _NEVER if seconds is None else now.wall - round(seconds * 1000)


def find_checkpoints(wanted: Wanted, now: Now) -> Op[Found]:
    """Of each owner and name that has more than stay in any case, those that are neither among the newest nor the last
    of their day."""
    policy = wanted.policy
    groups = yield Query("checkpoint_groups", (*(wanted.cursor or ("", "", "")), policy.checkpoints_last, _GROUPS))
    pieces: list[Piece] = []
    for group in groups:
        rows = yield Query("checkpoint_ages", group)
        for id, size, keeper in surplus(rows, policy, now):
            pieces.append(Piece("checkpoint", id, size, (*group, policy.checkpoints_last, keeper)))
    return Found(pieces, groups[-1] if len(groups) == _GROUPS else None)


def surplus(rows: Sequence[Row], policy: RetentionPolicy, now: Now) -> Iterator[tuple[int, int, int | None]]:
    """Of checkpoints (id, wall time, size), newest first, those that may go: id, size, and the later one of the same
    day that stays instead, if the day still has one."""
    days = policy.checkpoints_daily
    oldest = _NEVER if days is None else now.wall - days * _DAY
    keepers: dict[int, int] = {}
    for position, (id, created, size) in enumerate(rows):
        keeper = keepers.setdefault(created // _DAY, id)
        if position < policy.checkpoints_last or (keeper == id and created > oldest):
            continue
        yield id, size, keeper if created > oldest else None


def find_messages(wanted: Wanted, now: Now) -> Op[Found]:
    """Messages that finished long ago, or are too many. The oldest have the lowest ids, more or less: the walk ends
    with a page on which nothing is old."""
    policy = wanted.policy
    if wanted.cursor is None:
        excess = yield from _excess(policy.messages_most)
        last = 0
    else:
        last, *excess = wanted.cursor
    limits = before(now, policy.messages), before(now, policy.dead_letters)
    rows = yield Query("message_ages", (last, _PAGE))
    pieces: list[Piece] = []
    for id, status, finished, _, size in rows:
        if finished is not None:
            dead = int(status == "dead")
            if finished <= limits[dead] or excess[dead] > 0:
                excess[dead] -= 1
                pieces.append(Piece("message", id, size, (finished,)))
    more = len(rows) == _PAGE and (max(excess) > 0 or any(created <= max(limits) for _, _, _, created, _ in rows))
    return Found(pieces, (rows[-1][0], *excess) if more else None)


def find_agents(wanted: Wanted, now: Now) -> Op[Found]:
    """Agents that ended long ago, whose session has ended too, and to which nothing refers: no checkpoint of their own
    or of their session, no message that waits for them, and none of theirs that waits for somebody else."""
    limit = before(now, wanted.policy.agents)
    last, senders = wanted.cursor or ("", None)
    rows = yield Query("agent_expendable", (last, limit, _AGENTS))
    if not rows:
        return Found([])
    if senders is None:
        found = yield Query("message_senders")
        senders = frozenset(sender for (sender,) in found)
    marks = yield from read_marks([id for (id,) in rows])
    pieces = yield from _agent_pieces(
        (mark for mark in marks.values() if not mark.needed and mark.id not in senders), alone=True
    )
    return Found(pieces, (rows[-1][0], senders) if len(rows) == _AGENTS else None)


def find_sessions(wanted: Wanted, now: Now) -> Op[Found]:
    """The next session that ended long ago, with all that goes with it: what belongs to it comes before it."""
    policy = wanted.policy
    limits = before(now, policy.sessions), before(now, policy.failed_sessions)
    rows = yield Query("session_expendable", (wanted.cursor or "", *limits))
    if not rows:
        return Found([])
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
    return Found(pieces, session)


def find_tasks(wanted: Wanted, now: Now) -> Op[Found]:
    """Tasks that ended long ago, with their sub-tasks, if those have ended too; what belongs to one comes before it."""
    limit = before(now, wanted.policy.tasks)
    rows = yield Query("task_expendable", (*(wanted.cursor or (-1, 0)), limit, _GROUPS))
    pieces: list[Piece] = []
    for _, _, id in rows:
        family = yield Query("task_lineage", (id,))
        if all(ended is not None and ended <= limit for _, ended, *_ in family):
            pieces += yield from _task_pieces(family)
    return Found(pieces, rows[-1][:2] if len(rows) == _GROUPS else None)


def find_events(wanted: Wanted, now: Now) -> Op[Found]:
    """Events of long ago; each says whether retention itself wrote it."""
    limit = before(now, wanted.policy.events)
    rows = yield Query("event_ages", (wanted.cursor or 0, _PAGE))
    pieces = [Piece("event", id, size, (kind == "retention_applied",)) for id, at, size, kind in rows if at <= limit]
    return Found(pieces, rows[-1][0] if pieces and len(rows) == _PAGE else None)


def find_processes(wanted: Wanted, now: Now) -> Op[Found]:
    """Processes that ended long ago, each with the agents and sessions that name it."""
    limit = before(now, wanted.policy.processes)
    rows = yield Query("process_ended", (wanted.cursor or 0, limit, _PAGE))
    ids = [id for (id,) in rows]
    named = (yield Query("process_references", (ids,))) if ids else []
    references: dict[int, list[tuple[str, str]]] = {id: [] for id in ids}
    for process, kind, name in named:
        references[process].append((kind, name))
    pieces = [Piece("process", id, 200, tuple(references[id])) for id in ids]
    return Found(pieces, ids[-1] if len(ids) == _PAGE else None)


def find_tombstones(wanted: Wanted, now: Now) -> Op[Found]:
    limit = before(now, wanted.policy.tombstones)
    rows = yield Query("state_tombstones", (*(wanted.cursor or (-1, 0)), limit, _PAGE))
    pieces = [Piece("tombstone", id, 200, (change,)) for id, _, change in rows]
    return Found(pieces, (rows[-1][1], rows[-1][0]) if len(rows) == _PAGE else None)


TIERS = (
    find_checkpoints,
    find_messages,
    find_agents,
    find_tasks,
    find_sessions,
    find_events,
    find_processes,
    find_tombstones,
)
"""In this order: a process may go once the agents and sessions that name it are gone."""


class AgentMark(msgspec.Struct, frozen=True):
    """What must not have changed when an agent goes, and what speaks against it."""

    id: str
    status: str
    epoch: int
    ended: int | None
    updated: int
    change: int
    """The last change of its state."""
    checkpoints: bool
    """Whether it has one."""
    in_checkpoints: bool
    """Whether its session has one, which may speak of it."""
    awaited: bool = False
    """Whether a message waits for it."""

    @property
    def as_it_is(self) -> tuple[Any, ...]:
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
    """Agents that go by themselves, or with their session."""
    going = list(marks)
    rows = yield Query("state_sizes", ([mark.id for mark in going],))
    sizes: dict[str, int] = dict(rows)
    return [Piece("agent", mark.id, 500 + sizes.get(mark.id, 0), (alone, *mark.as_it_is)) for mark in going]


def _task_pieces(rows: Sequence[Row]) -> Op[list[Piece]]:
    """Tasks (id, when it ended and was last changed, size), and before them their checkpoints."""
    found = yield Query("checkpoint_sizes", ("task", [row[0] for row in rows]))
    pieces = [Piece("checkpoint", id, bytes, ("task", owner)) for id, owner, bytes in found]
    return pieces + [Piece("task", id, size, (ended, updated)) for id, ended, updated, size in rows]


def _excess(most: int | None) -> Op[list[int]]:
    """How many finished messages, and how many dead letters, there are too many."""
    if most is None:
        return [0, 0]
    ((span,),) = yield Query("message_span")
    if span <= most:
        # There cannot be more rows than numbers, and counting them takes a while.
        return [0, 0]
    ((finished, dead),) = yield Query("message_finished_counts")
    return [max(0, finished - most), max(0, dead - most)]
