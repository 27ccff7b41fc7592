"""One JSON file per key: written to a temporary file, fsynced, renamed, and the directory fsynced.

A single task calls it directly on the thread of the loop; several tasks call it in threads, so that their fsyncs
overlap. A compare-and-set holds a lock file of its key.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import anyio.to_thread

from benchmarks.contestants.stores.base import Conflict

P = ParamSpec("P")
T = TypeVar("T")


class Folder:
    """A directory of entries; each file holds a version and a value."""

    def __init__(self, directory: Path) -> None:
        self._path = str(directory)
        self._directory = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
        self._number = count()

    def close(self) -> None:
        os.close(self._directory)

    def get(self, key: str) -> Any:
        return self._read(key)["value"]

    def set(self, key: str, value: Any, version: int | None = None, *, durable: bool = True) -> int:
        """Write an entry; with ``version``, compare it first and increment it."""
        if version is None:
            self._write(key, {"version": 1, "value": value}, durable)
            return 1
        lock = os.open(f"{self._path}/{key}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if self._read(key)["version"] != version:
                raise Conflict
            self._write(key, {"version": version + 1, "value": value}, durable)
        finally:
            os.close(lock)
        return version + 1

    def _read(self, key: str) -> Any:
        with open(f"{self._path}/{key}.json", "rb") as file:
            return json.loads(file.read())

    def _write(self, key: str, entry: Any, durable: bool) -> None:
        temporary = f"{self._path}/{key}.{next(self._number)}"
        file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(file, json.dumps(entry, separators=(",", ":")).encode())
            if durable:
                os.fsync(file)
        finally:
            os.close(file)
        os.rename(temporary, f"{self._path}/{key}.json")
        if durable:
            os.fsync(self._directory)


class FolderStore:
    """A folder, called in threads or directly."""

    def __init__(self, folder: Folder, threads: bool) -> None:
        self._folder = folder
        self._threads = threads

    async def fill(self, keys: Sequence[str], value: Any) -> None:
        for key in keys:
            self._folder.set(key, value, durable=False)

    async def get(self, key: str) -> Any:
        return await self._call(self._folder.get, key)

    async def set(self, key: str, value: Any) -> None:
        await self._call(self._folder.set, key, value)

    async def compare_and_set(self, key: str, value: Any, version: int) -> int:
        return await self._call(self._folder.set, key, value, version)

    async def _call(self, function: Callable[..., T], *arguments: Any) -> T:
        return await anyio.to_thread.run_sync(function, *arguments) if self._threads else function(*arguments)


class JSONFiles:
    """A directory of JSON files."""

    key = "files"
    title = "JSON files, fsynced"
    durability = "disk: file and directory are fsynced"

    def missing(self) -> str | None:
        return None

    @asynccontextmanager
    async def open(self, directory: Path, tasks: int) -> AsyncIterator[FolderStore]:
        folder = Folder(directory)
        try:
            yield FolderStore(folder, threads=tasks > 1)
        finally:
            folder.close()


FILES = JSONFiles()
