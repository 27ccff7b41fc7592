"""A worker process with a durable agent: it reports each call of the model and of a tool, and waits at one of them."""

from __future__ import annotations

import asyncio
import sys

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

import agentbus
from agentbus.integrations.pydantic_ai import AgentBusDurability
from tests.support.processes import say

wait_at = sys.argv[2] if len(sys.argv) > 2 else ""


async def reach(place: str) -> None:
    """Report a call; wait to be killed in the one that was named."""
    say("at", place)
    if place == wait_at:
        await asyncio.Event().wait()


async def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Book one night after the other; three requests in all."""
    nights = (len(messages) - 1) // 2
    await reach(f"model-{nights + 1}")
    if nights < 2:
        return ModelResponse(parts=[ToolCallPart("book", {"night": nights + 1})])
    return ModelResponse(parts=[TextPart(f"booked {nights} nights")])


agent = Agent(FunctionModel(respond), name="clerk", capabilities=[AgentBusDurability()])


@agent.tool_plain
async def book(night: int) -> str:
    await reach(f"tool-{night}")
    return f"night {night} is booked"


@agentbus.workflow("booking")
async def booking(task: agentbus.Task, request: str) -> str:
    return (await agent.run(request)).output


async def main(url: str) -> None:
    async with agentbus.connect(url) as bus:
        await bus.tasks.run_worker(booking, until_idle=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
