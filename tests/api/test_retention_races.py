"""Rows that change between archiving and removal stay: only rows in the archive are removed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from agentbus import Agent, Bus, RetentionPolicy
from agentbus.operations.removal import remove
from agentbus.records import RetentionReport
from tests.api.helpers import known, stored, take, worker
from tests.api.retention_helpers import DAY
from tests.support.cases import each
from tests.support.clock import FakeClock

Change = Callable[[Bus], Awaitable[Any]]


async def applied(
    bus: Bus, monkeypatch: pytest.MonkeyPatch, change: Change, policy: RetentionPolicy | None = None
) -> RetentionReport:
    """Apply the policy; ``change`` happens when the first portion is archived and not yet removed."""
    write = bus._engine.write
    changed = False

    async def changing(operation: Any, request: Any) -> Any:
        nonlocal changed
        if operation is remove and not changed:
            changed = True
            await change(bus)
        return await write(operation, request)

    def writing(operation: Any, request: Any, **options: Any) -> Any:
        return changing(operation, request) if operation is remove else write(operation, request, **options)

    with monkeypatch.context() as patch:
        patch.setattr(bus._engine, "write", writing)
        report = await bus.retention.apply(policy=policy)
    assert changed
    return report


async def ended(bus: Bus, clock: FakeClock) -> Agent:
    agent = await worker(bus, "a")
    await agent.state.set("k", 1)
    await agent.complete()
    clock.advance(8 * DAY)
    return agent


async def comes_back(bus: Bus) -> None:
    await worker(bus, "a")


async def comes_back_and_ends(bus: Bus) -> None:
    await (await worker(bus, "a")).complete()


async def has_other_state(bus: Bus) -> None:
    await bus.state("a").set("k", 2)


async def has_more_state(bus: Bus) -> None:
    await bus.state("a").set("other", 2)


async def has_a_checkpoint(bus: Bus) -> None:
    await bus.checkpoints.save("a", "n", 1)


async def is_expected(bus: Bus) -> None:
    await bus.expect("a", type="worker")
    await (await worker(bus, "b")).send("a", "note", 1)


AGENTS_ONLY = RetentionPolicy(messages=None, events=None, processes=None, tombstones=None)


@each("change", [comes_back, comes_back_and_ends, has_other_state, has_more_state, has_a_checkpoint, is_expected])
async def test_an_agent_about_which_anything_changed_stays(
    bus: Bus, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, change: Change
) -> None:
    await ended(bus, clock)
    report = await applied(bus, monkeypatch, change, AGENTS_ONLY)
    assert (report.removed, report.kept) == ({}, 1)
    assert (await known(bus, "a")).id == "a"
    assert await bus.state("a").get("k") == (2 if change is has_other_state else 1)
    await bus.recovery.clear("a")
    for checkpoint in (await bus.checkpoints.list("a")).items:
        await bus.checkpoints.delete(checkpoint.id)
    await bus.agents.delete("a")


async def test_an_agent_deleted_during_retention_is_no_error(
    bus: Bus, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ended(bus, clock)
    report = await applied(bus, monkeypatch, lambda bus: bus.agents.delete("a"))
    assert (report.removed, report.kept) == ({}, 1)


async def test_a_dead_letter_requeued_during_retention_stays(
    bus: Bus, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = await worker(bus, "a")
    for number in range(2):
        await a.send("a", "note", number)
        await (await take(a)).reject("bad")
    clock.advance(8 * DAY)
    report = await applied(bus, monkeypatch, lambda bus: bus.messages.requeue("m-1"))
    assert (report.removed, report.kept) == ({"message": 1}, 1)
    assert (await stored(bus, "m-1")).status == "queued"


async def test_a_dead_letter_that_died_again_during_retention_stays(
    bus: Bus, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note", 1)
    await (await take(a)).reject("bad")
    clock.advance(8 * DAY)

    async def again(bus: Bus) -> None:
        await bus.messages.requeue("m-1")
        await (await take(a)).reject("worse")

    report = await applied(bus, monkeypatch, again)
    assert (report.removed, report.kept) == ({}, 1)
    assert (await stored(bus, "m-1")).error == "worse"


async def test_the_last_checkpoints_stay_if_newer_ones_are_deleted_during_retention(
    bus: Bus, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = await worker(bus, "a")
    ids = [(await a.checkpoint("n", n)).id for n in range(4)]
    clock.advance(40 * DAY)

    async def delete(bus: Bus) -> None:
        for id in ids[2:]:
            await bus.checkpoints.delete(id)

    report = await applied(bus, monkeypatch, delete, RetentionPolicy(checkpoints_last=2))
    assert (report.removed, report.kept) == ({}, 2)
    assert [item.id for item in (await bus.checkpoints.list("a")).items] == [ids[1], ids[0]]


async def test_a_tombstone_set_again_during_retention_stays(
    bus: Bus, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = bus.state("builds")
    await state.set("k", 1)
    await state.delete("k")
    clock.advance(31 * DAY)
    report = await applied(bus, monkeypatch, lambda bus: bus.state("builds").set("k", 2))
    assert (report.removed, report.kept) == ({}, 1)
    assert await state.get("k") == 2
    assert await state.set("new", 1) == 1, "nothing went, so that nothing has to be remembered"


async def test_a_tombstone_renewed_during_retention_stays(
    bus: Bus, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = bus.state("builds")
    await state.set("k", 1)
    await state.delete("k")
    clock.advance(31 * DAY)

    async def again(bus: Bus) -> None:
        await state.set("k", 2)
        await state.delete("k")

    report = await applied(bus, monkeypatch, again)
    assert (report.removed, report.kept) == ({}, 1)
    assert await state.set("k", 3) == 3


async def test_a_session_whose_agent_returns_during_retention_stays_with_it(
    bus: Bus, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bus.session("planning", id="s1") as session:
        async with session.agent("a", type="worker") as agent:
            await agent.checkpoint("n", 1)
        await session.document("d").save(1)
    clock.advance(31 * DAY)
    report = await applied(bus, monkeypatch, comes_back)
    assert "agent" not in report.removed
    again = await bus.checkpoints.latest("a")
    assert again is not None, "an agent at work keeps its checkpoints"
    assert (await known(bus, "a")).status == "running"
