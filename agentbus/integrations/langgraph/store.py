"""The store: the items of a namespace are the items of one history, whose name is the namespace with dots.

The history has the kind ``langgraph-store``; the key of an item is ``k/KEY``. An item with a time to live has a second
one in the part ``expiry``, with the moment at which it expires: refreshing it does not write the value again. The
metadata of a history say whether it can have such items.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from datetime import UTC, datetime
from typing import Any, NamedTuple

from langgraph.store.base import (
    BaseStore,
    GetOp,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
    validate_op_namespace,
)

from agentbus.core.codec import decode, encode
from agentbus.core.validation import MAX_DELETIONS
from agentbus.errors import InvalidInput, OutOfRange, VersionConflict
from agentbus.integrations._histories import list_all
from agentbus.integrations.langgraph.caller import Adapter, AnyBus, Caller
from agentbus.records import History, HistoryItem, HistoryPut, HistoryWrite

KIND = "langgraph-store"
"""The kind of the histories."""
_VALUES, _EXPIRY = "", "expiry"
"""The parts of a history."""
_EXPIRING = {"expiring": True}
"""The metadata of a history that has, or had, items with a time to live."""
_KEY = "k/"
_MINUTE = 60_000
_SWEEP_INTERVAL = 5.0
"""Minutes between two sweeps, unless the configuration has others."""
_REFRESH_AFTER = 0.01
"""The part of its time to live after which reading an item refreshes it: reads of a busy item write now and then."""
_ATTEMPTS = 3


class _Entry(NamedTuple):
    """An item of the store."""

    item: HistoryItem
    expiry: HistoryItem | None

    def is_live(self, now: int) -> bool:
        return self.expiry is None or self.expiry.meta["at"] > now

    def needs_refresh(self, now: int) -> bool:
        """Return True if a read starts its time to live again."""
        if self.expiry is None:
            return False
        whole = self.expiry.meta["ttl"] * _MINUTE
        return bool(self.expiry.meta["at"] - now < whole * (1 - _REFRESH_AFTER))


class AgentBusStore(Adapter, BaseStore):
    """A store of LangGraph, the memory that threads share, on a bus.

    ``bus`` is an open bus, asynchronous or synchronous, or the URL of one to open. ``ttl`` is the ``TTLConfig`` of
    LangGraph. An expired item is never returned. It is removed by the next read that meets it, by a sweep that a
    ``put`` with a time to live makes every ``sweep_interval_minutes``, or by ``sweep_ttl``.

    There is no vector search: a search with a ``query`` is refused, and ``index`` has no effect.

    >>> async with agentbus.connect() as bus:                                         # doctest: +SKIP
    ...     store = AgentBusStore(bus, ttl={"default_ttl": 60})
    ...     await store.aput(("users", "7"), "colour", {"value": "green"})
    ...     await store.asearch(("users",), filter={"value": "green"})
    """

    supports_ttl = True

    def __init__(self, bus: AnyBus, *, ttl: TTLConfig | None = None) -> None:
        self._caller = Caller(bus)
        self._histories = self._caller.bus.histories
        self._clock = self._caller.bus._engine.clock
        self.ttl_config = ttl
        self._swept: int | None = None
        """The time of the last sweep of this process."""

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Run operations, on a thread: the reads first, then the writes in one commit."""
        return self._caller.run(self._batch, [*ops])

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Run operations: the reads first, then the writes in one commit."""
        return await self._caller.wait(self._batch, [*ops])

    def sweep_ttl(self) -> int:
        """Remove all expired items, and return their number."""
        return self._caller.run(self._sweep)

    async def asweep_ttl(self) -> int:
        """Remove all expired items, and return their number."""
        return await self._caller.wait(self._sweep)

    # On the loop of the bus

    def _now(self) -> int:
        return self._clock.now().wall

    async def _batch(self, ops: Sequence[Op]) -> list[Result]:
        for op in ops:
            _check(op)
        results: list[Result] = []
        puts: dict[tuple[str, ...], dict[str, PutOp]] = {}
        for op in ops:
            if isinstance(op, PutOp):
                # The last one of a key counts.
                puts.setdefault(op.namespace, {})[op.key] = op
                results.append(None)
            elif isinstance(op, GetOp):
                results.append(await self._get(op))
            elif isinstance(op, SearchOp):
                results.append(await self._search(op))
            else:
                results.append(await self._list_namespaces(op))
        writes = [self._write(namespace, each.values()) for namespace, each in puts.items()]
        # A history that does not exist is not created to delete something from it.
        await self._histories.write_all(
            [one for one in writes if one.puts or await self._histories.find(KIND, one.name) is not None]
        )
        if any(one.meta for one in writes):
            await self._sweep_if_due()
        return results

    def _write(self, namespace: tuple[str, ...], ops: Iterable[PutOp]) -> HistoryWrite:
        """Return the changes of a namespace."""
        now = self._now()
        items: list[HistoryPut] = []
        delete: list[tuple[str, str]] = []
        expiring = False
        for op in ops:
            key = _KEY + op.key
            if op.value is None:
                delete += [(_VALUES, key), (_EXPIRY, key)]
                continue
            body = encode(dict(op.value), sys.maxsize)[0].encode()
            items.append(HistoryPut(key=key, part=_VALUES, body=body, meta={"updated": now}))
            if op.ttl is None:
                delete.append((_EXPIRY, key))
            else:
                items.append(_expiry(key, op.ttl, now))
                expiring = True
        meta = _EXPIRING if expiring else None
        return HistoryWrite(kind=KIND, name=_name(namespace), puts=items, delete=delete, meta=meta)

    async def _get(self, op: GetOp) -> Item | None:
        name, key = _name(op.namespace), _KEY + op.key
        item = await self._histories.get(KIND, name, key, part=_VALUES)
        if item is None:
            return None
        entry = _Entry(item, await self._histories.get(KIND, name, key, part=_EXPIRY))
        return Item(**_fields(item)) if await self._refresh([entry], op.refresh_ttl) else None

    async def _search(self, op: SearchOp) -> list[SearchItem]:
        entries: list[_Entry] = []
        for history in await self._namespaces(op.namespace_prefix):
            entries += await self._entries(history, bodies=bool(op.filter))
        if op.filter:
            entries = [entry for entry in entries if _fits(_value(entry.item), op.filter)]
        entries.sort(key=lambda entry: (-entry.item.meta["updated"], entry.item.history, entry.item.key))
        items = await self._refresh(entries[op.offset :][: op.limit], op.refresh_ttl)
        if not op.filter:
            read = [await self._histories.get(KIND, item.history, item.key, part=_VALUES) for item in items]
            items = [item for item in read if item is not None]
        return [SearchItem(**_fields(item)) for item in items]

    async def _list_namespaces(self, op: ListNamespacesOp) -> list[tuple[str, ...]]:
        now = self._now()
        found: set[tuple[str, ...]] = set()
        for history in await self._namespaces(()):
            namespace = _namespace(history.name)
            if not all(_is_match(condition, namespace) for condition in op.match_conditions or ()):
                continue
            # An expired item is two: its value and its expiry.
            expired = [one for one in await self._expiries(history) if one.meta["at"] <= now]
            if history.items > 2 * len(expired):
                found.add(namespace[: op.max_depth])
        return sorted(found)[op.offset :][: op.limit]

    async def _namespaces(self, prefix: tuple[str, ...], where: dict[str, Any] | None = None) -> list[History]:
        """Return the histories of the namespaces below a prefix that have items."""
        found = await list_all(self._histories, KIND, _name(prefix), where)
        return [one for one in found if one.items and _namespace(one.name)[: len(prefix)] == prefix]

    async def _entries(self, history: History, *, bodies: bool) -> list[_Entry]:
        """Return the items of a namespace that have not expired, and remove the others."""
        now = self._now()
        expiries = {item.key: item for item in await self._expiries(history)}
        if any(expiry.meta["at"] <= now for expiry in expiries.values()):
            await self._change(history.name)
        items = await self._histories.items(KIND, history.name, part=_VALUES, by="key", bodies=bodies)
        entries = [_Entry(item, expiries.get(item.key)) for item in items]
        return [entry for entry in entries if entry.is_live(now)]

    async def _expiries(self, history: History) -> list[HistoryItem]:
        if not history.meta:
            return []
        return await self._histories.items(KIND, history.name, part=_EXPIRY, by="key", bodies=False)

    async def _refresh(self, entries: Sequence[_Entry], refresh: bool) -> list[HistoryItem]:
        """Return the items that have not expired, and refresh their time to live; remove the others."""
        now = self._now()
        changes: dict[str, set[str]] = {}
        for entry in entries:
            if not entry.is_live(now):
                changes.setdefault(entry.item.history, set())
            elif refresh and entry.needs_refresh(now):
                changes.setdefault(entry.item.history, set()).add(entry.item.key)
        for name, keys in changes.items():
            await self._change(name, refresh=keys)
        return [entry.item for entry in entries if entry.is_live(now)]

    async def _sweep_if_due(self) -> None:
        interval = (self.ttl_config or {}).get("sweep_interval_minutes") or _SWEEP_INTERVAL
        if self._swept is None or self._now() - self._swept >= interval * _MINUTE:
            await self._sweep()

    async def _sweep(self) -> int:
        self._swept = self._now()
        return sum([await self._change(history.name) for history in await self._namespaces((), _EXPIRING)])

    async def _change(self, name: str, refresh: Set[str] = frozenset()) -> int:
        """Remove the expired items of a namespace, and start the time to live of others again, in one commit. Return
        the number of items removed.

        What was written meanwhile must not be removed: the version of the history has to be the one that was read. If
        others keep writing, the next read or sweep does it.
        """
        for _ in range(_ATTEMPTS):
            history = await self._histories.find(KIND, name)
            if history is None:
                return 0
            now = self._now()
            expiries = await self._expiries(history)
            # Each has two items; the next sweep removes what is more than one write may delete.
            expired = [one.key for one in expiries if one.meta["at"] <= now][: MAX_DELETIONS // 2]
            again = [one for one in expiries if one.meta["at"] > now and one.key in refresh]
            if not expired and not again:
                return 0
            items = [_expiry(one.key, one.meta["ttl"], now) for one in again]
            delete = [(part, key) for key in expired for part in (_VALUES, _EXPIRY)]
            try:
                await self._histories.write(KIND, name, items, delete=delete, if_version=history.version)
            except VersionConflict:
                continue
            return len(expired)
        return 0


def _check(op: object) -> None:
    """Refuse an operation that cannot be done, before any is."""
    if not isinstance(op, GetOp | PutOp | SearchOp | ListNamespacesOp):
        raise InvalidInput(reason=f"unknown operation {type(op).__name__}")
    validate_op_namespace(op)
    if isinstance(op, SearchOp) and op.query is not None:
        raise InvalidInput(
            reason="AgentBusStore has no vector search: leave out the query and use a filter, or a store with an index"
        )
    if isinstance(op, SearchOp | ListNamespacesOp) and min(op.limit, op.offset) < 0:
        raise OutOfRange(what="limit and offset", value=min(op.limit, op.offset), allowed="0 or more")
    if isinstance(op, PutOp) and op.ttl is not None and not 0 < op.ttl < 1e9:
        raise OutOfRange(what="ttl", value=op.ttl, allowed="minutes, more than 0 and less than 1e9")
    if isinstance(op, PutOp) and _has_bytes(op.value):
        raise InvalidInput(
            reason=f"the value of {op.key!r} contains bytes, which JSON does not have: encode them as text"
        )


def _has_bytes(value: object) -> bool:
    """Return True if a value contains bytes, which would be read back as a text."""
    if isinstance(value, dict):
        return any(map(_has_bytes, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_has_bytes, value))
    return isinstance(value, bytes | bytearray | memoryview)


def _expiry(key: str, ttl: float, now: int) -> HistoryPut:
    return HistoryPut(key=key, part=_EXPIRY, body=b"", meta={"at": now + round(ttl * _MINUTE), "ttl": ttl})


def _name(namespace: tuple[str, ...]) -> str:
    return ".".join(namespace)


def _namespace(name: str) -> tuple[str, ...]:
    return tuple(name.split("."))


def _value(item: HistoryItem) -> dict[str, Any]:
    value: dict[str, Any] = decode(item.body.decode())
    return value


def _fields(item: HistoryItem) -> dict[str, Any]:
    """Return the arguments of LangGraph's item."""
    return {
        "namespace": _namespace(item.history),
        "key": item.key.removeprefix(_KEY),
        "value": _value(item),
        "created_at": datetime.fromtimestamp(item.created / 1000, UTC),
        "updated_at": datetime.fromtimestamp(item.meta["updated"] / 1000, UTC),
    }


def _is_match(condition: MatchCondition, namespace: tuple[str, ...]) -> bool:
    path = tuple(condition.path)
    if len(namespace) < len(path):
        return False
    part = namespace[: len(path)] if condition.match_type == "prefix" else namespace[len(namespace) - len(path) :]
    return all(wanted in ("*", label) for wanted, label in zip(path, part, strict=True))


def _fits(value: Any, wanted: Any) -> bool:
    """Compare a value with a filter: operators, the fields of an object, or an equal value."""
    if isinstance(wanted, Mapping):
        if any(str(name).startswith("$") for name in wanted):
            return all(_compare(value, operator, operand) for operator, operand in wanted.items())
        return isinstance(value, Mapping) and all(_fits(value.get(name), part) for name, part in wanted.items())
    if isinstance(wanted, list | tuple):
        same = isinstance(value, list) and len(value) == len(wanted)
        return same and all(_fits(one, other) for one, other in zip(value, wanted, strict=True))
    return bool(value == wanted)


def _compare(value: Any, operator: str, operand: Any) -> bool:
    if operator == "$eq":
        return bool(value == operand)
    if operator == "$ne":
        return bool(value != operand)
    compare = _COMPARISONS.get(operator)
    if compare is None:
        raise InvalidInput(reason=f"unknown operator {operator!r}: it is one of $eq, $ne, {', '.join(_COMPARISONS)}")
    numbers = all(isinstance(one, int | float) for one in (value, operand))
    return (numbers or (isinstance(value, str) and isinstance(operand, str))) and compare(value, operand)


_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "$gt": lambda value, operand: bool(value > operand),
    "$gte": lambda value, operand: bool(value >= operand),
    "$lt": lambda value, operand: bool(value < operand),
    "$lte": lambda value, operand: bool(value <= operand),
}
