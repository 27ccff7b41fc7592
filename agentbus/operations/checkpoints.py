"""Checkpoints: saving, reading and pruning.

Snapshots are returned as stored: verifying and decoding a large one takes time, and is left to the caller.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from agentbus.core.clock import Now
from agentbus.core.validation import MAX_ID, PAGE_SIZE
from agentbus.errors import AgentBusError, UnknownAgent, UnknownCheckpoint, UnknownTask
from agentbus.operations.common import LIVE, Budget, closed_session_error, fence, page
from agentbus.operations.events import event, record
from agentbus.operations.protocol import Actor, ExecuteMany, Op, Outcome, Query, operation, single_operation
from agentbus.records import CheckpointSummary, Page

_STEP = 100
"""Checkpoints that are read together, and that one save removes at most."""


class Owner(msgspec.Struct, frozen=True):
    """The owner of a checkpoint: an agent, a session, a task, or (composite) a session with everything that belongs to
    it."""

    kind: str
    id: str


class SaveRequest(msgspec.Struct, frozen=True):
    """A checkpoint to save. ``session`` is that of an agent saving its own; otherwise it is looked up. With ``keep``,
    older ones of its name are removed until this many are left, a bounded number with each save."""

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
    def data_size(self) -> int:
        return self.size + len(self.files) + len(self.notes)


class Saved(msgspec.Struct, frozen=True):
    """The columns of a saved checkpoint that the bus assigned."""

    id: int
    session: str | None
    created: int


class PruneRequest(msgspec.Struct, frozen=True):
    """Delete all but the newest ``keep`` checkpoints of each name; ``name`` is the requested one, if any."""

    owner: Owner
    names: tuple[str, ...]
    keep: int
    name: str | None = None

    @property
    def data_size(self) -> int:
        return Budget().left


class Pruned(msgspec.Struct, frozen=True):
    """The number deleted, and the names left for another step."""

    count: int
    names: tuple[str, ...] = ()


class HistoryFilter(msgspec.Struct, frozen=True):
    """Selects checkpoints; None matches all. An ``owner`` needs its ``kind``."""

    kind: str | None = None
    owner: str | None = None
    name: str | None = None
    cursor: int = MAX_ID
    limit: int = PAGE_SIZE


class Stored(msgspec.Struct, frozen=True):
    """A checkpoint as it is stored."""

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


@operation(durable=True, concurrent=True, stores_data=True)
def save_checkpoint(requests: Sequence[SaveRequest], now: Now) -> Op[list[Outcome[Saved]]]:
    """Save checkpoints."""
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


@single_operation(durable=True)
def delete_checkpoint(id: int, now: Now) -> Op[Outcome[None]]:
    """Delete checkpoints by their ids."""
    rows = yield Query("checkpoint_delete", (id,))
    if rows:
        ((kind, owner, name),) = rows
        facts = {"owner_kind": kind, "owner": owner, "name": name}
        yield from record([event(now.wall, "checkpoint_deleted", ("checkpoint", str(id)), None, **facts)])
    return None if rows else UnknownCheckpoint(id=id)


@single_operation(durable=True)
def prune_checkpoints(request: PruneRequest, now: Now) -> Op[Outcome[Pruned]]:
    """Delete old checkpoints in bounded steps; repeat with the names that are left."""
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


def delete_checkpoints_of(owner: Owner, budget: Budget) -> Op[int]:
    """Delete the checkpoints of an owner that is being deleted, oldest first, until the budget is spent; return their
    number."""
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
    """Remove checkpoints in excess of ``keep`` after a save. No event is recorded: the audit log would fill with
    them."""
    rows = yield Query("checkpoint_surplus", (owner.kind, owner.id, name, keep, _STEP))
    budget = Budget()
    # At least two, so that their number decreases whatever their size.
    yield from _remove([id for index, (id, size) in enumerate(rows) if budget.spend(size) or index < 2])


def _remove(ids: list[int]) -> Op[None]:
    if ids:
        yield ExecuteMany("checkpoint_remove", [(id,) for id in ids])


def restored(agent: str, before: str | None, session: str | None) -> Op[CheckpointSummary | None]:
    """Return the checkpoint from which an agent that registers in this session (or in none) resumes: its newest one
    there, if its previous incarnation did not complete.

    Call it before the new incarnation starts. Checkpoints of another session do not count.
    """
    if before is None:
        return None
    if before not in LIVE:
        rows = yield Query("agent_cut_off", (agent,))
        if not rows or not rows[0][0]:
            return None
    rows = yield Query("checkpoint_newest_within", (agent, session))
    return CheckpointSummary(*rows[0]) if rows else None


def get_checkpoint(id: int, now: Now) -> Op[Stored | None]:
    rows = yield Query("checkpoint_get", (id,))
    return Stored(*rows[0]) if rows else None


def latest_checkpoint(wanted: tuple[Owner, str | None], now: Now) -> Op[Stored | None]:
    """Return the newest checkpoint of an owner, of one name or of all."""
    owner, name = wanted
    if name is None:
        rows = yield Query("checkpoint_latest", (owner.kind, owner.id))
    else:
        rows = yield Query("checkpoint_latest_named", (owner.kind, owner.id, name))
    return Stored(*rows[0]) if rows else None


def names_of(owner: Owner, now: Now) -> Op[tuple[str, ...]]:
    """Return the names of an owner's checkpoints."""
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
    """Return the session that a checkpoint belongs to, or the error if its owner cannot have one."""
    owner = request.owner
    if owner.kind == "session":
        return (yield from closed_session_error(owner.id, "save a checkpoint of it")) or owner.id
    if owner.kind == "task":
        rows = yield Query("task_by_id", ([owner.id],))
        return rows[0][4] if rows else UnknownTask(task=owner.id)
    if request.actor is not None and request.actor.agent == owner.id:
        return request.session
    rows = yield Query("agent_status", (owner.id,))
    return rows[0][2] if rows else UnknownAgent(agent=owner.id)
