"""State: JSON values under a scope and a key, and channels that processes watch for changes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar, overload

from agentbus.core.codec import decode, decode_as, encode
from agentbus.core.validation import (
    MAX_PAGE,
    PAGE_SIZE,
    STATE_TYPES,
    check_choice,
    check_key,
    check_prefix,
    check_range,
    check_seconds,
)
from agentbus.engine.interface import Engine
from agentbus.errors import AgentBusError, OutOfRange
from agentbus.operations.processes import ListenRequest, listen
from agentbus.operations.protocol import Actor, Part
from agentbus.operations.state import (
    Changed,
    ChangeRequest,
    ExpireRequest,
    StateQuery,
    change_state,
    expire,
    get_entry,
    get_value,
    last_change,
    list_changes,
    list_entries,
    next_expiry,
    state_channel,
)

if TYPE_CHECKING:
    from agentbus.api.agent import Agent
    from agentbus.api.bus import Bus
    from agentbus.engine.waiters import Waiter
    from agentbus.records import Page, StateEntry

D = TypeVar("D")
T = TypeVar("T")

_MAX_INTEGER = 2**63 - 1
_CHANGES_PER_READ = 100


class State:
    """The entries of one scope. ``agent.state`` is the agent's own scope, ``bus.state("any-scope")`` any other.

    An agent's own scope is named by its id (``bus.state("planner-1")``). Deleting the agent deletes its entries.

    >>> await agent.state.set("scope", {"files": 12}, ttl=3600)                       # doctest: +SKIP
    1
    >>> await bus.state("planner-1").get("scope")                                     # doctest: +SKIP
    {'files': 12}
    """

    scope: str
    """The name of its scope."""

    def __init__(self, bus: Bus, scope: str, agent: Agent | None = None) -> None:
        self.scope = scope
        self._bus = bus
        self._engine = bus._engine
        self._agent = agent
        self._builder = StateChangeBuilder(scope, bus._max_payload, None) if agent is None else agent._composer(scope)

    def __repr__(self) -> str:
        return f"<State of {self.scope}>"

    @overload
    async def get(self, key: str, default: None = None, *, as_: type[T]) -> T | None: ...

    @overload
    async def get(self, key: str, default: D, *, as_: type[T]) -> T | D: ...

    @overload
    async def get(self, key: str, default: Any = None, *, as_: Any = None) -> Any: ...

    async def get(self, key: str, default: Any = None, *, as_: Any = None) -> Any:
        """Return the value of an entry, or ``default`` if there is none, it has expired or was deleted.

        ``as_`` converts the value to a type (a ``msgspec.Struct``, a dataclass, ``list[int]`` …) and raises
        PayloadMismatch if it does not fit.

        >>> await agent.state.get("scope", {})                                        # doctest: +SKIP
        {'files': 12}
        >>> await agent.state.get("plan", as_=Plan)                                   # doctest: +SKIP
        Plan(phase='design')
        """
        text = await self._engine.read_inline(get_value, (self.scope, check_key(key)))
        if text is None:
            return default
        return decode(text) if as_ is None else decode_as(text, as_, f"state {key!r} of {self.scope}")

    async def entry(self, key: str) -> StateEntry | None:
        """Return an entry with its version, type, author and times, or None.

        >>> (await agent.state.entry("scope")).version                                # doctest: +SKIP
        3
        """
        return await self._engine.read_inline(get_entry, (self.scope, check_key(key)))

    async def set(
        self,
        key: str,
        value: Any,
        *,
        ttl: float | None = None,
        type: str = "user_data",
        if_version: int | None = None,
    ) -> int:
        """Set an entry, for ``ttl`` seconds or permanently, and return its new version.

        ``if_version`` is the version that the entry must have (0: it must not exist); otherwise VersionConflict is
        raised. ``type`` is checkpoint, progress, user_data, system_data or temp_data.

        >>> await agent.state.set("leader", agent.id, ttl=30, if_version=0)           # doctest: +SKIP
        1
        """
        request = self._builder.set(key, value, ttl, type, if_version)
        return (await self._change(request)).version

    async def delete(self, key: str, *, if_version: int | None = None) -> bool:
        """Delete an entry, with ``if_version`` only that version, and return True if it existed.

        >>> await agent.state.delete("leader")                                        # doctest: +SKIP
        True
        """
        return (await self._change(self._builder.delete(key, if_version))).existed

    async def increment(self, key: str, by: float = 1, *, ttl: float | None = None) -> int | float:
        """Add a number to an entry and return the sum. A missing entry counts as 0.

        The expiry stays as it is unless a ``ttl`` is given.

        >>> await bus.state("counters").increment("builds")                           # doctest: +SKIP
        17
        """
        return (await self._change(self._builder.increment(key, by, ttl))).number

    async def list(self, prefix: str = "", *, cursor: str | None = None, limit: int = PAGE_SIZE) -> Page[StateEntry]:
        """Return the entries whose keys start with ``prefix``, ordered by key.

        >>> page = await agent.state.list("phase/", limit=50)                         # doctest: +SKIP
        >>> rest = await agent.state.list("phase/", limit=50, cursor=page.cursor)     # doctest: +SKIP
        """
        wanted = StateQuery(
            self.scope,
            check_prefix(prefix),
            check_range(limit, "limit", 1, MAX_PAGE),
            None if cursor is None else check_key(cursor, "cursor"),
        )
        return await self._engine.read(list_entries, wanted)

    def watch(self, prefix: str = "", *, after: int | None = None) -> AsyncGenerator[StateEntry, None]:
        """Yield the present entries, then every change by any process, indefinitely.

        Each entry is yielded as it is now: several changes since the last read yield it once. Deleted and expired
        entries are yielded as tombstones (``entry.deleted``). ``after``, the ``change`` of an earlier entry, resumes
        after that change. Leaving the loop stops watching.

        >>> async for entry in bus.state("planner-1").watch("phase/"):                # doctest: +SKIP
        ...     print(entry.key, "is gone" if entry.deleted else entry.value)
        """
        check_prefix(prefix)
        return self._watch(prefix, None if after is None else check_range(after, "after", 0, _MAX_INTEGER))

    def _change(self, request: ChangeRequest) -> Awaitable[Changed]:
        if self._agent is not None:
            self._agent._active = True
        return self._engine.write(change_state, request)

    async def _watch(self, prefix: str, after: int | None) -> AsyncGenerator[StateEntry, None]:
        engine = self._engine
        # Subscribe before reading, so that no change falls in between.
        async with self._bus._listening.to(state_channel(self.scope)) as waiter:
            await self._expire()
            last = await engine.read_inline(last_change, None)
            if after is not None and after > last:
                raise OutOfRange(what="after", value=after, allowed=f"a change of this bus, at most {last}")
            # A new watcher never saw the entries that were deleted before.
            hidden = last if after is None else 0
            seen = after or 0
            while True:
                expiry = await self._expire()
                changes = await engine.read(
                    list_changes, StateQuery(self.scope, prefix, _CHANGES_PER_READ, change=seen)
                )
                for entry in changes:
                    seen = entry.change
                    # An entry that has expired since it was read is yielded as a tombstone later.
                    expired = entry.expires is not None and entry.expires <= engine.clock.now().wall
                    if entry.change > hidden if entry.deleted else not expired:
                        yield entry
                if len(changes) < _CHANGES_PER_READ:
                    left = None if expiry is None else expiry - engine.clock.now().wall
                    await waiter.wait(None if left is None else max(0.001, left / 1000))

    async def _expire(self) -> int | None:
        """Turn expired entries into tombstones, and return when the next entry of this scope expires."""
        while True:
            expiry = await self._engine.read_inline(next_expiry, self.scope)
            if expiry is None or expiry > self._engine.clock.now().wall:
                return expiry
            await self._engine.write(expire, ExpireRequest())


class UnitState:
    """State as part of a unit: its calls are not awaited and commit with the unit.

    >>> async with message as unit:                                                   # doctest: +SKIP
    ...     unit.state.set("last", result)
    """

    def __init__(self, builder: StateChangeBuilder, add: Callable[[Part], None]) -> None:
        self._builder = builder
        self._add = add

    def set(
        self,
        key: str,
        value: Any,
        *,
        ttl: float | None = None,
        type: str = "user_data",
        if_version: int | None = None,
    ) -> None:
        """Set an entry. The options are those of ``State.set``.

        >>> unit.state.set("last", {"phase": "design"}, if_version=3)                 # doctest: +SKIP
        """
        self._add(Part(change_state, self._builder.set(key, value, ttl, type, if_version)))

    def delete(self, key: str, *, if_version: int | None = None) -> None:
        """Delete an entry.

        >>> unit.state.delete("draft")                                                # doctest: +SKIP
        """
        self._add(Part(change_state, self._builder.delete(key, if_version)))

    def increment(self, key: str, by: float = 1, *, ttl: float | None = None) -> None:
        """Add a number to an entry.

        >>> unit.state.increment("handled")                                           # doctest: +SKIP
        """
        self._add(Part(change_state, self._builder.increment(key, by, ttl)))


class StateChangeBuilder:
    """Builds checked change requests for one scope and one actor, or none."""

    def __init__(self, scope: str, limit: int, actor: Actor | None) -> None:
        self._scope = scope
        self._limit = limit
        self._actor = actor

    def set(self, key: str, value: Any, ttl: float | None, type: str, if_version: int | None) -> ChangeRequest:
        return ChangeRequest(
            self._scope,
            check_key(key),
            encode(value, self._limit),
            None,
            check_choice(type, "state type", STATE_TYPES),
            None if ttl is None else check_seconds(ttl, "ttl"),
            _version(if_version),
            self._actor,
        )

    def delete(self, key: str, if_version: int | None) -> ChangeRequest:
        return ChangeRequest(self._scope, check_key(key), if_version=_version(if_version), actor=self._actor)

    def increment(self, key: str, by: float, ttl: float | None) -> ChangeRequest:
        number = isinstance(by, int | float) and not isinstance(by, bool)
        if not number or not (-(2**63) <= by <= _MAX_INTEGER if isinstance(by, int) else math.isfinite(by)):
            raise OutOfRange(what="by", value=by, allowed="a finite number of at most 64 bits")
        expiry = None if ttl is None else check_seconds(ttl, "ttl")
        return ChangeRequest(self._scope, check_key(key), amount=by, ttl=expiry, actor=self._actor)


def _version(if_version: int | None) -> int | None:
    return None if if_version is None else check_range(if_version, "if_version", 0, _MAX_INTEGER)


class Listening:
    """The channels that this process watches. The store records the first watcher of a channel and the departure of the
    last, so that other processes know whom to notify."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._watchers: Counter[str] = Counter()
        self._announced: set[str] = set()
        """Channels that the store has on record for this process."""

    @asynccontextmanager
    async def to(self, channel: str) -> AsyncIterator[Waiter]:
        """Watch a channel for the length of a block. Read after entering it: every later change notifies the waiter."""
        waiter = self._engine.waiters.watch((channel,))
        self._watchers[channel] += 1
        try:
            if channel not in self._announced:
                # Concurrent watchers each write: a cancelled one withdraws only its own request.
                await self._engine.write(listen, ListenRequest(self._engine.process, channel, True))
                self._announced.add(channel)
            yield waiter
        finally:
            waiter.close()
            self._watchers[channel] -= 1
            if not self._watchers[channel]:
                del self._watchers[channel]
                self._announced.discard(channel)
                from agentbus.core.cancellation import fire_and_forget

                with suppress(AgentBusError):
                    fire_and_forget(self._engine.write(listen, ListenRequest(self._engine.process, channel, False)))
