"""The registry of agentbus, filled by plain SQL: registration is not measured."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path

import agentbus
from benchmarks.contestants.registries.base import START, Population

_COLUMNS = (
    "id", "name", "type", "kind", "session", "milestone", "capabilities", "model", "prompt", "load", "estimate",
    "metadata", "status", "progress", "note", "epoch", "last_call", "created", "started", "updated", "ended",
)  # fmt: skip


READER = "reader"


class BusRegistry:
    def __init__(self, bus: agentbus.Bus, reader: agentbus.Agent | None) -> None:
        self._bus = bus
        self._reader = reader

    async def lookup(self, agent: str) -> str:
        found = await self._bus.agents.get(agent)
        assert found is not None
        return found.status

    async def check(self) -> bool:
        assert self._reader is not None
        return await self._reader.pending()

    async def query(self) -> int:
        return len((await self._bus.agents.list(status="running", type="executor", limit=100)).items)

    async def summary(self) -> tuple[int, int]:
        found = await self._bus.recovery.summary()
        return found.incomplete, len(found.interrupted)

    async def interrupted(self) -> int:
        return len((await self._bus.sessions.list(status="interrupted", limit=1000)).items)


@dataclass(frozen=True)
class BusContestant:
    key: str = "agentbus"
    title: str = "**agentbus**"
    durability: str = "one file, everything indexed"
    folder: str = "bus"
    reader: bool = False
    """Register a reader, which counts as incomplete."""

    @asynccontextmanager
    async def open(self, directory: Path, population: Population) -> AsyncIterator[BusRegistry]:
        async with agentbus.connect(directory):
            pass
        fill(directory / "bus.db", population)
        async with agentbus.connect(directory) as bus:
            reader = await bus.register(READER, type="worker") if self.reader else None
            yield BusRegistry(bus, reader)


def fill(database: Path, population: Population) -> None:
    with closing(sqlite3.connect(database)) as connection, connection:
        statuses = [population.session_status(session) for session in range(population.sessions)]
        connection.executemany(
            "INSERT INTO sessions (id, operation, milestone, status, progress, created, updated, ended)"
            " VALUES (?, 'execution', 'ms-123', ?, 40, ?, ?, ?)",
            [
                (f"session-{number}", status, START + number * 1000, START + number * 1000 + 500,
                 START + number * 1000 + 500 if status == "completed" else None)
                for number, status in enumerate(statuses)
            ],
        )  # fmt: skip
        # Every session has its events; one in ten of the completed sessions had been interrupted.
        events = [(START + number * 1000, "session_started", f"session-{number}") for number in range(len(statuses))]
        for number, status in enumerate(statuses):
            if status == "interrupted" or number % 10 == 1:
                events.append((START + number * 1000 + 100, "session_interrupted", f"session-{number}"))
            if status == "completed" and number % 10 == 1:
                events.append((START + number * 1000 + 200, "session_continued", f"session-{number}"))
            if status == "completed":
                events.append((START + number * 1000 + 500, "session_completed", f"session-{number}"))
        connection.executemany(
            "INSERT INTO events (at, kind, subject_kind, subject) VALUES (?, ?, 'session', ?)", sorted(events)
        )
        marks = ", ".join("?" * (len(_COLUMNS) + 2))
        for number, record in enumerate(population.records()):
            box = connection.execute(
                "INSERT INTO mailboxes (kind, name, owner, created) VALUES ('agent', ?, ?, 0), ('replies', ?, ?, 0)",
                [record["id"]] * 4,
            )
            replies = box.lastrowid or 0
            values = [
                json.dumps(value) if isinstance(value := record[name], list | dict) else value for name in _COLUMNS
            ]
            connection.execute(
                f"INSERT INTO agents ({', '.join(_COLUMNS)}, mailbox, replies) VALUES ({marks})",
                [*values, replies - 1, replies],
            )
            # A failed agent has a waiting message.
            if record["status"] == "failed":
                connection.execute(
                    "INSERT INTO messages (id, mailbox, sender, type, checksum, priority, status, max_attempts,"
                    " created, payload) VALUES (?, ?, 'a', 'note', 0, 5, 'queued', 5, 0, '1')",
                    (number + 1, replies - 1),
                )


BUS = BusContestant()
READ_BUS = BusContestant(reader=True)
