"""State: JSON under a scope and a key, as people use it. The rules are in ``operations/state.py``."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar, overload

from agentbus.codec import decode, decode_as, encode
from agentbus.errors import OutOfRange
from agentbus.limits import (
    MAX_PAGE,
    STATE_TYPES,
    check_choice,
    check_key,
    check_prefix,
    check_range,
    check_seconds,
)
from agentbus.operations import Actor, Part
from agentbus.operations.state import (
    Changed,
    ChangeRequest,
    ExpireRequest,
    Wanted,
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
    from agentbus.bus import Bus
    from agentbus.handle import Handle
    from agentbus.records import Page, StateEntry

D = TypeVar("D")
T = TypeVar("T")

_HIGHEST = 2**63 - 1
_CHANGES = 100
"""Changes that a watcher fetches at once."""


class State:
    """The entries of one scope. ``agent.state`` is an agent's own, ``bus.state("any-scope")`` anybody's.

    An agent's own is the scope of its id, also by ``bus.state("planner-1")``; deleting the agent deletes all of it.

    >>> await agent.state.set("scope", {"files": 12}, ttl=3600)                       # doctest: +SKIP
    1
    >>> await bus.state("planner-1").get("scope")                                     # doctest: +SKIP
    {'files': 12}
    """

    def __init__(self, bus: Bus, scope: str, agent: Handle | None = None) -> None:
        self.scope = scope
        self._bus = bus
        self._engine = bus.engine
        self._agent = agent
        self._compose = Composer(scope, bus.max_payload, None) if agent is None else agent.composer(scope)

    def __repr__(self) -> str:
        return f"<State of {self.scope}>"

    @overload
    async def get(self, key: str, default: None = None, *, as_: type[T]) -> T | None: ...

    @overload
    async def get(self, key: str, default: D, *, as_: type[T]) -> T | D: ...

    @overload
    async def get(self, key: str, default: Any = None, *, as_: Any = None) -> Any: ...

    async def get(self, key: str, default: Any = None, *, as_: Any = None) -> Any:
        """The value of an entry; ``default`` if it is not there, has expired or was deleted.

        With ``as_`` it is made a type of yours (a ``msgspec.Struct``, a dataclass, ``list[int]`` …); what does not fit
        is a PayloadMismatch.

        >>> await agent.state.get("scope", {})                                        # doctest: +SKIP
        {'files': 12}
        >>> await agent.state.get("plan", as_=Plan)                                   # doctest: +SKIP
        Plan(phase='design')
        """
        text = await self._engine.look(get_value, (self.scope, check_key(key)))
        if text is None:
            return default
        return decode(text) if as_ is None else decode_as(text, as_, f"state {key!r} of {self.scope}")

    async def entry(self, key: str) -> StateEntry | None:
        """An entry with its version, type, author and times; None if it is not there.

        >>> (await agent.state.entry("scope")).version                                # doctest: +SKIP
        3
        """
        return await self._engine.look(get_entry, (self.scope, check_key(key)))

    async def set(
        self,
        key: str,
        value: Any,
        *,
        ttl: float | None = None,
        type: str = "user_data",
        if_version: int | None = None,
    ) -> int:
        """Set an entry, for ``ttl`` seconds or for good; says its new version.

        With ``if_version`` only if that is the version it has now (0: only if it is not there); else VersionConflict.
        ``type`` is checkpoint, progress, user_data, system_data or temp_data.

        >>> await agent.state.set("leader", agent.id, ttl=30, if_version=0)           # doctest: +SKIP
        1
        """
        request = self._compose.set(key, value, ttl, type, if_version)
        return (await self._change(request)).version

    async def delete(self, key: str, *, if_version: int | None = None) -> bool:
        """Delete an entry, with ``if_version`` only that version of it; says whether it was there.

        >>> await agent.state.delete("leader")                                        # doctest: +SKIP
        True
        """
        return (await self._change(self._compose.delete(key, if_version))).existed

    async def increment(self, key: str, by: float = 1, *, ttl: float | None = None) -> int | float:
        """Add a number to an entry; says what it is now. One that is not there counts as 0.

        It expires when it would have, unless a ``ttl`` is given.

        >>> await bus.state("counters").increment("builds")                           # doctest: +SKIP
        17
        """
        return (await self._change(self._compose.increment(key, by, ttl))).number

    async def list(self, prefix: str = "", *, cursor: str | None = None, limit: int = 100) -> Page[StateEntry]:
        """The entries whose keys begin with ``prefix``, in the order of their keys.

        >>> page = await agent.state.list("phase/", limit=50)                         # doctest: +SKIP
        >>> rest = await agent.state.list("phase/", limit=50, cursor=page.cursor)     # doctest: +SKIP
        """
        wanted = Wanted(
            self.scope,
            check_prefix(prefix),
            check_range(limit, "limit", 1, MAX_PAGE),
            None if cursor is None else check_key(cursor, "cursor"),
        )
        return await self._engine.read(list_entries, wanted)

    def watch(self, prefix: str = "", *, after: int | None = None) -> AsyncGenerator[StateEntry, None]:
        """What is there, then every change as it comes, of this process and of others, for ever.

        Each entry as it is now: what changed several times since the last look comes once. Deleted and expired ones
        come as tombstones (``entry.deleted``). With ``after``, the ``change`` of an entry seen before, it goes on from
        there. Leaving the loop stops the watching.

        >>> async for entry in bus.state("planner-1").watch("phase/"):                # doctest: +SKIP
        ...     print(entry.key, "is gone" if entry.deleted else entry.value)
        """
        check_prefix(prefix)
        return self._watch(prefix, None if after is None else check_range(after, "after", 0, _HIGHEST))

    def _change(self, request: ChangeRequest) -> Awaitable[Changed]:
        if self._agent is not None:
            self._agent.active = True
        return self._engine.write(change_state, request)

    async def _watch(self, prefix: str, after: int | None) -> AsyncGenerator[StateEntry, None]:
        engine = self._engine
        # Listen first, then look: what comes in between rings.
        async with self._bus.listening.to(state_channel(self.scope)) as ear:
            await self._bury_expired()
            last = await engine.look(last_change, None)
            if after is not None and after > last:
                raise OutOfRange(what="after", value=after, allowed=f"a change of this bus, which has had {last}")
            # Who begins has not seen what was deleted before.
            silent = last if after is None else 0
            seen = after or 0
            while True:
                expiry = await self._bury_expired()
                changes = await engine.read(list_changes, Wanted(self.scope, prefix, _CHANGES, change=seen))
                for entry in changes:
                    seen = entry.change
                    # What expired since it was read, or while the caller was busy, comes as a tombstone later.
                    expired = entry.expires is not None and entry.expires <= engine.clock.now().wall
                    if entry.change > silent if entry.deleted else not expired:
                        yield entry
                if len(changes) < _CHANGES:
                    left = None if expiry is None else expiry - engine.clock.now().wall
                    await ear.wait(None if left is None else max(0.001, left / 1000))

    async def _bury_expired(self) -> int | None:
        """Make tombstones of what has expired in this scope; when the next entry will."""
        while True:
            expiry = await self._engine.look(next_expiry, self.scope)
            if expiry is None or expiry > self._engine.clock.now().wall:
                return expiry
            await self._engine.write(expire, ExpireRequest())


class UnitState:
    """State as part of a unit: its calls are not awaited, and commit with the rest.

    >>> async with message as unit:                                                   # doctest: +SKIP
    ...     unit.state.set("last", result)
    """

    def __init__(self, compose: Composer, add: Callable[[Part], None]) -> None:
        self._compose = compose
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
        """Set an entry; the options are those of ``State.set``.

        >>> unit.state.set("last", {"phase": "design"}, if_version=3)                 # doctest: +SKIP
        """
        self._add(Part(change_state, self._compose.set(key, value, ttl, type, if_version)))

    def delete(self, key: str, *, if_version: int | None = None) -> None:
        """Delete an entry.

        >>> unit.state.delete("draft")                                                # doctest: +SKIP
        """
        self._add(Part(change_state, self._compose.delete(key, if_version)))

    def increment(self, key: str, by: float = 1, *, ttl: float | None = None) -> None:
        """Add a number to an entry.

        >>> unit.state.increment("handled")                                           # doctest: +SKIP
        """
        self._add(Part(change_state, self._compose.increment(key, by, ttl)))


class Composer:
    """Makes requests of what people ask for, checked; all of one scope, by one actor or none."""

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
        if not number or not (-(2**63) <= by <= _HIGHEST if isinstance(by, int) else math.isfinite(by)):
            raise OutOfRange(what="by", value=by, allowed="a finite number of at most 64 bits")
        expiry = None if ttl is None else check_seconds(ttl, "ttl")
        return ChangeRequest(self._scope, check_key(key), amount=by, ttl=expiry, actor=self._actor)


def _version(if_version: int | None) -> int | None:
    return None if if_version is None else check_range(if_version, "if_version", 0, _HIGHEST)
