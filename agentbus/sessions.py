"""``bus.sessions``: looking at sessions, and joining them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from agentbus.errors import UnknownSession
from agentbus.limits import (
    MAX_PAGE,
    SESSION_STATUSES,
    check_minutes,
    check_moment,
    check_name,
    check_range,
    choices_or_none,
    name_or_none,
)
from agentbus.operations.sessions import SessionFilter, cut_off_sessions, get_session, list_sessions, stale_sessions
from agentbus.records import CutOffSession, Page, SessionRecord

if TYPE_CHECKING:
    from agentbus.bus import Bus
    from agentbus.session import Session


class Sessions:
    """The sessions of the bus.

    >>> for session in (await bus.sessions.list(status="interrupted")).items:         # doctest: +SKIP
    ...     print(session.id, session.progress, session.error)
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._engine = bus.engine

    async def open(self, session: str) -> Session:
        """Take part in a session that somebody began. Leaving it is up to you: it is not ended with anything.

        Also one that has ended can be opened, to read what it made.

        >>> session = await bus.sessions.open("planning-001")                         # doctest: +SKIP
        """
        # Imported only here: the command line looks at sessions without it.
        from agentbus.session import Session

        record = await self.get(session)
        if record is None:
            raise UnknownSession(session=session)
        return Session(self._bus, record.id, record.operation, record.milestone)

    async def get(self, session: str) -> SessionRecord | None:
        """The record of one session, or None.

        >>> await bus.sessions.get("planning-001")                                    # doctest: +SKIP
        """
        return await self._engine.look(get_session, check_name(session, "session"))

    async def list(
        self,
        *,
        status: str | Sequence[str] | None = None,
        operation: str | None = None,
        milestone: str | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page[SessionRecord]:
        """Sessions, newest first.

        >>> page = await bus.sessions.list(status=["interrupted", "paused"], operation="planning")   # doctest: +SKIP
        """
        wanted = SessionFilter(
            choices_or_none(status, "status", SESSION_STATUSES),
            name_or_none(operation, "operation"),
            name_or_none(milestone, "milestone"),
            check_moment(cursor),
            check_range(limit, "limit", 1, MAX_PAGE),
        )
        return await self._engine.read(list_sessions, wanted)

    async def cut_off(self) -> Sequence[CutOffSession]:
        """The sessions that were interrupted, and those that go on though agents of them failed, the last noted first.

        >>> [(cut.session, cut.status) for cut in await bus.sessions.cut_off()]       # doctest: +SKIP
        [('planning-001', 'interrupted'), ('execution-002', 'degraded')]
        """
        return await self._engine.read(cut_off_sessions, None)

    async def stale(self, minutes: float) -> Sequence[SessionRecord]:
        """The sessions that have not ended, and in which nobody did anything for so many minutes, the longest silent
        first. A machine that was asleep makes no agent silent.

        >>> [session.id for session in await bus.sessions.stale(60)]                  # doctest: +SKIP
        ['planning-001']
        """
        return await self._engine.read(stale_sessions, check_minutes(minutes, "minutes"))
