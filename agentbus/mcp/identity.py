"""The agent that a client is: never invented twice.

A client may name it (``AGENTBUS_AGENT``, or the token of an HTTP request). Otherwise the client's session stands for
it: a row on the bus maps the session to the agent, for this server and for hooks. The same session gets the same agent
back after a restart, as a new incarnation.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from agentbus.errors import AgentFenced, UnknownAgent
from agentbus.mcp.errors import NoAgentIdentity, NotJoined
from agentbus.operations.common import LIVE
from agentbus.sync.identity import (
    client_row,
    find_client,
    open_session,
    register,
    remember_client,
    rename_client,
    renew,
)

if TYPE_CHECKING:
    from agentbus.sync.agent import BlockingAgent
    from agentbus.sync.bus import BlockingBus


class Identity(Protocol):
    """Finds the agent that a client acts as."""

    operator: str | None
    """The person in whose name a client that is not an agent acts; None for an agent, and for a read-only client."""

    def agent(self, bus: BlockingBus) -> BlockingAgent:
        """Return the agent, or raise the reason why the client is none."""

    def join(self, bus: BlockingBus, name: str, type: str, pools: Sequence[str], session: str | None) -> BlockingAgent:
        """Register the agent, or renew its registration."""

    def ended(self) -> None:
        """Forget the incarnation: it has ended on its own request."""


class FixedIdentity:
    """A client whose agent is given. ``None``: it is none, and acts as an ``operator`` or may only read."""

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
        if record is not None and (epoch or record.status in LIVE):
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
        """The incarnation that this process acts as, ``id#epoch``."""
        self._registered = False
        """True if this process has registered it; otherwise a hook of the client has, and it outlives this process."""

    def agent(self, bus: BlockingBus) -> BlockingAgent:
        if self.current is not None:
            return bus.agent(self.current)
        shared = self._join_hooks(bus, (), None)
        if shared is not None:
            return shared
        agent = find_client(bus, session=self.session)
        if agent is None:
            raise NotJoined
        return self._resume(bus, agent, None, (), None)

    def join(self, bus: BlockingBus, name: str, type: str, pools: Sequence[str], session: str | None) -> BlockingAgent:
        if self.current is not None:
            try:
                return renew(bus.agent(self.current), pools, session)
            except (AgentFenced, UnknownAgent):
                # It was marked failed in the meantime: it continues as a new incarnation.
                known: str | None = self.current.partition("#")[0]
        else:
            shared = self._join_hooks(bus, pools, session, name, type)
            if shared is not None:
                return shared
            known = find_client(bus, session=self.session)
        if known is not None:
            return self._resume(bus, known, type, pools, session)
        return self._joined(bus, register(bus, name, type, pools, session, pid=os.getpid()))

    def _join_hooks(
        self,
        bus: BlockingBus,
        pools: Sequence[str],
        session: str | None,
        name: str | None = None,
        type: str = "worker",
    ) -> BlockingAgent | None:
        """Act as the incarnation that a hook of the same client has registered, while it is live: taking it over would
        release the messages that the hook has shown."""
        row = client_row(bus, session=self.session)
        if row is None and self.process is not None:
            # Only what hooks report: a process may also have started servers for several sessions.
            row = client_row(bus, session=None, process=self.process)
        if row is None or row.hook is None:
            return None
        try:
            agent = renew(bus.agent(f"{row.agent}#{row.hook}"), pools, session)
        except (AgentFenced, UnknownAgent):
            return None
        if name not in {None, row.agent} and not row.named:
            pid = None if self.process is None else int(self.process.split()[-2])
            renamed = rename_client(bus, row, str(name), type, pools=pools, session=session, pid=pid)
            if renamed is not None:
                agent = renamed
                remember_client(
                    bus, agent.id, session=self.session, process=self.process, hook=agent.epoch, row=row.session
                )
        self.current, self._registered = agent.identity, False
        return agent

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
                session or open_session(bus, before.session),
                topics=list(before.subscriptions),
                takeover=True,
                pid=os.getpid(),
            ),
        )

    def _joined(self, bus: BlockingBus, agent: BlockingAgent) -> BlockingAgent:
        self.current, self._registered = agent.identity, True
        remember_client(bus, agent.id, session=self.session, process=self.process)
        return agent

    def ended(self) -> None:
        self.current = None

    def leave(self, bus: BlockingBus) -> None:
        """Fail the agent: its leases return at once, and its mailbox still accepts messages for the next start. One
        that a hook has registered continues until its client ends."""
        if self.current is not None and self._registered:
            current, self.current = self.current, None
            # Fenced: it has ended, or another server of this client has taken over.
            with suppress(AgentFenced):
                bus.agent(current).fail("its MCP client disconnected")
