"""State in processes: ``race`` adds by compare-and-set, ``attempt`` tries to, ``watch`` answers, ``write`` sets."""

import asyncio
import json
import sys
from collections.abc import Callable
from contextlib import suppress

import agentbus
from agentbus.errors import VersionConflict
from tests.support.processes import crowd, say


async def racing(path: str, times: int, gate: Callable[[], None]) -> dict[str, int]:
    conflicts = 0
    async with agentbus.connect(path) as bus:
        state = bus.state("race")
        entry = await state.entry("sum")
        # Every process has read the same version before one of them writes: all but one conflict.
        gate()
        added = 0
        while added < times:
            value, version = (entry.value, entry.version) if entry else (0, 0)
            try:
                await state.set("sum", value + 1, if_version=version)
                added += 1
                await state.increment("plain")
            except VersionConflict:
                conflicts += 1
            entry = await state.entry("sum")
    return {"conflicts": conflicts}


async def attempting(path: str, times: int, gate: Callable[[], None]) -> dict[str, int]:
    won = 0
    async with agentbus.connect(path) as bus:
        state = bus.state("race")
        entry = await state.entry("sum")
        gate()
        for _ in range(times):
            value, version = (entry.value, entry.version) if entry else (0, 0)
            with suppress(VersionConflict):
                await state.set("sum", value + 1, if_version=version)
                won += 1
            entry = await state.entry("sum")
    return {"won": won}


def race(how: str, path: str, count: str, times: str) -> None:
    task = racing if how == "race" else attempting
    say("answers", json.dumps(crowd(int(count), lambda _, gate: asyncio.run(task(path, int(times), gate)))))


async def watching(path: str) -> None:
    # An hour between beats: whatever is seen sooner was rung for.
    async with agentbus.connect(path, beat_every=3600) as bus:
        async for entry in bus.state("talk").watch("ping"):
            if entry.deleted:
                say("gone", entry.key)
            else:
                await bus.state("talk").set("pong", entry.value)
            if entry.value == "begin":
                say("ready")


async def writing(path: str) -> None:
    async with agentbus.connect(path) as bus, bus.agent("writer", type="worker") as writer:
        number = 0
        while True:
            number += 1
            version = await writer.state.set("n", number)
            say("version", version)


what, *arguments = sys.argv[1:]
if what in {"race", "attempt"}:
    race(what, *arguments)
else:
    asyncio.run({"watch": watching, "write": writing}[what](*arguments))
