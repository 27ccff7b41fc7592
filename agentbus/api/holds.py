"""``bus.holds``: the messages that the loop guard holds for a person. Imports no event loop: the command line
uses it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentbus.core.validation import MAX_PAGE, PAGE_SIZE, check_name, check_range, check_text
from agentbus.operations.holds import (
    DiscardHoldsRequest,
    HoldsQuery,
    ReleaseHoldsRequest,
    discard_holds,
    list_holds,
    release_holds,
)

if TYPE_CHECKING:
    from agentbus.engine.interface import Engine
    from agentbus.records import HoldRecord, Page


class Holds:
    """The threads whose messages wait for a person: agents exchanged as many as ``bus.quotas`` allows without progress.

    >>> for one in (await bus.holds.list()).items:                                    # doctest: +SKIP
    ...     await bus.holds.release(one.thread, by="ada")
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def list(self, *, cursor: str | None = None, limit: int = PAGE_SIZE) -> Page[HoldRecord]:
        """Return the threads with held messages, in order of their names.

        >>> [(one.thread, one.held) for one in (await bus.holds.list()).items]        # doctest: +SKIP
        [('m-7', 3)]
        """
        after = "" if cursor is None else check_text(cursor, "cursor", 128)
        return await self._engine.read(list_holds, HoldsQuery(after, check_range(limit, "limit", 1, MAX_PAGE)))

    async def release(self, thread: str, *, by: str) -> int:
        """Deliver the held messages of a thread, which may then have as many messages again. Return their number. The
        audit log names the person ``by``. Raises NothingHeld.

        >>> await bus.holds.release("m-7", by="ada")                                  # doctest: +SKIP
        3
        """
        name, person = check_name(thread, "thread"), check_text(by, "by", 200, low=1)
        step = await self._engine.write(release_holds, ReleaseHoldsRequest(name, person))
        count = step.count
        while step.more:
            # In bounded transactions: other writers must not wait long for the lock.
            step = await self._engine.write(release_holds, ReleaseHoldsRequest(name, person, first=False))
            count += step.count
        return count

    async def discard(self, thread: str, *, by: str, reason: str | None = None) -> int:
        """Expire the held messages of a thread. The thread stays held: its next message waits for a person again.
        Return their number. A request among them fails with RequestDied. Raises NothingHeld.

        >>> await bus.holds.discard("m-7", by="ada", reason="they repeat themselves")   # doctest: +SKIP
        3
        """
        name, person = check_name(thread, "thread"), check_text(by, "by", 200, low=1)
        why = None if reason is None else check_text(reason, "reason")
        step = await self._engine.write(discard_holds, DiscardHoldsRequest(name, person, reason=why))
        count = step.count
        while step.more:
            step = await self._engine.write(discard_holds, DiscardHoldsRequest(name, person, first=False, reason=why))
            count += step.count
        return count
