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
    from agentbus import errors, records
    from agentbus.addresses import Address, pool, topic
    from agentbus.agent import Agent
    from agentbus.backups import restore_backup
    from agentbus.bus import Bus
    from agentbus.clock import Clock, Now, SystemClock
    from agentbus.document import Document
    from agentbus.limits import Priority
    from agentbus.message import Message
    from agentbus.opening import connect, doctor
    from agentbus.operations.messages import Receipt
    from agentbus.participants import Participants
    from agentbus.records import RetentionPolicy
    from agentbus.services.monitor import Monitor
    from agentbus.services.recovery import RecoveryPlan
    from agentbus.session import Session
    from agentbus.state import State
    from agentbus.tasks.task import Task
    from agentbus.tasks.workflow import workflow
    from agentbus.unit import Unit

__version__ = "0.1.0"

__all__ = [
    "Address",
    "Agent",
    "Bus",
    "Clock",
    "Document",
    "Message",
    "Monitor",
    "Now",
    "Participants",
    "Priority",
    "Receipt",
    "RecoveryPlan",
    "RetentionPolicy",
    "Session",
    "State",
    "SystemClock",
    "Task",
    "Unit",
    "connect",
    "doctor",
    "errors",
    "pool",
    "records",
    "restore_backup",
    "topic",
    "workflow",
]

_HOMES = {
    "Address": "addresses",
    "Agent": "agent",
    "Bus": "bus",
    "Clock": "clock",
    "Document": "document",
    "Message": "message",
    "Monitor": "services.monitor",
    "Now": "clock",
    "Participants": "participants",
    "Priority": "limits",
    "Receipt": "operations.messages",
    "RecoveryPlan": "services.recovery",
    "RetentionPolicy": "records",
    "Session": "session",
    "State": "state",
    "SystemClock": "clock",
    "Task": "tasks.task",
    "Unit": "unit",
    "connect": "opening",
    "doctor": "opening",
    "pool": "addresses",
    "restore_backup": "backups",
    "topic": "addresses",
    "workflow": "tasks.workflow",
}


def __getattr__(name: str) -> Any:
    if name in ("errors", "records"):
        return import_module(f"agentbus.{name}")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'agentbus' has no attribute {name!r}")
    value = getattr(import_module(f"agentbus.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
