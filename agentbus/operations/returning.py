"""Suspect agents that showed life."""

from __future__ import annotations

from typing import Any

from agentbus.clock import Now
from agentbus.operations import Each, Op
from agentbus.operations.events import event, record


def acquit(suspects: dict[str, dict[str, Any]], now: Now) -> Op[None]:
    """These agents showed life; each with the evidence that had spoken against it."""
    # Those of a process that stood still had no chance to call: for them the count begins now.
    yield Each("agent_recover", [(now.awake, now.wall, agent) for agent in suspects])
    yield from record([
        event(now.wall, "agent_recovered", ("agent", agent), None, evidence=evidence)
        for agent, evidence in suspects.items()
    ])  # fmt: skip
