"""Other processes and their agents, entered directly so that a test controls their evidence."""

from __future__ import annotations

import os
from typing import Any

from agentbus import Bus
from agentbus.core import process_info
from agentbus.operations.agent_identity import Registration, VisitRequest, visit
from agentbus.operations.agents import RegisterRequest, register
from agentbus.operations.processes import EnterRequest, HeartbeatRequest, enter, heartbeat
from agentbus.operations.protocol import Actor
from agentbus.operations.rows import Profile

ABSENT_PID = 2**22 + 1
"""A pid that no process has: Linux gives out none above 2**22."""
ELSEWHERE = "another-machine/pid:[1]"


async def stranger(
    bus: Bus,
    *,
    pid: int | None = None,
    started: str | None = None,
    host: str | None = None,
    watched: bool = False,
    every: int = 5,
) -> int:
    """Another process that opened the bus just now. Unless told otherwise, it is there to be seen (it has our own pid);
    it beats only when it is made to, whatever it says of how often."""
    number = os.getpid() if pid is None else pid
    since = process_info.start_time(number) if started is None else started
    place = process_info.host_key() if host is None else host
    entry = await bus._engine.write(enter, EnterRequest(place, number, since, None, watched, every * 1000))
    return entry.process


async def resident(bus: Bus, id: str, process: int, **options: Any) -> Registration:
    """An agent that lives in another process."""
    profile = Profile(**{name: options.pop(name) for name in ("parent", "patience") if name in options})
    request = RegisterRequest(id, "worker", process, profile, **options)
    return await bus._engine.write(register, request)


async def visitor(bus: Bus, id: str, *, patience: int | None = None, process: int | None = None) -> Actor:
    """A visiting agent. Its patience is in seconds."""
    profile = Profile(patience=None if patience is None else patience * 1000)
    registration = await bus._engine.write(register, RegisterRequest(id, "worker", process, profile, "visiting"))
    return Actor(id, registration.epoch)


async def beats(bus: Bus, process: int, *active: Registration) -> None:
    """Another process beats; these of its agents did something since its last beat."""
    awake = bus._engine.clock.now().awake
    calls = tuple((life.agent, life.epoch, awake) for life in active)
    await bus._engine.write(heartbeat, HeartbeatRequest(process, calls))


async def visits(bus: Bus, visitor: Actor, *, lease: int = 60) -> None:
    """A visiting agent calls."""
    await bus._engine.write(visit, VisitRequest(visitor, lease * 1000))
