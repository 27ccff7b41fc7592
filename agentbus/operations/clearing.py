"""Agents that were cut off: which they are, and setting those aside that nobody waits for any more."""

from __future__ import annotations

import msgspec

from agentbus.clock import Now
from agentbus.errors import UnknownAgent
from agentbus.operations import Op, Outcome, Query, one_by_one
from agentbus.operations.endings import end
from agentbus.operations.paging import page
from agentbus.operations.reading import agent_record
from agentbus.records import AgentRecord, Page

_STEP = 200
"""Agents that one call sets aside at most, so that nobody waits long for the lock."""


class IncompleteFilter(msgspec.Struct, frozen=True):
    """Which incomplete agents to list: those after ``cursor``."""

    cursor: str = ""
    limit: int = 100


class ClearRequest(msgspec.Struct, frozen=True):
    """An agent to be set aside, whatever it does; without one, those that are suspect, or failed in an open session."""

    agent: str | None = None


class Cleared(msgspec.Struct, frozen=True):
    """The agents that were set aside. ``more``: there are more."""

    agents: list[str]
    more: bool = False


@one_by_one(durable=True)
def clear_agents(request: ClearRequest, now: Now) -> Op[Outcome[Cleared]]:
    """Set agents aside: they are stopped, what they held goes back, and nobody waits for them. Nothing is deleted."""
    if request.agent is None:
        rows = yield Query("recovery_clearable", (_STEP,))
    else:
        rows = yield Query("agent_ending", (request.agent,))
        if not rows:
            return UnknownAgent(agent=request.agent)
    cleared: list[str] = []
    for agent, status, error in rows:
        if status not in {"completed", "stopped"}:
            why = f"set aside; it was {status}" + (f": {error}" if error else "")
            yield from end([agent], "stopped", why, None, now)
            cleared.append(agent)
    return Cleared(cleared, request.agent is None and len(rows) == _STEP)


def incomplete_agents(wanted: IncompleteFilter, now: Now) -> Op[Page[AgentRecord]]:
    """The agents that have not ended, and those of open sessions that failed or stopped, in the order of their ids."""
    rows = yield Query("recovery_agents", (wanted.cursor, wanted.limit + 1))
    return page(rows, wanted.limit, agent_record, lambda agent: agent.id)
