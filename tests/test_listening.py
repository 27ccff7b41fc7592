"""Watching channels: other processes ring as long as somebody here watches, however many come and go meanwhile."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import AsyncExitStack, closing, contextmanager
from pathlib import Path

import anyio
import pytest

import agentbus
from agentbus import Bus
from agentbus.engine.hub import Ear
from agentbus.errors import BusClosed, LockTimeout
from tests.support.clock import FakeClock


def listeners(path: Path) -> list[str]:
    """The channels that somebody listens to, mailboxes left out."""
    with closing(sqlite3.connect(path / "bus.db")) as connection:
        rows = connection.execute("SELECT channel FROM listeners WHERE channel NOT LIKE 'mailbox/%' ORDER BY 1")
        return [channel for (channel,) in rows]


async def drained(bus: Bus) -> None:
    """Everything that was to be written has been."""
    await bus.messages.purge()


async def heard(ear: Ear) -> bool:
    with anyio.move_on_after(10) as scope:
        await ear.wait(None)
    return not scope.cancelled_caught


async def stir(bus: Bus, number: int = 0) -> None:
    """Something that records an event."""
    await bus.expect(f"agent-{number}", type="worker")


async def test_every_watcher_hears_of_what_another_bus_did(tmp_path: Path) -> None:
    async with (
        agentbus.connect(tmp_path, beat_every=3600) as bus,
        agentbus.connect(tmp_path, beat_every=3600) as other,
        bus.listening.to("events") as first,
        bus.listening.to("events") as second,
    ):
        for number in range(3):
            await stir(other, number)
            assert await heard(first)
            assert await heard(second)


async def test_every_watcher_hears_of_what_its_own_bus_did(tmp_path: Path) -> None:
    async with (
        agentbus.connect(tmp_path, beat_every=3600) as bus,
        bus.listening.to("events") as first,
        bus.listening.to("events") as second,
    ):
        await stir(bus)
        assert await heard(first)
        assert await heard(second)


async def test_others_are_told_of_the_first_watcher_and_of_the_last_ones_leaving(tmp_path: Path) -> None:
    async with agentbus.connect(tmp_path) as bus:
        async with bus.listening.to("events"):
            assert listeners(tmp_path) == ["events"]
            async with bus.listening.to("events"), bus.listening.to("state/a"):
                assert listeners(tmp_path) == ["events", "state/a"]
            await drained(bus)
            assert listeners(tmp_path) == ["events"]
        await drained(bus)
        assert listeners(tmp_path) == []
        async with bus.listening.to("events"):
            assert listeners(tmp_path) == ["events"]
    assert listeners(tmp_path) == []


async def test_two_processes_listen_each_for_themselves(tmp_path: Path) -> None:
    async with agentbus.connect(tmp_path) as bus, agentbus.connect(tmp_path) as other, bus.listening.to("events"):
        async with other.listening.to("events"):
            assert listeners(tmp_path) == ["events", "events"]
        await drained(other)
        assert listeners(tmp_path) == ["events"]


async def test_watchers_that_come_and_go_in_the_same_moment_leave_the_right_ones(tmp_path: Path) -> None:
    async with (
        agentbus.connect(tmp_path, beat_every=3600) as bus,
        agentbus.connect(tmp_path, beat_every=3600) as other,
        AsyncExitStack() as staying,
    ):
        ears: list[Ear] = []

        async def watch(number: int) -> None:
            if number % 2:
                async with bus.listening.to("events"):
                    await asyncio.sleep(0)
            elif number % 4:
                with anyio.move_on_after(0):
                    async with bus.listening.to("events"):
                        pass
            else:
                ears.append(await staying.enter_async_context(bus.listening.to("events")))

        await asyncio.gather(*(watch(number) for number in range(40)))
        await drained(bus)
        assert listeners(tmp_path) == ["events"]
        for ear in ears:
            ear.rung = False
        await stir(other)
        assert [await heard(ear) for ear in ears] == [True] * 10
    assert listeners(tmp_path) == []


async def test_a_bell_that_was_never_rung_is_made_up_for_by_the_next_beat(tmp_path: Path) -> None:
    clock = FakeClock()
    async with agentbus.connect(tmp_path, clock=clock, beat_every=5) as bus:
        clock.attach(bus)
        async with bus.listening.to("events") as ear:
            waiting = asyncio.create_task(ear.wait(None))
            await clock.pass_time(4)
            assert not waiting.done()
            await clock.pass_time(2)
            assert waiting.done()


async def test_a_watcher_hears_that_the_bus_is_closed(tmp_path: Path) -> None:
    bus = agentbus.connect(tmp_path)
    await bus.__aenter__()
    async with bus.listening.to("events") as ear:
        await bus.__aexit__(None, None, None)
        assert await heard(ear)
    with pytest.raises(BusClosed):
        async with bus.listening.to("events"):
            pass


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another program writes, and does not let go."""
    with closing(sqlite3.connect(path / "bus.db", isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


async def test_who_could_not_be_announced_does_not_watch(tmp_path: Path) -> None:
    async with agentbus.connect(tmp_path, lock_timeout=0.05) as bus:
        with locked(tmp_path), pytest.raises(LockTimeout):
            async with bus.listening.to("events"):
                pass
        async with bus.listening.to("events"):
            assert listeners(tmp_path) == ["events"]
        await drained(bus)
        assert listeners(tmp_path) == []
