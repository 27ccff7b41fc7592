"""Run an agent of Pydantic AI durably: its worker is killed between two requests to the model.

The agent books a trip. Each request to its model and each call of a tool is a step of a task, and the booking needs the
approval of a person. The first worker is killed while the model thinks about its second response; the next one
continues there, without asking for the first response again.

The model is a function, so that the program needs no account: put the name of a real one in its place.

    python examples/pydantic_ai_assistant.py        # on a temporary bus; needs the extra pydantic-ai
    python examples/pydantic_ai_assistant.py BUS    # a directory, or postgresql://user@host/database
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import time

try:
    from pydantic_ai import Agent
    from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import AgentInfo, FunctionModel
except ModuleNotFoundError as error:
    raise SystemExit(f"{error}; in the checkout: python -m pip install '.[pydantic-ai]'") from None

import agentbus
from agentbus.integrations.pydantic_ai import AgentBusDurability

TASK = "trip-1"


def think(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Respond as a model does: search, then book, then tell."""
    request = (len(messages) + 1) // 2
    print(f"  worker {os.getpid()} asks the model, request {request}", flush=True)
    match request:
        case 1:
            return ModelResponse(parts=[ToolCallPart("search", {"city": "Rome"}, tool_call_id="s1")])
        case 2:
            if "--slow" in sys.argv:
                time.sleep(60)  # this program kills the worker meanwhile
            return ModelResponse(parts=[ToolCallPart("book", {"hotel": "Aurora"}, tool_call_id="b1")])
        case _:
            return ModelResponse(parts=[TextPart(f"{messages[-1].parts[-1].content}")])


agent = Agent(
    FunctionModel(think),
    name="travel",
    capabilities=[AgentBusDurability(model_options={"retries": 3, "timeout": 120})],
)


@agent.tool_plain
def search(city: str) -> list[str]:
    print(f"  worker {os.getpid()} searches {city}", flush=True)
    return ["Aurora", "Bernini"]


@agent.tool_plain(requires_approval=True, metadata={"agentbus": {"once": True}})
def book(hotel: str) -> str:
    print(f"  worker {os.getpid()} books {hotel}", flush=True)
    return f"{hotel} is booked"


@agentbus.workflow("trip")
async def trip(task: agentbus.Task, request: str) -> str:
    return (await agent.run(request)).output


async def work() -> None:
    """Run one worker process: take tasks until none can be taken."""
    async with agentbus.connect() as bus:
        await bus.tasks.run_worker(trip, until_idle=True)


def run_worker(*words: str, kill_on: str | None = None) -> None:
    """Start a worker process and print its output; kill it when it prints a line that contains ``kill_on``."""
    command = [sys.executable, __file__, "--worker", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            print(line, end="")
            if kill_on is not None and kill_on in line:
                process.kill()


async def start() -> None:
    async with agentbus.connect() as bus:
        await bus.tasks.start(trip, "a hotel in Rome", id=TASK)


async def approve() -> None:
    async with agentbus.connect() as bus:
        (asked,) = await bus.tasks.approvals(TASK)
        print(f"{asked.key} is to be approved: {asked.shown['arguments']}")
        await bus.tasks.approve(TASK, asked.key, by="ada")


async def report() -> None:
    async with agentbus.connect(create=False) as bus:
        for step in await bus.tasks.steps(TASK):
            print(f"  {step.kind} {step.key}: {step.status}, attempt {step.attempt}")
        print(f"result: {await bus.tasks.result(TASK, timeout=10)}")


def story() -> None:
    asyncio.run(start())
    print("the first worker is killed during the second request to the model")
    run_worker("--slow", kill_on="request 2")
    print("the second worker repeats that request only, and ends when the task waits for a person")
    run_worker()
    asyncio.run(approve())
    run_worker()
    asyncio.run(report())


def main(arguments: list[str]) -> None:
    match arguments:
        case ["--worker", *_]:
            asyncio.run(work())
        case [url]:
            os.environ["AGENTBUS_URL"] = url  # connect() uses it
            story()
        case _:
            with tempfile.TemporaryDirectory(prefix="agentbus-") as directory:
                main([directory])


if __name__ == "__main__":
    main(sys.argv[1:])
