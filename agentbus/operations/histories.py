"""Histories: what agent frameworks store of conversations and runs, as numbered items under (part, key).

A write applies to one history, as a whole or not at all. Writes of many callers run together: each history and each
item is read once, changed in memory in the order of the requests, and written once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias
from zlib import crc32

import msgspec

from agentbus.core.clock import Now
from agentbus.core.codec import canonical, decode, plain
from agentbus.core.validation import MAX_ID
from agentbus.errors import (
    AgentBusError,
    ArchiveDiffers,
    DamagedPayload,
    HistoryConflict,
    InvalidName,
    Outdated,
    UnknownHistory,
    WrongState,
)
from agentbus.operations.common import page
from agentbus.operations.events import event, record
from agentbus.operations.protocol import ExecuteMany, Op, Outcome, Query, Row, Rows, operation, single_operation

if TYPE_CHECKING:
    from agentbus.operations.archive_rows import ArchivedHistory, ArchivedHistoryItem
    from agentbus.records import History, HistoryItem, HistoryKind, Page

HistoryKey: TypeAlias = tuple[str, str]
"""The kind and the name of a history."""
ItemKey: TypeAlias = tuple[str, str]
"""The part and the key of an item."""

END = "\U0010ffff" * 513
"""A text after all keys and names."""
NEXT = "\x01"
"""Appended to a text, it makes the first one after it: no key contains NUL."""
DIGITS = 20
"""Digits of a key that the bus chooses."""
MAX_ITEM_KEY = 2048
"""Bytes of a part and a key together: an index must hold them."""
_INLINE = 64 * 1024
"""Bytes of a body that is read together with its row; a longer one is read by itself."""
_KINDS = 100


class ItemPut(msgspec.Struct, frozen=True):
    """An item to write; without a key it is appended."""

    part: str
    key: str | None
    encoding: str
    checksum: int
    meta: str
    body: bytes
    replace: bool = True


class WriteRequest(msgspec.Struct, frozen=True):
    """Delete items of a history, then write others. ``meta``: the new metadata of the history, None leaves them.
    ``if_version``: the required version, 0 if the history must not exist."""

    kind: str
    name: str
    puts: tuple[ItemPut, ...] = ()
    deletes: tuple[ItemKey, ...] = ()
    meta: str | None = None
    if_version: int | None = None

    @property
    def row_estimate(self) -> int:
        return 1 + len(self.puts) + len(self.deletes) + self.data_size // 1024

    @property
    def data_size(self) -> int:
        return sum(len(put.body) + len(put.meta) for put in self.puts) + len(self.meta or "")

    @property
    def stores_data(self) -> bool:
        """Return False for a deletion, which frees space in the end."""
        return bool(self.puts) or self.meta is not None


class WriteAllRequest(msgspec.Struct, frozen=True):
    """Writes to different histories that commit together or not at all."""

    writes: tuple[WriteRequest, ...]

    @property
    def row_estimate(self) -> int:
        return sum(write.row_estimate for write in self.writes)

    @property
    def data_size(self) -> int:
        return sum(write.data_size for write in self.writes)

    @property
    def stores_data(self) -> bool:
        return any(write.stores_data for write in self.writes)


class DeleteRequest(msgspec.Struct, frozen=True):
    """Delete a history, or only the items of a part, or only these keys of a part."""

    kind: str
    name: str
    part: str | None = None
    keys: tuple[str, ...] | None = None


class CopyRequest(msgspec.Struct, frozen=True):
    """Copy a history to another name."""

    kind: str
    source: str
    target: str


class HistoryQuery(msgspec.Struct, frozen=True):
    """Selects histories after ``cursor`` (kind and name) with names from ``low`` on and below ``high``."""

    limit: int
    kind: str | None = None
    low: str = ""
    high: str = END
    where: dict[str, Any] | None = None
    cursor: HistoryKey | None = None


class ItemQuery(msgspec.Struct, frozen=True):
    """Selects items of a history, or (without a name) of all of a kind: with numbers after ``after``, and with keys
    from ``low`` on and below ``high``. ``cursor``: where the previous page ended."""

    kind: str
    name: str | None
    limit: int
    part: str | None = None
    low: str = ""
    high: str = END
    after: int = 0
    where: dict[str, Any] | None = None
    by_key: bool = False
    newest_first: bool = False
    bodies: bool = True
    cursor: tuple[Any, ...] | None = None


class ItemPage(msgspec.Struct, frozen=True):
    """Items, and the cursor of the next page; None after the last."""

    items: list[HistoryItem]
    cursor: tuple[Any, ...] | None


class _History(msgspec.Struct):
    """A history while a batch changes it. One without an id has no row yet; with version 0 it does not exist."""

    id: int | None = None
    version: int = 0
    last: int = 0
    items: int = 0
    size: int = 0
    created: int = 0
    updated: int = 0
    meta: str = "{}"
    changed: bool = False
    meta_changed: bool = False
    floor: int = 0
    """The greatest version of a deleted history: a new one starts after it."""


class _Item(msgspec.Struct):
    """An item while a batch changes it; one without an id has no row yet."""

    id: int | None = None
    number: int = 0
    size: int = 0
    created: int = 0
    there: bool = True
    put: ItemPut | None = None
    """The new contents, if it changes."""
    changed: bool = False


_Items: TypeAlias = dict[HistoryKey, dict[ItemKey, _Item]]


def prefix_end(prefix: str) -> str:
    """Return the first text after all that start with ``prefix``.

    >>> prefix_end("run-")
    'run.'
    """
    for index in range(len(prefix) - 1, -1, -1):
        code = ord(prefix[index]) + 1
        if code <= 0x10FFFF:
            # No text contains a surrogate.
            return prefix[:index] + chr(0xE000 if 0xD800 <= code <= 0xDFFF else code)
    return END


@operation(durable=True, concurrent=True, stores_data=True)
def write_history(requests: Sequence[WriteRequest], now: Now) -> Op[list[Outcome[History]]]:
    """Write histories. Several requests for one history apply in order, each with its own outcome."""
    histories = yield from _read_histories((request.kind, request.name) for request in requests)
    items = yield from _read_items(requests, histories)
    outcomes: list[Outcome[History]] = []
    for request in requests:
        history_key = request.kind, request.name
        outcomes.append(_apply(request, histories[history_key], items.setdefault(history_key, {}), now))
    yield from _store(histories, items)
    return outcomes


@operation(durable=True, concurrent=True, stores_data=True)
def write_histories(requests: Sequence[WriteAllRequest], now: Now) -> Op[list[Outcome[list[History]]]]:
    """Write several histories for each request, all of them or none."""
    writes = [write for request in requests for write in request.writes]
    histories = yield from _read_histories((write.kind, write.name) for write in writes)
    items = yield from _read_items(writes, histories)
    outcomes: list[Outcome[list[History]]] = []
    for request in requests:
        outcomes.append(_apply_all(request, histories, items, now))
    yield from _store(histories, items)
    return outcomes


def _apply_all(
    request: WriteAllRequest, histories: dict[HistoryKey, _History], items: _Items, now: Now
) -> Outcome[list[History]]:
    keys = [(write.kind, write.name) for write in request.writes]
    for write, key in zip(request.writes, keys, strict=True):
        error = _refusal(write, histories[key], items.setdefault(key, {}))
        if error is not None:
            return error
    made: list[History] = []
    for write, key in zip(request.writes, keys, strict=True):
        outcome = _apply(write, histories[key], items[key], now)
        if isinstance(outcome, AgentBusError):  # the writes of one request are to different histories
            raise outcome
        made.append(outcome)
    return made


def _read_histories(wanted: Iterable[HistoryKey]) -> Op[dict[HistoryKey, _History]]:
    histories = {history_key: _History() for history_key in wanted}
    names: dict[str, list[str]] = {}
    for kind, name in histories:
        names.setdefault(kind, []).append(name)
    rows = yield Query("history_by_name", (plain(names),))
    for kind, name, *rest in rows:
        histories[kind, name] = _History(*rest)
    new = [history for history in histories.values() if history.id is None]
    if new:
        ((floor,),) = yield Query("history_floor", ())
        for history in new:
            history.floor = floor
    return histories


def _read_items(requests: Sequence[WriteRequest], histories: dict[HistoryKey, _History]) -> Op[_Items]:
    """Return the items that the requests name, as far as they exist."""
    items: _Items = {}
    wanted: dict[tuple[int, str, str], HistoryKey] = {}
    for request in requests:
        history_key = request.kind, request.name
        id = histories[history_key].id
        if id is not None:
            wanted.update({(id, put.part, put.key): history_key for put in request.puts if put.key is not None})
            wanted.update({(id, part, key): history_key for part, key in request.deletes})
    if wanted:
        rows = yield Query("history_present", ([list(one) for one in wanted],))
        for history, part, key, *rest in rows:
            items.setdefault(wanted[history, part, key], {})[part, key] = _Item(*rest)
    return items


def _apply(request: WriteRequest, history: _History, items: dict[ItemKey, _Item], now: Now) -> Outcome[History]:
    error = _refusal(request, history, items)
    if error is not None:
        return error
    if not history.version:
        history.created = now.wall
    for item_key in request.deletes:
        item = items.get(item_key)
        if item is not None and item.there:
            item.there, item.changed = False, True
            history.items -= 1
            history.size -= item.size
    for put in request.puts:
        item = None if put.key is None else items.get((put.part, put.key))
        if item is not None and item.there and not put.replace:
            continue
        if item is None or not item.there:
            history.last += 1
            history.items += 1
            if item is None:
                key = f"{history.last:0{DIGITS}d}" if put.key is None else put.key
                item = items[put.part, key] = _Item()
            item.number, item.created, item.size = history.last, now.wall, 0
        history.size += len(put.body) - item.size
        item.size, item.put, item.there, item.changed = len(put.body), put, True, True
    if request.meta is not None and request.meta != history.meta:
        history.meta, history.meta_changed = request.meta, True
    history.version = max(history.version, history.floor) + 1
    history.updated = now.wall
    history.changed = True
    return _made(request.kind, request.name, history)


def _refusal(request: WriteRequest, history: _History, items: dict[ItemKey, _Item]) -> AgentBusError | None:
    """Return the error if a request cannot be carried out."""
    if request.if_version is not None and request.if_version != history.version:
        return HistoryConflict(
            kind=request.kind, name=request.name, expected=request.if_version, found=history.version
        )  # fmt: skip
    for put in request.puts:
        key = put.key
        if key is None or not _is_ahead(key, history.last):
            continue
        item = items.get((put.part, key))
        if item is None or not item.there:
            rule = f"{DIGITS} digits are the bus's own form: leave out the key to append"
            return InvalidName(what="key", name=key, rule=rule)
    return None


def _is_ahead(key: str, last: int) -> bool:
    """Return True for a key that the bus will choose for an item after the number ``last``."""
    return len(key) == DIGITS and key.isascii() and key.isdigit() and int(key) > last


def _made(kind: str, name: str, history: _History) -> History:
    from agentbus.records import History

    return History(
        kind, name, history.version, history.items, history.size, history.created, history.updated,
        decode(history.meta),
    )  # fmt: skip


def _store(histories: dict[HistoryKey, _History], items: _Items) -> Op[None]:
    new = [
        (history_key, history) for history_key, history in histories.items() if history.changed and history.id is None
    ]
    old = [history for history in histories.values() if history.changed and history.id is not None]
    if new:
        rows = yield Query("history_create", ([[*history_key, *_columns(history)] for history_key, history in new],))
        for kind, name, id in rows:
            histories[kind, name].id = id
    dropped: list[Row] = []
    replaced: list[Row] = []
    added: list[Row] = []
    for history_key, parts in items.items():
        history = histories[history_key].id
        for (part, key), item in parts.items():
            put = item.put
            if not item.changed:
                continue
            if not item.there or put is None:
                if item.id is not None:
                    dropped.append((item.id,))
                continue
            values = (item.number, put.encoding, put.checksum, item.size, item.created, put.meta, put.body)
            if item.id is None:
                added.append((history, part, key, *values))
            else:
                replaced.append((*values, item.id))
    if dropped:
        yield ExecuteMany("history_drop", dropped)
    if replaced:
        yield ExecuteMany("history_replace", replaced)
    if added:
        yield ExecuteMany("history_put", added)
    yield from _update(old)


def _update(histories: Sequence[_History]) -> Op[None]:
    meta = [(*_columns(one)[:4], one.updated, one.meta, one.id) for one in histories if one.meta_changed]
    rest = [(*_columns(one)[:4], one.updated, one.id) for one in histories if not one.meta_changed]
    if meta:
        yield ExecuteMany("history_change", meta)
    if rest:
        yield ExecuteMany("history_touch", rest)


def _columns(one: _History) -> tuple[Any, ...]:
    return one.version, one.last, one.items, one.size, one.created, one.updated, one.meta


@single_operation(durable=True)
def delete_history(request: DeleteRequest, now: Now) -> Op[Outcome[int]]:
    """Delete a history or some of its items in one commit; the outcome is the number of items deleted."""
    history_key = request.kind, request.name
    history = (yield from _read_histories([history_key]))[history_key]
    if history.id is None:
        return 0
    if request.part is None and request.keys is None:
        yield from _delete(history.id, history.version, *history_key, history.items, history.size, now)
        return history.items
    part = request.part or ""
    if request.keys is None:
        ((count, size),) = yield Query("history_part_size", (history.id, part))
        yield Query("history_clear_part", (history.id, part))
    else:
        rows = yield Query("history_present", ([[history.id, part, key] for key in dict.fromkeys(request.keys)],))
        count, size = len(rows), sum(row[5] for row in rows)
        if rows:
            yield ExecuteMany("history_drop", [(row[3],) for row in rows])
    if count:
        history.items -= count
        history.size -= size
        history.version += 1
        history.updated = now.wall
        yield from _update([history])
    return int(count)


@single_operation(durable=True, stores_data=True)
def copy_history(request: CopyRequest, now: Now) -> Op[Outcome[History]]:
    """Copy a history with all its items to another name, which must be free or have no items."""
    source, target = (request.kind, request.source), (request.kind, request.target)
    histories = yield from _read_histories([source, target])
    origin, copy = histories[source], histories[target]
    if origin.id is None:
        return UnknownHistory(kind=request.kind, name=request.source)
    if copy.items or source == target:
        return WrongState(
            what="history", name=request.target, status="not empty", action="copy into it",
            advice="delete it first, or choose another name",
        )  # fmt: skip
    copy.version = max(copy.version, copy.floor) + 1
    copy.created = copy.created if copy.id is not None else now.wall
    copy.last, copy.items, copy.size = max(origin.last, copy.last), origin.items, origin.size
    copy.meta, copy.updated, copy.changed, copy.meta_changed = origin.meta, now.wall, True, True
    yield from _store({target: copy}, {})
    yield Query("history_copy", (copy.id, origin.id))
    return _made(*target, copy)


def restore_history(line: ArchivedHistory) -> Op[Outcome[bool]]:
    """Restore a history of an archive, without its items. One that exists is the same if it was created at the same
    time. If its version may have been issued again since, it gets a new one."""
    history_key = line.kind, line.name
    history = (yield from _read_histories([history_key]))[history_key]
    if history.id is not None:
        return False if history.created == line.created else ArchiveDiffers(what="history", id=line.name)
    version = _restored_version(line.version, history.floor)
    new = _History(None, version, line.last, 0, 0, line.created, line.updated, plain(decode(line.meta)), True)
    yield from _store({history_key: new}, {})
    return True


def _restored_version(version: int, floor: int) -> int:
    return version if version >= floor else floor + 1


def restore_history_item(line: ArchivedHistoryItem) -> Op[Outcome[bool]]:
    """Restore an item of a history that has not changed since it was archived: otherwise a deleted item would come
    back."""
    history_key = line.kind, line.history
    history = (yield from _read_histories([history_key]))[history_key]
    if history.id is None:
        return UnknownHistory(kind=line.kind, name=line.history)
    what = item_text(line.kind, line.history, line.part, line.key)
    if history.created != line.history_created:
        return ArchiveDiffers(what="history", id=line.history)
    if _is_ahead(line.key, line.number):
        rule = f"{DIGITS} digits are the bus's own form: at most the number of the item, {line.number}"
        return InvalidName(what="key", name=line.key, rule=rule)
    rows = yield Query("history_alike", (history.id, line.part, line.key, line.number))
    if rows:
        same = rows == [(line.part, line.key, line.number, line.checksum)]
        return False if same else ArchiveDiffers(what="item", id=what.removeprefix("item "))
    ((floor,),) = yield Query("history_floor", ())
    version = _restored_version(line.version, floor)
    updated = history.updated if line.history_updated is None else line.history_updated
    if version < history.version or updated < history.updated:
        return Outdated(what="item", id=what.removeprefix("item "), reason="its history has changed since")
    history.version, history.last = max(version, history.version), max(history.last, line.number)
    history.updated = updated
    history.items += 1
    history.size += len(line.body)
    values = (line.number, line.encoding, line.checksum, len(line.body), line.created, plain(decode(line.meta)))
    yield ExecuteMany("history_put", [(history.id, line.part, line.key, *values, line.body)])
    yield from _update([history])
    return True


def remove_history(id: int, version: int, now: Now) -> Op[bool]:
    """Delete an archived history with its items, unless it has changed since; return whether it was deleted."""
    rows = yield Query("history_version", (id, version))
    if not rows:
        return False
    ((kind, name, items, size),) = rows
    yield from _delete(id, version, kind, name, items, size, now)
    return True


def _delete(id: int, version: int, kind: str, name: str, items: int, size: int, now: Now) -> Op[None]:
    """Delete a history. The bus records the highest version, so that none is reused under the same name."""
    yield Query("history_raise_floor", (version,))
    yield Query("history_clear", (id,))
    yield Query("history_delete", (id,))
    facts = {"history_kind": kind, "history": name, "items": items, "size": size}
    yield from record([event(now.wall, "history_deleted", ("bus", "histories"), None, **facts)])


def find_history(history_key: HistoryKey, now: Now) -> Op[History | None]:
    rows = yield Query("history_find", history_key)
    return _history(rows[0]) if rows else None


def get_item(wanted: tuple[str, str, str, str], now: Now) -> Op[HistoryItem | None]:
    """Return one item. ``wanted``: the kind and name of its history, its part and key."""
    rows = yield Query("history_get", (*wanted, _INLINE))
    found = yield from _with_bodies(rows)
    return _item(found[0], wanted[0]) if found else None


def get_short_item(wanted: tuple[str, str, str, str], now: Now) -> Op[HistoryItem | msgspec.UnsetType | None]:
    """Return one item, or UNSET if its body is long. For callers that must not wait."""
    rows = yield Query("history_get", (*wanted, _INLINE))
    if not rows:
        return None
    return msgspec.UNSET if rows[0][-1] is None else _item(rows[0], wanted[0])


def list_kinds(_: None, now: Now) -> Op[list[HistoryKind]]:
    """Return the kinds, ordered by name."""
    from agentbus.records import HistoryKind

    rows = yield Query("history_kinds", (_KINDS,))
    return [HistoryKind(*row) for row in rows]


def list_histories(wanted: HistoryQuery, now: Now) -> Op[Page[History]]:
    """Return histories, ordered by kind and name."""
    found: list[Row] = []
    likely, limit = _likely(wanted.where), wanted.limit + 1
    kind, last = wanted.cursor or ("", "")
    more = True
    while more and len(found) < limit:
        if wanted.kind is None:
            rows = yield Query("history_list", (kind, last, wanted.low, wanted.high, likely, limit))
        else:
            low = wanted.low if not last else max(wanted.low, last + NEXT)
            rows = yield Query("history_of_kind", (wanted.kind, low, wanted.high, likely, limit))
        found += [row for row in rows if _matches(row[-1], wanted.where)]
        more = len(rows) == limit
        if more:
            kind, last = rows[-1][:2]
    return page(found, wanted.limit, _history, lambda one: f"{one.kind} {one.name}")


def list_items(wanted: ItemQuery, now: Now) -> Op[ItemPage]:
    """Return a page of items in the wanted order. With ``where`` a page may be short although there are more."""
    rows = yield _items_query(wanted)
    found = [row for row in rows if _matches(row[_META], wanted.where)]
    if wanted.bodies:
        found = yield from _with_bodies(found)
        found = [row for row in found if _matches(row[_META], wanted.where)]
    return _item_page(wanted, rows, found)


def list_short_items(wanted: ItemQuery, now: Now) -> Op[ItemPage | msgspec.UnsetType]:
    """Return a page of items, or UNSET if one of the bodies is long. For callers that must not wait."""
    rows = yield _items_query(wanted)
    if wanted.bodies and any(row[-1] is None for row in rows):
        return msgspec.UNSET
    return _item_page(wanted, rows, rows)


def _item_page(wanted: ItemQuery, rows: Rows, found: Rows) -> ItemPage:
    cursor = _cursor(wanted, rows[-1]) if len(rows) == wanted.limit else None
    return ItemPage([_item(row, wanted.kind, wanted.bodies) for row in found], cursor)


_META = 9
"""The position of the metadata in a row of an item."""


def _items_query(wanted: ItemQuery) -> Query:
    likely, inline = _likely(wanted.where), _INLINE if wanted.bodies else -1
    down, after, limit = wanted.newest_first, wanted.after, wanted.limit
    low, high, part, name, kind = wanted.low, wanted.high, wanted.part, wanted.name, wanted.kind
    cursor = wanted.cursor
    if not wanted.by_key and name is not None:
        keys = (part, low, high, likely, inline, limit)
        if down:
            return Query("history_items_newest", (kind, name, after, MAX_ID if cursor is None else cursor[0], *keys))
        return Query("history_items_oldest", (kind, name, after if cursor is None else cursor[0], *keys))
    if not wanted.by_key:
        numbered = (after, part, low, high, likely, inline, limit)
        if down:
            return Query("history_items_all_newest", (kind, *(cursor or (END, 0)), *numbered))
        return Query("history_items_all_oldest", (kind, *(cursor or ("", 0)), *numbered))
    if name is not None and part is not None:
        if down:
            end = high if cursor is None else cursor[0]
            return Query("history_items_last", (kind, name, part, low, end, after, likely, inline, limit))
        start = low if cursor is None else cursor[0] + NEXT
        return Query("history_items_first", (kind, name, part, start, high, after, likely, inline, limit))
    rest = (name, part, low, high, after, likely, inline, limit)
    if down:
        return Query("history_items_all_last", (kind, *(cursor or (END, END, END)), *rest))
    return Query("history_items_all_first", (kind, *(cursor or ("", "", "")), *rest))


def _cursor(wanted: ItemQuery, row: Row) -> tuple[Any, ...]:
    """Return the cursor after a row."""
    _, name, part, key, number, *_ = row
    if not wanted.by_key:
        return (number,) if wanted.name is not None else (name, number)
    return (key,) if wanted.name is not None and wanted.part is not None else (key, name, part)


def _with_bodies(rows: Rows) -> Op[Rows]:
    """Return the rows with the bodies that were too long to be read together with them. An item that was replaced
    meanwhile is returned as it is now; one that was deleted is left out."""
    if all(row[-1] is not None for row in rows):
        return rows
    found: Rows = []
    for row in rows:
        found += [row] if row[-1] is not None else (yield Query("history_item", (row[0],)))
    return found


def _likely(where: dict[str, Any] | None) -> str:
    """Return a part of the JSON of every object that matches; the query looks for it, so that few rows are decoded."""
    parts = [
        plain({name: value})[1:-1]
        for name, value in (where or {}).items()
        if value is None or isinstance(value, str | int | float)
    ]
    return max(parts, key=len, default="")


def _matches(meta: str, where: dict[str, Any] | None) -> bool:
    """Return True if the object has these values. Numbers are equal if they are of one type."""
    if not where:
        return True
    found = decode(meta)
    return all(
        name in found
        and type(found[name]) is type(value)
        and (found[name] == value if not isinstance(value, dict | list) else _equal(found[name], value))
        for name, value in where.items()
    )


def _equal(one: Any, other: Any) -> bool:
    return canonical(plain(one)) == canonical(plain(other))


def _history(row: Row) -> History:
    from agentbus.records import History

    kind, name, version, items, size, created, updated, meta = row
    return History(kind, name, version, items, size, created, updated, decode(meta))


def _item(row: Row, kind: str, body: bool = True) -> HistoryItem:
    from agentbus.records import HistoryItem

    _, name, part, key, number, encoding, checksum, size, created, meta, stored = row
    if not body:
        return HistoryItem(name, part, key, number, encoding, decode(meta), size, created)
    if crc32(stored) != checksum:
        raise DamagedPayload(what=item_text(kind, name, part, key))
    return HistoryItem(name, part, key, number, encoding, decode(meta), size, created, stored)


def item_text(kind: str, name: str, part: str, key: str) -> str:
    """Return how errors name an item."""
    where = f" of part {part!r}" if part else ""
    return f"item {key!r}{where} of history {name!r} ({kind})"
