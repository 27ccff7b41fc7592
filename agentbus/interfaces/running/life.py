"""Whether the life of a command on the bus goes on: anybody may end it, or go on as this agent somewhere else."""

from __future__ import annotations

import anyio

from agentbus.agent import Agent
from agentbus.bus import Bus
from agentbus.errors import AgentBusError, AgentFenced
from agentbus.operations.fencing import barred

EVERY = 1.0
"""Seconds between two looks."""
FAREWELL = 30.0
"""Seconds that a command has to end by itself when it has said, or may have said, that it is done."""


async def until_over(bus: Bus, agent: Agent) -> str:
    """Returns when a command has no business to run any more; says why."""
    error = await _until_barred(bus, agent)
    if await _by_its_own_word(bus, agent):
        await anyio.sleep(FAREWELL)
    return str(error.facts["reason"])


async def _until_barred(bus: Bus, agent: Agent) -> AgentFenced:
    while True:
        try:
            error = await bus.engine.look(barred, agent.actor)
        except AgentBusError:
            error = None  # who cannot look now may later
        if error is not None:
            return error
        await anyio.sleep(EVERY)


async def _by_its_own_word(bus: Bus, agent: Agent) -> bool:
    """Whether it may have ended its life itself, or its session and with it its life. Whoever calls in its name cannot
    be told from it; but who is done may have a last word to say, while one that is stopped shall stop."""
    try:
        record = await bus.agents.get(agent.id)
    except AgentBusError:
        return False
    if record is None or record.epoch != agent.epoch:
        return False
    if record.status == "stopped":
        return (record.error or "").startswith("its session ")
    return record.status == "completed" or (record.status == "failed" and record.evidence is None)
