"""The bus on the event loop of uvloop, an optional extra."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from agentbus import Agent, Message
from tests.conftest import Engine

uvloop = pytest.importorskip("uvloop", reason="uvloop is not installed: pip install '.[uvloop]'")

TIMEOUT = 30
Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture
def run() -> Run:
    """Run a coroutine on an event loop of uvloop, in real time."""

    def run(work: Coroutine[Any, Any, None]) -> None:
        async def limited() -> None:
            assert type(asyncio.get_running_loop()).__module__.startswith("uvloop")
            async with asyncio.timeout(TIMEOUT):
                await work

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(limited())

    return run


async def received(agent: Agent) -> Message:
    message = await agent.receive(timeout=TIMEOUT)
    assert message is not None
    return message


def test_concurrent_agents_exchange_messages_and_share_state(engine: Engine, run: Run) -> None:
    async def work() -> None:
        async with engine.connect(clock=None) as bus:
            agents = [await bus.register(f"agent-{number}", type="worker") for number in range(16)]

            async def pass_on(number: int) -> None:
                """Wait for a message, and send its number plus one to the next agent in the same commit."""
                async with await received(agents[number]) as unit:
                    unit.send(agents[(number + 1) % 16].id, "note", number + 1)

            async with asyncio.TaskGroup() as group:
                for number in range(16):
                    group.create_task(pass_on(number))
                await agents[0].send("agent-0", "note", 0)
            last = await received(agents[0])
            assert last.payload == 16
            await last.ack()
            await asyncio.gather(*(agent.state.increment("n") for agent in agents for _ in range(2)))
            assert [await agent.state.get("n") for agent in agents] == [2] * 16

    run(work())


def test_a_send_of_another_process_wakes_a_receiver(engine: Engine, run: Run) -> None:
    async def work() -> None:
        async with (
            # No heartbeat finds the message instead of the doorbell.
            engine.connect(clock=None, beat_every=3600) as bus,
            bus.agent("receiver", type="worker") as agent,
            bus.agent("sender", type="worker"),
        ):
            waiting = asyncio.ensure_future(received(agent))
            command = ["send", "receiver", "note", "7", "--agent", "sender", "--url", engine.url]
            done = await asyncio.to_thread(
                subprocess.run,
                [sys.executable, "-m", "agentbus", *command],
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            message = await waiting
            assert message.payload == 7
            await message.ack()

    run(work())


def test_a_cancelled_receive_leaves_the_message_to_the_next(engine: Engine, run: Run) -> None:
    async def work() -> None:
        async with engine.connect(clock=None) as bus, bus.agent("a", type="worker") as agent:
            waiting = asyncio.ensure_future(agent.receive())
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await agent.send("a", "note", 1)
            message = await received(agent)
            assert (message.payload, message.attempts) == (1, 1)
            await message.ack()

    run(work())
