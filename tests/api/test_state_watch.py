"""Watching: the latest values of all writers with tombstones; nothing lost, nothing polled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from agentbus import Bus, State
from agentbus.errors import BusClosed, OutOfRange
from agentbus.records import StateEntry
from tests.api.helpers import running, soon, worker
from tests.conftest import Engine
from tests.support.clock import FakeClock

Changes = AsyncGenerator[StateEntry, None]


async def next_of(changes: Changes) -> StateEntry:
    """The next change, which must come without time passing on the bus's clock."""
    return await soon(anext(changes))


async def told(changes: Changes, count: int) -> list[tuple[str, Any]]:
    """Return N changes, as (key, value); a tombstone has ``...`` for its value."""
    entries = [await next_of(changes) for _ in range(count)]
    return [(entry.key, ... if entry.deleted else entry.value) for entry in entries]


def watching(state: State, prefix: str = "", after: int | None = None) -> aclosing[Changes]:
    return aclosing(state.watch(prefix, after=after))


async def nothing_more(changes: Changes, clock: FakeClock) -> None:
    """However long the bus works, no change comes; the iterator is closed by this."""
    async with running(changes.__anext__()) as task:
        await clock.settle()
        assert not task.done()


async def test_a_watcher_starts_with_the_current_entries(bus: Bus, clock: FakeClock) -> None:
    state = bus.state("s")
    for key in ("b", "a", "gone", "c"):
        await state.set(key, key)
    await state.set("b", "B")
    await state.delete("gone")
    async with watching(state) as changes:
        assert await told(changes, 3) == [("a", "a"), ("c", "c"), ("b", "B")]
        await nothing_more(changes, clock)


async def test_a_watcher_receives_changes_of_its_own_and_of_another_bus(engine: Engine) -> None:
    async with engine.connect() as bus, engine.connect() as other, watching(bus.state("s")) as changes:
        for number, writer in enumerate((bus, other, bus, other)):
            await writer.state("s").set("k", number)
            assert await told(changes, 1) == [("k", number)]
        await other.state("s").delete("k")
        assert await told(changes, 1) == [("k", ...)]
        await bus.state("s").increment("k")
        entry = await next_of(changes)
        assert (entry.value, entry.version, entry.deleted) == (1, 5, False)


async def test_a_tombstone_names_the_deleting_agent_and_keeps_the_version(bus: Bus) -> None:
    a = await worker(bus, "a")
    await bus.state("a").set("k", 1)
    async with watching(a.state) as changes:
        await told(changes, 1)
        await a.state.delete("k")
        entry = await next_of(changes)
        assert (entry.value, entry.deleted, entry.version, entry.author, entry.expires) == (None, True, 1, "a", None)
        assert entry.change == 2


async def test_a_watcher_receives_only_watched_entries(bus: Bus, clock: FakeClock) -> None:
    async with watching(bus.state("s"), "a/") as changes:
        await bus.state("s").set("b/1", 1)
        await bus.state("t").set("a/1", 1)
        await bus.state("s").set("a", 1)
        await bus.state("s").set("a/1", 2)
        assert await told(changes, 1) == [("a/1", 2)]
        await bus.state("s").delete("b/1")
        await nothing_more(changes, clock)


async def test_repeated_changes_of_an_entry_are_delivered_once(bus: Bus, clock: FakeClock) -> None:
    state = bus.state("s")
    async with watching(state) as changes:
        await state.set("x", 0)
        assert await told(changes, 1) == [("x", 0)]
        for number in range(10):
            await state.set("x", number)
            await state.set("y", number)
        await state.set("z", 1)
        await state.delete("z")
        assert await told(changes, 3) == [("x", 9), ("y", 9), ("z", ...)]
        await nothing_more(changes, clock)


async def test_more_changes_than_one_page_are_all_delivered(bus: Bus, clock: FakeClock) -> None:
    state = bus.state("s")
    await asyncio.gather(*(state.set(f"k{n:03}", n) for n in range(250)))
    async with watching(state) as changes:
        first = [await next_of(changes) for _ in range(120)]
        # What changes while it is still catching up comes once more, as it is then.
        await state.set("k000", "new")
        await state.delete("k001")
        await state.delete("k249")
        rest = [await next_of(changes) for _ in range(132)]
        last = {entry.key: ... if entry.deleted else entry.value for entry in (*first, *rest)}
        expected: dict[str, Any] = {f"k{n:03}": n for n in range(250)}
        assert last == {**expected, "k000": "new", "k001": ..., "k249": ...}
        numbers = [entry.change for entry in (*first, *rest)]
        assert numbers == sorted(numbers)
        await nothing_more(changes, clock)


async def test_an_expiry_is_delivered_as_a_tombstone_at_its_time(engine: Engine, clock: FakeClock) -> None:
    async with engine.connect(beat_every=3600) as bus, engine.connect(beat_every=3600) as other:
        state = bus.state("s")
        await state.set("later", 2, ttl=60)
        async with watching(state) as changes, watching(other.state("s"), "soon") as elsewhere:
            await told(changes, 1)
            await other.state("s").set("soon", 1, ttl=10)
            assert await told(changes, 1) == [("soon", 1)]
            assert await told(elsewhere, 1) == [("soon", 1)]
            async with running(changes.__anext__()) as task, running(elsewhere.__anext__()) as task_elsewhere:
                await clock.pass_time(9.9)
                assert not task.done()
                assert not task_elsewhere.done()
                await clock.pass_time(0.1)
                for done in (task, task_elsewhere):
                    entry = await soon(done)
                    assert (entry.key, entry.deleted, entry.value, entry.version) == ("soon", True, None, 1)
            async with running(changes.__anext__()) as task:
                await clock.pass_time(49.9)
                assert not task.done()
                await clock.pass_time(0.1)
                assert (await soon(task)).key == "later"


async def test_a_postponed_expiry_is_not_delivered_too_early(engine: Engine, clock: FakeClock) -> None:
    async with engine.connect(beat_every=3600) as bus:
        state = bus.state("s")
        async with watching(state) as changes:
            await state.set("k", 1, ttl=10)
            await told(changes, 1)
            async with running(changes.__anext__()) as task:
                await clock.pass_time(5)
                await state.set("k", 2, ttl=10)
                assert (await soon(task)).value == 2
            async with running(changes.__anext__()) as task:
                await clock.pass_time(9)
                assert not task.done()
                await clock.pass_time(1)
                assert (await soon(task)).deleted


async def test_an_entry_that_expires_while_the_watcher_is_busy_is_never_delivered_as_live(
    bus: Bus, clock: FakeClock
) -> None:
    state = bus.state("s")
    await state.set("first", 1)
    await state.set("short", 1, ttl=10)
    await state.set("last", 1)
    async with watching(state) as changes:
        assert await told(changes, 1) == [("first", 1)]
        clock.stall(10)
        assert await told(changes, 1) == [("last", 1)]
        async with running(told(changes, 1)) as task:
            await clock.pass_time(0.01)
            assert await soon(task) == [("short", ...)]


async def test_an_entry_that_expires_just_before_it_is_read_is_never_delivered_as_live(
    bus: Bus, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = bus.state("s")
    await state.set("short", 1, ttl=10)
    read = bus._engine.read

    async def late(question: Any, request: Any) -> Any:
        clock.stall(10)
        return await read(question, request)

    monkeypatch.setattr(bus._engine, "read", late)
    async with watching(state) as changes, running(told(changes, 1)) as task:
        await clock.pass_time(0.01)
        assert await soon(task) == [("short", ...)]


async def test_an_expiry_while_the_machine_sleeps_is_delivered_with_the_next_heartbeat(
    engine: Engine, clock: FakeClock
) -> None:
    async with engine.connect(beat_every=5) as bus:
        state = bus.state("s")
        async with watching(state) as changes:
            await state.set("k", 1, ttl=3600)
            await told(changes, 1)
            async with running(changes.__anext__()) as task:
                await clock.settle()
                clock.sleep_machine(7200)
                await clock.pass_time(5)
                assert (await soon(task)).deleted


async def test_a_watcher_continues_after_a_given_change(bus: Bus, clock: FakeClock) -> None:
    state = bus.state("s")
    await state.set("a", 1)
    await state.set("b", 1)
    await state.set("e", 1, ttl=10)
    async with watching(state) as changes:
        seen = [await next_of(changes) for _ in range(3)][-1].change
    await state.set("c", 1)
    await state.delete("a")
    await state.set("d", 1)
    await state.delete("d")
    await bus.state("t").set("x", 1)
    clock.stall(10)
    async with watching(state, after=seen) as changes:
        assert await told(changes, 4) == [("c", 1), ("a", ...), ("d", ...), ("e", ...)]
        await nothing_more(changes, clock)
    async with watching(state, after=0) as changes:
        assert sorted(await told(changes, 5)) == [("a", ...), ("b", 1), ("c", 1), ("d", ...), ("e", ...)]


async def test_a_new_watcher_receives_no_earlier_expiry(bus: Bus, clock: FakeClock) -> None:
    state = bus.state("s")
    await state.set("old", 1, ttl=1)
    await state.set("there", 1)
    clock.stall(1)
    async with watching(state) as changes:
        assert await told(changes, 1) == [("there", 1)]
        await nothing_more(changes, clock)


async def test_a_change_that_this_bus_never_had_is_refused(bus: Bus) -> None:
    await bus.state("s").set("k", 1)
    with pytest.raises(OutOfRange, match="after is 2"):
        await anext(bus.state("s").watch(after=2))
    async with watching(bus.state("s"), after=1) as changes:
        await bus.state("s").set("k", 2)
        assert await told(changes, 1) == [("k", 2)]


async def test_watchers_of_the_state_of_an_agent_receive_its_deletion(bus: Bus) -> None:
    async with bus.agent("a", type="worker") as a:
        await a.state.set("x", 1)
        await a.state.set("y", 1)
    async with watching(bus.state("a")) as changes:
        await told(changes, 2)
        await bus.agents.delete("a")
        assert sorted(await told(changes, 2)) == [("x", ...), ("y", ...)]


async def test_many_watchers_of_one_scope_all_receive_every_change(engine: Engine) -> None:
    async with engine.connect() as bus, engine.connect() as other:

        async def watch(number: int) -> list[int]:
            seen: list[int] = []
            async for entry in (bus, other)[number % 2].state("s").watch():
                seen.append(entry.value)
                if entry.value == 20:
                    break
            return seen

        async with asyncio.TaskGroup() as tasks:
            watchers = [tasks.create_task(watch(number)) for number in range(20)]
            for value in range(1, 21):
                await bus.state("s").set("k", value)
        for watcher in watchers:
            seen = watcher.result()
            assert seen == sorted(set(seen))
            assert seen[-1] == 20


async def test_a_closed_watcher_can_be_replaced_by_another(bus: Bus) -> None:
    state = bus.state("s")
    await state.set("k", 0)
    for number in range(1, 4):
        async for entry in state.watch():
            assert entry.value == number - 1
            break
        await state.set("k", number)


async def test_a_cancelled_watcher_does_no_harm(bus: Bus, clock: FakeClock) -> None:
    state = bus.state("s")
    async with watching(state) as other:
        async with running(state.watch().__anext__()) as task:
            await clock.settle()
            task.cancel()
        await state.set("k", 1)
        assert await told(other, 1) == [("k", 1)]


async def test_a_watcher_ends_when_the_bus_is_closed(engine: Engine, clock: FakeClock) -> None:
    bus = engine.connect()
    await bus.__aenter__()
    async with running(bus.state("s").watch().__anext__()) as task:
        await clock.settle()
        await bus.__aexit__(None, None, None)
        with pytest.raises(BusClosed):
            await soon(task)
