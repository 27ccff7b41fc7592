"""Records of histories: what agent frameworks store of conversations and runs."""

from __future__ import annotations

from typing import Any

import msgspec


class History(msgspec.Struct, frozen=True):
    """A history: what a framework (``kind``) stores of one conversation or run. ``version`` grows by one with every
    write; ``items`` and ``size`` are the number of its items and the bytes of their bodies.

    >>> history = await bus.histories.find("openai", "chat-7")                        # doctest: +SKIP
    >>> history.version, history.items                                                # doctest: +SKIP
    (3, 12)
    """

    kind: str
    name: str
    version: int
    items: int
    size: int
    created: int
    updated: int
    meta: dict[str, Any]


class HistoryItem(msgspec.Struct, frozen=True):
    """An item of the history named ``history``. ``number`` is its place in the order of insertion, which replacing it
    does not change; ``size`` the bytes of its body. A list without bodies leaves ``body`` empty.

    >>> for item in await bus.histories.items("openai", "chat-7", newest_first=True, limit=2):   # doctest: +SKIP
    ...     print(item.number, json.loads(item.body))
    """

    history: str
    part: str
    key: str
    number: int
    encoding: str
    meta: dict[str, Any]
    size: int
    created: int
    body: bytes = b""


class HistoryPut(msgspec.Struct, frozen=True, kw_only=True):
    """An item to write. Without a ``key`` it is appended: its key is its number with 20 digits. An item that has its
    part and key is replaced, or left alone if ``replace`` is False.

    >>> HistoryPut(body=b'{"role":"user"}').encoding
    'json'
    """

    body: bytes
    key: str | None = None
    part: str = ""
    encoding: str = "json"
    meta: dict[str, Any] = {}
    replace: bool = True


class HistoryWrite(msgspec.Struct, frozen=True, kw_only=True):
    """A write to one history: the arguments of ``bus.histories.write``, for a commit that writes several.

    >>> HistoryWrite(kind="adk", name="app/ada", puts=[HistoryPut(key="name", body=b'"Ada"')]).if_version is None
    True
    """

    kind: str
    name: str
    puts: list[HistoryPut] = []
    delete: list[tuple[str, str]] = []
    meta: dict[str, Any] | None = None
    if_version: int | None = None


class HistoryKind(msgspec.Struct, frozen=True):
    """The histories of one kind: their number, the number of their items and the bytes of the bodies, and the wall time
    of the last write.

    >>> [(one.kind, one.histories) for one in await bus.histories.kinds()]            # doctest: +SKIP
    [('langgraph', 40), ('openai', 3)]
    """

    kind: str
    histories: int
    items: int
    size: int
    updated: int
