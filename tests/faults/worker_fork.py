"""Fork while a bus is open, or while the lock is held; print the result of the child, which stays alive."""

import asyncio
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any, NoReturn

import agentbus
from agentbus.engine.sqlite.lock import FileLock
from agentbus.errors import AgentBusError
from tests.support.processes import listeners, say


def live_on() -> NoReturn:
    """Until the test ends the whole group."""
    while True:
        signal.pause()


def child(*uses: Any) -> NoReturn:
    """It was forked in the middle of a coroutine, so it has no loop: what fails at once does so in the first step."""
    for use in uses:
        try:
            use.send(None)
        except AgentBusError as error:
            say("child", use.__qualname__, error.code)
        else:
            say("child", use.__qualname__, "did something")
    say("forked")
    live_on()


async def inherited(path: str) -> None:
    """The child uses the parent's bus; the parent continues."""
    async with (
        agentbus.connect(path, beat_every=3600) as bus,
        bus.agent("parent", type="worker", pools=["jobs"]) as agent,
    ):
        await agent.send("parent", "note", "to hold", message_id="held")
        message = await agent.receive()
        assert message is not None
        if os.fork() == 0:
            child(
                agent.send("parent", "note", "from the child"),
                agent.send_many([("parent", "note")]),
                agent.receive(),
                message.ack(),
                bus.stats(),
                bus.register("child", type="worker"),
                agent.state.get("k"),
                agent.state.set("k", 1),
                agent.pending(),
                agent.complete(),
            )
        told = await listeners()
        while (await told.readline()).strip() == b"send":
            await agent.send("parent", "note", "from the parent")
            found = await agent.receive(timeout=5)
            assert found is not None
            await found.ack()
            say("sent", found.payload)
        await message.ack()


async def opened_again(path: str) -> None:
    """The child opens the bus for itself, as the error tells it to; the parent does nothing more."""
    async with agentbus.connect(path, beat_every=3600):
        if os.fork() == 0:
            try:
                asyncio.run(_send_when_told(path))
            except AgentBusError as error:
                say("refused", error.code)
            live_on()
        await asyncio.Event().wait()


async def _send_when_told(path: str) -> None:
    async with (
        agentbus.connect(path, beat_every=3600) as bus,
        bus.agent("child", type="worker") as agent,
    ):
        say("opened")
        told = await listeners()
        while (line := (await told.readline()).decode().strip()) != "end":
            await agent.send("child", "note", message_id=line)
            say("sent", line)
    say("closed")


def holding_the_lock(path: str, how: str) -> NoReturn:
    """The child is forked while the parent has the write lock, taken at once or after a wait, or waits for it."""
    Path(path).mkdir()
    lock, other = (FileLock(Path(path) / "bus.lock", 10) for _ in range(2))
    if how != "at once":
        other.acquire()
    if how == "queued":
        threading.Timer(0.05, other.release).start()
    taking = threading.Thread(target=lock.acquire)
    taking.start()
    if how == "waiting":
        while "agentbus-lock" not in {thread.name for thread in threading.enumerate()}:
            taking.join(0.001)
    else:
        taking.join()
    if os.fork() == 0:
        child()
    if how == "waiting":
        other.release()
        taking.join()
    say("holding")
    live_on()


def main(path: str, what: str) -> None:
    if what == "inherited":
        asyncio.run(inherited(path))
    elif what == "reopened":
        asyncio.run(opened_again(path))
    else:
        holding_the_lock(path, what)


main(*sys.argv[1:])
