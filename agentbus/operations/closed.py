"""Sessions that have ended, or never were: nothing of them changes."""

from __future__ import annotations

from agentbus.errors import AgentBusError, SessionEnded, UnknownSession
from agentbus.operations import Op, Query

ENDED = frozenset({"completed", "failed"})


def not_open(session: str, action: str) -> Op[AgentBusError | None]:
    """Why nothing can be done in this session, or None while it goes on."""
    rows = yield Query("session_status", (session,))
    if not rows:
        return UnknownSession(session=session)
    status = rows[0][0]
    return SessionEnded(what="session", name=session, status=status, action=action) if status in ENDED else None
