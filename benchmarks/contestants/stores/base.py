"""The interface of a store: get, set and compare-and-set of JSON by key."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol

from benchmarks.contestants.about import About


class Conflict(Exception):
    """The entry has another version than the expected one."""


class Store(Protocol):
    """An open store, used by one or more tasks."""

    async def fill(self, keys: Sequence[str], value: Any) -> None:
        """Create entries of version 1; not measured."""
        ...

    async def get(self, key: str) -> Any: ...

    async def set(self, key: str, value: Any) -> None: ...

    async def compare_and_set(self, key: str, value: Any, version: int) -> int:
        """Return the new version, or raise Conflict."""
        ...


class Contestant(About, Protocol):
    def missing(self) -> str | None:
        """Return why it cannot be measured here, or None."""
        ...

    def open(self, directory: Path, tasks: int) -> AbstractAsyncContextManager[Store]:
        """Open a new store in ``directory`` for ``tasks`` concurrent tasks."""
        ...
