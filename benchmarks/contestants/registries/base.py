"""The agents and sessions that are asked about, and what everyone answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

TEAM = 10
"""Agents of each session."""
START = 1_700_000_000_000
LIVE = frozenset({"pending", "spawning", "running", "suspect"})
TYPES = ("planner", "executor", "reviewer", "tester", "worker")


@dataclass(frozen=True)
class Population:
    """So many agents, in sessions of ten. One session of so many is open; every other of those was cut off."""

    agents: int
    one_in: int = 10

    @property
    def sessions(self) -> int:
        return self.agents // TEAM

    def session_status(self, session: int) -> str:
        if session % self.one_in:
            return "completed"
        return "interrupted" if session // self.one_in % 2 == 0 else "active"

    def agent_status(self, session: int, place: int) -> str:
        status = self.session_status(session)
        if status == "completed" or place < 3:
            return "completed"
        return "failed" if status == "interrupted" else "running"

    def records(self) -> Iterator[dict[str, Any]]:
        """What a registry knows of each agent."""
        for session in range(self.sessions):
            for place in range(TEAM):
                status = self.agent_status(session, place)
                created = START + session * 1000 + place
                yield {
                    "id": f"agent-{session}-{place}", "name": f"agent-{session}-{place}", "type": TYPES[place % 5],
                    "kind": "resident", "session": f"session-{session}", "milestone": "ms-123", "parent": None,
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
            self.agent_status(session, place) == "running" and TYPES[place % 5] == "executor"
            for session in range(self.sessions)
            for place in range(TEAM)
        )
        return min(running, 100)

    def incomplete(self) -> int:
        return self.agents - sum(
            self.agent_status(session, place) == "completed"
            for session in range(self.sessions)
            for place in range(TEAM)
        )


class Registry(Protocol):
    """Answers the questions; each answer is only numbers that show it was found."""

    async def lookup(self, agent: str) -> str:
        """The status of one agent."""
        ...

    async def check(self) -> bool:
        """Whether there is a message for one who has none, among those for everybody else."""
        ...

    async def query(self) -> int:
        """How many executors are running, each with all that is known of it; a hundred at most."""
        ...

    async def summary(self) -> tuple[int, int]:
        """How many agents are incomplete, counted by status, type and session on the way, and how many sessions are
        interrupted. It also knows the oldest incomplete agent, and how many bytes the store has."""
        ...

    async def interrupted(self) -> int:
        """How many sessions are interrupted, each with what is known of it."""
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
        """Where it is, by the side of the others; some share what is there."""
        ...

    def open(self, directory: Path, population: Population) -> AbstractAsyncContextManager[Registry]:
        """A registry of these agents in ``directory``, which is made if it is not there."""
        ...
