"""Deletion of agents in bounded transactions, owned data first and then the agent row; and clearing of incomplete
agents."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from agentbus.core.clock import Now
from agentbus.core.validation import PAGE_SIZE
from agentbus.errors import AgentBusError, UnknownAgent, WrongState
from agentbus.operations import quotas
from agentbus.operations.agent_status import end
from agentbus.operations.checkpoints import Owner, delete_checkpoints_of
from agentbus.operations.common import LIVE, Budget, page
from agentbus.operations.events import event, record
from agentbus.operations.lookups import agent_record
from agentbus.operations.protocol import Op, Outcome, Query, single_operation
from agentbus.operations.receive import dead_letter
from agentbus.operations.rows import Held
from agentbus.operations.state import clear_state
from agentbus.records import AgentRecord, Page

_AGENTS = 20
"""Agents that one commit deletes at most."""
_LETTERS = 100
"""Messages that are read together."""
_LETTER = 4096
"""Cost of a dead letter besides its payload, in bytes: it is recorded in the audit log, and a requester is notified."""
_STEP = 200
"""Agents that one call clears at most, so that other writers do not wait long for the lock."""


class Rest(msgspec.Struct, frozen=True):
    """An agent (or the scope of a session) that is partly removed, and the change up to which its state is gone."""

    agent: str
    change: int


class DeleteRequest(msgspec.Struct, frozen=True):
    """Delete one agent, or all that completed or stopped before a wall time. ``rest`` comes from the previous step."""

    agent: str | None
    before: int | None = None
    rest: Rest | None = None
    by: str | None = None

    @property
    def data_size(self) -> int:
        return Budget().left


class Deleted(msgspec.Struct, frozen=True):
    """The agents that were deleted. ``more``: repeat the request with this ``rest``."""

    agents: list[str]
    more: bool = False
    rest: Rest | None = None


@single_operation(durable=True)
def delete(request: DeleteRequest, now: Now) -> Op[Outcome[Deleted]]:
    """Delete ended or pending agents with their state and checkpoints; messages in their mailboxes become dead letters.

    A step removes a bounded amount, and an agent only with the last of its data: an interruption between two steps
    leaves an ended agent with fewer checkpoints or less state.
    """
    if request.agent is None:
        rows = yield Query("agent_finished_before", (request.before, _AGENTS))
    else:
        rows = yield Query("agent_status", (request.agent,))
        error = _cannot_delete(request.agent, rows[0][1] if rows else None)
        if error is not None:
            return error
    return (yield from _delete([row[0] for row in rows], request.rest, request.by, now))


def _cannot_delete(agent: str, status: str | None) -> AgentBusError | None:
    if status is None:
        return UnknownAgent(agent=agent)
    if status in LIVE:
        advice = "end it first, or wait until it has ended"
        return WrongState(what="agent", name=agent, status=status, action="delete it", advice=advice)
    return None


def _delete(agents: list[str], rest: Rest | None, by: str | None, now: Now) -> Op[Deleted]:
    budget = Budget()
    empty: dict[str, int] = {}
    unfinished: Rest | None = None
    for agent in agents:
        checkpoints = yield from delete_checkpoints_of(Owner("agent", agent), budget)
        change = rest.change if rest is not None and rest.agent == agent else 0
        change = yield from clear_state(agent, change, budget, now)
        yield from dead_letter_mailbox(agent, budget, now)
        if budget.spent:
            if checkpoints:
                facts = {"count": checkpoints, "name": None, "keep": 0}
                yield from record([event(now.wall, "checkpoints_pruned", ("agent", agent), None, **facts)])
            unfinished = Rest(agent, change)
            break
        empty[agent] = checkpoints
    yield from remove_agents(empty, now, by)
    return Deleted(list(empty), unfinished is not None or len(agents) == _AGENTS, unfinished)


def remove_agents(agents: Mapping[str, int], now: Now, by: str | None = None) -> Op[None]:
    """Remove agents without data, each with the number of checkpoints deleted last."""
    if agents:
        yield Query("mailbox_keep_epochs", (list(agents),))
        gone = yield Query("agent_delete", (list(agents),))
        yield from quotas.delete_send_counters(agent for (agent,) in gone)
        yield from record([
            event(now.wall, "agent_deleted", ("agent", agent), by, checkpoints=agents[agent]) for (agent,) in gone
        ])  # fmt: skip


def dead_letter_mailbox(agent: str, budget: Budget, now: Now) -> Op[None]:
    """Dead-letter the messages that wait for an agent."""
    more = not budget.spent
    while more:
        rows = yield Query("message_waiting_for", (agent, _LETTERS))
        going = [Held(*row) for size, *row in rows if budget.spend(size + _LETTER)]
        yield from dead_letter([held.ending("its recipient was deleted") for held in going], now)
        more = len(going) == _LETTERS


class IncompleteFilter(msgspec.Struct, frozen=True):
    """Selects incomplete agents after ``cursor``."""

    cursor: str = ""
    limit: int = PAGE_SIZE


class ClearRequest(msgspec.Struct, frozen=True):
    """Clear one agent, whatever its status; without one, those that are suspect, or failed in an open session."""

    agent: str | None = None
    by: str | None = None


class Cleared(msgspec.Struct, frozen=True):
    """The agents that were cleared. ``more``: there are more."""

    agents: list[str]
    more: bool = False


@single_operation(durable=True)
def clear_agents(request: ClearRequest, now: Now) -> Op[Outcome[Cleared]]:
    """Stop agents, release what they held and expect them no longer. Nothing is deleted."""
    if request.agent is None:
        rows = yield Query("recovery_clearable", (_STEP,))
    else:
        rows = yield Query("agent_ending", (request.agent,))
        if not rows:
            return UnknownAgent(agent=request.agent)
    cleared: list[str] = []
    for agent, status, error in rows:
        if status not in {"completed", "stopped"}:
            why = f"cleared; it was {status}" + (f": {error}" if error else "")
            yield from end([agent], "stopped", why, request.by, now)
            cleared.append(agent)
    return Cleared(cleared, request.agent is None and len(rows) == _STEP)


def incomplete_agents(wanted: IncompleteFilter, now: Now) -> Op[Page[AgentRecord]]:
    """Return the agents that have not ended, and those of open sessions that failed or stopped, in order of id."""
    rows = yield Query("recovery_agents", (wanted.cursor, wanted.limit + 1))
    return page(rows, wanted.limit, agent_record, lambda agent: agent.id)
