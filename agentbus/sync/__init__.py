"""The API without an event loop: the same names, arguments and errors, for scripts, notebooks and threads.

>>> with agentbus.sync.connect() as bus:                                              # doctest: +SKIP
...     with bus.agent("planner-1", type="planner") as planner:
...         planner.send("executor-1", "task_assignment", {"phase": "design"})

The calls run on an event loop that the bus has on a thread of its own. The loop sends the heartbeats of the agents and
renews their leases while the script computes. A bus and everything made by it can be used from any thread, but a unit
only in its block. A program that has an event loop, such as a notebook, can call it too; the call blocks the thread.

``sync.bus`` and ``sync.agent`` are another client: that of the command line, which starts without asyncio.

Names are imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentbus.sync.client.agent import Agent
    from agentbus.sync.client.bus import Bus, connect, doctor
    from agentbus.sync.client.documents import Document
    from agentbus.sync.client.items import WorkItem
    from agentbus.sync.client.message import Message
    from agentbus.sync.client.monitor import Monitor
    from agentbus.sync.client.recovery import RecoveryPlan
    from agentbus.sync.client.session import Participants, Session
    from agentbus.sync.client.state import State
    from agentbus.sync.client.unit import Unit

__all__ = [
    "Agent",
    "Bus",
    "Document",
    "Message",
    "Monitor",
    "Participants",
    "RecoveryPlan",
    "Session",
    "State",
    "Unit",
    "WorkItem",
    "connect",
    "doctor",
]

_HOMES = {
    "Agent": "agent",
    "Bus": "bus",
    "Document": "documents",
    "Message": "message",
    "Monitor": "monitor",
    "Participants": "session",
    "RecoveryPlan": "recovery",
    "Session": "session",
    "State": "state",
    "Unit": "unit",
    "WorkItem": "items",
    "connect": "bus",
    "doctor": "bus",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'agentbus.sync' has no attribute {name!r}")
    value = getattr(import_module(f"agentbus.sync.client.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
