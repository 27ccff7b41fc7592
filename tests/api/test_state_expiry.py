"""Expiry: an entry disappears for every reader at its expiry time."""

from __future__ import annotations

import asyncio

import pytest

from agentbus import Bus
from agentbus.errors import VersionConflict
from tests.conftest import Engine
from tests.support.clock import FakeClock


async def test_an_expired_entry_is_invisible_at_once(bus: Bus, clock: FakeClock) -> None:
    state = bus.state("s")
    await state.set("k", 1, ttl=10)
    await state.set("stays", 2)
    clock.stall(9.999)
    assert await state.get("k") == 1
    assert [entry.key for entry in (await state.list()).items] == ["k", "stays"]
    clock.stall(0.001)
    assert await state.get("k", "gone") == "gone"
    assert await state.entry("k") is None
    assert [entry.key for entry in (await state.list()).items] == ["stays"]
    assert await state.delete("k") is False


async def test_an_expired_entry_has_version_0_for_a_comparison(bus: Bus, clock: FakeClock) -> None:
    state = bus.state("s")
    await state.set("k", 1, ttl=10)
    clock.stall(10)
    with pytest.raises(VersionConflict) as conflict:
        await state.set("k", 2, if_version=1)
    assert conflict.value.found == 0
    assert await state.set("k", 2, if_version=0) == 2


@pytest.mark.parametrize("swept", [False, True])
async def test_versions_continue_after_expiry_before_and_after_a_sweep(bus: Bus, clock: FakeClock, swept: bool) -> None:
    state = bus.state("s")
    await state.set("k", 1, ttl=10)
    if swept:
        await clock.pass_time(20)
    else:
        clock.stall(20)
    assert await state.set("k", 2) == 2
    entry = await state.entry("k")
    assert entry is not None
    assert (entry.expires, entry.created) == (None, clock.now().wall)


async def test_setting_again_replaces_or_removes_the_expiry(bus: Bus, clock: FakeClock) -> None:
    state = bus.state("s")
    await state.set("k", 1, ttl=10)
    clock.stall(5)
    await state.set("k", 2, ttl=10)
    clock.stall(9)
    assert await state.get("k") == 2
    await state.set("k", 3)
    clock.stall(1000)
    assert await state.get("k") == 3


async def test_adding_keeps_the_expiry_unless_another_is_given(bus: Bus, clock: FakeClock) -> None:
    state = bus.state("s")
    assert await state.increment("n", ttl=10) == 1
    clock.stall(5)
    assert await state.increment("n") == 2
    clock.stall(5)
    assert await state.get("n") is None
    assert await state.increment("n", ttl=10) == 1
    clock.stall(5)
    assert await state.increment("n", ttl=10) == 2
    clock.stall(9)
    assert await state.get("n") == 2
    clock.stall(1)
    assert await state.increment("n") == 1
    entry = await state.entry("n")
    assert entry is not None
    assert entry.expires is None


async def test_a_deleted_entry_does_not_expire_again(bus: Bus, clock: FakeClock) -> None:
    state = bus.state("s")
    await state.set("k", 1, ttl=10)
    await state.delete("k")
    await state.set("k", 2)
    await clock.pass_time(60)
    assert await state.get("k") == 2


async def test_expiry_goes_by_the_wall_clock(bus: Bus, clock: FakeClock) -> None:
    state = bus.state("s")
    await state.set("k", 1, ttl=3600)
    clock.sleep_machine(3600)
    assert await state.get("k") is None


async def test_entries_that_expired_unwatched_are_swept_with_a_heartbeat(engine: Engine, clock: FakeClock) -> None:
    async with engine.connect(beat_every=5) as bus:
        state = bus.state("s")
        await asyncio.gather(*(state.set(f"k{n}", n, ttl=10) for n in range(1200)))
        await state.set("stays", 1, ttl=100)
        changes = 1201
        await clock.pass_time(9)
        await state.set("probe", 1)
        entry = await state.entry("probe")
        assert entry is not None
        assert entry.change == changes + 1
        await clock.pass_time(7)
        await state.set("probe", 2)
        entry = await state.entry("probe")
        assert entry is not None
        # Each expiry was a change of its own.
        assert entry.change == changes + 1 + 1200 + 1
        assert len((await state.list()).items) == 2
