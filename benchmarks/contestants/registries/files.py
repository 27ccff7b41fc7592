"""One JSON file for each agent, as in hand-made coordination: a query reads and parses all of them.

Or a lookup opens the file by its name, and each agent has its own directory of messages.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.contestants.registries.base import LIVE, Population

Parse = Callable[[bytes], Any]
READER = "reader"
"""An agent without messages."""


class FileRegistry:
    """Agents in one directory, the messages for all of them in another."""

    def __init__(self, directory: Path, parse: Parse) -> None:
        self._directory = directory / "agents"
        self._messages = directory / "messages"
        self._parse = parse
        self.bytes = 0

    async def lookup(self, agent: str) -> str:
        return next(str(record["status"]) for record in self._records() if record["id"] == agent)

    async def check(self) -> bool:
        return any(message["to"] == READER for message in self._all(self._messages))

    async def query(self) -> int:
        found = [record for record in self._records() if record["status"] == "running" and record["type"] == "executor"]
        return min(len(found), 100)

    def _records(self) -> Iterator[dict[str, Any]]:
        return self._all(self._directory)

    def _all(self, directory: Path) -> Iterator[dict[str, Any]]:
        with os.scandir(directory) as entries:
            for entry in entries:
                with open(entry.path, "rb") as file:
                    data = file.read()
                self.bytes += len(data)
                yield self._parse(data)

    async def summary(self) -> tuple[int, int]:
        by_status, by_type, by_session = Counter[str](), Counter[str](), Counter[str]()
        oldest = None
        failed, live = set[str](), set[str]()
        for record in self._records():
            status = record["status"]
            if status in LIVE or status in {"failed", "stopped"}:
                by_status[status] += 1
                by_type[record["type"]] += 1
                by_session[record["session"]] += 1
                oldest = record["created"] if oldest is None else min(oldest, record["created"])
                (failed if status == "failed" else live).add(record["session"])
        return by_status.total(), len(failed - live)

    async def interrupted(self) -> int:
        """Count sessions without a live agent and with a failed one: there is no file of a session."""
        failed, live = set[str](), set[str]()
        for record in self._records():
            if record["status"] == "failed":
                failed.add(record["session"])
            elif record["status"] in LIVE:
                live.add(record["session"])
        return len(failed - live)


class NamedFiles(FileRegistry):
    """Open an agent by its file name; messages are in a directory for each agent."""

    async def lookup(self, agent: str) -> str:
        return str(self._parse((self._directory / f"{agent}.json").read_bytes())["status"])

    async def check(self) -> bool:
        return bool(os.listdir(self._messages / READER))


@dataclass(frozen=True)
class FileContestant:
    key: str
    title: str
    parse: Parse
    registry: type[FileRegistry] = FileRegistry
    folder: str = "files"
    mail: bool = False
    """Store a message for each agent."""
    durability: str = "nothing is written here"

    @asynccontextmanager
    async def open(self, directory: Path, population: Population) -> AsyncIterator[FileRegistry]:
        if not directory.exists():
            self._fill(directory, population)
        yield self.registry(directory, self.parse)

    def _fill(self, directory: Path, population: Population) -> None:
        """Write the files, which are only read afterwards and can be shared by contestants."""
        agents, messages = directory / "agents", directory / "messages"
        agents.mkdir(parents=True)
        for record in population.records():
            (agents / f"{record['id']}.json").write_text(json.dumps(record, indent=2))
            if self.mail:
                box = messages / record["id"] if self.registry is NamedFiles else messages
                box.mkdir(parents=True, exist_ok=True)
                text = json.dumps({"to": record["id"], "from": "planner", "type": "note", "payload": {"n": 1}})
                (box / f"{record['id']}.json").write_text(text)
        if self.registry is NamedFiles:
            (messages / READER).mkdir(parents=True)


FILES = FileContestant("files", "a JSON file for each agent", json.loads)
FAST_FILES = FileContestant("fast-files", "the same, parsed by msgspec", msgspec.json.decode)
MAIL_FILES, FAST_MAIL_FILES = (replace(contestant, mail=True) for contestant in (FILES, FAST_FILES))
NAMED_FILES = FileContestant(
    "named-files", "the right JSON file by its name", msgspec.json.decode, NamedFiles, "named-files", mail=True
)
