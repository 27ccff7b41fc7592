"""Deleting agents for good, in steps that hold nobody up: first what they have, then they."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from agentbus.clock import Now
from agentbus.errors import AgentBusError, UnknownAgent, WrongState
from agentbus.operations import Op, Outcome, Query, one_by_one, quotas
from agentbus.operations.budget import Budget
from agentbus.operations.checkpoints import Owner, forget
from agentbus.operations.dead_letters import bury
from agentbus.operations.events import event, record
from agentbus.operations.fencing import LIVE
from agentbus.operations.leases import Held
from agentbus.operations.state import clear_state

_AGENTS = 20
"""Agents that one commit clears at most."""
_LETTERS = 100
"""Messages that are looked at together."""
_LETTER = 4096
"""What a dead letter takes besides its payload, in bytes that take as long: it is in the trail, and a requester is
told."""


class Rest(msgspec.Struct, frozen=True):
    """An agent (or the scope of a session) that had more than goes at once, and the change up to which its state is
    gone."""

    agent: str
    change: int


class DeleteRequest(msgspec.Struct, frozen=True):
    """Agents to delete: the one named, or all that completed or stopped before this wall time. ``rest`` is what the
    step before left."""

    agent: str | None
    before: int | None = None
    rest: Rest | None = None

    @property
    def weight(self) -> int:
        return Budget().left


class Deleted(msgspec.Struct, frozen=True):
    """The agents that are gone, and whether there is more to do: ask again, with this rest."""

    agents: list[str]
    more: bool = False
    rest: Rest | None = None


@one_by_one(durable=True)
def delete(request: DeleteRequest, now: Now) -> Op[Outcome[Deleted]]:
    """Delete ended or pending agents with their state and checkpoints; what waits in their mailboxes becomes dead
    letters.

    A step removes only so much, and an agent only together with the last of what it has: whoever is cut off between
    two steps leaves an agent that has ended, with fewer checkpoints or less state.
    """
    if request.agent is None:
        rows = yield Query("agent_finished_before", (request.before, _AGENTS))
    else:
        rows = yield Query("agent_status", (request.agent,))
        error = _cannot_delete(request.agent, rows[0][1] if rows else None)
        if error is not None:
            return error
    return (yield from _delete([row[0] for row in rows], request.rest, now))


def _cannot_delete(agent: str, status: str | None) -> AgentBusError | None:
    if status is None:
        return UnknownAgent(agent=agent)
    if status in LIVE:
        advice = "end it first, or wait until it has ended"
        return WrongState(what="agent", name=agent, status=status, action="delete it", advice=advice)
    return None


def _delete(agents: list[str], rest: Rest | None, now: Now) -> Op[Deleted]:
    budget = Budget()
    empty: dict[str, int] = {}
    unfinished: Rest | None = None
    for agent in agents:
        checkpoints = yield from forget(Owner("agent", agent), budget)
        change = rest.change if rest is not None and rest.agent == agent else 0
        change = yield from clear_state(agent, change, budget, now)
        yield from bury_letters(agent, budget, now)
        if budget.spent:
            if checkpoints:
                facts = {"count": checkpoints, "name": None, "keep": 0}
                yield from record([event(now.wall, "checkpoints_pruned", ("agent", agent), None, **facts)])
            unfinished = Rest(agent, change)
            break
        empty[agent] = checkpoints
    yield from remove_agents(empty, now)
    return Deleted(list(empty), unfinished is not None or len(agents) == _AGENTS, unfinished)


def remove_agents(agents: Mapping[str, int], now: Now) -> Op[None]:
    """Remove agents that have nothing left, each with the number of checkpoints that went last."""
    if agents:
        yield Query("mailbox_keep_epochs", (list(agents),))
        gone = yield Query("agent_delete", (list(agents),))
        yield from quotas.forget(agent for (agent,) in gone)
        yield from record([
            event(now.wall, "agent_deleted", ("agent", agent), None, checkpoints=agents[agent]) for (agent,) in gone
        ])  # fmt: skip


def bury_letters(agent: str, budget: Budget, now: Now) -> Op[None]:
    """Make dead letters of what waits for an agent."""
    more = not budget.spent
    while more:
        rows = yield Query("message_waiting_for", (agent, _LETTERS))
        going = [Held(*row) for size, *row in rows if budget.spend(size + _LETTER)]
        yield from bury([held.ending("its recipient was deleted") for held in going], now)
        more = len(going) == _LETTERS
