"""agentbus: one durable bus for many AI agents.

    import agentbus

    async with agentbus.connect() as bus:
        async with bus.agent("planner-1", type="planner") as planner:
            await planner.send("executor-1", "task_assignment", {"phase": "design"})

Names are imported when they are first used, so that the command line starts without asyncio.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentbus import errors
    from agentbus.addresses import Address, pool, topic
    from agentbus.agent import Agent
    from agentbus.bus import Bus, connect
    from agentbus.clock import Clock, Now, SystemClock
    from agentbus.document import Document
    from agentbus.engine.sqlite.restoring import restore_backup
    from agentbus.limits import Priority
    from agentbus.message import Message
    from agentbus.operations.messages import Receipt
    from agentbus.participants import Participants
    from agentbus.records import (
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
    from agentbus.session import Session
    from agentbus.state import State
    from agentbus.unit import Unit
    from agentbus.upkeep import BackupRecord, Check, ImportReport, RefusedLine, RetentionPolicy, RetentionReport

__version__ = "0.1.0"

__all__ = [
    "Address",
    "Agent",
    "AgentRecord",
    "BackupRecord",
    "Bus",
    "Check",
    "Checkpoint",
    "CheckpointSummary",
    "Clock",
    "Document",
    "DocumentRecord",
    "DocumentSummary",
    "EventRecord",
    "FileCheck",
    "FileReference",
    "ImportReport",
    "Message",
    "MessageRecord",
    "Now",
    "Page",
    "Participants",
    "Priority",
    "QueueDepth",
    "Receipt",
    "RefusedLine",
    "RetentionPolicy",
    "RetentionReport",
    "Session",
    "SessionRecord",
    "State",
    "StateEntry",
    "Stats",
    "SystemClock",
    "TypeRecord",
    "Unit",
    "connect",
    "errors",
    "pool",
    "restore_backup",
    "topic",
]

_HOMES = {
    "Address": "addresses",
    "Agent": "agent",
    "AgentRecord": "records",
    "BackupRecord": "upkeep",
    "Bus": "bus",
    "Check": "upkeep",
    "Checkpoint": "records",
    "CheckpointSummary": "records",
    "Clock": "clock",
    "Document": "document",
    "DocumentRecord": "records",
    "DocumentSummary": "records",
    "EventRecord": "records",
    "FileCheck": "records",
    "FileReference": "records",
    "ImportReport": "upkeep",
    "Message": "message",
    "MessageRecord": "records",
    "Now": "clock",
    "Page": "records",
    "Participants": "participants",
    "Priority": "limits",
    "QueueDepth": "records",
    "Receipt": "operations.messages",
    "RefusedLine": "upkeep",
    "RetentionPolicy": "upkeep",
    "RetentionReport": "upkeep",
    "Session": "session",
    "SessionRecord": "records",
    "State": "state",
    "StateEntry": "records",
    "Stats": "records",
    "SystemClock": "clock",
    "TypeRecord": "records",
    "Unit": "unit",
    "connect": "bus",
    "pool": "addresses",
    "restore_backup": "engine.sqlite.restoring",
    "topic": "addresses",
}


def __getattr__(name: str) -> Any:
    if name == "errors":
        return import_module("agentbus.errors")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'agentbus' has no attribute {name!r}")
    value = getattr(import_module(f"agentbus.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
