"""Find dead processes of this host by their pids and mark them dead: their agents fail, and their leases are released.

Every command does it when it opens the bus, so that it reports no agent of a dead process as live.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from agentbus.core import process_info
from agentbus.operations.agent_identity import processes_of_host

if TYPE_CHECKING:
    from agentbus.engine.blocking import BlockingEngine
    from agentbus.engine.interface import Engine
    from agentbus.operations.processes import LeaveRequest, PeerProcess
    from agentbus.operations.protocol import Row

LOCK_TIMEOUT = 1.0
"""Seconds that marking processes dead waits for other writers; a read must not wait longer."""


def mark_dead_processes(store: BlockingEngine) -> bool:
    """Mark the dead processes of this host; return True if there were any. Their agents fail, and their leases are
    released. Only reads if none died; does nothing on a read-only bus."""
    if store.read_only:
        return False
    return mark_dead(store, store.read(processes_of_host, process_info.host_key()), LOCK_TIMEOUT)


def mark_dead(store: BlockingEngine, processes: Iterable[Row], lock_timeout: float | None = None) -> bool:
    """Mark those of the given processes that are dead; return True if there were any."""
    found = dead(processes)
    if not found:
        return False
    # Imported only here: usually there are none.
    from agentbus.operations.processes import leave

    store.write(leave, leave_request(found), lock_timeout=lock_timeout)
    store.remove_bells(bell for *_, bell in found)
    return True


def rows_of_host(peers: Iterable[PeerProcess]) -> list[Row]:
    """Return the rows of the peers on this host, in the form of ``processes_of_host``."""
    host = process_info.host_key()
    return [(peer.process, peer.pid, peer.started, peer.bell) for peer in peers if peer.host == host]


def dead(processes: Iterable[Row]) -> list[Row]:
    """Return those of the rows (id, pid, start time, doorbell) whose process has certainly ended."""
    gone: dict[Row, bool] = {}
    found: list[Row] = []
    for row in processes:
        # Several agents of one process have a row each.
        process = row[1:]
        if process not in gone:
            gone[process] = process_info.is_gone(*process)
        if gone[process]:
            found.append(row)
    return found


def leave_request(found: Sequence[Row]) -> LeaveRequest:
    """Return the request that marks dead processes dead."""
    from agentbus.operations.processes import LeaveRequest

    return LeaveRequest(tuple(id for id, *_ in found), True, "its process died")


async def notice_deaths(engine: Engine) -> bool:
    """Mark other processes of this host dead that are gone; return True if there were any."""
    rows = await engine.read(processes_of_host, process_info.host_key())
    return await _mark_dead(engine, [row for row in rows if row[0] != engine.process])


async def evict_dead_processes(engine: Engine, peers: Sequence[PeerProcess]) -> bool:
    """Mark those of these processes dead that ran on this host and are gone; return True if there were any."""
    return await _mark_dead(engine, rows_of_host(peers))


async def _mark_dead(engine: Engine, processes: Iterable[Row]) -> bool:
    found = dead(processes)
    if not found:
        return False
    # Imported only here: usually there are none.
    import logging

    from agentbus.operations.processes import leave

    agents = await engine.write(leave, leave_request(found))
    engine.remove_bells(bell for *_, bell in found)
    if agents:
        logging.getLogger("agentbus").warning("found dead: the process of %s", ", ".join(agents))
    return True
