"""agentbus through its public API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import agentbus
from agentbus import State


class AgentState:
    """The state of one agent: every write is fenced."""

    def __init__(self, state: State) -> None:
        self._state = state

    async def fill(self, keys: Sequence[str], value: Any) -> None:
        await asyncio.gather(*(self._state.set(key, value) for key in keys))

    async def get(self, key: str) -> Any:
        return await self._state.get(key)

    async def set(self, key: str, value: Any) -> None:
        await self._state.set(key, value)

    async def compare_and_set(self, key: str, value: Any, version: int) -> int:
        return await self._state.set(key, value, if_version=version)


@dataclass(frozen=True)
class AgentBus:
    """agentbus with default options."""

    key: str
    title: str
    durability: str
    mode: Literal["disk", "process"]

    def missing(self) -> str | None:
        return None

    @asynccontextmanager
    async def open(self, directory: Path, tasks: int) -> AsyncIterator[AgentState]:
        async with (
            agentbus.connect(directory / "bus", durability=self.mode) as bus,
            bus.agent("agent-0", type="worker") as agent,
        ):
            yield AgentState(agent.state)


DISK = AgentBus("agentbus", "agentbus", "disk: every set is fsynced", "disk")
PROCESS = AgentBus("agentbus-process", 'agentbus, durability="process"', "kill -9; nothing is fsynced", "process")
