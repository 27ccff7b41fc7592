"""Processes of this host that are gone: found by their pids, and struck off."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from agentbus.engine import presence
from agentbus.engine.interface import Engine
from agentbus.operations.processes import LeaveRequest, Neighbour, leave

log = logging.getLogger("agentbus")


async def strike_off(engine: Engine, neighbours: Sequence[Neighbour]) -> bool:
    """Strike off processes of this host that are gone, so that what they held can go on at once."""
    host = presence.host_key()
    gone = [other for other in neighbours if other.host == host and is_gone(other)]
    if gone:
        request = LeaveRequest(tuple(other.process for other in gone), True, "its process died")
        agents = await engine.write(leave, request)
        engine.remove_bells(other.bell for other in gone)
        if agents:
            log.warning("found dead: the process of %s", ", ".join(agents))
    return bool(gone)


def is_gone(other: Neighbour) -> bool:
    """Whether a process of this host is certainly not there any more."""
    return presence.is_gone(other.pid, other.started, other.bell)
