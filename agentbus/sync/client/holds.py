"""``bus.holds``: the messages that the loop guard holds for a person. Imports no event loop: the command line
uses it.

Written by ``make sync`` from ``agentbus.api.holds``: change that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentbus.api import holds as api
from agentbus.core.validation import PAGE_SIZE
from agentbus.sync.client.base import Wrapper

if TYPE_CHECKING:
    from agentbus.records import HoldRecord, Page


class Holds(Wrapper[api.Holds], wraps=api.Holds):
    """The threads whose messages wait for a person: agents exchanged as many as ``bus.quotas`` allows without progress.

    >>> for one in bus.holds.list().items:                                    # doctest: +SKIP
    ...     bus.holds.release(one.thread, by="ada")
    """

    __slots__ = ()

    def list(self, *, cursor: str | None = None, limit: int = PAGE_SIZE) -> Page[HoldRecord]:
        """Return the threads with held messages, in order of their names.

        >>> [(one.thread, one.held) for one in bus.holds.list().items]        # doctest: +SKIP
        [('m-7', 3)]
        """
        return self._call(self._inner.list, cursor=cursor, limit=limit)

    def release(self, thread: str, *, by: str) -> int:
        """Deliver the held messages of a thread, which may then have as many messages again. Return their number. The
        audit log names the person ``by``. Raises NothingHeld.

        >>> bus.holds.release("m-7", by="ada")                                  # doctest: +SKIP
        3
        """
        return self._call(self._inner.release, thread, by=by)

    def discard(self, thread: str, *, by: str, reason: str | None = None) -> int:
        """Expire the held messages of a thread. The thread stays held: its next message waits for a person again.
        Return their number. A request among them fails with RequestDied. Raises NothingHeld.

        >>> bus.holds.discard("m-7", by="ada", reason="they repeat themselves")   # doctest: +SKIP
        3
        """
        return self._call(self._inner.discard, thread, by=by, reason=reason)
