"""The classes of ``agentbus.sync``: the asynchronous API, called from code without an event loop."""

from __future__ import annotations

# Each module registers its wrappers, by which results of any call are wrapped.
from agentbus.sync.client import (
    agent,
    agents,
    bus,
    checkpoints,
    documents,
    histories,
    holds,
    items,
    message,
    messages,
    monitor,
    notifications,
    recovery,
    retention,
    session,
    sessions,
    state,
    tasks,
    tokens,
    unit,
    visitor,
)

__all__ = [
    "agent",
    "agents",
    "bus",
    "checkpoints",
    "documents",
    "histories",
    "holds",
    "items",
    "message",
    "messages",
    "monitor",
    "notifications",
    "recovery",
    "retention",
    "session",
    "sessions",
    "state",
    "tasks",
    "tokens",
    "unit",
    "visitor",
]
