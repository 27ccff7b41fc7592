"""State: JSON under (scope, key), with a version that never repeats, an optional expiry, and a bus-wide change number.

A deleted entry leaves a tombstone, which retains its version. An expired one is absent at once for every reader and
writer; a watcher of its scope or a heartbeat turns it into a tombstone, with a change number of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from agentbus.core.clock import Now
from agentbus.core.codec import check, decode, plain, plain_payload
from agentbus.core.validation import CLIENTS_SCOPE, scope_session
from agentbus.errors import AgentBusError, DamagedPayload, ReservedScope, VersionConflict, WrongState
from agentbus.operations.common import Budget, closed_session_error, fence, page
from agentbus.operations.protocol import Actor, ExecuteMany, Op, Outcome, Query, Row, Wake, operation

if TYPE_CHECKING:
    from agentbus.records import Page, ScopeRecord, StateEntry

EntryKey = tuple[str, str]
"""A scope and a key."""

_STEP = 500
"""Entries that one call deletes at most, so that other writers do not wait long for the lock."""
_SIZE_PAGE = 50
"""Entries whose sizes are read together: the query reads their values."""


class ChangeRequest(msgspec.Struct, frozen=True):
    """Set an entry to a value (JSON and its checksum), add a number to it, or (with neither) delete it.

    ``if_version`` is the required version, 0 if it must not exist. An ``actor`` is fenced. The ``author`` defaults to
    the actor. ``internal``: the bus itself writes, which may change what it has reserved.
    """

    scope: str
    key: str
    value: tuple[str, int] | None = None
    amount: int | float | None = None
    type: str | None = None
    ttl: int | None = None
    if_version: int | None = None
    actor: Actor | None = None
    author: str | None = None
    internal: bool = False

    @property
    def row_estimate(self) -> int:
        return 1 + self.data_size // 1024

    @property
    def data_size(self) -> int:
        return 0 if self.value is None else len(self.value[0])

    @property
    def stores_data(self) -> bool:
        """Return False for a deletion, which frees space in the end."""
        return self.value is not None or self.amount is not None


class Changed(msgspec.Struct, frozen=True):
    """The result of a change: the entry's version, whether it existed before, and its number after an addition."""

    version: int
    existed: bool
    number: int | float = 0


class ExpireRequest(msgspec.Struct, frozen=True):
    """A request to expire entries that are due."""


class StateQuery(msgspec.Struct, frozen=True):
    """Selects entries of a scope by the ``prefix`` of their keys: after ``cursor``, or changed after ``change``."""

    scope: str
    prefix: str
    limit: int
    cursor: str | None = None
    change: int = 0


class _Entry(msgspec.Struct):
    """An entry while a batch changes it; one without an id has no row yet. Its value is loaded only for additions."""

    id: int | None = None
    type: str = "user_data"
    version: int = 0
    expires: int | None = None
    created: int = 0
    checksum: int | None = None
    value: str | None = None
    author: str | None = None
    updated: int = 0
    changed: bool = False

    def is_there(self, now: Now) -> bool:
        return self.checksum is not None and (self.expires is None or self.expires > now.wall)

    def row(self, change: int) -> Row:
        return (
            self.type, self.version, change, self.checksum, self.expires, self.author, self.created, self.updated,
            self.value,
        )  # fmt: skip


def state_channel(scope: str) -> str:
    return f"state/{scope}"


@operation(durable=True, concurrent=True)
def change_state(requests: Sequence[ChangeRequest], now: Now) -> Op[list[Outcome[Changed]]]:
    """Set, delete or add to entries. Several requests for one entry apply in order, each with its own outcome."""
    refused = yield from fence(request.actor for request in requests)
    closed = yield from _closed({request.scope for request in requests if not request.internal})
    entries = yield from _entries(requests)
    outcomes: list[Outcome[Changed]] = []
    for request in requests:
        # Most have none, and looking up actors takes time.
        error = (closed.get(request.scope) if closed and not request.internal else None) or (
            refused.get(request.actor) if refused else None
        )
        outcomes.append(error or _apply(request, entries[request.scope, request.key], now))
    yield from _write(entries)
    return outcomes


@operation(durable=True, concurrent=True)
def expire(requests: Sequence[ExpireRequest], now: Now) -> Op[list[Outcome[int]]]:
    """Turn expired entries into tombstones, so that watchers are notified; the outcome is their number, in bounded
    steps.

    Durable although expired entries are absent anyway: a change number that was observed must not be reused after a
    power failure.
    """
    rows = yield Query("state_expired", (now.wall, _STEP))
    yield from _delete_entries(rows, now)
    return [len(rows)] * len(requests)


def clear_state(scope: str, change: int, budget: Budget, now: Now) -> Op[int]:
    """Delete the entries of a scope that changed after ``change``, in that order, until the budget is spent; return the
    change up to which none is left. Each tombstone is a change too, as is every concurrent write: repeating this until
    the end leaves nothing."""
    more = not budget.spent
    while more:
        rows = yield Query("state_lengths", (scope, change, _SIZE_PAGE))
        there: list[Row] = []
        for _, key, number, length in rows:
            if length is None:
                budget.pass_by()
            elif budget.spend(length):
                there.append((scope, key))
            else:
                break
            change = number
        yield from _delete_entries(there, now)
        more = len(rows) == _SIZE_PAGE and not budget.spent
    return change


def _write(entries: dict[EntryKey, _Entry]) -> Op[None]:
    written = [entry_key for entry_key, entry in entries.items() if entry.changed]
    if written:
        first = yield from take_change_numbers(len(written))
        made: list[Row] = []
        changed: list[Row] = []
        for change, entry_key in enumerate(written, first):
            entry = entries[entry_key]
            if entry.id is None:
                made.append((*entry.row(change), *entry_key))
            else:
                changed.append((*entry.row(change), entry.id))
        if made:
            yield ExecuteMany("state_insert", made)
        if changed:
            yield ExecuteMany("state_update", changed)
        yield Wake([state_channel(scope) for scope in {scope: None for scope, _ in written}])


def _delete_entries(rows: Sequence[Row], now: Now) -> Op[None]:
    if rows:
        first = yield from take_change_numbers(len(rows))
        yield ExecuteMany("state_erase", [(first + index, now.wall, *key) for index, key in enumerate(rows)])
        yield Wake([state_channel(scope) for scope in {scope: None for scope, _ in rows}])


def take_change_numbers(count: int) -> Op[int]:
    """Return the first of ``count`` new change numbers."""
    ((last,),) = yield Query("counter_take", ("change", count))
    first: int = last - count + 1
    return first


def _closed(scopes: set[str]) -> Op[dict[str, AgentBusError]]:
    """Return the errors for scopes that are reserved, or of sessions that do not exist or have ended."""
    errors: dict[str, AgentBusError] = {}
    for scope in scopes:
        if scope == CLIENTS_SCOPE:
            errors[scope] = ReservedScope(scope=scope)
            continue
        session = scope_session(scope)
        error = None if session is None else (yield from closed_session_error(session, "change its state"))
        if error is not None:
            errors[scope] = error
    return errors


def _entries(requests: Sequence[ChangeRequest]) -> Op[dict[EntryKey, _Entry]]:
    """Return the entries that the requests name, with values only for additions. Where tombstones were removed, new
    entries continue from the highest version among them."""
    entries = {(request.scope, request.key): _Entry() for request in requests}
    rows = yield Query("state_by_key", (_keys_by_scope(entries),))
    for scope, key, *rest in rows:
        entries[scope, key] = _Entry(*rest)
    unknown = {scope: None for (scope, _), entry in entries.items() if entry.id is None}
    if unknown:
        floors = yield Query("state_floors", (list(unknown),))
        for scope, version in floors:
            for entry_key, entry in entries.items():
                if entry.id is None and entry_key[0] == scope:
                    entry.version = version
    added = {(request.scope, request.key): None for request in requests if request.amount is not None}
    if added:
        rows = yield Query("state_values", (_keys_by_scope(added),))
        for scope, key, value in rows:
            entries[scope, key].value = value
    return entries


def _keys_by_scope(keys: Iterable[EntryKey]) -> str:
    """Return the JSON of the keys of each scope, for a query to expand."""
    found: dict[str, list[str]] = {}
    for scope, key in keys:
        found.setdefault(scope, []).append(key)
    return plain(found)


def _apply(request: ChangeRequest, entry: _Entry, now: Now) -> Outcome[Changed]:
    existed = entry.is_there(now)
    found = entry.version if existed else 0
    if request.if_version is not None and request.if_version != found:
        return VersionConflict(scope=request.scope, key=request.key, expected=request.if_version, found=found)
    number: int | float = 0
    value = request.value
    if request.amount is not None:
        try:
            number = _sum(request, entry if existed else None)
        except AgentBusError as error:
            return error
        value = plain_payload(number)
    elif value is None and not existed:
        return Changed(entry.version, existed)
    if value is None:
        entry.value = entry.checksum = entry.expires = None
    else:
        added = existed and request.amount is not None
        if request.ttl is not None:
            entry.expires = now.wall + request.ttl
        elif not added:
            entry.expires = None
        if not added:
            entry.type = request.type or "user_data"
        entry.created = entry.created if existed else now.wall
        entry.version += 1
        entry.value, entry.checksum = value
    entry.author = request.author if request.actor is None else request.actor.agent
    entry.updated = now.wall
    entry.changed = True
    return Changed(entry.version, existed, number)


def _sum(request: ChangeRequest, entry: _Entry | None) -> int | float:
    """Return the number that an entry becomes; a missing one is 0."""
    before: Any = 0
    if entry is not None and entry.value is not None and entry.checksum is not None:
        check(entry.value, entry.checksum, _what(request.scope, request.key))
        before = decode(entry.value)
    if isinstance(before, bool) or not isinstance(before, int | float):
        advice = "set it to a number first, or count under another key"
        raise _cannot_add(request, "not a number", "add to it", advice)
    after: int | float = before + (request.amount or 0)
    if not (-(2**63) <= after < 2**63 if isinstance(after, int) else math.isfinite(after)):
        action = "add so much to it: the sum would be out of range"
        raise _cannot_add(request, "a number", action, "integers have 64 bits, others must stay finite")
    return after


def _cannot_add(request: ChangeRequest, status: str, action: str, advice: str) -> WrongState:
    what = f"state of {request.scope},"
    return WrongState(what=what, name=request.key, status=status, action=action, advice=advice, scope=request.scope)


def get_value(entry_key: EntryKey, now: Now) -> Op[str | None]:
    """Return the JSON of one entry."""
    rows = yield Query("state_value", (*entry_key, now.wall))
    if not rows:
        return None
    ((value, checksum),) = rows
    check(value, checksum, _what(*entry_key))
    text: str = value
    return text


def get_entry(entry_key: EntryKey, now: Now) -> Op[StateEntry | None]:
    rows = yield Query("state_entry", (*entry_key, now.wall))
    if not rows:
        return None
    (row,) = rows
    check(row[10], row[9], _what(*entry_key))
    return _entry(row)


def list_entries(wanted: StateQuery, now: Now) -> Op[Page[StateEntry]]:
    low, high = _range(wanted.prefix)
    if wanted.cursor is not None:
        # A space sorts before every character of keys: the cursor with a space is below every key after it.
        low = max(low, f"{wanted.cursor} ")
    rows = yield Query("state_list", (wanted.scope, low, high, now.wall, wanted.limit + 1))
    return page(rows, wanted.limit, _entry, lambda entry: entry.key)


def list_scopes(wanted: tuple[str, int], now: Now) -> Op[Page[ScopeRecord]]:
    """Return the scopes after a name that have entries, ordered by name. ``wanted``: that name and a limit."""
    after, limit = wanted
    rows = yield Query("state_scopes", (after, now.wall, limit + 1))
    from agentbus.records import ScopeRecord

    return page(rows, limit, lambda row: ScopeRecord(*row), lambda one: one.scope)


def list_changes(wanted: StateQuery, now: Now) -> Op[list[StateEntry]]:
    """Return the changes after a change, tombstones included, oldest first. Only the last change of an entry is
    known."""
    rows = yield Query("state_changes", (wanted.scope, wanted.change, *_range(wanted.prefix), wanted.limit))
    return [_entry(row) for row in rows]


def last_change(_: None, now: Now) -> Op[int]:
    """Return the last change number."""
    ((number,),) = yield Query("state_last_change")
    last: int = number
    return last


def next_expiry(scope: str | None, now: Now) -> Op[int | None]:
    """Return the time at which the next entry of a scope, or of any, expires; it may be in the past."""
    if scope is None:
        ((expires,),) = yield Query("state_first_expiry")
    else:
        ((expires,),) = yield Query("state_next_expiry", (scope,))
    first: int | None = expires
    return first


def _range(prefix: str) -> tuple[str, str]:
    """Return the bounds of keys with a prefix, the upper one exclusive: no key contains DEL."""
    return prefix, f"{prefix}\x7f"


def _what(scope: str, key: str) -> str:
    return f"state {key!r} of {scope}"


def _entry(row: Row) -> StateEntry:
    scope, key, type, version, change, expires, author, created, updated, checksum, text = row
    value, error = None, None
    if text is not None:
        try:
            check(text, checksum, _what(scope, key))
            value = decode(text)
        except DamagedPayload as damage:
            # One damaged value must not hide the others of a page.
            error = str(damage)
    from agentbus.records import StateEntry

    return StateEntry(
        scope, key, value, type, version, change, expires, author, created, updated, text is None, error
    )  # fmt: skip
