"""Helpers that read the liveness of agents."""

from __future__ import annotations

from agentbus import Bus
from tests.api.helpers import known

HOUR = 3600.0


async def status(bus: Bus, *agents: str) -> list[str]:
    return [(await known(bus, agent)).status for agent in agents]


async def verdict(bus: Bus, agent: str) -> str | None:
    evidence = (await known(bus, agent)).evidence
    return None if evidence is None else evidence["verdict"]
