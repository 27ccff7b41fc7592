"""One JSON file per message: written to a temporary file, fsynced, renamed, and the directory fsynced; or unsynced.

A claim is a rename into the directory of the reader, an acknowledgement an unlink; neither is fsynced. Each mailbox has
its own directory. A single task calls it directly on the thread of the loop; several tasks call it in threads, so that
their fsyncs overlap.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread

from benchmarks.contestants.queues.base import EVERYTHING, POLL

A = TypeVar("A")
T = TypeVar("T")
Claimed = tuple[str, Any]
PRIORITY = 5


class Folder:
    """A mailbox as directories: ``temporary`` while being written, ``new`` to be claimed, ``taken`` once claimed."""

    def __init__(self, directory: Path, durable: bool) -> None:
        self._durable = durable
        self._temporary, self._new, self._taken = (str(directory / name) for name in ("temporary", "new", "taken"))
        for path in (self._temporary, self._new, self._taken):
            Path(path).mkdir(parents=True, exist_ok=True)
        self._directory = os.open(self._new, os.O_RDONLY | os.O_DIRECTORY)
        self._number = count()

    def close(self) -> None:
        os.close(self._directory)

    def send_many(self, payloads: Sequence[Any]) -> None:
        written: list[str] = []
        for payload in payloads:
            # Sorted by name: most urgent first, then oldest.
            name = f"{9 - PRIORITY}-{time.time_ns():020d}-{next(self._number):010d}.json"
            file = os.open(f"{self._temporary}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                os.write(file, json.dumps(payload, separators=(",", ":")).encode())
                if self._durable:
                    os.fsync(file)
            finally:
                os.close(file)
            written.append(name)
        for name in written:
            os.rename(f"{self._temporary}/{name}", f"{self._new}/{name}")
        if self._durable:
            os.fsync(self._directory)

    def receive_many(self, limit: int) -> list[Claimed]:
        claimed: list[Claimed] = []
        for name in sorted(os.listdir(self._new))[:limit]:
            taken = f"{self._taken}/{name}"
            try:
                os.rename(f"{self._new}/{name}", taken)
            except FileNotFoundError:
                continue  # claimed by another reader
            with open(taken, "rb") as file:
                claimed.append((taken, json.loads(file.read())))
        return claimed

    def ack(self, messages: Sequence[Claimed]) -> None:
        for path, _ in messages:
            os.unlink(path)


class FolderBox:
    """A folder, called in threads or directly."""

    def __init__(self, folder: Folder, threads: bool) -> None:
        self._folder = folder
        self._threads = threads

    async def send(self, payload: Any) -> None:
        await self._call(self._folder.send_many, (payload,))

    async def receive(self) -> Claimed:
        return (await self.receive_many(1, ()))[0]

    async def ack(self, message: Claimed) -> None:
        await self._call(self._folder.ack, (message,))

    async def ack_many(self, messages: Sequence[Claimed]) -> None:
        await self._call(self._folder.ack, messages)

    async def send_many(self, payloads: Sequence[Any]) -> None:
        await self._call(self._folder.send_many, payloads)

    async def receive_many(self, limit: int, done: Sequence[Claimed]) -> list[Claimed]:
        await self._call(self._folder.ack, done)
        while not (found := await self._call(self._folder.receive_many, limit)):
            await anyio.sleep(POLL)
        return found

    def payload(self, message: Claimed) -> Any:
        return message[1]

    async def _call(self, function: Callable[[A], T], argument: A) -> T:
        return await anyio.to_thread.run_sync(function, argument) if self._threads else function(argument)


@dataclass(frozen=True)
class JSONFiles:
    """A directory of JSON files."""

    key: str
    title: str
    durability: str
    durable: bool
    workloads: frozenset[str] = EVERYTHING

    def missing(self) -> str | None:
        return None

    @asynccontextmanager
    async def open(self, directory: Path, boxes: int) -> AsyncIterator[list[FolderBox]]:
        folders = [Folder(directory / f"box-{number}", self.durable) for number in range(boxes)]
        try:
            yield [FolderBox(folder, threads=boxes > 1) for folder in folders]
        finally:
            for folder in folders:
                folder.close()

    @asynccontextmanager
    async def sender(self, directory: Path) -> AsyncIterator[FolderBox]:
        async with self.open(directory, 1) as (box,):
            yield box


FILES = JSONFiles("files", "JSON files, fsynced", "disk: file and directory are fsynced on sending", durable=True)
UNSYNCED_FILES = JSONFiles("files-hasty", "JSON files", "kill -9; nothing is fsynced", durable=False)
