"""A first look: two agents in two processes, one bus, the most urgent message first.

``python -m agentbus.interfaces.demo`` runs the planner here and starts the executor as a process of its own.
"""

from __future__ import annotations

import os
import secrets
import sys
import time

import anyio

import agentbus
from agentbus import Agent, Bus, Message, Priority, Unit

PHASES = (
    ("write the changelog", Priority.LOW),
    ("design", Priority.NORMAL),
    ("implement", Priority.NORMAL),
    ("fix the broken build", Priority.URGENT),
    ("review", Priority.HIGH),
)


async def plan(run: str) -> None:
    """The planner: hands out work before anybody is there to do it, then waits for the results."""
    async with agentbus.connect() as bus:
        await bus.expect(f"executor-{run}", type="executor")
        async with bus.agent(f"planner-{run}", type="planner") as planner:
            print(f"planner-{run} is process {os.getpid()}; it assigns {len(PHASES)} phases:")
            for phase, priority in PHASES:
                await planner.send(f"executor-{run}", "task_assignment", {"phase": phase}, priority=priority)
                print(f"    priority {priority}  {phase}")
            command = [sys.executable, "-m", "agentbus.interfaces.demo", run]
            # Leaving the block waits for the process; an exception kills it.
            async with await anyio.open_process(command, stdin=None, stdout=None, stderr=None):
                await collect(planner, len(PHASES))
                await ask(planner, f"executor-{run}")
                await planner.send(f"executor-{run}", "control", "stop")
        await tell(bus, run)


async def collect(planner: Agent, expected: int) -> None:
    """Print the results as they come in: in the order of urgency, not in the order of sending."""
    print("done, most urgent first:")
    for _ in range(expected):
        message = await planner.receive(timeout=30)
        if message is None:
            sys.exit("the executor did not answer within 30 s")
        async with message:
            print(f"    {message.payload['phase']:22} by process {message.payload['pid']}")


async def ask(planner: Agent, executor: str) -> None:
    """A question and its answer, from process to process."""
    begun = time.perf_counter()
    answer = await planner.request(executor, "coordination_request", {"question": "all done?"}, timeout=30)
    took = (time.perf_counter() - begun) * 1000
    print(f"asked {executor}: all done? It answered {answer.payload['answer']!r} in {took:.1f} ms.")


async def tell(bus: Bus, run: str) -> None:
    """What the bus knows afterwards."""
    page = await bus.messages.list(limit=1000)
    mine = [message for message in page.items if run in message.sender]
    left = [message for message in mine if message.status != "acked"]
    print(f"{len(mine)} messages sent, {len(mine) - len(left)} acknowledged, {len(left)} left over.")
    for agent in (await bus.agents.list(limit=1000)).items:
        if agent.id.endswith(run):
            print(f"    {agent.id:18} {agent.type:10} {agent.status}")


async def execute(run: str) -> None:
    """The executor: each result is sent in the same commit that acknowledges the assignment."""
    stopped = anyio.Event()

    async def handle(message: Message, unit: Unit) -> None:
        if message.type == "control":
            stopped.set()
        elif message.type == "coordination_request":
            unit.reply(message, "coordination_response", {"answer": "yes"})
        else:
            result = {"phase": message.payload["phase"], "pid": os.getpid()}
            unit.send(message.sender, "completion_notification", result)

    async with (
        agentbus.connect() as bus,
        bus.agent(f"executor-{run}", type="executor") as executor,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(executor.serve, handle)
        await stopped.wait()
        tasks.cancel_scope.cancel()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        anyio.run(execute, sys.argv[1])
    else:
        anyio.run(plan, secrets.token_hex(2))
