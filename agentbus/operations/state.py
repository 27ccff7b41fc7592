"""State: JSON under (scope, key), with a version that never repeats, an optional expiry, and a bus-wide change number.

A deleted entry leaves a tombstone, which keeps its version. An expired one counts as absent at once, for every reader
and writer; it becomes a tombstone, with a change number of its own, once a watcher of its scope, or a beat, finds it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from agentbus.clock import Now
from agentbus.codec import check, decode, plain, plain_payload
from agentbus.errors import AgentBusError, DamagedPayload, VersionConflict, WrongState
from agentbus.limits import scope_session
from agentbus.operations import Actor, Each, Op, Outcome, Query, Row, Wake, operation
from agentbus.operations.budget import Budget
from agentbus.operations.closed import not_open
from agentbus.operations.fencing import fence
from agentbus.operations.paging import page

if TYPE_CHECKING:
    from agentbus.records import Page, StateEntry

Place = tuple[str, str]
"""A scope and a key."""

_STEP = 500
"""Entries that one call buries at most, so that nobody waits long for the lock."""
_LOOK = 50
"""Entries whose lengths are looked at together: for that, their values are read."""


class ChangeRequest(msgspec.Struct, frozen=True):
    """A new value (JSON and its checksum) for an entry, a number to add to it, or (with neither) its deletion.

    ``if_version`` is the version that it must have, 0 if it must not be there. An ``actor`` is fenced. The
    ``author`` is the actor, unless said otherwise.
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

    @property
    def touches(self) -> int:
        return 1 + self.weight // 1024

    @property
    def weight(self) -> int:
        return 0 if self.value is None else len(self.value[0])

    @property
    def grows(self) -> bool:
        """A deletion makes room in the end."""
        return self.value is not None or self.amount is not None


class Changed(msgspec.Struct, frozen=True):
    """What a change came to: the entry's version, whether it was there before, and the number it now is."""

    version: int
    existed: bool
    number: int | float = 0


class ExpireRequest(msgspec.Struct, frozen=True):
    """Somebody noticed that entries have expired."""


class Wanted(msgspec.Struct, frozen=True):
    """Entries of a scope whose keys begin with ``prefix``: those after the ``cursor``, or changed after ``change``."""

    scope: str
    prefix: str
    limit: int
    cursor: str | None = None
    change: int = 0


class _Entry(msgspec.Struct):
    """An entry while a batch changes it; one without an id has no row yet. Its value is only known where it was set or
    shall be added to."""

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


@operation(durable=True, beside=True)
def change_state(requests: Sequence[ChangeRequest], now: Now) -> Op[list[Outcome[Changed]]]:
    """Set, delete or add to entries; several that name the same one after another, each with an outcome of its own."""
    refused = yield from fence(request.actor for request in requests)
    closed = yield from _closed({request.scope for request in requests})
    entries = yield from _entries(requests)
    outcomes: list[Outcome[Changed]] = []
    for request in requests:
        # Most are neither, and actors take a while to be looked up.
        error = (closed.get(request.scope) if closed else None) or (refused.get(request.actor) if refused else None)
        outcomes.append(error or _apply(request, entries[request.scope, request.key], now))
    yield from _write(entries)
    return outcomes


@operation(durable=True, beside=True)
def expire(requests: Sequence[ExpireRequest], now: Now) -> Op[list[Outcome[int]]]:
    """Make tombstones of what has expired, so that everybody who watches hears of it; says how many, in bounded steps.

    Durable though expired entries count as absent anyway: a change number that somebody saw must not be given out again
    after a power cut.
    """
    rows = yield Query("state_expired", (now.wall, _STEP))
    yield from _bury(rows, now)
    return [len(rows)] * len(requests)


def clear_state(scope: str, change: int, budget: Budget, now: Now) -> Op[int]:
    """Delete the entries of a scope that changed after a change, in that order, until the budget is spent; says up to
    which change none is left.

    Each tombstone is a change too, and so is whatever somebody sets meanwhile: who goes on to the end leaves nothing.
    """
    more = not budget.spent
    while more:
        rows = yield Query("state_lengths", (scope, change, _LOOK))
        there: list[Row] = []
        for _, key, number, length in rows:
            if length is None:
                budget.pass_by()
            elif budget.spend(length):
                there.append((scope, key))
            else:
                break
            change = number
        yield from _bury(there, now)
        more = len(rows) == _LOOK and not budget.spent
    return change


def _write(entries: dict[Place, _Entry]) -> Op[None]:
    written = [place for place, entry in entries.items() if entry.changed]
    if written:
        first = yield from take_change_numbers(len(written))
        made: list[Row] = []
        changed: list[Row] = []
        for change, place in enumerate(written, first):
            entry = entries[place]
            if entry.id is None:
                made.append((*entry.row(change), *place))
            else:
                changed.append((*entry.row(change), entry.id))
        if made:
            yield Each("state_insert", made)
        if changed:
            yield Each("state_update", changed)
        yield Wake([state_channel(scope) for scope in {scope: None for scope, _ in written}])


def _bury(rows: Sequence[Row], now: Now) -> Op[None]:
    if rows:
        first = yield from take_change_numbers(len(rows))
        yield Each("state_bury", [(first + index, now.wall, *place) for index, place in enumerate(rows)])
        yield Wake([state_channel(scope) for scope in {scope: None for scope, _ in rows}])


def take_change_numbers(count: int) -> Op[int]:
    """The first of so many new change numbers."""
    ((last,),) = yield Query("counter_take", ("change", count))
    first: int = last - count + 1
    return first


def _closed(scopes: set[str]) -> Op[dict[str, AgentBusError]]:
    """The scopes of sessions that do not exist or have ended, each with its error."""
    errors: dict[str, AgentBusError] = {}
    for scope in scopes:
        session = scope_session(scope)
        error = None if session is None else (yield from not_open(session, "change its state"))
        if error is not None:
            errors[scope] = error
    return errors


def _entries(requests: Sequence[ChangeRequest]) -> Op[dict[Place, _Entry]]:
    """The entries that the requests name, as they are; values only of those that shall be added to.

    Where tombstones were removed, what is new counts on from the highest version among them.
    """
    entries = {(request.scope, request.key): _Entry() for request in requests}
    rows = yield Query("state_standing", (_keys_by_scope(entries),))
    for scope, key, *rest in rows:
        entries[scope, key] = _Entry(*rest)
    unknown = {scope: None for (scope, _), entry in entries.items() if entry.id is None}
    if unknown:
        floors = yield Query("state_floors", (list(unknown),))
        for scope, version in floors:
            for place, entry in entries.items():
                if entry.id is None and place[0] == scope:
                    entry.version = version
    added = {(request.scope, request.key): None for request in requests if request.amount is not None}
    if added:
        rows = yield Query("state_values", (_keys_by_scope(added),))
        for scope, key, value in rows:
            entries[scope, key].value = value
    return entries


def _keys_by_scope(places: Iterable[Place]) -> str:
    """JSON that a query opens: a list of keys for each scope."""
    keys: dict[str, list[str]] = {}
    for scope, key in places:
        keys.setdefault(scope, []).append(key)
    return plain(keys)


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
    """The number that an entry becomes; one that is not there counts as 0."""
    before: Any = 0
    if entry is not None and entry.value is not None and entry.checksum is not None:
        check(entry.value, entry.checksum, _what(request.scope, request.key))
        before = decode(entry.value)
    if isinstance(before, bool) or not isinstance(before, int | float):
        advice = "set it to a number first, or count under another key"
        raise _cannot_add(request, "no number", "add to it", advice)
    after: int | float = before + (request.amount or 0)
    if not (-(2**63) <= after < 2**63 if isinstance(after, int) else math.isfinite(after)):
        action = "add so much: it would be out of range"
        raise _cannot_add(request, "a number", action, "integers have 64 bits, others must stay finite")
    return after


def _cannot_add(request: ChangeRequest, status: str, action: str, advice: str) -> WrongState:
    what = f"state of {request.scope},"
    return WrongState(what=what, name=request.key, status=status, action=action, advice=advice, scope=request.scope)


# Questions


def get_value(place: Place, now: Now) -> Op[str | None]:
    """The JSON of one entry."""
    rows = yield Query("state_value", (*place, now.wall))
    if not rows:
        return None
    ((value, checksum),) = rows
    check(value, checksum, _what(*place))
    text: str = value
    return text


def get_entry(place: Place, now: Now) -> Op[StateEntry | None]:
    rows = yield Query("state_entry", (*place, now.wall))
    if not rows:
        return None
    (row,) = rows
    check(row[10], row[9], _what(*place))
    return _entry(row)


def list_entries(wanted: Wanted, now: Now) -> Op[Page[StateEntry]]:
    low, high = _range(wanted.prefix)
    if wanted.cursor is not None:
        # Every key after the cursor is above it with a space, which stands before all that keys are made of.
        low = max(low, f"{wanted.cursor} ")
    rows = yield Query("state_list", (wanted.scope, low, high, now.wall, wanted.limit + 1))
    return page(rows, wanted.limit, _entry, lambda entry: entry.key)


def list_changes(wanted: Wanted, now: Now) -> Op[list[StateEntry]]:
    """What changed after a change, tombstones too, oldest change first. Of each entry only the last change is known."""
    rows = yield Query("state_changes", (wanted.scope, wanted.change, *_range(wanted.prefix), wanted.limit))
    return [_entry(row) for row in rows]


def last_change(_: None, now: Now) -> Op[int]:
    """The last change number given out."""
    ((number,),) = yield Query("state_last_change")
    last: int = number
    return last


def next_expiry(scope: str | None, now: Now) -> Op[int | None]:
    """When the next entry of a scope, or of any, expires: that may be in the past."""
    if scope is None:
        ((expires,),) = yield Query("state_first_expiry")
    else:
        ((expires,),) = yield Query("state_next_expiry", (scope,))
    first: int | None = expires
    return first


def _range(prefix: str) -> tuple[str, str]:
    """Keys with a prefix are from the first of these on, and below the second: no key has a DEL in it."""
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
