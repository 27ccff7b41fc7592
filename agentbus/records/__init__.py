"""What people see of the bus: frozen records. Times are wall milliseconds unless a name says otherwise."""

from __future__ import annotations

from agentbus.records.bus import (
    AgentRecord,
    Checkpoint,
    CheckpointSummary,
    DocumentRecord,
    DocumentSummary,
    EventRecord,
    FileCheck,
    FileReference,
    MessageRecord,
    Page,
    QueueDepth,
    SessionRecord,
    StateEntry,
    Stats,
    TypeRecord,
)
from agentbus.records.recovery import (
    Recovered,
    RecoveryAgent,
    RecoveryOption,
    RecoveryRecord,
    RecoverySummary,
    Rollback,
)

__all__ = [
    "AgentRecord",
    "Checkpoint",
    "CheckpointSummary",
    "DocumentRecord",
    "DocumentSummary",
    "EventRecord",
    "FileCheck",
    "FileReference",
    "MessageRecord",
    "Page",
    "QueueDepth",
    "Recovered",
    "RecoveryAgent",
    "RecoveryOption",
    "RecoveryRecord",
    "RecoverySummary",
    "Rollback",
    "SessionRecord",
    "StateEntry",
    "Stats",
    "TypeRecord",
]
