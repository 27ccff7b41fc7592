"""Answer every message with its payload: as a Struct if the argument says so, as plain JSON otherwise."""

import asyncio
import sys

import msgspec

import agentbus
from agentbus import Message, Unit
from agentbus.errors import PayloadMismatch
from tests.support.processes import say

# As this process has it: one field more than its sender's, which old payloads do without.
Plan = msgspec.defstruct("Plan", [("files", int), ("owner", str, "nobody")])
# As a process that was changed carelessly has it.
Renamed = msgspec.defstruct("Plan", [("file_count", int)])


async def main(path: str, knows: str) -> None:
    async def answer(message: Message, unit: Unit) -> None:
        try:
            got = message.payload
        except PayloadMismatch as mismatch:
            unit.reply(message, "note", {"code": mismatch.code, "raw": message.raw})
            return
        if isinstance(got, Plan):
            unit.reply(message, Plan(files=got.files + 1, owner="echo"))  # type: ignore[attr-defined]
        else:
            unit.reply(message, "plan", {**got, "files": got["files"] + 1})

    async with agentbus.connect(path, beat_every=3600) as bus, bus.agent("echo", type="worker") as worker:
        if knows != "nothing":
            await bus.define(Plan if knows == "plan" else Renamed)
        say("ready")
        await worker.serve(answer)


asyncio.run(main(*sys.argv[1:]))
