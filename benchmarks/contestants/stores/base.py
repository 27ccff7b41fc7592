"""What every store offers: JSON under a key, read, set, and set only if its version is still the known one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol

from benchmarks.contestants.about import About


class Conflict(Exception):
    """The version was not the known one."""


class Store(Protocol):
    """A store in use by one task, or by many."""

    async def fill(self, keys: Sequence[str], value: Any) -> None:
        """Make entries of version 1, as fast as it can; not measured."""
        ...

    async def get(self, key: str) -> Any: ...

    async def set(self, key: str, value: Any) -> None: ...

    async def compare_and_set(self, key: str, value: Any, version: int) -> int:
        """The new version, or a Conflict."""
        ...


class Contestant(About, Protocol):
    def missing(self) -> str | None:
        """Why it cannot be measured here."""
        ...

    def open(self, directory: Path, tasks: int) -> AbstractAsyncContextManager[Store]:
        """A fresh store in ``directory``, to be used by so many tasks."""
        ...
