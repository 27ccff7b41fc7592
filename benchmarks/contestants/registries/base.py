"""The population of agents and sessions, and the interface of a registry."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

TEAM = 10
"""The number of agents in each session."""
START = 1_700_000_000_000
LIVE = frozenset({"pending", "spawning", "running", "suspect"})
TYPES = ("planner", "executor", "reviewer", "tester", "worker")


@dataclass(frozen=True)
class Population:
    """Agents in sessions of ten. One session in ``one_in`` is open; every other open one is interrupted."""

    agents: int
    one_in: int = 10

    @property
    def sessions(self) -> int:
        return self.agents // TEAM

    def session_status(self, session: int) -> str:
        if session % self.one_in:
            return "completed"
        return "interrupted" if session // self.one_in % 2 == 0 else "active"

    def agent_status(self, session: int, position: int) -> str:
        status = self.session_status(session)
        if status == "completed" or position < 3:
            return "completed"
        return "failed" if status == "interrupted" else "running"

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield the record of each agent."""
        for session in range(self.sessions):
            for position in range(TEAM):
                status = self.agent_status(session, position)
                created = START + session * 1000 + position
                yield {
                    "id": f"agent-{session}-{position}", "name": f"agent-{session}-{position}", "kind": "resident",
                    "type": TYPES[position % 5], "session": f"session-{session}", "milestone": "ms-123", "parent": None,
                    "capabilities": ["python", "sql"], "model": "large", "prompt": "Do what the plan says. " * 8,
                    "load": 40, "estimate": 3600, "metadata": {"branch": "main", "files": 12}, "status": status,
                    "progress": 100 if status == "completed" else 40, "note": "writing tests", "process": 1, "epoch": 1,
                    "patience": None, "last_call": 1000, "busy_until": None, "created": created, "started": created,
                    "updated": created + 500, "ended": None if status in LIVE else created + 500, "error": None,
                }  # fmt: skip

    def interrupted(self) -> int:
        return sum(self.session_status(session) == "interrupted" for session in range(self.sessions))

    def running_executors(self) -> int:
        running = sum(
            self.agent_status(session, position) == "running" and TYPES[position % 5] == "executor"
            for session in range(self.sessions)
            for position in range(TEAM)
        )
        return min(running, 100)

    def incomplete(self) -> int:
        return self.agents - sum(
            self.agent_status(session, position) == "completed"
            for session in range(self.sessions)
            for position in range(TEAM)
        )


class Registry(Protocol):
    """Answer the questions; an answer is reduced to numbers that verify it."""

    async def lookup(self, agent: str) -> str:
        """Return the status of one agent."""
        ...

    async def check(self) -> bool:
        """Return whether the reader has a message; it has none, every other agent has one."""
        ...

    async def query(self) -> int:
        """Return the number of running executors, read with their records; at most a hundred."""
        ...

    async def summary(self) -> tuple[int, int]:
        """Return the numbers of incomplete agents and of interrupted sessions.

        The summary also counts agents by status, type and session, and has the oldest incomplete agent and the size.
        """
        ...

    async def interrupted(self) -> int:
        """Return the number of interrupted sessions, read with their records."""
        ...


class Contestant(Protocol):
    @property
    def key(self) -> str: ...

    @property
    def title(self) -> str: ...

    @property
    def durability(self) -> str: ...

    @property
    def folder(self) -> str:
        """The name of its directory; contestants that read the same files share one."""
        ...

    def open(self, directory: Path, population: Population) -> AbstractAsyncContextManager[Registry]:
        """Open a registry of the population in ``directory``, filled if it is missing."""
        ...
