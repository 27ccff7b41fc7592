"""Processes of this host that are gone: found by their pids, and struck off, so that nobody takes them for alive."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentbus.engine import presence
from agentbus.operations.examining import live_processes
from agentbus.operations.processes import LeaveRequest, leave

if TYPE_CHECKING:
    from agentbus.blocking import BlockingBus


def notice_deaths(bus: BlockingBus) -> list[str]:
    """Strike off what is certainly dead; says which agents failed with it. Costs nothing where nobody died. On a bus
    that can only be read this is left to those who can write."""
    if bus.store.read_only:
        return []
    host = presence.host_key()
    gone = [
        other
        for other in bus.read(live_processes, None)
        if other.host == host and presence.is_gone(other.pid, other.started, other.bell)
    ]
    if not gone:
        return []
    failed = bus.write(leave, LeaveRequest(tuple(other.process for other in gone), True, "its process died"))
    bus.store.remove_bells(other.bell for other in gone)
    return list(failed)
