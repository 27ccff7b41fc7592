"""``bus.agents``: looking at the registry, and keeping it tidy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from agentbus.addresses import Address, check_agent, plain_names
from agentbus.codec import encode_metadata
from agentbus.engine.interface import Engine
from agentbus.limits import (
    AGENT_STATUSES,
    MAX_PAGE,
    check_choice,
    check_name,
    check_names,
    check_options,
    check_range,
    check_seconds,
    check_text,
    choices_or_none,
    name_or_none,
)
from agentbus.operations.agents import Profile, RegisterRequest, UpdateRequest, update
from agentbus.operations.deletion import DeleteRequest, delete
from agentbus.operations.fencing import INCOMPLETE
from agentbus.operations.reading import AgentFilter, get_agent, list_agents
from agentbus.records import AgentRecord, Page


def registration(
    limit: int,
    id: str,
    type: str,
    process: int | None,
    about: dict[str, Any],
    *,
    session: str | None,
    pools: Iterable[str | Address],
    topics: Iterable[str | Address],
    takeover: bool,
    kind: str = "resident",
) -> RegisterRequest:
    """What somebody asked to be registered as, checked."""
    return RegisterRequest(
        check_agent(id),
        check_name(type, "agent type"),
        process,
        profile(limit, about, "session", "pools", "topics", "takeover"),
        kind,
        name_or_none(session, "session"),
        plain_names(pools, "pool"),
        plain_names(topics, "topic"),
        takeover,
    )


def profile(limit: int, about: dict[str, Any], *others: str) -> Profile:
    """What an agent says of itself, checked. ``others`` are what the caller takes besides, to be named in an error."""
    check_options(about, (*others, *Profile.__struct_fields__))
    return Profile(**{name: _CHECKS[name](value, limit) for name, value in about.items() if value is not None})


_CHECKS: dict[str, Callable[[Any, int], Any]] = {
    "name": lambda value, _: check_text(value, "name", 200, low=1),
    "milestone": lambda value, _: check_name(value, "milestone"),
    "parent": lambda value, _: check_agent(value),
    "capabilities": lambda value, _: check_names(value, "capability"),
    "model": lambda value, _: check_text(value, "model", 200),
    "prompt": lambda value, limit: check_text(value, "prompt", limit),
    "load": lambda value, _: check_range(value, "load", 0, 100),
    "estimate": lambda value, _: check_seconds(value, "estimate", zero=True),
    "metadata": encode_metadata,
    "patience": lambda value, _: check_seconds(value, "patience"),
}


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
        return await self._engine.look(get_agent, check_name(agent, "agent"))

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
        request = UpdateRequest(check_name(agent, "agent"), profile(self._limit, changes))
        await self._engine.write(update, request)

    async def delete(self, agent: str) -> None:
        """Delete an agent that has ended or was only expected, with its checkpoints and its state: all that is in the
        scope of its id, whoever put it there. What waits in its mailbox becomes dead letters.

        An agent that has much goes in steps, so that nobody else waits long. If a crash, or a new life of it, comes in
        between, it is still there, with its newest checkpoints, or with none and less state; then delete it again.

        >>> await bus.agents.delete("planner-1")                                      # doctest: +SKIP
        """
        await self._delete(DeleteRequest(check_name(agent, "agent")))

    async def clear(self, *, older_than: float = 0) -> Sequence[str]:
        """Delete the agents that completed or stopped more than so many seconds ago, as ``delete`` does; says which.

        >>> await bus.agents.clear(older_than=3600)                                   # doctest: +SKIP
        """
        before = self._engine.clock.now().wall - check_seconds(older_than, "older_than", zero=True)
        return await self._delete(DeleteRequest(None, before))

    async def _delete(self, request: DeleteRequest) -> Sequence[str]:
        gone: Sequence[str] = ()
        while True:
            step = await self._engine.write(delete, request)
            gone = [*gone, *step.agents]
            if not step.more:
                return gone
            request = msgspec.structs.replace(request, rest=step.rest)

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
        wanted = AgentFilter(
            choices_or_none(status, "status", AGENT_STATUSES),
            name_or_none(type, "agent type"),
            name_or_none(session, "session"),
            name_or_none(parent, "parent"),
            None if kind is None else check_choice(kind, "kind", ("resident", "visiting")),
            capability,
            name_or_none(cursor, "cursor"),
            check_range(limit, "limit", 1, MAX_PAGE),
        )
        return await self._engine.read(list_agents, wanted)
