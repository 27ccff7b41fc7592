"""The agent that a client is: never invented twice.

A client may name it (``AGENTBUS_AGENT``, or the token of an HTTP request). Otherwise the client's session stands for
it: a row on the bus maps the session to the agent, for this server and for hooks. The same session gets the same agent
back after a restart, as a new incarnation.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from agentbus.errors import AgentBusError, AgentFenced, UnknownAgent
from agentbus.mcp.errors import NoAgentIdentity, NotJoined

if TYPE_CHECKING:
    from agentbus.sync.agent import BlockingAgent
    from agentbus.sync.bus import BlockingBus

SCOPE = "agentbus/clients"
"""The scope of the rows that map clients to agents."""
SESSION_VARIABLES = (
    "AGENTBUS_CLIENT_SESSION",
    "CLAUDE_CODE_SESSION_ID",
    "CODEX_THREAD_ID",
    "CODEX_SESSION_ID",
    "GEMINI_SESSION_ID",
    "COPILOT_AGENT_SESSION_ID",
)
"""Variables in which clients pass their session to the processes that they start. The first one set counts."""
_TTL = 90 * 24 * 3600.0
"""Seconds for which a client is remembered."""
_LIVE = frozenset({"running", "suspect"})
_MAX_KEY = 200


class Identity(Protocol):
    """Finds the agent that a client acts as."""

    operator: str | None
    """The person in whose name a client that is no agent acts; None for an agent, and for a client that only reads."""

    def agent(self, bus: BlockingBus) -> BlockingAgent:
        """Return the agent, or raise the reason why the client is none."""

    def join(self, bus: BlockingBus, name: str, type: str, pools: Sequence[str], session: str | None) -> BlockingAgent:
        """Register the agent, or renew its registration."""

    def ended(self) -> None:
        """Forget the incarnation: it has ended on its own request."""


def client_session(environment: Mapping[str, str]) -> str | None:
    """Return the session of the client that has started this process, if it says.

    >>> client_session({"CLAUDE_CODE_SESSION_ID": "5b1c"})
    '5b1c'
    """
    return next((found for name in SESSION_VARIABLES if (found := environment.get(name))), None)


def client_process(pid: int) -> str | None:
    """Return the name of a client's process, which no other process ever has; None if it is unknown."""
    from agentbus.core import process_info

    started = process_info.start_time(pid)
    return f"{process_info.host_key()} {pid} {started}" if started else None


def remember_client(bus: BlockingBus, agent: str, *, session: str | None, process: str | None) -> None:
    """Map a session and a process of a client to an agent."""
    for key in _keys(session, process):
        bus.do(bus.state(SCOPE).set(key, {"agent": agent}, ttl=_TTL, type="system_data"))


def find_client(bus: BlockingBus, *, session: str | None, process: str | None = None) -> str | None:
    """Return the agent of a client, by its session, or by its process if it has started another session since.

    That session is remembered too: a hook that reports it maps it for the next start of the server.
    """
    for key in _keys(session, process):
        found = bus.do(bus.state(SCOPE).get(key))
        agent = found.get("agent") if isinstance(found, dict) else None
        if isinstance(agent, str):
            if session is not None and key != _key("session", session):
                remember_client(bus, agent, session=session, process=None)
            return agent
    return None


def _keys(session: str | None, process: str | None) -> list[str]:
    named = (("session", session), ("process", process))
    return [_key(kind, name) for kind, name in named if name is not None]


def _key(kind: str, name: str) -> str:
    """Return the key of a row: the name itself where that is possible."""
    from agentbus.core.validation import check_key
    from agentbus.errors import InvalidName

    try:
        if len(name) <= _MAX_KEY:
            return check_key(f"{kind}/{name}")
    except InvalidName:
        pass
    from hashlib import sha256

    return f"{kind}/{sha256(name.encode(errors='surrogateescape')).hexdigest()}"


class FixedIdentity:
    """A client that is told which agent it is. ``None``: it is none, and acts as an ``operator`` or may only look."""

    def __init__(self, agent: str | None, *, pid: int | None = None, operator: str | None = None) -> None:
        self.operator = operator
        self._agent = agent
        self._pid = pid

    def agent(self, bus: BlockingBus) -> BlockingAgent:
        if self._agent is None:
            raise NoAgentIdentity
        try:
            return bus.agent(self._agent)
        except UnknownAgent:
            raise NotJoined from None

    def join(self, bus: BlockingBus, name: str, type: str, pools: Sequence[str], session: str | None) -> BlockingAgent:
        if self._agent is None:
            raise NoAgentIdentity
        id, _, epoch = self._agent.partition("#")
        record = bus.do(bus.agents.get(id))
        if record is not None and (epoch or record.status in _LIVE):
            return renew(bus.agent(self._agent), pools, session)
        return register(bus, id, type, pools, session, pid=self._pid)

    def ended(self) -> None:
        """Do nothing: a later call is refused, until the agent joins again."""


class SessionIdentity:
    """The client of a process: an agent that it joins as, and gets back by its session."""

    operator = None

    def __init__(self, session: str | None, process: str | None = None) -> None:
        self.session = session
        self.process = process
        self.current: str | None = None
        """The incarnation that this process has registered, ``id#epoch``."""

    def agent(self, bus: BlockingBus) -> BlockingAgent:
        if self.current is not None:
            return bus.agent(self.current)
        agent = find_client(bus, session=self.session)
        if agent is None:
            raise NotJoined
        return self._resume(bus, agent, None, (), None)

    def join(self, bus: BlockingBus, name: str, type: str, pools: Sequence[str], session: str | None) -> BlockingAgent:
        if self.current is not None:
            try:
                return renew(bus.agent(self.current), pools, session)
            except (AgentFenced, UnknownAgent):
                # Taken for dead meanwhile: it continues as a new incarnation.
                known: str | None = self.current.partition("#")[0]
        else:
            known = find_client(bus, session=self.session)
        if known is not None:
            return self._resume(bus, known, type, pools, session)
        return self._joined(bus, register(bus, name, type, pools, session, pid=os.getpid()))

    def _resume(
        self, bus: BlockingBus, agent: str, type: str | None, pools: Sequence[str], session: str | None
    ) -> BlockingAgent:
        """Register the next incarnation of an agent, also from a server of the same client that still runs."""
        from agentbus.operations.agent_identity import current_registration

        record, before = bus.do(bus.agents.get(agent)), bus.read(current_registration, agent)
        if record is None or before is None:
            if type is None:
                raise NotJoined
            return self._joined(bus, register(bus, agent, type, pools, session, pid=os.getpid()))
        return self._joined(
            bus,
            register(
                bus,
                agent,
                record.type,
                list(dict.fromkeys([*before.pools, *pools])),
                session or _open_session(bus, before.session),
                topics=list(before.subscriptions),
                takeover=True,
                pid=os.getpid(),
            ),
        )

    def _joined(self, bus: BlockingBus, agent: BlockingAgent) -> BlockingAgent:
        self.current = agent.identity
        remember_client(bus, agent.id, session=self.session, process=self.process)
        return agent

    def ended(self) -> None:
        self.current = None

    def leave(self, bus: BlockingBus) -> None:
        """Fail the agent: its leases return at once, and its mailbox still accepts messages for the next start."""
        if self.current is not None:
            current, self.current = self.current, None
            # Fenced: it has ended, or another server of this client has taken over.
            with suppress(AgentFenced):
                bus.agent(current).fail("its MCP client disconnected")


def register(
    bus: BlockingBus, name: str, type: str, pools: Sequence[str], session: str | None, **options: Any
) -> BlockingAgent:
    """Register an agent that calls now and then."""
    return bus.register(name, type=type, pools=tuple(pools), session=session, **options)


def renew(agent: BlockingAgent, pools: Sequence[str], session: str | None) -> BlockingAgent:
    """Record a call of an agent; it joins further pools, and another session."""
    from agentbus.core.addresses import address_names
    from agentbus.operations.agents import MembershipRequest, change_membership

    agent.heartbeat()
    more = [pool for pool in address_names(pools, "pool") if pool not in agent.registration.pools]
    if more:
        agent.call(change_membership, MembershipRequest(agent._actor, None, tuple(more)))
    if session is not None and session != agent.session:
        agent.join(session)
    return agent.bus.agent(agent.identity)


def _open_session(bus: BlockingBus, session: str | None) -> str | None:
    """Return a session if it still takes agents."""
    if session is None:
        return None
    try:
        record = bus.do(bus.sessions.get(session))
    except AgentBusError:
        return None
    return session if record is not None and record.status in {"active", "paused", "interrupted"} else None
