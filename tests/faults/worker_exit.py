"""Open a bus, hold a message, and exit in the way given by the argument."""

import asyncio
import os
import signal
import sys

import agentbus
from agentbus import Agent, Bus
from tests.support.processes import say


async def hold(bus: Bus) -> Agent:
    """An agent in the middle of everything: one task waits for messages, one send is acknowledged."""
    agent = await bus.register("leaver", type="worker")
    asyncio.get_running_loop().create_task(agent.receive(), name="receiving")
    await agent.send("leaver", "note", delay=3600)
    return agent


async def handle(bus: Bus, how: str) -> None:
    async with bus.agent("leaver", type="worker") as agent:
        await agent.send("leaver", "note")
        message = await agent.receive()
        assert message is not None
        async with message as unit:
            unit.send("leaver", "note", "never sent")
            if how == "sigterm":
                task = asyncio.current_task()
                assert task is not None
                asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
            say("leaving")
            if how == "exception":
                raise ZeroDivisionError
            if how == "exit":
                sys.exit(3)
            await asyncio.Event().wait()


async def in_order(path: str, how: str) -> None:
    async with agentbus.connect(path) as bus:
        await handle(bus, how)


async def never_closed(path: str) -> None:
    bus = agentbus.connect(path)
    await bus.__aenter__()
    await hold(bus)
    say("leaving")


def loop_closed(path: str) -> None:
    loop = asyncio.new_event_loop()
    bus = agentbus.connect(path)
    loop.run_until_complete(bus.__aenter__())
    loop.run_until_complete(hold(bus))
    loop.close()
    say("leaving")


async def contended(path: str, how: str) -> None:
    """The test takes the write lock as soon as this says that it holds; then this is told to leave."""
    async with agentbus.connect(path) as bus:
        if how == "contended idle":
            say("holding")
            await _told()
            return
        async with bus.agent("leaver", type="worker") as agent:
            await agent.send("leaver", "note")
            message = await agent.receive()
            assert message is not None
            async with message:
                say("holding")
                await _told()
                if how == "contended exception":
                    raise ZeroDivisionError
                if how == "contended exit":
                    sys.exit(3)
                if how == "contended while writing":
                    asyncio.get_running_loop().call_later(0.1, os.kill, os.getpid(), signal.SIGINT)
                    await agent.send("leaver", "note")
                await asyncio.Event().wait()


async def _told() -> None:
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    say("leaving")


def main(path: str, how: str) -> None:
    if how == "never closed":
        asyncio.run(never_closed(path))
    elif how == "loop closed":
        loop_closed(path)
    elif how.startswith("contended"):
        asyncio.run(contended(path, how))
    else:
        asyncio.run(in_order(path, how))


main(*sys.argv[1:])
