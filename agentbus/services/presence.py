"""Processes of this host that are dead: ``engine.dead_processes`` on an event loop."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from agentbus.engine import presence
from agentbus.engine.dead_processes import dead, departure, rows_of
from agentbus.engine.interface import Engine
from agentbus.operations.lives import processes_of_host
from agentbus.operations.processes import Neighbour, leave

if TYPE_CHECKING:
    from agentbus.operations import Row

log = logging.getLogger("agentbus")


async def notice_deaths(engine: Engine) -> bool:
    """Mark the other processes of this host dead that are; return True if there were any."""
    rows = await engine.read(processes_of_host, presence.host_key())
    return await _mark_dead(engine, [row for row in rows if row[0] != engine.process])


async def strike_off(engine: Engine, neighbours: Sequence[Neighbour]) -> bool:
    """Strike off processes of this host that are gone, so that what they held can go on at once."""
    return await _mark_dead(engine, rows_of(neighbours))


async def _mark_dead(engine: Engine, processes: Iterable[Row]) -> bool:
    found = dead(processes)
    if found:
        agents = await engine.write(leave, departure(found))
        engine.remove_bells(bell for *_, bell in found)
        if agents:
            log.warning("found dead: the process of %s", ", ".join(agents))
    return bool(found)


def is_gone(other: Neighbour) -> bool:
    """Whether a process of this host is certainly not there any more."""
    return presence.is_gone(other.pid, other.started, other.bell)
