"""The announcement of a worker while it runs: the signatures of its workflows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any

from agentbus.agent import Agent
from agentbus.codec import plain
from agentbus.errors import AgentBusError
from agentbus.operations.signatures import AnnounceRequest, announce_workflows
from agentbus.parting import farewell
from agentbus.tasks.patience import patiently
from agentbus.tasks.workflow import Workflow


@asynccontextmanager
async def announced(agent: Agent, workflows: Iterable[Workflow[..., Any]]) -> AsyncIterator[None]:
    """Announce workflows for the length of a block. The bus forgets them when the agent ends."""
    found = tuple((workflow.name, plain(workflow.signature)) for workflow in workflows)
    request = AnnounceRequest(agent.actor, found)
    await patiently(agent.engine.hub, agent.id, lambda: agent.write(announce_workflows, request), repeatable=True)
    try:
        yield
    finally:
        await farewell(agent.engine, _withdraw(agent, [name for name, _ in found]))


async def _withdraw(agent: Agent, names: Iterable[str]) -> None:
    with suppress(AgentBusError):
        await agent.write(announce_workflows, AnnounceRequest(agent.actor, tuple((name, None) for name in names)))
