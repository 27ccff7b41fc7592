"""A bus and a fork: the child may not use its parent's bus, nor open it again, but may open another."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tests.engine.sqlite.mount_namespace import ran

_PARENT = """
import asyncio, json, os, sys
import agentbus
from agentbus.errors import AgentBusError

place = sys.argv[1]

async def code(call):
    try:
        await call()
    except AgentBusError as error:
        return [error.code, error.facts.get("parent")]
    return ["nothing", None]

async def in_the_child(bus, a, message):
    told = {}
    told["send"] = await code(lambda: a.send("a", "note", "from the child"))
    told["receive"] = await code(lambda: a.receive(timeout=0))
    told["ack"] = await code(message.ack)
    told["stats"] = await code(bus.stats)
    told["agents"] = await code(lambda: bus.agents.get("a"))
    told["register"] = await code(lambda: bus.register("c", type="worker"))
    return told

async def of_its_own(where):
    async def talk():
        async with agentbus.connect(where) as bus:
            async with bus.agent("child", type="worker") as child:
                await child.send("child", "note")
    return await code(talk)

async def main():
    async with agentbus.connect(place) as bus:
        a = await bus.register("a", type="worker")
        await a.send("a", "note", "before the fork")
        message = await a.receive()
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                os.close(reading)
                told = await in_the_child(bus, a, message)
                told["the same again"] = asyncio.run(of_its_own(place))
                told["another"] = asyncio.run(of_its_own(place + "-of-the-child"))
                os.write(writing, json.dumps(told).encode())
                status = 0
            finally:
                os._exit(status)
        os.close(writing)
        with open(reading) as pipe:
            told = json.loads(await asyncio.to_thread(pipe.read))
        told["status"] = os.waitpid(pid, 0)[1]
        told["pid"] = os.getpid()
        await message.ack()
        await a.send("a", "note", "after the fork")
        told["messages"] = (await bus.stats()).messages
    print(json.dumps(told))

asyncio.run(main())
"""


def _run(script: str, directory: Path) -> Any:
    return ran([sys.executable, "-c", script, str(directory)])


def test_a_forked_child_may_not_use_its_parent_s_bus_but_another(tmp_path: Path) -> None:
    told = _run(_PARENT, tmp_path / "bus")
    assert told["status"] == 0
    for use in ("send", "receive", "ack", "stats", "agents", "register", "the same again"):
        assert told[use] == ["bus_forked", told["pid"]], use
    assert told["another"] == ["nothing", None]
    assert told["messages"] == {"acked": 1, "queued": 1}


_LINGERING = """
import asyncio, json, os, sys
import agentbus

place = sys.argv[1]

async def main():
    async with agentbus.connect(place, lock_timeout=30) as bus:
        a = await bus.register("a", type="worker")
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(writing)
            os.read(reading, 1)  # until the parent is through
            os._exit(0)
        os.close(reading)
        for n in range(20):
            await a.send("a", "note", n)
    # The child is still there: neither lock nor doorbell may be kept by it.
    async with agentbus.connect(place, lock_timeout=30) as bus:
        told = {"messages": (await bus.stats()).messages, "agent": (await bus.agents.get("a")).status}
    os.close(writing)
    os.waitpid(pid, 0)
    print(json.dumps(told))

asyncio.run(main())
"""


def test_a_child_that_lingers_keeps_nothing_of_its_parent_s(tmp_path: Path) -> None:
    assert _run(_LINGERING, tmp_path) == {"messages": {"queued": 20}, "agent": "stopped"}


_OPENING = """
import asyncio, json, os, sys
import agentbus
from agentbus.engine.sqlite import connection
from agentbus.errors import AgentBusError

place = sys.argv[1]
migrate = connection.migrate
reading, writing = os.pipe()

async def send():
    async with agentbus.connect(place) as bus, bus.agent("child", type="worker") as child:
        await child.send("child", "note")

def fork_and_migrate(opened, home):
    connection.migrate = migrate
    if os.fork() == 0:
        try:
            asyncio.run(send())
        except AgentBusError as error:
            os.write(writing, error.code.encode())
        finally:
            os._exit(0)
    migrate(opened, home)

async def main():
    async with agentbus.connect(place):
        pass
    connection.migrate = fork_and_migrate
    async with agentbus.connect(place) as bus:
        os.wait()
        os.close(writing)
        print(json.dumps([open(reading).read(), (await bus.stats()).messages]))

asyncio.run(main())
"""


def test_a_child_that_is_forked_while_the_parent_opens_the_bus_may_not_open_it(tmp_path: Path) -> None:
    """SQLite has its locks from the first statement on, which is before the bus is open."""
    assert _run(_OPENING, tmp_path / "bus") == ["bus_forked", {}]
