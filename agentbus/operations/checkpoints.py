"""Checkpoints: saving them, reading them, and letting old ones go.

What is read here is as it is stored: checking and decoding a large snapshot takes a while, and is left to the caller.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from agentbus.clock import Now
from agentbus.errors import AgentBusError, UnknownAgent, UnknownCheckpoint, UnknownTask
from agentbus.limits import MAX_ID
from agentbus.operations import Actor, Each, Op, Outcome, Query, one_by_one, operation
from agentbus.operations.budget import Budget
from agentbus.operations.closed import not_open
from agentbus.operations.events import event, record
from agentbus.operations.fencing import LIVE, fence
from agentbus.operations.paging import page
from agentbus.records import CheckpointSummary, Page

_STEP = 100
"""Checkpoints that are looked at together, and that one save removes at most."""


class Owner(msgspec.Struct, frozen=True):
    """Whose checkpoint it is: an agent's, a session's, a task's, or (composite) a session's with all that belongs to
    it."""

    kind: str
    id: str


class SaveRequest(msgspec.Struct, frozen=True):
    """A checkpoint to be kept.

    ``session`` is the one of an agent that saves its own; what others save is looked up. With ``keep``, older ones of
    its name go until so many are left; of very many, some with each save.
    """

    actor: Actor | None
    owner: Owner
    name: str
    snapshot: str
    checksum: str
    size: int
    notes: str = ""
    files: str = "[]"
    file_count: int = 0
    session: str | None = None
    keep: int | None = None

    @property
    def weight(self) -> int:
        return self.size + len(self.files) + len(self.notes)


class Saved(msgspec.Struct, frozen=True):
    """What only the bus knows of a checkpoint that was just saved."""

    id: int
    session: str | None
    created: int


class PruneRequest(msgspec.Struct, frozen=True):
    """All but the newest so many checkpoints of each of these names shall go; ``name`` is the one that was asked for,
    if it was one."""

    owner: Owner
    names: tuple[str, ...]
    keep: int
    name: str | None = None

    @property
    def weight(self) -> int:
        return Budget().left


class Pruned(msgspec.Struct, frozen=True):
    """How many went, and the names that are left for another step."""

    count: int
    names: tuple[str, ...] = ()


class HistoryFilter(msgspec.Struct, frozen=True):
    """Which checkpoints to list; None takes all. An ``owner`` needs its ``kind``."""

    kind: str | None = None
    owner: str | None = None
    name: str | None = None
    cursor: int = MAX_ID
    limit: int = 100


class Stored(msgspec.Struct, frozen=True):
    """A checkpoint as the database has it."""

    id: int
    owner_kind: str
    owner: str
    name: str
    notes: str
    session: str | None
    created: int
    checksum: str
    files: str
    snapshot: str


@operation(durable=True, beside=True, grows=True)
def save_checkpoint(requests: Sequence[SaveRequest], now: Now) -> Op[list[Outcome[Saved]]]:
    """Keep checkpoints."""
    refused = yield from fence(request.actor for request in requests)
    outcomes: list[Outcome[Saved]] = []
    for request in requests:
        session = refused.get(request.actor) or (yield from _session_of(request))
        if isinstance(session, AgentBusError):
            outcomes.append(session)
            continue
        owner = request.owner
        ((id,),) = yield Query(
            "checkpoint_insert",
            (
                owner.kind, owner.id, request.name, session, now.wall, request.checksum, request.size,
                request.file_count, request.notes, request.files, request.snapshot,
            ),
        )  # fmt: skip
        if request.keep is not None:
            yield from trim(owner, request.name, request.keep)
        outcomes.append(Saved(id, session, now.wall))
    return outcomes


@one_by_one(durable=True)
def delete_checkpoint(id: int, now: Now) -> Op[Outcome[None]]:
    """Delete checkpoints by their ids."""
    rows = yield Query("checkpoint_delete", (id,))
    if rows:
        ((kind, owner, name),) = rows
        facts = {"owner_kind": kind, "owner": owner, "name": name}
        yield from record([event(now.wall, "checkpoint_deleted", ("checkpoint", str(id)), None, **facts)])
    return None if rows else UnknownCheckpoint(id=id)


@one_by_one(durable=True)
def prune_checkpoints(request: PruneRequest, now: Now) -> Op[Outcome[Pruned]]:
    """Delete old checkpoints, as many as go at once; ask again with the names that are left."""
    owner = request.owner
    budget = Budget()
    gone = 0
    names = list(request.names)
    while names and not budget.spent:
        rows = yield Query("checkpoint_surplus", (owner.kind, owner.id, names[0], request.keep, _STEP))
        budget.pass_by()
        going = [id for id, size in rows if budget.spend(size)]
        yield from _remove(going)
        gone += len(going)
        if len(going) < _STEP and not budget.spent:
            del names[0]
    if gone:
        facts = {"count": gone, "name": request.name, "keep": request.keep}
        kind = "session" if owner.kind == "composite" else owner.kind
        yield from record([event(now.wall, "checkpoints_pruned", (kind, owner.id), None, **facts)])
    return Pruned(gone, tuple(names))


def forget(owner: Owner, budget: Budget) -> Op[int]:
    """Delete all checkpoints of one that is being deleted, or the oldest until the budget is spent; says how many."""
    gone = 0
    more = not budget.spent
    while more:
        rows = yield Query("checkpoint_oldest", (owner.kind, owner.id, _STEP))
        going = [id for id, size in rows if budget.spend(size)]
        yield from _remove(going)
        gone += len(going)
        more = len(going) == _STEP
    return gone


def trim(owner: Owner, name: str, keep: int) -> Op[None]:
    """Make room for one that was just saved. Not a deletion that anybody asked for: the trail would be full of them."""
    rows = yield Query("checkpoint_surplus", (owner.kind, owner.id, name, keep, _STEP))
    budget = Budget()
    # At least two, so that they become fewer however large they are.
    yield from _remove([id for index, (id, size) in enumerate(rows) if budget.spend(size) or index < 2])


def _remove(ids: list[int]) -> Op[None]:
    if ids:
        yield Each("checkpoint_remove", [(id,) for id in ids])


def restored(agent: str, before: str | None, session: str | None) -> Op[CheckpointSummary | None]:
    """What an agent that begins a life in this session (or in none) goes on from: its newest checkpoint of there, if
    the last life that it began did not complete.

    To be asked before the new life begins. What it saved for another session says nothing of how far it is in this one.
    """
    if before is None:
        return None
    if before not in LIVE:
        rows = yield Query("agent_cut_off", (agent,))
        if not rows or not rows[0][0]:
            return None
    rows = yield Query("checkpoint_newest_within", (agent, session))
    return CheckpointSummary(*rows[0]) if rows else None


# Questions


def get_checkpoint(id: int, now: Now) -> Op[Stored | None]:
    rows = yield Query("checkpoint_get", (id,))
    return Stored(*rows[0]) if rows else None


def latest_checkpoint(wanted: tuple[Owner, str | None], now: Now) -> Op[Stored | None]:
    """The newest checkpoint of an owner, of one name or of all."""
    owner, name = wanted
    if name is None:
        rows = yield Query("checkpoint_latest", (owner.kind, owner.id))
    else:
        rows = yield Query("checkpoint_latest_named", (owner.kind, owner.id, name))
    return Stored(*rows[0]) if rows else None


def names_of(owner: Owner, now: Now) -> Op[tuple[str, ...]]:
    """The names under which somebody has checkpoints."""
    rows = yield Query("checkpoint_names", (owner.kind, owner.id))
    return tuple(name for (name,) in rows)


def files_of(id: int, now: Now) -> Op[str | None]:
    rows = yield Query("checkpoint_files", (id,))
    return str(rows[0][0]) if rows else None


def list_checkpoints(wanted: HistoryFilter, now: Now) -> Op[Page[CheckpointSummary]]:
    most = wanted.limit + 1
    if wanted.owner is None:
        rows = yield Query("checkpoint_list", (wanted.cursor, wanted.kind, wanted.name, most))
    elif wanted.name is None:
        rows = yield Query("checkpoint_history", (wanted.kind, wanted.owner, wanted.cursor, most))
    else:
        rows = yield Query("checkpoint_history_named", (wanted.kind, wanted.owner, wanted.name, wanted.cursor, most))
    return page(rows, wanted.limit, lambda row: CheckpointSummary(*row), lambda item: str(item.id))


def _session_of(request: SaveRequest) -> Op[AgentBusError | str | None]:
    """The session that a checkpoint belongs to, or why its owner cannot have one."""
    owner = request.owner
    if owner.kind == "session":
        return (yield from not_open(owner.id, "save a checkpoint of it")) or owner.id
    if owner.kind == "task":
        rows = yield Query("task_standing", ([owner.id],))
        return rows[0][4] if rows else UnknownTask(task=owner.id)
    if request.actor is not None and request.actor.agent == owner.id:
        return request.session
    rows = yield Query("agent_status", (owner.id,))
    return rows[0][2] if rows else UnknownAgent(agent=owner.id)
