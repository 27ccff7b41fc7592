"""A full disk: a named error, nothing written, the bus still works and goes on once there is room."""

from __future__ import annotations

from pathlib import Path

from tests.sqlite.mounted import run_mounted

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
        unit = a.unit().open()
        unit.send("a", "note", "z" * 20_000)
        unit.progress(50)
        told["unit"] = await attempt(unit.commit())
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


def test_a_full_disk_refuses_and_goes_on_once_there_is_room(tmp_path: Path) -> None:
    told = run_mounted('mount -t tmpfs -o size=4m tmpfs "$1"', _SCRIPT, tmp_path)
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
