"""A full disk: a named error, nothing written, and the bus works again once there is room."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.sqlite.mount_namespace import run_mounted
from tests.support.figures import Figure

_SCRIPT = """
import asyncio, json, os, sqlite3, sys, time
import agentbus
from agentbus.errors import AgentBusError, DiskFull

place = sys.argv[1]
filler = os.path.join(place, "filler")
told = {}

def fill():
    with open(filler, "wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue

async def attempt(call):
    try:
        await call
    except AgentBusError as error:
        return error.code
    return "sent"

async def main():
    async with agentbus.connect(os.path.join(place, "bus")) as bus:
        a = await bus.register("a", type="worker")
        await a.send("a", "note", "before")
        fill()
        outcomes = []
        while "disk_full" not in outcomes and len(outcomes) < 1000:
            outcomes.append(await attempt(a.send("a", "note", "x" * 20_000, message_id=f"one-{len(outcomes)}")))
        told["first refusal"] = outcomes[-1]
        together = await asyncio.gather(*(attempt(a.send("a", "note", "y" * 20_000)) for _ in range(20)))
        told["together"] = sorted(set(together))
        unit = a.unit()._begin()
        unit.send("a", "note", "z" * 20_000)
        unit.progress(50)
        told["unit"] = await attempt(unit._commit())
        told["sent"] = outcomes.count("sent") + together.count("sent") + 1
        told["stored"] = sum((await bus.stats()).messages.values())
        told["progress"] = (await bus.agents.get("a")).progress
        os.remove(filler)
        await a.send("a", "note", "after", priority=9)
        message = await a.receive(timeout=0)
        told["received"] = message.payload
        await message.ack()
        again = await a.send("a", "note", "x" * 20_000, message_id=f"one-{len(outcomes) - 1}")
        told["again"] = again.duplicate
        fill()
        begun = time.monotonic()
    told["closed in time"] = time.monotonic() - begun < 10
    os.remove(filler)
    async with agentbus.connect(os.path.join(place, "bus")) as bus:
        told["reopened"] = sum((await bus.stats()).messages.values())
    with sqlite3.connect(os.path.join(place, "bus", "bus.db")) as raw:
        told["integrity"] = raw.execute("PRAGMA integrity_check").fetchone()[0]

asyncio.run(main())
print(json.dumps(told))
"""


@pytest.mark.fault(6)
def test_a_full_disk_refuses_sends_until_space_is_free(tmp_path: Path, figure: Figure) -> None:
    told = run_mounted('mount -t tmpfs -o size=4m tmpfs "$1"', _SCRIPT, tmp_path)
    figure(acknowledged=told["sent"], lost=told["sent"] - told["stored"], note="all refused by name")
    assert told["first refusal"] == "disk_full"
    assert told["together"] == ["disk_full"]
    assert told["unit"] == "disk_full"
    assert told["stored"] == told["sent"], "every returned send is there, and nothing that was refused"
    assert told["progress"] == 0
    assert told["received"] == "after"
    assert told["again"] is False, "what was refused can be sent again under its id"
    assert told["closed in time"]
    assert told["reopened"] == told["sent"] + 2
    assert told["integrity"] == "ok"


_CLEANED = (
    _SCRIPT.partition("async def main():")[0]
    + """
async def main():
    home = os.path.join(place, "bus")
    ballast = os.path.join(home, "bus.ballast")
    async with agentbus.connect(home) as bus:
        a = await bus.register("a", type="worker")
        told["kept"] = os.stat(ballast).st_size
        for number in range(40):
            await a.send("a", "note", {"n": number, "text": "x" * 20_000})
        await a.ack(await a.receive_many(30, timeout=0))
        held = await a.receive_many(5, timeout=0)
        fill()
        outcomes = []
        while "disk_full" not in outcomes and len(outcomes) < 1000:
            outcomes.append(await attempt(a.send("a", "note", "y" * 20_000)))
        told["sent"] = 40 + outcomes.count("sent")
        told["kept by sends"] = os.stat(ballast).st_size
        # Calls that free no space, but must work: another process, progress, acknowledgements.
        async with agentbus.connect(home) as other:
            told["opened"] = len((await other.agents.list()).items)
        told["acknowledged"] = await attempt(a.ack(held))
        told["given up"] = os.stat(ballast).st_size
        told["meanwhile"] = await attempt(a.send("a", "note", "small"))
        told["task meanwhile"] = await attempt(bus.tasks.start("build", "small"))
        told["forgotten"] = await attempt(a.state.delete("nothing"))
        report = await bus.retention.apply(policy=agentbus.RetentionPolicy(messages=0))
        told["removed"] = report.removed["message"]
        told["after cleaning"] = await attempt(a.send("a", "note", "small"))
        os.remove(filler)
        told["with room"] = await attempt(a.send("a", "note", "small"))
        told["taken back"] = os.stat(ballast).st_size
        told["stored"] = sum((await bus.stats()).messages.values())
    with sqlite3.connect(os.path.join(home, "bus.db")) as raw:
        told["integrity"] = raw.execute("PRAGMA integrity_check").fetchone()[0]

asyncio.run(main())
print(json.dumps(told))
"""
)


@pytest.mark.fault(6)
def test_a_full_bus_can_be_cleaned_up_with_the_disk_reserve(tmp_path: Path, figure: Figure) -> None:
    told = run_mounted('mount -t tmpfs -o size=96m tmpfs "$1"', _CLEANED, tmp_path)
    expected = told["sent"] - 35 + 1 + (told["after cleaning"] == "sent")
    lost = expected - told["stored"]
    figure("35 of them cleaned up with the space of the released disk reserve", acknowledged=told["sent"], lost=lost)
    size = 4 * 1024 * 1024
    assert (told["kept"], told["kept by sends"], told["given up"], told["taken back"]) == (size, size, 0, size)
    assert told["opened"] == 1
    assert told["acknowledged"] == "sent"
    assert told["meanwhile"] == "disk_full", "the room is not for what makes the bus larger"
    assert told["task meanwhile"] == "disk_full"
    assert told["forgotten"] == "sent"
    assert told["removed"] == 35
    assert told["with room"] == "sent"
    assert lost == 0
    assert told["integrity"] == "ok"
