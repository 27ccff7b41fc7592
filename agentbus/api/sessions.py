"""Sessions of the bus: ``bus.sessions`` lists and opens them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agentbus.core.validation import (
    MAX_PAGE,
    PAGE_SIZE,
    SESSION_STATUSES,
    check_minutes,
    check_name,
    check_range,
    check_time_cursor,
    choices_or_none,
    name_or_none,
)
from agentbus.errors import UnknownSession
from agentbus.operations.sessions import SessionFilter, get_session, interrupted_sessions, list_sessions, stale_sessions
from agentbus.records import CutOffSession, Page, SessionRecord

if TYPE_CHECKING:
    from agentbus.api.bus import Bus
    from agentbus.api.session import Session


class Sessions:
    """The sessions of the bus.

    >>> for session in (await bus.sessions.list(status="interrupted")).items:         # doctest: +SKIP
    ...     print(session.id, session.progress, session.error)
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._engine = bus._engine

    async def open(self, session: str, *, by: str | None = None) -> Session:
        """Open an existing session without owning it: nothing ends it when this program leaves. The audit log names the
        operator ``by`` for changes of its status.

        A session that has ended can be opened too, to read its documents.

        >>> session = await bus.sessions.open("planning-001")                         # doctest: +SKIP
        """
        # Imported late: the command line lists sessions without it.
        from agentbus.api.session import Session

        record = await self.get(session)
        if record is None:
            raise UnknownSession(session=session)
        return Session(self._bus, record.id, record.operation, record.milestone, by=by)

    async def start(
        self,
        operation: str,
        *,
        milestone: str | None = None,
        id: str | None = None,
        expects: Mapping[str, str] | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Session:
        """Start a session that no process owns, or resume one; the arguments are those of ``Bus.session``. It outlives
        this program, and is interrupted when its agents have failed.

        >>> session = await bus.sessions.start("planning", id="planning-001")         # doctest: +SKIP
        """
        from agentbus.api.session import Session, session_request
        from agentbus.engine.processes import notice_deaths
        from agentbus.operations.sessions import start_session

        request = session_request(operation, None, milestone, id, expects, metadata, self._bus._max_payload)
        await notice_deaths(self._engine)
        started = await self._engine.write(start_session, request)
        return Session(self._bus, started.session, started.operation, started.milestone, continued=started.continued)

    async def get(self, session: str) -> SessionRecord | None:
        """Return the record of one session, or None.

        >>> await bus.sessions.get("planning-001")                                    # doctest: +SKIP
        """
        return await self._engine.read_inline(get_session, check_name(session, "session"))

    async def list(
        self,
        *,
        status: str | Sequence[str] | None = None,
        operation: str | None = None,
        milestone: str | None = None,
        cursor: str | None = None,
        limit: int = PAGE_SIZE,
    ) -> Page[SessionRecord]:
        """Return sessions, newest first.

        >>> page = await bus.sessions.list(status=["interrupted", "paused"], operation="planning")   # doctest: +SKIP
        """
        wanted = SessionFilter(
            choices_or_none(status, "status", SESSION_STATUSES),
            name_or_none(operation, "operation"),
            name_or_none(milestone, "milestone"),
            check_time_cursor(cursor),
            check_range(limit, "limit", 1, MAX_PAGE),
        )
        return await self._engine.read(list_sessions, wanted)

    async def cut_off(self) -> Sequence[CutOffSession]:
        """Return interrupted sessions, and active ones with failed agents, most recently changed first.

        >>> [(cut.session, cut.status) for cut in await bus.sessions.cut_off()]       # doctest: +SKIP
        [('planning-001', 'interrupted'), ('execution-002', 'degraded')]
        """
        return await self._engine.read(interrupted_sessions, None)

    async def stale(self, minutes: float) -> Sequence[SessionRecord]:
        """Return the open sessions without activity for ``minutes`` minutes, longest idle first. Time for which the
        machine was asleep does not count.

        >>> [session.id for session in await bus.sessions.stale(60)]                  # doctest: +SKIP
        ['planning-001']
        """
        return await self._engine.read(stale_sessions, check_minutes(minutes, "minutes"))
