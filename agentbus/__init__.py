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
        Finding,
        MessageRecord,
        Page,
        QueueDepth,
        Recovered,
        RecoveryAgent,
        RecoveryOption,
        RecoveryRecord,
        RecoverySummary,
        Rollback,
        SessionRecord,
        StateEntry,
        Stats,
        Sweep,
        TypeRecord,
    )
    from agentbus.services.monitor import Monitor
    from agentbus.services.recovery import RecoveryPlan
    from agentbus.session import Session
    from agentbus.state import State
    from agentbus.unit import Unit

__version__ = "0.1.0"

__all__ = [
    "Address",
    "Agent",
    "AgentRecord",
    "Bus",
    "Checkpoint",
    "CheckpointSummary",
    "Clock",
    "Document",
    "DocumentRecord",
    "DocumentSummary",
    "EventRecord",
    "FileCheck",
    "FileReference",
    "Finding",
    "Message",
    "MessageRecord",
    "Monitor",
    "Now",
    "Page",
    "Participants",
    "Priority",
    "QueueDepth",
    "Receipt",
    "Recovered",
    "RecoveryAgent",
    "RecoveryOption",
    "RecoveryPlan",
    "RecoveryRecord",
    "RecoverySummary",
    "Rollback",
    "Session",
    "SessionRecord",
    "State",
    "StateEntry",
    "Stats",
    "Sweep",
    "SystemClock",
    "TypeRecord",
    "Unit",
    "connect",
    "errors",
    "pool",
    "topic",
]

_HOMES = {
    "Address": "addresses",
    "Agent": "agent",
    "AgentRecord": "records",
    "Bus": "bus",
    "Checkpoint": "records",
    "CheckpointSummary": "records",
    "Clock": "clock",
    "Document": "document",
    "DocumentRecord": "records",
    "DocumentSummary": "records",
    "EventRecord": "records",
    "FileCheck": "records",
    "FileReference": "records",
    "Finding": "records",
    "Message": "message",
    "MessageRecord": "records",
    "Monitor": "services.monitor",
    "Now": "clock",
    "Page": "records",
    "Participants": "participants",
    "Priority": "limits",
    "QueueDepth": "records",
    "Receipt": "operations.messages",
    "Recovered": "records",
    "RecoveryAgent": "records",
    "RecoveryOption": "records",
    "RecoveryPlan": "services.recovery",
    "RecoveryRecord": "records",
    "RecoverySummary": "records",
    "Rollback": "records",
    "Session": "session",
    "SessionRecord": "records",
    "State": "state",
    "StateEntry": "records",
    "Stats": "records",
    "Sweep": "records",
    "SystemClock": "clock",
    "TypeRecord": "records",
    "Unit": "unit",
    "connect": "bus",
    "pool": "addresses",
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
