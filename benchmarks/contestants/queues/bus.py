"""agentbus through its public API: one agent per mailbox, sending to itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import agentbus
from agentbus import Agent, Message
from benchmarks.contestants.queues.base import EVERYTHING

OWNER = "agent-0"
"""The owner of the first mailbox."""


class AgentSender:
    """An agent of another process."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    async def send(self, payload: Any) -> None:
        await self._agent.send(OWNER, "note", payload)


class AgentBox:
    """The mailbox of an agent."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    async def send(self, payload: Any) -> None:
        await self._agent.send(self._agent.id, "note", payload)

    async def receive(self) -> Message:
        message = await self._agent.receive()
        assert message is not None
        return message

    async def ack(self, message: Message) -> None:
        await message.ack()

    async def ack_many(self, messages: Sequence[Message]) -> None:
        await self._agent.ack(messages)

    async def send_many(self, payloads: Sequence[Any]) -> None:
        to = self._agent.id
        await self._agent.send_many([(to, "note", payload) for payload in payloads])

    async def receive_many(self, limit: int, done: Sequence[Message]) -> list[Message]:
        return await self._agent.receive_many(limit, ack=done)

    def payload(self, message: Message) -> Any:
        return message.payload


@dataclass(frozen=True)
class AgentBus:
    """agentbus with default options."""

    key: str
    title: str
    durability: str
    mode: Literal["disk", "process"]
    workloads: frozenset[str] = EVERYTHING | {"tasks-fused"}

    def missing(self) -> str | None:
        return None

    @asynccontextmanager
    async def open(self, directory: Path, boxes: int) -> AsyncIterator[list[AgentBox]]:
        async with agentbus.connect(directory / "bus", durability=self.mode) as bus:
            yield [AgentBox(await bus.register(f"agent-{number}", type="worker")) for number in range(boxes)]

    @asynccontextmanager
    async def sender(self, directory: Path) -> AsyncIterator[AgentSender]:
        async with (
            agentbus.connect(directory / "bus", durability=self.mode) as bus,
            bus.agent("sender", type="worker") as agent,
        ):
            yield AgentSender(agent)


DISK = AgentBus(
    "agentbus", "agentbus", "disk: a send is fsynced; claims and acks survive kill -9, a power cut redelivers", "disk"
)
PROCESS = AgentBus("agentbus-process", 'agentbus, durability="process"', "kill -9; nothing is fsynced", "process")
