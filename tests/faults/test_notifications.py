"""Notifications with real processes: many that deliver, and one that is killed while it does."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

import agentbus
from agentbus import Bus
from tests.support.figures import Scale
from tests.support.processes import PATIENCE, Team
from tests.support.receiver import UserSettings, receiving, user

__all__ = ["user"]


async def fail_one(bus: Bus, name: str) -> None:
    await (await bus.register(name, type="worker")).fail("by the test")


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, short: Path) -> str:
    """A new bus on each engine."""
    return str(short / "bus") if request.param == "sqlite" else str(request.getfixturevalue("url"))


@pytest.mark.slow
async def test_of_many_monitoring_processes_one_delivers_each(
    place: str, team: Team, scale: Scale, user: UserSettings
) -> None:
    processes = scale(8, 20)
    async with receiving() as receiver, agentbus.connect(place, beat_every=3600) as bus:
        user.webhook(receiver.port, buses=place)
        watching = [team.start("worker_notify", place, 0.1, 0) for _ in range(processes)]
        for one in watching:
            await asyncio.to_thread(one.expect, "ready", PATIENCE)
        names = [f"a-{number}" for number in range(5)]
        for number, name in enumerate(names, 1):
            await fail_one(bus, name)
            await receiver.received(number)
        found = Counter(one.body["subject"] for one in receiver.requests)
        assert found == {f"agent:{name}": 1 for name in names}
        (progress,) = await bus.notifications.list()
        # The last one may not be recorded yet.
        assert (progress.delivered >= len(names) - 1, progress.dead, progress.dropped) == (True, 0, 0)


@pytest.mark.slow
async def test_what_a_killed_process_was_delivering_is_delivered_by_another(
    short: Path, team: Team, user: UserSettings
) -> None:
    path = short / "bus"
    async with receiving() as receiver, agentbus.connect(path, beat_every=3600) as bus:
        user.webhook(receiver.port, events=["agent_failed"])
        first = team.start("worker_notify", path, 0.1, 0)
        await asyncio.to_thread(first.expect, "ready")
        receiver.answers = [None]
        await fail_one(bus, "a")
        await fail_one(bus, "b")
        await receiver.received(1)
        await asyncio.to_thread(first.kill)
        (progress,) = await bus.notifications.list()
        assert (progress.status, progress.delivered) == ("delivering", 0)
        # The lease has run out by the clock of the next process.
        second = team.start("worker_notify", path, 0.1, 200)
        await asyncio.to_thread(second.expect, "ready")
        await receiver.received(2)
        lost, *others = receiver.requests
        assert (others[0].id, others[0].raw) == (lost.id, lost.raw)
        subjects = {name for one in others for name in one.body["facts"].get("subjects", [one.body["subject"]])}
        while not {"agent:b", "b"} & subjects:
            await receiver.received(len(receiver.requests) + 1)
            last = receiver.requests[-1]
            subjects |= {*last.body["facts"].get("subjects", [last.body["subject"]])}
        ids = Counter(one.id for one in receiver.requests)
        assert ids.pop(lost.id) == 2
        assert set(ids.values()) <= {1}
