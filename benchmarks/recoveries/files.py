"""One JSON file for each agent, as hand-made coordination has it: whoever asks reads and parses them all."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.recoveries.base import LIVE, Population

Parse = Callable[[bytes], Any]


class FileRegistry:
    def __init__(self, directory: Path, parse: Parse) -> None:
        self._directory = directory
        self._parse = parse
        self.bytes = 0

    def _records(self) -> Iterator[dict[str, Any]]:
        with os.scandir(self._directory) as entries:
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
        """Without a file of its own, a session is what its agents are: none is live, and one failed."""
        failed, live = set[str](), set[str]()
        for record in self._records():
            if record["status"] == "failed":
                failed.add(record["session"])
            elif record["status"] in LIVE:
                live.add(record["session"])
        return len(failed - live)


@dataclass(frozen=True)
class FileContestant:
    key: str
    title: str
    parse: Parse
    durability: str = "nothing is written here"

    @asynccontextmanager
    async def open(self, directory: Path, population: Population) -> AsyncIterator[FileRegistry]:
        place = directory / "agents"
        place.mkdir()
        for record in population.records():
            (place / f"{record['id']}.json").write_text(json.dumps(record, indent=2))
        yield FileRegistry(place, self.parse)


FILES = FileContestant("files", "a JSON file for each agent", json.loads)
FAST_FILES = FileContestant("fast-files", "the same, parsed by msgspec", msgspec.json.decode)
