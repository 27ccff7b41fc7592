"""Processes of this host that are dead: found by their pids, and marked dead, so that no command takes their agents for
alive. Without an event loop; ``services.presence`` does the same on one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from agentbus.engine import presence
from agentbus.operations.lives import processes_of_host

if TYPE_CHECKING:
    from agentbus.engine.blocking import BlockingEngine
    from agentbus.operations import Row

PATIENCE = 1.0
"""Seconds that marking processes dead may wait for other writers. A question is answered even while none can write."""


def notice_deaths(store: BlockingEngine) -> bool:
    """Mark the processes of this host dead that are; whether there were any. Their agents fail, and what these held is
    released. Where none died this only reads. On a bus that can only be read this is left to those that can write."""
    if store.read_only:
        return False
    found = _dead(store.read(processes_of_host, presence.host_key()))
    if not found:
        return False
    # Imported only here: most commands find none.
    from agentbus.operations.processes import LeaveRequest, leave

    request = LeaveRequest(tuple(id for id, *_ in found), True, "its process died")
    store.write(leave, request, patience=PATIENCE)
    store.remove_bells(bell for *_, bell in found)
    return True


def _dead(processes: Sequence[Row]) -> list[Row]:
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
