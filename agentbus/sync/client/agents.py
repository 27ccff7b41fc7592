"""The registry of agents: registration, and ``bus.agents``.

Written by ``make sync`` from ``agentbus.api.agents``: change that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentbus.api import agents as api
from agentbus.core.validation import PAGE_SIZE
from agentbus.sync.client.base import Wrapper

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Unpack

    from agentbus.api.agents import ProfileOptions
    from agentbus.operations.lookups import Seen
    from agentbus.records import AgentRecord, Page


class Agents(Wrapper[api.Agents], wraps=api.Agents):
    """The agents of the bus.

    >>> for agent in bus.agents.list(status="running").items:                 # doctest: +SKIP
    ...     print(agent.id, agent.progress)
    """

    __slots__ = ()

    def get(self, agent: str) -> AgentRecord | None:
        """Return the record of one agent, or None.

        >>> bus.agents.get("planner-1")                                         # doctest: +SKIP
        """
        return self._call(self._inner.get, agent)

    def list(
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

        >>> page = bus.agents.list(status=["failed", "suspect"], type="executor")   # doctest: +SKIP
        """
        return self._call(
            self._inner.list,
            status=status,
            type=type,
            session=session,
            parent=parent,
            kind=kind,
            capability=capability,
            updated_after=updated_after,
            cursor=cursor,
            limit=limit,
        )

    def find(self, capability: str, *, status: str | Sequence[str] = "incomplete") -> Sequence[AgentRecord]:
        """Return the agents with this capability; by default only those that have not ended.

        >>> bus.agents.find("python")                                           # doctest: +SKIP
        """
        return self._call(self._inner.find, capability, status=status)

    def last_seen(self, agents: Sequence[AgentRecord]) -> dict[str, Seen]:
        """Return, by id, the wall times of the last sign of life of these agents and of the end of a silence that they
        announced.

        >>> bus.agents.last_seen(page.items)["planner-1"].at                  # doctest: +SKIP
        1767225600000
        """
        return self._call(self._inner.last_seen, agents)

    def update(self, agent: str, **changes: Unpack[ProfileOptions]) -> None:
        """Change the description of an agent, with the options of ``agentbus.api.agents.ProfileOptions``.

        >>> bus.agents.update("planner-1", load=80, capabilities=["python", "sql"])   # doctest: +SKIP
        """
        self._call(self._inner.update, agent, **changes)

    def delete(self, agent: str, *, by: str | None = None) -> None:
        """Delete an agent that has ended or was only expected, with its checkpoints and all state in the scope of its
        id. Messages in its mailbox become dead letters.

        A large agent is deleted in bounded transactions. If a crash or a new incarnation interrupts them, the agent
        still exists, with its newest checkpoints, or with none and less state; delete it again.

        >>> bus.agents.delete("planner-1")                                      # doctest: +SKIP
        """
        self._call(self._inner.delete, agent, by=by)

    def clear(self, *, older_than: float = 0, by: str | None = None) -> Sequence[str]:
        """Delete the agents that completed or stopped more than ``older_than`` seconds ago, as ``delete`` does; return
        their ids.

        >>> bus.agents.clear(older_than=3600)                                   # doctest: +SKIP
        """
        return self._call(self._inner.clear, older_than=older_than, by=by)
