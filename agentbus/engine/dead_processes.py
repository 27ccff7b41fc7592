"""Processes of this host that are dead: found by their pids, and marked dead, so that no command takes their agents for
alive. The rule for all callers; those with an event loop apply it in ``services.presence``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from agentbus.engine import presence
from agentbus.operations.lives import processes_of_host

if TYPE_CHECKING:
    from agentbus.engine.blocking import BlockingEngine
    from agentbus.operations import Row
    from agentbus.operations.processes import LeaveRequest, Neighbour

PATIENCE = 1.0
"""Seconds that marking processes dead may wait for other writers. A question is answered even while none can write."""


def notice_deaths(store: BlockingEngine) -> bool:
    """Mark the processes of this host dead that are; return True if there were any. Their agents fail, and what these
    held is released. Where none died this only reads. On a bus that can only be read this is left to those that can
    write."""
    if store.read_only:
        return False
    return mark_dead(store, store.read(processes_of_host, presence.host_key()), PATIENCE)


def mark_dead(store: BlockingEngine, processes: Iterable[Row], patience: float | None = None) -> bool:
    """Mark those of the rows of this host dead that are; return True if there were any."""
    found = dead(processes)
    if not found:
        return False
    # Imported only here: most commands find none.
    from agentbus.operations.processes import leave

    store.write(leave, departure(found), patience=patience)
    store.remove_bells(bell for *_, bell in found)
    return True


def rows_of(neighbours: Iterable[Neighbour]) -> list[Row]:
    """Return the rows of those that are processes of this host, as ``processes_of_host`` does."""
    host = presence.host_key()
    return [(other.process, other.pid, other.started, other.bell) for other in neighbours if other.host == host]


def dead(processes: Iterable[Row]) -> list[Row]:
    """Return those of the rows (id, pid, start time, doorbell) whose process is certainly not there any more."""
    verdicts: dict[Row, bool] = {}
    found: list[Row] = []
    for row in processes:
        # Many agents may live in one process, and have a row each.
        known = row[1:]
        if known not in verdicts:
            verdicts[known] = presence.is_gone(*known)
        if verdicts[known]:
            found.append(row)
    return found


def departure(found: Sequence[Row]) -> LeaveRequest:
    """Return the request that marks dead processes dead."""
    from agentbus.operations.processes import LeaveRequest

    return LeaveRequest(tuple(id for id, *_ in found), True, "its process died")
