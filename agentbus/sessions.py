"""``bus.sessions``: looking at sessions and joining them; and the block of ``bus.session``."""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from agentbus.codec import encode_metadata
from agentbus.errors import (
    AgentBusError,
    InvalidInput,
    Misuse,
    SessionExists,
    SessionLost,
    UnknownSession,
    WrongState,
)
from agentbus.handle import unheeded
from agentbus.limits import (
    MAX_PAGE,
    SESSION_STATUSES,
    check_choices,
    check_moment,
    check_name,
    check_range,
    error_text,
    name_or_none,
)
from agentbus.operations.processes import Neighbour
from agentbus.operations.sessions import (
    BeginRequest,
    Begun,
    ChangeRequest,
    SessionFilter,
    begin,
    change,
    get_session,
    list_sessions,
)
from agentbus.parting import parting
from agentbus.pulse import strike_off
from agentbus.records import Page, SessionRecord
from agentbus.session import Session

if TYPE_CHECKING:
    from agentbus.bus import Bus

log = logging.getLogger("agentbus")


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
            None if status is None else check_choices(status, "status", SESSION_STATUSES),
            name_or_none(operation, "operation"),
            name_or_none(milestone, "milestone"),
            check_moment(cursor),
            check_range(limit, "limit", 1, MAX_PAGE),
        )
        return await self._engine.read(list_sessions, wanted)


@asynccontextmanager
async def block(
    bus: Bus,
    operation: str,
    milestone: str | None,
    id: str | None,
    expects: Mapping[str, str] | None,
    metadata: dict[str, Any] | None,
) -> AsyncIterator[Session]:
    """A session for the length of a block: begun, or gone on with, and ended as the block ends."""
    check_name(operation, "operation")
    request = BeginRequest(
        f"{operation[:115]}-{secrets.token_hex(6)}" if id is None else check_name(id, "session"),
        operation,
        bus.engine.process,
        name_or_none(milestone, "milestone"),
        None if expects is None else _expected(expects),
        None if metadata is None else encode_metadata(metadata, bus.max_payload),
    )
    session = await _begin(bus, request)
    try:
        yield session
        if not session.ended:
            await session.leave("completed")
    except BaseException as error:
        if not session.ended:
            with parting(bus.engine):
                await _give_up(session, error)
        raise


async def _begin(bus: Bus, request: BeginRequest) -> Session:
    def interrupt_orphan(begun: Begun) -> None:
        """Whoever began it was cancelled: nobody is in its block."""
        leaving = ChangeRequest(begun.session, "interrupted", "cancelled while it began", request.process, True)
        with suppress(AgentBusError):
            unheeded(bus.engine.write(change, leaving))

    try:
        begun = await bus.engine.write(begin, request, orphaned=interrupt_orphan)
    except SessionExists as exists:
        if exists.process is None or not await strike_off(bus.engine, [Neighbour(**exists.process)]):
            raise
        begun = await bus.engine.write(begin, request, orphaned=interrupt_orphan)
    return Session(
        bus, begun.session, begun.operation, begun.milestone,
        owner=request.process, continued=begun.continued,
    )  # fmt: skip


async def _give_up(session: Session, error: BaseException) -> None:
    """After an exception it failed; a cancelled one, or one ended by Ctrl-C, can be gone on with."""
    try:
        await session.leave("failed" if isinstance(error, Exception) else "interrupted", error_text(error))
    except (SessionLost, WrongState, Misuse):
        log.debug("%s was not ours to end", session.id)
    except AgentBusError as problem:
        # The exception of the block matters more; once this process is gone, the session counts as interrupted.
        log.warning("%s could not be ended: %s", session.id, problem)


def _expected(expects: Mapping[str, str]) -> dict[str, str]:
    if not isinstance(expects, Mapping):
        raise InvalidInput(reason="expects must be a dict from producers to documents")
    check_range(len(expects), "the number of expected documents", 0, MAX_PAGE)
    return {check_name(who, "producer"): check_name(what, "document") for who, what in expects.items()}
