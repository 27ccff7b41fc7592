"""agentbus: one durable bus for many AI agents.

    import agentbus

    async with agentbus.connect() as bus:
        async with bus.agent("planner-1", type="planner") as planner:
            await planner.send("executor-1", "task_assignment", {"phase": "design"})

``agentbus.sync`` has the same names without an event loop.

Names are imported when they are first used, so that the command line starts without asyncio.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentbus import errors, records, sync, telemetry
    from agentbus.api.agent import Agent
    from agentbus.api.bus import Bus, connect, doctor
    from agentbus.api.documents import Document
    from agentbus.api.maintenance.backup import restore_backup
    from agentbus.api.message import Message
    from agentbus.api.monitor import Monitor
    from agentbus.api.recovery import RecoveryPlan
    from agentbus.api.sending import OutgoingMessage
    from agentbus.api.session import Participants, Session
    from agentbus.api.state import State
    from agentbus.api.tasks.items import WorkItem
    from agentbus.api.tasks.task import Task
    from agentbus.api.tasks.workflow import workflow
    from agentbus.api.unit import Unit
    from agentbus.core.addresses import Address, pool, topic
    from agentbus.core.clock import Clock, Now, SystemClock
    from agentbus.core.validation import Priority
    from agentbus.operations.receipts import Steered
    from agentbus.operations.send import Reach, Receipt
    from agentbus.records import History, HistoryItem, HistoryPut, HistoryWrite, RetentionPolicy

__version__ = "0.1.0"

__all__ = [
    "Address",
    "Agent",
    "Bus",
    "Clock",
    "Document",
    "History",
    "HistoryItem",
    "HistoryPut",
    "HistoryWrite",
    "Message",
    "Monitor",
    "Now",
    "OutgoingMessage",
    "Participants",
    "Priority",
    "Reach",
    "Receipt",
    "RecoveryPlan",
    "RetentionPolicy",
    "Session",
    "State",
    "Steered",
    "SystemClock",
    "Task",
    "Unit",
    "WorkItem",
    "connect",
    "doctor",
    "errors",
    "pool",
    "records",
    "restore_backup",
    "sync",
    "telemetry",
    "topic",
    "workflow",
]

_HOMES = {
    "Address": "core.addresses",
    "Agent": "api.agent",
    "Bus": "api.bus",
    "Clock": "core.clock",
    "Document": "api.documents",
    "History": "records",
    "HistoryItem": "records",
    "HistoryPut": "records",
    "HistoryWrite": "records",
    "Message": "api.message",
    "Monitor": "api.monitor",
    "Now": "core.clock",
    "OutgoingMessage": "api.sending",
    "Participants": "api.session",
    "Priority": "core.validation",
    "Reach": "operations.send",
    "Receipt": "operations.send",
    "RecoveryPlan": "api.recovery",
    "RetentionPolicy": "records",
    "Session": "api.session",
    "State": "api.state",
    "Steered": "operations.receipts",
    "SystemClock": "core.clock",
    "Task": "api.tasks.task",
    "Unit": "api.unit",
    "WorkItem": "api.tasks.items",
    "connect": "api.bus",
    "doctor": "api.bus",
    "pool": "core.addresses",
    "restore_backup": "api.maintenance.backup",
    "topic": "core.addresses",
    "workflow": "api.tasks.workflow",
}


def __getattr__(name: str) -> Any:
    if name in ("errors", "records", "sync", "telemetry"):
        return import_module(f"agentbus.{name}")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'agentbus' has no attribute {name!r}")
    value = getattr(import_module(f"agentbus.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
