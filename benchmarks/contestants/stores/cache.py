"""diskcache (the ``bench`` extra): called directly by one task, in threads by several."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import anyio.to_thread

from benchmarks.contestants.about import missing_packages, package
from benchmarks.contestants.stores.base import Conflict

T = TypeVar("T")


class CacheStore:
    """A cache of (version, value) pairs, pickled by diskcache."""

    def __init__(self, cache: Any, threads: bool) -> None:
        self._cache = cache
        self._threads = threads

    async def fill(self, keys: Sequence[str], value: Any) -> None:
        with self._cache.transact():
            for key in keys:
                self._cache.set(key, (1, value))

    async def get(self, key: str) -> Any:
        return (await self._call(self._cache.get, key))[1]

    async def set(self, key: str, value: Any) -> None:
        await self._call(self._cache.set, key, (1, value))

    async def compare_and_set(self, key: str, value: Any, version: int) -> int:
        return await self._call(self._compare_and_set, key, value, version)

    def _compare_and_set(self, key: str, value: Any, version: int) -> int:
        with self._cache.transact():
            if self._cache.get(key)[0] != version:
                raise Conflict
            self._cache.set(key, (version + 1, value))
        return version + 1

    async def _call(self, function: Callable[..., T], *arguments: Any) -> T:
        return await anyio.to_thread.run_sync(function, *arguments) if self._threads else function(*arguments)


class DiskCache:
    """diskcache with default options."""

    key = "diskcache"
    title = "diskcache"
    durability = "kill -9; nothing is fsynced (synchronous=NORMAL)"

    def missing(self) -> str | None:
        return missing_packages(["diskcache"])

    @asynccontextmanager
    async def open(self, directory: Path, tasks: int) -> AsyncIterator[CacheStore]:
        cache = package("diskcache").Cache(str(directory))
        try:
            yield CacheStore(cache, threads=tasks > 1)
        finally:
            cache.close()


DISKCACHE = DiskCache()
