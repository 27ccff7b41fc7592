"""Deleting an agent deletes its state and checkpoints, the last of them in the commit of the agent row."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from agentbus import Agent, Bus
from agentbus.errors import AgentFenced, UnknownAgent, WrongState
from agentbus.operations.agent_deletion import delete
from agentbus.operations.common import Budget
from agentbus.records import StateEntry
from tests.api.helpers import eventually, queued, running, worker
from tests.conftest import Engine
from tests.support.cases import each
from tests.support.clock import FakeClock


async def furnished(bus: Bus, id: str) -> Agent:
    """An agent with state, some of it deleted or with an end, and with checkpoints."""
    agent = await worker(bus, id)
    await agent.state.set("plain", 1)
    await agent.state.set("often", 1)
    await agent.state.set("often", 2)
    await agent.state.set("deleted", 1)
    await agent.state.delete("deleted")
    await agent.state.set("expiring", 1, ttl=60)
    await agent.state.set("expired", 1, ttl=1)
    for n in range(3):
        await agent.checkpoint("c", n)
    return agent


async def test_state_and_checkpoints_are_deleted_with_their_agent_only(bus: Bus, clock: FakeClock) -> None:
    a, b = await furnished(bus, "a"), await furnished(bus, "b")
    clock.stall(2)
    await a.complete()
    await bus.agents.delete("a")
    assert (await bus.state("a").list()).items == []
    assert (await bus.checkpoints.list("a")).items == []
    assert [entry.key for entry in (await b.state.list()).items] == ["expiring", "often", "plain"]
    assert len((await bus.checkpoints.list("b")).items) == 3
    event = [event async for event in bus.events(kind="agent_deleted")]
    assert [(one.subject, one.actor, one.facts) for one in event] == [("a", None, {"checkpoints": 3})]


async def test_watchers_receive_a_tombstone_for_each_deleted_entry(engine: Engine, clock: FakeClock) -> None:
    async with engine.connect() as bus, engine.connect() as other:
        a = await furnished(bus, "a")
        seen: list[StateEntry] = []

        async def watch() -> None:
            async for entry in other.state("a").watch():
                seen.append(entry)

        async with running(watch()):
            await eventually(clock, lambda: len(seen) == 4)
            await a.complete()
            await bus.agents.delete("a")
            await eventually(clock, lambda: len(seen) == 8)
            again = await worker(bus, "a")
            for key in ("plain", "deleted"):
                await again.state.set(key, "again")
            await eventually(clock, lambda: len(seen) == 10)
    gone = {entry.key: entry for entry in seen[4:8]}
    assert {(key, entry.version, entry.deleted, entry.value) for key, entry in gone.items()} == {
        ("plain", 1, True, None),
        ("often", 2, True, None),
        ("expiring", 1, True, None),
        ("expired", 1, True, None),
    }
    assert [entry.change for entry in seen] == sorted({entry.change for entry in seen})
    assert [(entry.key, entry.version) for entry in seen[8:]] == [("plain", 2), ("deleted", 2)]


async def test_versions_continue_when_the_agent_returns(bus: Bus, clock: FakeClock) -> None:
    versions: dict[str, list[int]] = {"plain": [], "often": [], "expired": []}
    for _ in range(4):
        agent = await worker(bus, "a")
        for key, given in versions.items():
            assert await agent.state.entry(key) is None, "nothing is left of the one before"
            given.append(await agent.state.set(key, 1, ttl=1 if key == "expired" else None, if_version=0))
        versions["often"].append(await agent.state.set("often", 2))
        assert await agent.restore() is None
        await agent.checkpoint("c", 1)
        clock.stall(2)
        await agent.complete()
        await bus.agents.delete("a")
    assert versions == {"plain": [1, 2, 3, 4], "often": [1, 2, 3, 4, 5, 6, 7, 8], "expired": [1, 2, 3, 4]}


async def test_an_agent_that_cannot_be_deleted_keeps_all_its_data(bus: Bus) -> None:
    a = await furnished(bus, "a")
    with pytest.raises(WrongState):
        await bus.agents.delete("a")
    with pytest.raises(UnknownAgent):
        await bus.agents.delete("nobody")
    assert await a.state.get("often") == 2
    assert len((await bus.checkpoints.list("a")).items) == 3


async def test_no_reader_sees_state_of_a_deleted_agent(engine: Engine) -> None:
    """One commit: at no moment is the one there without the other."""
    async with engine.connect() as bus, engine.connect() as other:
        for n in range(10):
            a = await worker(bus, f"a{n}")
            await a.state.set("k", n)
            await a.checkpoint("c", n)
            await a.complete()
            deleting = asyncio.create_task(bus.agents.delete(a.id))
            while not deleting.done():
                # Each look sees no less than the one before it.
                state_is_there = await other.state(a.id).get("k") is not None
                if not state_is_there:
                    assert await other.agents.get(a.id) is None
                    assert await other.checkpoints.latest(a.id) is None
                await asyncio.sleep(0)
            await deleting


async def test_many_agents_deleted_at_once_are_each_deleted_with_all_their_data(bus: Bus) -> None:
    agents = [await furnished(bus, f"a{n}") for n in range(10)]
    await asyncio.gather(*(agent.complete() for agent in agents[:8]))
    results = await asyncio.gather(*(bus.agents.delete(agent.id) for agent in agents), return_exceptions=True)
    assert [isinstance(result, WrongState) for result in results] == [False] * 8 + [True] * 2
    left = [summary.owner for summary in (await bus.checkpoints.list(limit=1000)).items]
    assert sorted(left) == ["a8"] * 3 + ["a9"] * 3
    assert [len((await agent.state.list()).items) for agent in agents] == [0] * 8 + [4, 4]


@each("expected", [False, True], ids=["registered", "expected first"])
@each("times", [1, 3])
async def test_an_earlier_incarnation_of_a_deleted_and_recreated_agent_is_fenced(
    bus: Bus, times: int, expected: bool
) -> None:
    await bus.expect("b", type="worker")
    old = await worker(bus, "a")
    for _ in range(times):
        await (old if times == 1 else await worker(bus, "a", takeover=True)).fail("declared dead")
        await bus.agents.delete("a")
        if expected:
            await bus.expect("a", type="worker")
            await bus.agents.delete("a")
            await bus.expect("a", type="worker")
    new = await worker(bus, "a")
    acts: list[Callable[[], Awaitable[Any]]] = [
        lambda: old.state.set("k", 1),
        lambda: old.checkpoint("c", 1),
        lambda: old.send("b", "note"),
        lambda: old.progress(9),
        old.complete,
    ]
    for act in acts:
        with pytest.raises(AgentFenced):
            await act()
    assert await new.state.get("k") is None
    assert await queued(bus, "b") == []
    await new.complete()


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deletions that remove only a few rows in each commit."""
    monkeypatch.setattr("agentbus.operations.agent_deletion.Budget", lambda: Budget(5000))


async def laden(bus: Bus, id: str = "a") -> None:
    """An agent that has ended, with more of everything than goes in one step."""
    agent = await worker(bus, id)
    await asyncio.gather(*(agent.state.set(f"k{n}", n) for n in range(60)))
    await asyncio.gather(*(agent.checkpoint("c", n) for n in range(12)))
    await asyncio.gather(*(agent.send(id, "note", n) for n in range(5)))
    await agent.complete()


async def cut_off_after(bus: Bus, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Delete the agent a, and fail after this number of steps."""
    write = bus._engine.write
    left = iter(range(steps))

    async def failing(*arguments: Any, **options: Any) -> Any:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return await write(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(bus._engine, "write", failing)
        with pytest.raises(KeyboardInterrupt):
            await bus.agents.delete("a")


@pytest.mark.usefixtures("small_steps")
async def test_an_agent_with_much_data_is_deleted_in_steps_between_which_others_write(bus: Bus) -> None:
    await laden(bus)
    b = await worker(bus, "b")
    deleting = asyncio.create_task(bus.agents.delete("a"))
    sent = 0
    while not deleting.done():
        await b.send("b", "note", sent)
        sent += 1
    await deleting
    assert sent > 10
    assert await bus.agents.get("a") is None
    assert (await bus.state("a").list()).items == []
    assert (await bus.checkpoints.list("a")).items == []
    assert len((await bus.messages.list(status="dead")).items) == 5
    pruned = [event.facts["count"] async for event in bus.events(kind="checkpoints_pruned")]
    assert sum(pruned) == 12
    assert max(pruned) <= 5
    assert [event.subject async for event in bus.events(kind="agent_deleted")] == ["a"]


@pytest.mark.usefixtures("small_steps")
async def test_an_interrupted_deletion_leaves_an_ended_agent_with_its_newest_checkpoints(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    await laden(bus)
    newest = [summary.id for summary in (await bus.checkpoints.list("a")).items]
    await cut_off_after(bus, 2, monkeypatch)
    agent = await bus.agents.get("a")
    assert agent is not None
    assert agent.status == "completed"
    left = [summary.id for summary in (await bus.checkpoints.list("a")).items]
    assert 0 < len(left) < 12
    assert left == newest[: len(left)]
    assert len((await bus.state("a").list()).items) == 60
    await bus.agents.delete("a")
    assert await bus.agents.get("a") is None
    assert (await bus.state("a").list()).items == []


@pytest.mark.usefixtures("small_steps")
async def test_an_agent_that_returns_between_two_steps_keeps_its_data(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    await laden(bus)
    await cut_off_after(bus, 5, monkeypatch)
    again = await worker(bus, "a")
    before = [entry.key for entry in (await again.state.list()).items]
    with pytest.raises(WrongState):
        await bus.agents.delete("a")
    assert before
    assert [entry.key for entry in (await again.state.list()).items] == before


@pytest.mark.usefixtures("small_steps")
async def test_state_and_checkpoints_written_between_two_steps_are_deleted_too(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    await laden(bus)
    write = bus._engine.write
    steps = 0

    async def disturbed(operation: Any, request: Any) -> Any:
        nonlocal steps
        result = await write(operation, request)
        if operation is delete:
            steps += 1
            if steps == 10:
                # Its checkpoints are gone by now, and the first of its state.
                assert (await bus.checkpoints.list("a")).items == []
                assert await bus.state("a").get("k0") is None
                await bus.state("a").set("k0", "again")
                await bus.checkpoints.save("a", "c", "again")
        return result

    monkeypatch.setattr(bus._engine, "write", disturbed)
    await bus.agents.delete("a")
    assert steps > 10
    assert (await bus.state("a").list()).items == []
    assert (await bus.checkpoints.list("a")).items == []


@pytest.mark.usefixtures("small_steps")
async def test_clearing_covers_many_agents_and_large_ones(bus: Bus, clock: FakeClock) -> None:
    small = [await worker(bus, f"b{n:02}") for n in range(45)]
    await asyncio.gather(*(agent.complete() for agent in small))
    await laden(bus, "a")
    await laden(bus, "c")
    clock.stall(10)
    assert sorted(await bus.agents.clear(older_than=5)) == ["a", *(agent.id for agent in small), "c"]
    assert (await bus.agents.list()).items == []
    assert (await bus.checkpoints.list()).items == []
