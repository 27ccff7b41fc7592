"""``bus.histories``: what agent frameworks store of conversations and runs. Imports no event loop: the command line
uses it."""

from __future__ import annotations

import builtins
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal
from zlib import crc32

import msgspec

from agentbus.core.codec import LARGE, encode
from agentbus.core.threads import run_in_thread
from agentbus.core.validation import (
    MAX_BATCH,
    MAX_DELETIONS,
    MAX_HISTORY_META,
    MAX_HISTORY_TEXT,
    MAX_ID,
    MAX_PAGE,
    PAGE_SIZE,
    check_choice,
    check_kind,
    check_range,
    check_text,
)
from agentbus.errors import InvalidInput, OutOfRange, SnapshotTooLarge
from agentbus.operations.histories import (
    END,
    MAX_ITEM_KEY,
    NEXT,
    CopyRequest,
    DeleteRequest,
    HistoryQuery,
    ItemPage,
    ItemPut,
    ItemQuery,
    WriteAllRequest,
    WriteRequest,
    copy_history,
    delete_history,
    find_history,
    get_item,
    get_short_item,
    list_histories,
    list_items,
    list_kinds,
    list_short_items,
    prefix_end,
    write_histories,
    write_history,
)
from agentbus.records.histories import HistoryPut, HistoryWrite

if TYPE_CHECKING:
    from agentbus.engine.interface import Engine
    from agentbus.records import History, HistoryItem, HistoryKind, Page

_MAX_BODIES = 4
"""Bodies of the maximum size that one write may have."""
_PAGE = 200
"""Items that are read together."""
_FEW = 10
"""Items that are read without leaving the event loop."""


class Histories:
    """The conversations and runs that agent frameworks store: a history, named by kind and name, has numbered items
    under a part and a key.

    >>> put = HistoryPut(body=b'{"role":"user","content":"hello"}')                   # doctest: +SKIP
    >>> await bus.histories.write("openai", "chat-7", [put])                          # doctest: +SKIP
    >>> [item.body for item in await bus.histories.items("openai", "chat-7")]         # doctest: +SKIP
    [b'{"role":"user","content":"hello"}']
    """

    def __init__(self, engine: Engine, max_snapshot: int) -> None:
        self._engine = engine
        self._limit = max_snapshot

    async def write(
        self,
        kind: str,
        name: str,
        puts: Iterable[HistoryPut] = (),
        *,
        delete: Iterable[tuple[str, str]] = (),
        meta: dict[str, Any] | None = None,
        if_version: int | None = None,
    ) -> History:
        """Delete items (part, key), then write others, all in one commit or nothing; return the history.

        A history that does not exist is created. ``meta`` replaces its metadata. ``if_version`` is the version that it
        must have, 0 if it must not exist; otherwise HistoryConflict is raised. The version grows by one.

        >>> put = HistoryPut(key="c-2", body=b"...", part="child", meta={"step": 2})  # doctest: +SKIP
        >>> await bus.histories.write("langgraph", "thread-1", [put], if_version=3)   # doctest: +SKIP
        """
        return await self._engine.write(
            write_history, await self._request(kind, name, puts, delete, meta, if_version)
        )  # fmt: skip

    async def write_all(self, writes: Iterable[HistoryWrite]) -> builtins.list[History]:
        """Write several histories, all in one commit or nothing; return them. Each write does what ``write`` does with
        the same arguments; no two may name the same history.

        >>> chat = HistoryWrite(kind="adk", name="app/ada/chat-7", puts=[event], if_version=3)   # doctest: +SKIP
        >>> user = HistoryWrite(kind="adk", name="app/ada", puts=[state])             # doctest: +SKIP
        >>> await bus.histories.write_all([chat, user])                               # doctest: +SKIP
        """
        given = _listed(writes, "writes", "a list of HistoryWrite")
        requests: builtins.list[WriteRequest] = []
        for one in given:
            if not isinstance(one, HistoryWrite):
                raise InvalidInput(reason=f"writes must be HistoryWrite, not {type(one).__name__}")
            requests.append(
                await self._request(one.kind, one.name, one.puts, one.delete, one.meta, one.if_version)
            )  # fmt: skip
        if len({(request.kind, request.name) for request in requests}) < len(requests):
            raise InvalidInput(reason="two of the writes name the same history: put their items into one write")
        return await self._engine.write(write_histories, WriteAllRequest(tuple(requests))) if requests else []

    async def _request(
        self, kind: str, name: str, puts: object, delete: object, meta: object, if_version: int | None
    ) -> WriteRequest:
        """Return a checked write."""
        request = WriteRequest(
            check_kind(kind),
            _check_name(name),
            deletes=tuple(_check_item_key(one) for one in _few(delete, "delete", "tuples of part and key")),
            meta=None if meta is None else _meta(meta),
            if_version=None if if_version is None else check_range(if_version, "if_version", 0, MAX_ID),
        )
        given = _listed(puts, "puts", "a list of HistoryPut")
        size = sum(len(put.body) for put in given if isinstance(put, HistoryPut) and isinstance(put.body, bytes))
        checked = self._check(given) if size <= LARGE else await run_in_thread(self._check, given)
        return msgspec.structs.replace(request, puts=checked)

    async def get(self, kind: str, name: str, key: str, part: str = "") -> HistoryItem | None:
        """Return an item, or None.

        >>> (await bus.histories.get("langgraph", "thread-1", "c-2", "child")).meta   # doctest: +SKIP
        {'step': 2}
        """
        item_key = check_kind(kind), _check_name(name), *_check_item_key((part, key))
        found = await self._engine.read_inline(get_short_item, item_key)
        return await self._engine.read(get_item, item_key) if found is msgspec.UNSET else found

    async def items(
        self,
        kind: str,
        name: str | None = None,
        *,
        part: str | None = None,
        key: str | None = None,
        key_prefix: str | None = None,
        before_key: str | None = None,
        after: int = 0,
        where: dict[str, Any] | None = None,
        newest_first: bool = False,
        by: Literal["number", "key"] = "number",
        limit: int | None = None,
        bodies: bool = True,
    ) -> builtins.list[HistoryItem]:
        """Return items of a history, or (without a name) of all histories of a kind; without a limit all of them.

        They are ordered by number, or by key. Without a name the order is that of the names of the histories and then
        of the numbers, or of keys, names and parts. ``newest_first`` reverses it. ``after``: only greater numbers;
        ``before_key``: only smaller keys. ``where``: only items with these values in their metadata. ``bodies=False``
        leaves the bodies out. Up to 200 items are read at one moment; longer lists are read in several steps.

        >>> latest = await bus.histories.items(                                       # doctest: +SKIP
        ...     "langgraph", "thread-1", part="", by="key", newest_first=True, limit=1
        ... )
        """
        low, high = _range(key, key_prefix, before_key)
        wanted = ItemQuery(
            check_kind(kind),
            None if name is None else _check_name(name),
            _PAGE,
            None if part is None else check_text(part, "part", MAX_HISTORY_TEXT),
            low,
            high,
            check_range(after, "after", 0, MAX_ID),
            _where(where),
            check_choice(by, "by", ("number", "key")) == "key",
            bool(newest_first),
            bool(bodies),
        )
        left = None if limit is None else check_range(limit, "limit", 1, MAX_ID)
        found: builtins.list[HistoryItem] = []
        while True:
            if left is not None and wanted.where is None:
                wanted = msgspec.structs.replace(wanted, limit=min(_PAGE, left - len(found)))
            page = await self._read(wanted)
            found += page.items
            if page.cursor is None or (left is not None and len(found) >= left):
                return found[:left]
            wanted = msgspec.structs.replace(wanted, cursor=page.cursor)

    async def find(self, kind: str, name: str) -> History | None:
        """Return a history without its items, or None.

        >>> (await bus.histories.find("openai", "chat-7")).items                      # doctest: +SKIP
        12
        """
        history_key = check_kind(kind), _check_name(name)
        return await self._engine.read_inline(find_history, history_key)

    async def list(
        self,
        kind: str | None = None,
        *,
        prefix: str | None = None,
        where: dict[str, Any] | None = None,
        limit: int = PAGE_SIZE,
        cursor: str | None = None,
    ) -> Page[History]:
        """Return histories, ordered by kind and name: of one kind, with names that start with ``prefix``, with the
        values ``where`` in their metadata.

        >>> [one.name for one in (await bus.histories.list("openai", prefix="chat-")).items]   # doctest: +SKIP
        ['chat-7', 'chat-8']
        """
        low = "" if prefix is None else check_text(prefix, "prefix", MAX_HISTORY_TEXT)
        wanted = HistoryQuery(
            check_range(limit, "limit", 1, MAX_PAGE),
            None if kind is None else check_kind(kind),
            low,
            prefix_end(low),
            _where(where),
            None if cursor is None else _check_cursor(cursor),
        )
        return await self._engine.read(list_histories, wanted)

    async def kinds(self) -> builtins.list[HistoryKind]:
        """Return how many histories there are of each kind, their size, and the time of the last write; at most 100
        kinds.

        >>> [(one.kind, one.histories) for one in await bus.histories.kinds()]        # doctest: +SKIP
        [('langgraph', 40), ('openai', 3)]
        """
        return await self._engine.read(list_kinds, None)

    async def delete(self, kind: str, name: str, *, part: str | None = None, keys: Iterable[str] | None = None) -> int:
        """Delete a history with its items, or only the items of a part, or only these keys of a part (default "") in
        one commit. Return the number of items deleted.

        >>> await bus.histories.delete("langgraph", "thread-1")                       # doctest: +SKIP
        31
        """
        checked = None
        if keys is not None:
            checked = tuple(_check_item_key((part or "", key))[1] for key in _few(keys, "keys", "a list of keys"))
        request = DeleteRequest(
            check_kind(kind),
            _check_name(name),
            None if part is None else check_text(part, "part", MAX_HISTORY_TEXT),
            checked,
        )
        return await self._engine.write(delete_history, request)

    async def copy(self, kind: str, source: str, target: str) -> History:
        """Copy a history with its items to a name that is free, or whose history has no items, in one commit. Return
        the copy. Raises UnknownHistory and WrongState.

        >>> (await bus.histories.copy("langgraph", "thread-1", "thread-1-fork")).items   # doctest: +SKIP
        31
        """
        names = (_check_name(one, what) for one, what in ((source, "source"), (target, "target")))
        return await self._engine.write(copy_history, CopyRequest(check_kind(kind), *names))

    async def _read(self, wanted: ItemQuery) -> ItemPage:
        few = wanted.limit <= _FEW and wanted.name is not None and wanted.where is None
        if few and (wanted.part is not None if wanted.by_key else wanted.part is None and wanted.high == END):
            found = await self._engine.read_inline(list_short_items, wanted)
            if found is not msgspec.UNSET:
                return found
        return await self._engine.read(list_items, wanted)

    def _check(self, puts: builtins.list[HistoryPut]) -> tuple[ItemPut, ...]:
        """Return checked items with their checksums."""
        check_range(len(puts), "the number of puts", 0, MAX_BATCH)
        checked = tuple(_put(put, self._limit) for put in puts)
        size = sum(len(put.body) for put in checked)
        if size > _MAX_BODIES * self._limit:
            raise SnapshotTooLarge(size=size, limit=_MAX_BODIES * self._limit)
        return checked


def _put(put: object, limit: int) -> ItemPut:
    if not isinstance(put, HistoryPut):
        raise InvalidInput(reason=f"puts must be HistoryPut, not {type(put).__name__}")
    if not isinstance(put.body, bytes | bytearray | memoryview):
        raise InvalidInput(reason=f"the body of an item must be bytes, not {type(put.body).__name__}")
    body = bytes(put.body)
    if len(body) > limit:
        raise SnapshotTooLarge(size=len(body), limit=limit)
    part, key = (put.part, None) if put.key is None else _check_item_key((put.part, put.key))
    return ItemPut(
        check_text(part, "part", MAX_HISTORY_TEXT),
        key,
        check_text(put.encoding, "encoding", 64, low=1),
        crc32(body),
        _meta(put.meta),
        body,
        bool(put.replace),
    )


def _check_name(name: object, what: str = "name") -> str:
    """Return a valid name of a history, or a key."""
    return check_text(name, what, MAX_HISTORY_TEXT, low=1)


def _check_item_key(item_key: object) -> tuple[str, str]:
    """Return a valid part and key."""
    if not isinstance(item_key, tuple | list) or len(item_key) != 2:
        raise InvalidInput(reason="an item is named by a part and a key")
    part, key = check_text(item_key[0], "part", MAX_HISTORY_TEXT), _check_name(item_key[1], "key")
    size = len(part.encode()) + len(key.encode())
    if size > MAX_ITEM_KEY:
        raise OutOfRange(what="part and key", value=f"{size} bytes", allowed=f"at most {MAX_ITEM_KEY} bytes together")
    return part, key


def _check_cursor(cursor: object) -> tuple[str, str]:
    kind, _, name = cursor.partition(" ") if isinstance(cursor, str) else ("", "", "")
    if not name or len(name) > MAX_HISTORY_TEXT:
        raise OutOfRange(what="cursor", value=cursor, allowed="the cursor of a page")
    return check_kind(kind), check_text(name, "cursor", MAX_HISTORY_TEXT)


def _range(key: str | None, prefix: str | None, before: str | None) -> tuple[str, str]:
    """Return the bounds of keys, the upper one exclusive."""
    low, high = "", END
    if prefix is not None:
        low = check_text(prefix, "key_prefix", MAX_HISTORY_TEXT)
        high = prefix_end(low)
    if key is not None:
        _check_name(key, "key")
        low, high = max(low, key), min(high, key + NEXT)
    if before is not None:
        high = min(high, check_text(before, "before_key", MAX_HISTORY_TEXT))
    return low, high


def _where(where: object) -> dict[str, Any] | None:
    if where is None:
        return None
    if not isinstance(where, dict):
        raise InvalidInput(reason="where must be a dict of the values that the metadata must have")
    encode(where, MAX_HISTORY_META)
    return where or None


def _meta(meta: object) -> str:
    if not isinstance(meta, dict):
        raise InvalidInput(reason="meta must be a dict")
    return "{}" if not meta else encode(meta, MAX_HISTORY_META)[0]


def _few(values: object, what: str, rule: str) -> builtins.list[Any]:
    """Return a list of items to delete that is short enough for one commit."""
    found = _listed(values, what, rule)
    check_range(len(found), f"the length of {what}", 0, MAX_DELETIONS)
    return found


def _listed(values: object, what: str, rule: str) -> builtins.list[Any]:
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise InvalidInput(reason=f"{what} must be {rule}")
    return list(values)
