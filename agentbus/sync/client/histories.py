"""``bus.histories``: what agent frameworks store of conversations and runs. Imports no event loop: the command line
uses it.

Written by ``make sync`` from ``agentbus.api.histories``: change that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentbus.api import histories as api
from agentbus.core.validation import PAGE_SIZE
from agentbus.sync.client.base import Wrapper

if TYPE_CHECKING:
    import builtins
    from collections.abc import Iterable
    from typing import Any, Literal

    from agentbus.records import History, HistoryItem, HistoryKind, Page
    from agentbus.records.histories import HistoryPut, HistoryWrite


class Histories(Wrapper[api.Histories], wraps=api.Histories):
    """The conversations and runs that agent frameworks store: a history, named by kind and name, has numbered items
    under a part and a key.

    >>> put = HistoryPut(body=b'{"role":"user","content":"hello"}')                   # doctest: +SKIP
    >>> bus.histories.write("openai", "chat-7", [put])                          # doctest: +SKIP
    >>> [item.body for item in bus.histories.items("openai", "chat-7")]         # doctest: +SKIP
    [b'{"role":"user","content":"hello"}']
    """

    __slots__ = ()

    def write(
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
        >>> bus.histories.write("langgraph", "thread-1", [put], if_version=3)   # doctest: +SKIP
        """
        return self._call(self._inner.write, kind, name, puts, delete=delete, meta=meta, if_version=if_version)

    def write_all(self, writes: Iterable[HistoryWrite]) -> builtins.list[History]:
        """Write several histories, all in one commit or nothing; return them. Each write does what ``write`` does with
        the same arguments; no two may name the same history.

        >>> chat = HistoryWrite(kind="adk", name="app/ada/chat-7", puts=[event], if_version=3)   # doctest: +SKIP
        >>> user = HistoryWrite(kind="adk", name="app/ada", puts=[state])             # doctest: +SKIP
        >>> bus.histories.write_all([chat, user])                               # doctest: +SKIP
        """
        return self._call(self._inner.write_all, writes)

    def get(self, kind: str, name: str, key: str, part: str = "") -> HistoryItem | None:
        """Return an item, or None.

        >>> bus.histories.get("langgraph", "thread-1", "c-2", "child").meta   # doctest: +SKIP
        {'step': 2}
        """
        return self._call(self._inner.get, kind, name, key, part)

    def items(
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

        >>> latest = bus.histories.items(                                       # doctest: +SKIP
        ...     "langgraph", "thread-1", part="", by="key", newest_first=True, limit=1
        ... )
        """
        return self._call(
            self._inner.items,
            kind,
            name,
            part=part,
            key=key,
            key_prefix=key_prefix,
            before_key=before_key,
            after=after,
            where=where,
            newest_first=newest_first,
            by=by,
            limit=limit,
            bodies=bodies,
        )

    def find(self, kind: str, name: str) -> History | None:
        """Return a history without its items, or None.

        >>> bus.histories.find("openai", "chat-7").items                      # doctest: +SKIP
        12
        """
        return self._call(self._inner.find, kind, name)

    def list(
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

        >>> [one.name for one in bus.histories.list("openai", prefix="chat-").items]   # doctest: +SKIP
        ['chat-7', 'chat-8']
        """
        return self._call(self._inner.list, kind, prefix=prefix, where=where, limit=limit, cursor=cursor)

    def kinds(self) -> builtins.list[HistoryKind]:
        """Return how many histories there are of each kind, their size, and the time of the last write; at most 100
        kinds.

        >>> [(one.kind, one.histories) for one in bus.histories.kinds()]        # doctest: +SKIP
        [('langgraph', 40), ('openai', 3)]
        """
        return self._call(self._inner.kinds)

    def delete(self, kind: str, name: str, *, part: str | None = None, keys: Iterable[str] | None = None) -> int:
        """Delete a history with its items, or only the items of a part, or only these keys of a part (default "") in
        one commit. Return the number of items deleted.

        >>> bus.histories.delete("langgraph", "thread-1")                       # doctest: +SKIP
        31
        """
        return self._call(self._inner.delete, kind, name, part=part, keys=keys)

    def copy(self, kind: str, source: str, target: str) -> History:
        """Copy a history with its items to a name that is free, or whose history has no items, in one commit. Return
        the copy. Raises UnknownHistory and WrongState.

        >>> bus.histories.copy("langgraph", "thread-1", "thread-1-fork").items   # doctest: +SKIP
        31
        """
        return self._call(self._inner.copy, kind, source, target)
