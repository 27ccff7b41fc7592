"""The check that a session is open: a session that has ended never changes."""

from __future__ import annotations

from agentbus.errors import AgentBusError, SessionEnded, UnknownSession
from agentbus.operations.protocol import Op, Query

ENDED = frozenset({"completed", "failed"})


def closed_session_error(session: str, action: str) -> Op[AgentBusError | None]:
    """Return the error for a session that does not exist or has ended; None while it is open."""
    rows = yield Query("session_status", (session,))
    if not rows:
        return UnknownSession(session=session)
    status = rows[0][0]
    return SessionEnded(what="session", name=session, status=status, action=action) if status in ENDED else None
