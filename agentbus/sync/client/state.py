"""State: JSON values under a scope and a key, and channels that processes watch for changes.

Written by ``make sync`` from ``agentbus.api.state``: change that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast, overload

from agentbus.api import state as api
from agentbus.core.validation import PAGE_SIZE
from agentbus.sync.client.base import Wrapper

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentbus.api.state import D, T
    from agentbus.records import Page, StateEntry


class State(Wrapper[api.State], wraps=api.State):
    """The entries of one scope. ``agent.state`` is the agent's own scope, ``bus.state("any-scope")`` any other.

    An agent's own scope is named by its id (``bus.state("planner-1")``). Deleting the agent deletes its entries.

    >>> agent.state.set("scope", {"files": 12}, ttl=3600)                       # doctest: +SKIP
    1
    >>> bus.state("planner-1").get("scope")                                     # doctest: +SKIP
    {'files': 12}
    """

    __slots__ = ()

    @property
    def scope(self) -> str:
        """The name of its scope."""
        return self._inner.scope

    @overload
    def get(self, key: str, default: None = None, *, as_: type[T]) -> T | None: ...

    @overload
    def get(self, key: str, default: D, *, as_: type[T]) -> T | D: ...

    @overload
    def get(self, key: str, default: Any = None, *, as_: Any = None) -> Any: ...

    def get(self, key: str, default: Any = None, *, as_: Any = None) -> Any:
        """Return the value of an entry, or ``default`` if there is none, it has expired or was deleted.

        ``as_`` converts the value to a type (a ``msgspec.Struct``, a dataclass, ``list[int]`` …) and raises
        PayloadMismatch if it does not fit.

        >>> agent.state.get("scope", {})                                        # doctest: +SKIP
        {'files': 12}
        >>> agent.state.get("plan", as_=Plan)                                   # doctest: +SKIP
        Plan(phase='design')
        """
        return self._call(cast(Any, self._inner).get, key, default, as_=as_)

    def entry(self, key: str) -> StateEntry | None:
        """Return an entry with its version, type, author and times, or None.

        >>> agent.state.entry("scope").version                                # doctest: +SKIP
        3
        """
        return self._call(self._inner.entry, key)

    def set(
        self, key: str, value: Any, *, ttl: float | None = None, type: str = "user_data", if_version: int | None = None
    ) -> int:
        """Set an entry, for ``ttl`` seconds or permanently, and return its new version.

        ``if_version`` is the version that the entry must have (0: it must not exist); otherwise VersionConflict is
        raised. ``type`` is checkpoint, progress, user_data, system_data or temp_data.

        >>> agent.state.set("leader", agent.id, ttl=30, if_version=0)           # doctest: +SKIP
        1
        """
        return self._call(self._inner.set, key, value, ttl=ttl, type=type, if_version=if_version)

    def delete(self, key: str, *, if_version: int | None = None) -> bool:
        """Delete an entry, with ``if_version`` only that version, and return True if it existed.

        >>> agent.state.delete("leader")                                        # doctest: +SKIP
        True
        """
        return self._call(self._inner.delete, key, if_version=if_version)

    def increment(self, key: str, by: float = 1, *, ttl: float | None = None) -> int | float:
        """Add a number to an entry and return the sum. A missing entry counts as 0.

        The expiry stays as it is unless a ``ttl`` is given.

        >>> bus.state("counters").increment("builds")                           # doctest: +SKIP
        17
        """
        return self._call(self._inner.increment, key, by, ttl=ttl)

    def list(self, prefix: str = "", *, cursor: str | None = None, limit: int = PAGE_SIZE) -> Page[StateEntry]:
        """Return the entries whose keys start with ``prefix``, ordered by key.

        >>> page = agent.state.list("phase/", limit=50)                         # doctest: +SKIP
        >>> rest = agent.state.list("phase/", limit=50, cursor=page.cursor)     # doctest: +SKIP
        """
        return self._call(self._inner.list, prefix, cursor=cursor, limit=limit)

    def watch(self, prefix: str = "", *, after: int | None = None) -> Iterator[StateEntry]:
        """Yield the present entries, then every change by any process, indefinitely.

        Each entry is yielded as it is now: several changes since the last read yield it once. Deleted and expired
        entries are yielded as tombstones (``entry.deleted``). ``after``, the ``change`` of an earlier entry, resumes
        after that change. Leaving the loop stops watching.

        >>> for entry in bus.state("planner-1").watch("phase/"):                # doctest: +SKIP
        ...     print(entry.key, "is gone" if entry.deleted else entry.value)
        """
        return self._iterate(self._inner.watch, prefix, after=after)
