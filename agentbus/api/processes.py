"""Find dead processes of this host and mark them dead: their agents fail, and what these held is released.

``engine.processes`` has the rule, and applies it for callers without an event loop.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from agentbus.core import process_info
from agentbus.engine.processes import dead, leave_request, rows_of_host
from agentbus.operations.agent_identity import processes_of_host
from agentbus.operations.processes import PeerProcess, leave

if TYPE_CHECKING:
    from agentbus.engine.interface import Engine
    from agentbus.operations.protocol import Row

log = logging.getLogger("agentbus")


async def notice_deaths(engine: Engine) -> bool:
    """Mark other processes of this host dead that are gone; return True if there were any."""
    rows = await engine.read(processes_of_host, process_info.host_key())
    return await _mark_dead(engine, [row for row in rows if row[0] != engine.process])


async def evict_dead_processes(engine: Engine, peers: Sequence[PeerProcess]) -> bool:
    """Mark those of these processes dead that ran on this host and are gone; return True if there were any."""
    return await _mark_dead(engine, rows_of_host(peers))


async def _mark_dead(engine: Engine, processes: Iterable[Row]) -> bool:
    found = dead(processes)
    if found:
        agents = await engine.write(leave, leave_request(found))
        engine.remove_bells(bell for *_, bell in found)
        if agents:
            log.warning("found dead: the process of %s", ", ".join(agents))
    return bool(found)
