"""``bus.agents``: looking at the registry, and keeping it tidy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentbus.codec import encode
from agentbus.engine.interface import Engine
from agentbus.errors import InvalidInput
from agentbus.limits import (
    AGENT_STATUSES,
    MAX_PAGE,
    check_choice,
    check_name,
    check_names,
    check_range,
    check_seconds,
    check_text,
)
from agentbus.operations.agents import DeleteRequest, Profile, UpdateRequest, delete, update
from agentbus.operations.fencing import INCOMPLETE
from agentbus.operations.reading import AgentFilter, get_agent, list_agents
from agentbus.records import AgentRecord, Page


def profile(
    limit: int,
    *,
    name: str | None = None,
    milestone: str | None = None,
    parent: str | None = None,
    capabilities: Sequence[str] | None = None,
    model: str | None = None,
    prompt: str | None = None,
    load: int | None = None,
    estimate: float | None = None,
    metadata: dict[str, Any] | None = None,
    patience: float | None = None,
) -> Profile:
    """What an agent says of itself, checked."""
    if metadata is not None and not isinstance(metadata, dict):
        raise InvalidInput(reason="metadata must be a dict")
    return Profile(
        None if name is None else check_text(name, "name", 200, low=1),
        None if milestone is None else check_name(milestone, "milestone"),
        None if parent is None else check_name(parent, "parent"),
        None if capabilities is None else check_names(capabilities, "capability"),
        None if model is None else check_text(model, "model", 200),
        None if prompt is None else check_text(prompt, "prompt", limit),
        None if load is None else check_range(load, "load", 0, 100),
        None if estimate is None else check_seconds(estimate, "estimate", zero=True),
        None if metadata is None else encode(metadata, limit)[0],
        None if patience is None else check_seconds(patience, "patience"),
    )


class Registry:
    """The agents of the bus.

    >>> for agent in (await bus.agents.list(status="running")).items:                 # doctest: +SKIP
    ...     print(agent.id, agent.progress)
    """

    def __init__(self, engine: Engine, limit: int) -> None:
        self._engine = engine
        self._limit = limit

    async def get(self, agent: str) -> AgentRecord | None:
        """The record of one agent, or None.

        >>> await bus.agents.get("planner-1")                                         # doctest: +SKIP
        """
        return await self._engine.read(get_agent, check_name(agent, "agent"))

    async def list(
        self,
        *,
        status: str | Sequence[str] | None = None,
        type: str | None = None,
        session: str | None = None,
        parent: str | None = None,
        kind: str | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page[AgentRecord]:
        """Agents in the order of their ids. ``status="incomplete"`` takes all that have not ended.

        >>> page = await bus.agents.list(status=["failed", "suspect"], type="executor")   # doctest: +SKIP
        """
        return await self._list(status, type, session, parent, kind, None, cursor, limit)

    async def find(self, capability: str, *, status: str | Sequence[str] = "incomplete") -> Sequence[AgentRecord]:
        """The agents that can do something; by default only those that have not ended.

        >>> await bus.agents.find("python")                                           # doctest: +SKIP
        """
        check_name(capability, "capability")
        found: Sequence[AgentRecord] = ()
        cursor: str | None = None
        while True:
            page = await self._list(status, None, None, None, None, capability, cursor, MAX_PAGE)
            found = [*found, *page.items]
            if page.cursor is None:
                return found
            cursor = page.cursor

    async def update(self, agent: str, **changes: Any) -> None:
        """Change what is known of an agent: name, milestone, parent, capabilities, model, prompt, load, estimate,
        metadata, patience.

        >>> await bus.agents.update("planner-1", load=80, capabilities=["python", "sql"])   # doctest: +SKIP
        """
        request = UpdateRequest(check_name(agent, "agent"), profile(self._limit, **changes))
        await self._engine.write(update, request)

    async def delete(self, agent: str) -> None:
        """Delete an agent that has ended or was only expected. What waits in its mailbox becomes dead letters.

        >>> await bus.agents.delete("planner-1")                                      # doctest: +SKIP
        """
        await self._engine.write(delete, DeleteRequest(check_name(agent, "agent")))

    async def clear(self, *, older_than: float = 0) -> Sequence[str]:
        """Delete the agents that completed or stopped more than so many seconds ago; says which.

        >>> await bus.agents.clear(older_than=3600)                                   # doctest: +SKIP
        """
        before = self._engine.clock.now().wall - check_seconds(older_than, "older_than", zero=True)
        gone: Sequence[str] = ()
        while True:
            # In steps, so that nobody waits long for the lock.
            request = DeleteRequest(None, before)
            step = await self._engine.write(delete, request)
            gone = [*gone, *step]
            if len(step) < request.limit:
                return gone

    async def _list(
        self,
        status: str | Sequence[str] | None,
        type: str | None,
        session: str | None,
        parent: str | None,
        kind: str | None,
        capability: str | None,
        cursor: str | None,
        limit: int,
    ) -> Page[AgentRecord]:
        if status == "incomplete":
            status = tuple(sorted(INCOMPLETE))
        elif isinstance(status, str):
            status = (status,)
        wanted = AgentFilter(
            None if status is None else tuple(check_choice(one, "status", AGENT_STATUSES) for one in status),
            type,
            session,
            parent,
            None if kind is None else check_choice(kind, "kind", ("resident", "visiting")),
            capability,
            cursor,
            check_range(limit, "limit", 1, MAX_PAGE),
        )
        return await self._engine.read(list_agents, wanted)
