"""The block of ``bus.session``: a session is begun, or gone on with, and ended as the block ends."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from agentbus.beginning import begin_request
from agentbus.errors import AgentBusError, Misuse, SessionExists, SessionLost, WrongState
from agentbus.limits import error_text
from agentbus.operations.processes import Neighbour
from agentbus.operations.sessions import BeginRequest, Begun, ChangeRequest, begin_session, change_session
from agentbus.parting import farewell, unheeded
from agentbus.services.presence import strike_off
from agentbus.session import Session

if TYPE_CHECKING:
    from agentbus.bus import Bus

log = logging.getLogger("agentbus")


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
    request = begin_request(operation, bus.engine.process, milestone, id, expects, metadata, bus.max_payload)
    session = await _begin(bus, request)
    try:
        yield session
        if not session.ended:
            await session._leave("completed")
    except BaseException as error:
        if not session.ended:
            await farewell(bus.engine, _give_up(session, error))
        raise


async def _begin(bus: Bus, request: BeginRequest) -> Session:
    def interrupt_orphan(begun: Begun) -> None:
        """Whoever began it was cancelled: nobody is in its block."""
        leaving = ChangeRequest(begun.session, "interrupted", "cancelled while it began", request.process, True)
        with suppress(AgentBusError):
            unheeded(bus.engine.write(change_session, leaving))

    try:
        begun = await bus.engine.write(begin_session, request, orphaned=interrupt_orphan)
    except SessionExists as exists:
        if exists.process is None or not await strike_off(bus.engine, [Neighbour(**exists.process)]):
            raise
        begun = await bus.engine.write(begin_session, request, orphaned=interrupt_orphan)
    return Session(
        bus, begun.session, begun.operation, begun.milestone,
        owner=request.process, continued=begun.continued,
    )  # fmt: skip


async def _give_up(session: Session, error: BaseException) -> None:
    """After an exception it failed; a cancelled one, or one ended by Ctrl-C, can be gone on with."""
    try:
        await session._leave("failed" if isinstance(error, Exception) else "interrupted", error_text(error))
    except (SessionLost, WrongState, Misuse):
        log.debug("%s was not ours to end", session.id)
    except AgentBusError as problem:
        # The exception of the block matters more; once this process is gone, the session counts as interrupted.
        log.warning("%s could not be ended: %s", session.id, problem)
