"""A second process: ``follow`` prints the audit log, ``answer`` sets session state, ``hold`` holds the write lock."""

import asyncio
import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import agentbus
from agentbus.errors import AgentBusError
from tests.api.event_story import line
from tests.faults.rows import lock_held
from tests.support.processes import listeners, say


async def follow(path: str) -> None:
    # An hour between beats: whatever is seen sooner was rung for.
    async with agentbus.connect(path, beat_every=3600) as bus:
        say("ready")
        async for event in bus.events(follow=True):
            say("event", json.dumps(line(event)))


async def answer(path: str) -> None:
    async with agentbus.connect(path, beat_every=3600) as bus:
        session = await bus.sessions.open("s")
        last = await session.restore()
        say("ready", json.dumps(None if last is None else last.snapshot))
        async for entry in session.state.watch("question"):
            try:
                await session.state.set("answer", entry.value)
                await session.checkpoint("answered", entry.value)
                say("answered", entry.value, entry.version)
            except AgentBusError as error:
                say("refused", type(error).__name__)
                return


async def hold(path: str) -> None:
    told = await listeners()
    database = Path(path) / "bus.db"
    with lock_held(Path(path)), closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        connection.execute("UPDATE state SET value = '99', checksum = 0")
        say("held")
        await told.readline()
        connection.execute("ROLLBACK")


asyncio.run({"follow": follow, "answer": answer, "hold": hold}[sys.argv[1]](*sys.argv[2:]))
