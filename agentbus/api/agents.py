"""The registry of agents: registration, and ``bus.agents``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypedDict, Unpack

import msgspec

from agentbus.core.addresses import Address, address_names, check_agent
from agentbus.core.codec import encode_metadata
from agentbus.core.validation import (
    AGENT_STATUSES,
    MAX_ID,
    MAX_PAGE,
    PAGE_SIZE,
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
from agentbus.engine.interface import Engine
from agentbus.errors import AgentExists, InvalidInput, UnknownType
from agentbus.operations.agent_deletion import DeleteRequest, delete
from agentbus.operations.agent_identity import Registration
from agentbus.operations.agents import DeclareRequest, RegisterRequest, UpdateRequest, register, update
from agentbus.operations.common import INCOMPLETE
from agentbus.operations.lookups import AgentFilter, Seen, get_agent, last_seen, list_agents
from agentbus.operations.rows import Profile
from agentbus.records import AgentRecord, Page


class ProfileOptions(TypedDict, total=False):
    """The description of an agent: for ``bus.register``, ``bus.agent``, ``bus.expect`` and ``bus.agents.update``."""

    name: str | None
    """A name to display (default: the id)."""
    milestone: str | None
    """The milestone of its work."""
    parent: str | None
    """The agent that is notified if it fails."""
    capabilities: Iterable[str] | None
    """The names that ``bus.agents.find`` finds it by."""
    model: str | None
    """The model that drives it."""
    prompt: str | None
    """Its prompt."""
    load: int | None
    """Its load, from 0 to 100."""
    estimate: float | None
    """The estimated duration of its work in seconds."""
    metadata: dict[str, Any] | None
    """Further data, a JSON object."""
    patience: float | None
    """Seconds of silence before it is suspect."""


class MemberOptions(ProfileOptions, total=False):
    """Options of ``session.agent``."""

    pools: Iterable[str | Address]
    """Pools to consume from."""
    topics: Iterable[str | Address]
    """Topics to subscribe to."""
    takeover: bool
    """Fence an incarnation that is alive elsewhere, instead of an error."""


class AgentOptions(MemberOptions, total=False):
    """Options of ``bus.register`` and ``bus.agent``."""

    session: str | None
    """The session that it joins."""


class VisitorOptions(AgentOptions, total=False):
    """Options of ``bus.register_visitor``."""

    lease: float
    """Seconds that the leases on its messages last from its last call."""
    by: str | None
    """The operator whom the audit log shows instead of the agent."""


def registration(
    limit: int, id: str, type: str, process: int | None, options: AgentOptions, kind: str = "resident"
) -> RegisterRequest:
    """Check the arguments of a registration. ``limit``: bytes of metadata, at most."""
    about: dict[str, Any] = {**options}
    session = about.pop("session", None)
    by = about.pop("by", None) if kind == "visiting" else None
    pools = about.pop("pools", ())
    topics = about.pop("topics", ())
    takeover = about.pop("takeover", False)
    return RegisterRequest(
        check_agent(id),
        check_name(type, "agent type"),
        process,
        profile(limit, about, "session", "pools", "topics", "takeover"),
        kind,
        name_or_none(session, "session"),
        address_names(pools, "pool"),
        address_names(topics, "topic"),
        takeover,
        by=name_or_none(by, "operator"),
    )


def expectation(
    limit: int, id: str, type: str, session: str | None, within: float | None, about: ProfileOptions
) -> RegisterRequest:
    """Check the arguments of ``bus.expect``."""
    return RegisterRequest(
        check_agent(id),
        check_name(type, "agent type"),
        None,
        profile(limit, {**about}, "session"),
        session=name_or_none(session, "session"),
        within=None if within is None else check_seconds(within, "within"),
    )


def declaration(addresses: Iterable[Address]) -> DeclareRequest:
    """Check the arguments of ``bus.declare``."""
    found = tuple(addresses)
    for address in found:
        if not isinstance(address, Address) or address.kind not in {"pool", "topic"}:
            raise InvalidInput(reason=f"{address!r} is not a pool or a topic; agents are announced with expect()")
    return DeclareRequest(
        tuple(address.name for address in found if address.kind == "pool"),
        tuple(address.name for address in found if address.kind == "topic"),
    )


def profile(limit: int, about: dict[str, Any], *others: str) -> Profile:
    """Check the description of an agent. ``others`` are further options of the caller, to be named in an error."""
    check_options(about, (*others, *Profile.__struct_fields__))
    return Profile(**{name: _CHECKS[name](value, limit) for name, value in about.items() if value is not None})


async def register_agent(
    engine: Engine, request: RegisterRequest, on_abandoned: Callable[[Registration], None] | None = None
) -> Registration:
    """Register an agent. An incarnation whose process has died is evicted first."""
    try:
        return await engine.write(register, request, on_abandoned=on_abandoned)
    except AgentExists as exists:
        from agentbus.engine.processes import evict_dead_processes
        from agentbus.operations.processes import PeerProcess

        if exists.process is None or not await evict_dead_processes(engine, [PeerProcess(**exists.process)]):
            raise
        return await engine.write(register, request, on_abandoned=on_abandoned)
    except UnknownType as error:
        from agentbus.api.sending import with_suggestions

        raise await with_suggestions(engine, error) from None


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


class Agents:
    """The agents of the bus.

    >>> for agent in (await bus.agents.list(status="running")).items:                 # doctest: +SKIP
    ...     print(agent.id, agent.progress)
    """

    def __init__(self, engine: Engine, limit: int) -> None:
        self._engine = engine
        self._limit = limit

    async def get(self, agent: str) -> AgentRecord | None:
        """Return the record of one agent, or None.

        >>> await bus.agents.get("planner-1")                                         # doctest: +SKIP
        """
        return await self._engine.read_inline(get_agent, check_name(agent, "agent"))

    async def list(
        self,
        *,
        status: str | Sequence[str] | None = None,
        type: str | None = None,
        session: str | None = None,
        parent: str | None = None,
        kind: str | None = None,
        capability: str | None = None,
        updated_after: int | None = None,
        cursor: str | None = None,
        limit: int = PAGE_SIZE,
    ) -> Page[AgentRecord]:
        """Return agents in the order of their ids. ``status="incomplete"`` selects all that have not ended;
        ``updated_after`` those that have changed since that wall time in milliseconds.

        >>> page = await bus.agents.list(status=["failed", "suspect"], type="executor")   # doctest: +SKIP
        """
        capability = name_or_none(capability, "capability")
        return await self._list(status, type, session, parent, kind, capability, cursor, limit, updated_after)

    async def find(self, capability: str, *, status: str | Sequence[str] = "incomplete") -> Sequence[AgentRecord]:
        """Return the agents with this capability; by default only those that have not ended.

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

    async def last_seen(self, agents: Sequence[AgentRecord]) -> dict[str, Seen]:
        """Return, by id, the wall times of the last sign of life of these agents and of the end of a silence that they
        announced.

        >>> (await bus.agents.last_seen(page.items))["planner-1"].at                  # doctest: +SKIP
        1767225600000
        """
        return await self._engine.read(last_seen, agents)

    async def update(self, agent: str, **changes: Unpack[ProfileOptions]) -> None:
        """Change the description of an agent, with the options of ``agentbus.api.agents.ProfileOptions``.

        >>> await bus.agents.update("planner-1", load=80, capabilities=["python", "sql"])   # doctest: +SKIP
        """
        request = UpdateRequest(check_name(agent, "agent"), profile(self._limit, {**changes}))
        await self._engine.write(update, request)

    async def delete(self, agent: str, *, by: str | None = None) -> None:
        """Delete an agent that has ended or was only expected, with its checkpoints and all state in the scope of its
        id. Messages in its mailbox become dead letters.

        A large agent is deleted in bounded transactions. If a crash or a new incarnation interrupts them, the agent
        still exists, with its newest checkpoints, or with none and less state; delete it again.

        >>> await bus.agents.delete("planner-1")                                      # doctest: +SKIP
        """
        await self._delete(DeleteRequest(check_name(agent, "agent"), by=by))

    async def clear(self, *, older_than: float = 0, by: str | None = None) -> Sequence[str]:
        """Delete the agents that completed or stopped more than ``older_than`` seconds ago, as ``delete`` does; return
        their ids.

        >>> await bus.agents.clear(older_than=3600)                                   # doctest: +SKIP
        """
        before = self._engine.clock.now().wall - check_seconds(older_than, "older_than", zero=True)
        return await self._delete(DeleteRequest(None, before, by=by))

    async def _delete(self, request: DeleteRequest) -> Sequence[str]:
        deleted: Sequence[str] = ()
        while True:
            step = await self._engine.write(delete, request)
            deleted = [*deleted, *step.agents]
            if not step.more:
                return deleted
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
        updated_after: int | None = None,
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
            None if updated_after is None else check_range(updated_after, "updated_after", 0, MAX_ID),
        )
        return await self._engine.read(list_agents, wanted)
