"""Repeat one operation until killed: sends, retention, backups, restores."""

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import agentbus
from agentbus import RetentionPolicy
from agentbus.api.maintenance import retention
from tests.support.processes import listeners, say

EVERYTHING = RetentionPolicy(messages=0, dead_letters=0, agents=0, sessions=0, events=None, tombstones=None)


async def send(path: str, name: str) -> None:
    """Says each message once it is acknowledged by the bus."""
    async with agentbus.connect(path) as bus:
        agent = await bus.register(name, type="worker", takeover=True)
        say("ready")
        number = 0
        while True:
            number += 1
            await agent.send(name, "note", {"number": number, "ballast": "x" * 300})
            say("sent", number)


async def apply(path: str, once: str, portion: str = "500", seconds: str = "0") -> None:
    """Retention of everything that has finished; says how much was removed. After a time the kernel kills it."""
    retention._MAX_ROWS = int(portion)
    async with agentbus.connect(path) as bus:
        say("ready")
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, float(seconds))
        if once == "once":
            await (await listeners()).readline()
        while True:
            report = await bus.retention.apply(policy=EVERYTHING)
            say("removed", sum(report.removed.values()))
            if once == "once":
                return


async def backup(path: str, _: str) -> None:
    async with agentbus.connect(path) as bus:
        say("ready")
        while True:
            say("made", (await bus.backup(keep=1000)).path)


async def restore(path: str, copy: str) -> None:
    say("ready")
    while True:
        agentbus.restore_backup(copy, Path(path))
        say("restored")


ROLES: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
    "send": send,
    "apply": apply,
    "backup": backup,
    "restore": restore,
}
asyncio.run(ROLES[sys.argv[1]](*sys.argv[2:]))
