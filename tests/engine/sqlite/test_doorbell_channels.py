"""Watching channels: other processes ring while this one has a watcher, however many come and go."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import AsyncExitStack, closing, contextmanager
from pathlib import Path

import anyio
import pytest

import agentbus
from agentbus import Bus, State
from agentbus.engine.waiters import Waiter
from agentbus.errors import BusClosed, LockTimeout
from tests.support.clock import FakeClock


def listeners(path: Path) -> list[str]:
    """Return the channels with a listener, without mailboxes."""
    with closing(sqlite3.connect(path / "bus.db")) as connection:
        rows = connection.execute("SELECT channel FROM listeners WHERE channel NOT LIKE 'mailbox/%' ORDER BY 1")
        return [channel for (channel,) in rows]


async def drained(bus: Bus) -> None:
    """Everything that was to be written has been."""
    await bus.messages.purge()


async def heard(waiter: Waiter) -> bool:
    with anyio.move_on_after(10) as scope:
        await waiter.wait(None)
    return not scope.cancelled_caught


async def stir(bus: Bus, number: int = 0) -> None:
    """Something that records an event."""
    await bus.expect(f"agent-{number}", type="worker")


async def test_a_change_of_another_bus_wakes_every_watcher(tmp_path: Path) -> None:
    async with (
        agentbus.connect(tmp_path, beat_every=3600) as bus,
        agentbus.connect(tmp_path, beat_every=3600) as other,
        bus._listening.to("events") as first,
        bus._listening.to("events") as second,
    ):
        for number in range(3):
            await stir(other, number)
            assert await heard(first)
            assert await heard(second)


async def test_a_change_of_the_own_bus_wakes_every_watcher(tmp_path: Path) -> None:
    async with (
        agentbus.connect(tmp_path, beat_every=3600) as bus,
        bus._listening.to("events") as first,
        bus._listening.to("events") as second,
    ):
        await stir(bus)
        assert await heard(first)
        assert await heard(second)


async def test_the_first_watcher_is_announced_and_the_last_one_removed(tmp_path: Path) -> None:
    async with agentbus.connect(tmp_path) as bus:
        async with bus._listening.to("events"):
            assert listeners(tmp_path) == ["events"]
            async with bus._listening.to("events"), bus._listening.to("state/a"):
                assert listeners(tmp_path) == ["events", "state/a"]
            await drained(bus)
            assert listeners(tmp_path) == ["events"]
        await drained(bus)
        assert listeners(tmp_path) == []
        async with bus._listening.to("events"):
            assert listeners(tmp_path) == ["events"]
    assert listeners(tmp_path) == []


async def test_leaving_a_loop_over_a_watch_ends_the_listening(tmp_path: Path) -> None:
    async with agentbus.connect(tmp_path) as bus:
        state = bus.state("a")
        await state.set("k", 1)
        async for _ in state.watch():
            assert listeners(tmp_path) == ["state/a"]
            break
        with pytest.raises(ZeroDivisionError):
            async for _ in state.watch():
                _ = 1 / 0
        watching = asyncio.create_task(_forever(state))
        await drained(bus)
        watching.cancel()
        # The loop closes a generator that was left in a task of its own.
        with anyio.fail_after(60):
            while listeners(tmp_path):
                await drained(bus)


async def _forever(state: State) -> None:
    async for _ in state.watch():
        pass


async def test_two_processes_listen_each_for_themselves(tmp_path: Path) -> None:
    async with agentbus.connect(tmp_path) as bus, agentbus.connect(tmp_path) as other, bus._listening.to("events"):
        async with other._listening.to("events"):
            assert listeners(tmp_path) == ["events", "events"]
        await drained(other)
        assert listeners(tmp_path) == ["events"]


async def test_watchers_that_come_and_go_in_the_same_moment_leave_the_right_ones(tmp_path: Path) -> None:
    async with (
        agentbus.connect(tmp_path, beat_every=3600) as bus,
        agentbus.connect(tmp_path, beat_every=3600) as other,
        AsyncExitStack() as staying,
    ):
        waiting: list[Waiter] = []

        async def watch(number: int) -> None:
            if number % 2:
                async with bus._listening.to("events"):
                    await asyncio.sleep(0)
            elif number % 4:
                with anyio.move_on_after(0):
                    async with bus._listening.to("events"):
                        pass
            else:
                waiting.append(await staying.enter_async_context(bus._listening.to("events")))

        await asyncio.gather(*(watch(number) for number in range(40)))
        await drained(bus)
        assert listeners(tmp_path) == ["events"]
        for waiter in waiting:
            waiter.rung = False
        await stir(other)
        assert [await heard(waiter) for waiter in waiting] == [True] * 10
    assert listeners(tmp_path) == []


async def test_a_lost_ring_is_made_up_for_by_the_next_heartbeat(tmp_path: Path) -> None:
    clock = FakeClock()
    async with agentbus.connect(tmp_path, clock=clock, beat_every=5) as bus:
        clock.attach(bus)
        async with bus._listening.to("events") as waiter:
            waiting = asyncio.create_task(waiter.wait(None))
            await clock.pass_time(4)
            assert not waiting.done()
            await clock.pass_time(2)
            assert waiting.done()


async def test_closing_the_bus_ends_a_watch(tmp_path: Path) -> None:
    bus = agentbus.connect(tmp_path)
    await bus.__aenter__()
    async with bus._listening.to("events") as waiter:
        await bus.__aexit__(None, None, None)
        assert await heard(waiter)
    with pytest.raises(BusClosed):
        async with bus._listening.to("events"):
            pass


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another program writes, and does not let go."""
    with closing(sqlite3.connect(path / "bus.db", isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


async def test_a_watcher_that_could_not_be_announced_does_not_watch(tmp_path: Path) -> None:
    async with agentbus.connect(tmp_path, lock_timeout=0.05) as bus:
        with locked(tmp_path), pytest.raises(LockTimeout):
            async with bus._listening.to("events"):
                pass
        async with bus._listening.to("events"):
            assert listeners(tmp_path) == ["events"]
        await drained(bus)
        assert listeners(tmp_path) == []
