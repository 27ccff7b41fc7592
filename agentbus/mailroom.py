"""``bus.messages``: looking at messages whatever became of them, dead letters, and cleaning up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from agentbus.addresses import Address, address
from agentbus.engine.interface import Engine
from agentbus.limits import (
    MAX_PAGE,
    MESSAGE_STATUSES,
    check_choice,
    check_name,
    check_range,
    check_row,
    check_seconds,
    check_text,
    choices_or_none,
    name_or_none,
)
from agentbus.operations.dead_letters import FINISHED, PurgeRequest, RequeueRequest, purge, requeue
from agentbus.operations.reading import MessageFilter, get_message, list_dead, list_messages
from agentbus.records import MessageRecord, Page

_PURGE_STEP = 5000

Finished = Literal["acked", "dead", "expired"]


class Mailroom:
    """The messages of the bus.

    >>> for letter in (await bus.messages.dead()).items:                              # doctest: +SKIP
    ...     print(letter.message_id, letter.error)
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def get(self, message_id: str) -> MessageRecord | None:
        """One message by its message_id, or None. Of a published one, the newest copy.

        >>> await bus.messages.get("m-7")                                             # doctest: +SKIP
        """
        return await self._engine.read(get_message, check_name(message_id, "message_id"))

    async def list(
        self,
        *,
        status: str | Sequence[str] | None = None,
        type: str | None = None,
        sender: str | None = None,
        to: str | Address | None = None,
        session: str | None = None,
        correlation: str | None = None,
        holder: str | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page[MessageRecord]:
        """Messages, newest first. ``holder``: those that this agent holds.

        >>> page = await bus.messages.list(to="executor-1", status="queued")          # doctest: +SKIP
        """
        place = None if to is None else address(to)
        wanted = MessageFilter(
            choices_or_none(status, "status", MESSAGE_STATUSES),
            name_or_none(type, "message type"),
            # Any text: the bus itself has a name that no agent can have.
            None if sender is None else check_text(sender, "sender"),
            name_or_none(session, "session"),
            name_or_none(correlation, "correlation"),
            None if place is None else (place.kind, place.name),
            check_row(cursor),
            check_range(limit, "limit", 1, MAX_PAGE),
            name_or_none(holder, "holder"),
        )
        return await self._engine.read(list_messages, wanted)

    async def dead(self, *, cursor: str | None = None, limit: int = 100) -> Page[MessageRecord]:
        """Dead letters, newest first, each with its last error.

        >>> letters = await bus.messages.dead()                                       # doctest: +SKIP
        """
        wanted = MessageFilter(cursor=check_row(cursor), limit=check_range(limit, "limit", 1, MAX_PAGE))
        return await self._engine.read(list_dead, wanted)

    async def requeue(self, *message_ids: str) -> int:
        """Give dead letters another chance: all, or none. Their attempts start again; says how many there were.

        >>> await bus.messages.requeue("m-7", "m-9")                                  # doctest: +SKIP
        """
        ids = tuple(dict.fromkeys(check_name(message_id, "message_id") for message_id in message_ids))
        return await self._engine.write(requeue, RequeueRequest(ids)) if ids else 0

    async def purge(self, *, status: Finished | None = None, older_than: float = 0) -> int:
        """Delete finished messages that are older than so many seconds; says how many. Dead letters only if asked for.

        >>> await bus.messages.purge(status="acked", older_than=86400)                # doctest: +SKIP
        """
        if status is not None:
            check_choice(status, "status", FINISHED)
        before = self._engine.clock.now().wall - check_seconds(older_than, "older_than", zero=True)
        gone = last = 0
        while True:
            # In steps, so that nobody waits long for the lock.
            step = await self._engine.write(purge, PurgeRequest(status, before, _PURGE_STEP, last))
            gone += len(step)
            if len(step) < _PURGE_STEP:
                return gone
            last = max(step)
