"""The frozen records that users receive. Times are wall milliseconds unless a name says otherwise.

>>> agent: records.AgentRecord | None = await bus.agents.get("planner-1")             # doctest: +SKIP
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentbus.records.access import LiveChange, NewToken, TokenRecord
    from agentbus.records.entities import (
        AgentRecord,
        Checkpoint,
        CheckpointSummary,
        DocumentRecord,
        DocumentSummary,
        EventRecord,
        FileCheck,
        FileReference,
        FinishedMember,
        HoldRecord,
        MeetingRecord,
        MemberRecord,
        MessageChange,
        MessageRecord,
        MessageSpan,
        Page,
        QueueDepth,
        QueueRecord,
        ScopeRecord,
        SeenRecord,
        SeenReport,
        SessionRecord,
        StateEntry,
        Stats,
        TypeRecord,
    )
    from agentbus.records.histories import History, HistoryItem, HistoryKind, HistoryPut, HistoryWrite
    from agentbus.records.maintenance import (
        BackupRecord,
        Check,
        CopiedTable,
        CopyReport,
        ExportReport,
        Finding,
        ImportedFile,
        ImportProblem,
        ImportReport,
        QuotaPolicy,
        RetentionPolicy,
        RetentionReport,
        Sweep,
    )
    from agentbus.records.metrics import MetricFamily, MetricSample
    from agentbus.records.notifications import Notification, NotificationAttempt, NotifierRecord
    from agentbus.records.recovery import (
        CutOffSession,
        Recovered,
        RecoveryAgent,
        RecoveryOption,
        RecoveryRecord,
        RecoverySummary,
        Rollback,
    )
    from agentbus.records.setup import SetupFile, SetupReport, SetupStatus
    from agentbus.records.tasks import (
        ApprovalRecord,
        SignalReceipt,
        StepRecord,
        TaskChange,
        TaskDependency,
        TaskMessage,
        TaskProblem,
        TaskRecord,
        TaskStatistics,
        Verdict,
    )

__all__ = [
    "AgentRecord",
    "ApprovalRecord",
    "BackupRecord",
    "Check",
    "Checkpoint",
    "CheckpointSummary",
    "CopiedTable",
    "CopyReport",
    "CutOffSession",
    "DocumentRecord",
    "DocumentSummary",
    "EventRecord",
    "ExportReport",
    "FileCheck",
    "FileReference",
    "Finding",
    "FinishedMember",
    "History",
    "HistoryItem",
    "HistoryKind",
    "HistoryPut",
    "HistoryWrite",
    "HoldRecord",
    "ImportProblem",
    "ImportReport",
    "ImportedFile",
    "LiveChange",
    "MeetingRecord",
    "MemberRecord",
    "MessageChange",
    "MessageRecord",
    "MessageSpan",
    "MetricFamily",
    "MetricSample",
    "NewToken",
    "Notification",
    "NotificationAttempt",
    "NotifierRecord",
    "Page",
    "QueueDepth",
    "QueueRecord",
    "QuotaPolicy",
    "Recovered",
    "RecoveryAgent",
    "RecoveryOption",
    "RecoveryRecord",
    "RecoverySummary",
    "RetentionPolicy",
    "RetentionReport",
    "Rollback",
    "ScopeRecord",
    "SeenRecord",
    "SeenReport",
    "SessionRecord",
    "SetupFile",
    "SetupReport",
    "SetupStatus",
    "SignalReceipt",
    "StateEntry",
    "Stats",
    "StepRecord",
    "Sweep",
    "TaskChange",
    "TaskDependency",
    "TaskMessage",
    "TaskProblem",
    "TaskRecord",
    "TaskStatistics",
    "TokenRecord",
    "TypeRecord",
    "Verdict",
]


def __getattr__(name: str) -> Any:
    """Import records on first use: most commands need one kind, or none."""
    if name in __all__:
        for home in (
            "entities",
            "recovery",
            "maintenance",
            "tasks",
            "access",
            "setup",
            "metrics",
            "histories",
            "notifications",
        ):
            module = import_module(f"agentbus.records.{home}")
            if hasattr(module, name):
                globals()[name] = value = getattr(module, name)
                return value
    raise AttributeError(f"module 'agentbus.records' has no attribute {name!r}")
