"""Checkpoints: save, find by name, retain, in units and across incarnations."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import agentbus
from agentbus import Agent, Bus
from agentbus.errors import (
    AgentFenced,
    ForeignCheckpoint,
    InvalidPayload,
    LeaseLost,
    UnknownCheckpoint,
    UnknownFile,
    UnknownRecipient,
    UnsafePath,
)
from agentbus.records import Checkpoint
from tests.api.helpers import count, queued, refusing, stored, take, worker
from tests.conftest import Engine
from tests.support.cases import each
from tests.support.clock import START, FakeClock


async def names(bus: Bus, *owner: str) -> list[str]:
    return [summary.name for summary in (await bus.checkpoints.list(*owner)).items]


async def restored(agent: Agent, name: str | None = None) -> Checkpoint:
    found = await agent.restore(name)
    assert found is not None
    return found


async def test_a_saved_snapshot_is_restored(bus: Bus) -> None:
    a = await worker(bus, "a")
    snapshot = {"step": 1, "text": "grün \U0001f600", "list": [1, 2.5, None, True], "deep": {"er": [{}]}}
    saved = await a.checkpoint("after_planning", snapshot, notes="the plan stands")
    assert saved == Checkpoint(saved.id, "agent", "a", "after_planning", snapshot, "the plan stands", [], None, START)
    assert await a.restore() == saved
    assert await a.restore("after_planning") == saved
    assert await a.restore(id=saved.id) == saved
    assert await bus.checkpoints.get(saved.id) == saved
    assert await bus.checkpoints.latest("a") == saved
    assert await bus.checkpoints.latest("a", "after_planning") == saved


@each("snapshot", [None, 0, "", [], {}, False, "text", -1.5, 2**64 - 1, -(2**63), [[]]])
async def test_any_json_is_a_snapshot(bus: Bus, snapshot: object) -> None:
    a = await worker(bus, "a", takeover=True)
    await a.checkpoint("n", snapshot)
    found = (await restored(a)).snapshot
    assert found == snapshot
    assert type(found) is type(snapshot)


async def test_a_missing_checkpoint_is_none(bus: Bus) -> None:
    a = await worker(bus, "a")
    assert await a.restore() is None
    await a.checkpoint("n", 1)
    assert await a.restore("other") is None
    assert await a.restore(id=99) is None
    assert await bus.checkpoints.get(99) is None
    assert await bus.checkpoints.latest("nobody") is None
    assert await bus.checkpoints.latest("a", kind="session") is None
    assert (await bus.checkpoints.list("nobody")).items == []


async def test_the_newest_counts_of_a_name_or_of_all(bus: Bus) -> None:
    a, b = await worker(bus, "a"), await worker(bus, "b")
    for name, value in (("m", 1), ("n", 2), ("m", 3), ("o", 4)):
        await a.checkpoint(name, value)
        await b.checkpoint(name, -value)
    assert (await restored(a)).snapshot == 4
    assert (await restored(a, "m")).snapshot == 3
    assert (await restored(a, "n")).snapshot == 2
    assert (await restored(b, "m")).snapshot == -3


@pytest.mark.one_engine
async def test_a_snapshot_is_that_of_the_moment_of_the_call(bus: Bus) -> None:
    """Small or so large that it is looked through on a thread: what changes later is not in it, or only wholly."""
    a = await worker(bus, "a")
    for size in (10, 400_000):
        value: dict[str, object] = {"text": "x" * size, "n": 1}
        saving = asyncio.ensure_future(a.checkpoint("n", value))
        await asyncio.sleep(0)
        value["n"] = float("nan")
        await saving
        assert (await restored(a)).snapshot == {"text": "x" * size, "n": 1}


@pytest.mark.one_engine
async def test_structs_tuples_and_dates_are_saved_as_json(bus: Bus) -> None:
    a = await worker(bus, "a")
    await a.checkpoint("n", {"t": (1, 2), "page": agentbus.records.Page([1])})
    assert (await restored(a)).snapshot == {"t": [1, 2], "page": {"items": [1], "cursor": None}}


async def test_a_checkpoint_belongs_to_its_owner(bus: Bus) -> None:
    a, b = await worker(bus, "a"), await worker(bus, "b")
    saved = await a.checkpoint("n", 1)
    async with refusing(bus, b, ForeignCheckpoint) as refused:
        await b.restore(id=saved.id)
    assert (refused.value.owner, refused.value.agent, refused.value.id) == ("a", "b", saved.id)


async def test_a_new_incarnation_continues_from_the_checkpoints_of_the_previous_one(engine: Engine) -> None:
    async with engine.connect() as bus, bus.agent("a", type="worker") as a:
        await a.checkpoint("n", {"step": 1})
    async with engine.connect() as bus, bus.agent("a", type="worker") as a:
        assert (a.epoch, (await restored(a)).snapshot) == (2, {"step": 1})
        await a.checkpoint("n", {"step": 2})
        assert (await restored(a)).snapshot == {"step": 2}


async def test_a_fenced_agent_saves_nothing(bus: Bus) -> None:
    old = await worker(bus, "a")
    new = await worker(bus, "a", takeover=True)
    async with refusing(bus, new, AgentFenced):
        await old.checkpoint("n", 1)
    assert await names(bus) == []
    await new.checkpoint("n", 2)
    await new.complete()
    with pytest.raises(AgentFenced):
        await new.checkpoint("n", 3)
    assert (await restored(new)).snapshot == 2


async def test_of_many_that_save_at_once_only_the_fenced_are_refused(bus: Bus) -> None:
    agents = [await worker(bus, f"a{n}") for n in range(20)]
    for agent in agents[::3]:
        await worker(bus, agent.id, takeover=True)
    results = await asyncio.gather(
        *(agent.checkpoint("n", n) for n, agent in enumerate(agents)), return_exceptions=True
    )
    assert [isinstance(result, AgentFenced) for result in results] == [n % 3 == 0 for n in range(20)]
    for n, agent in enumerate(agents):
        found = await agent.restore()
        assert (found and found.snapshot) == (n if n % 3 else None)


# The list


async def test_the_list_is_newest_first_and_without_snapshots(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    first = await a.checkpoint("m", {"text": "grün"}, notes="early")
    clock.advance(5)
    second = await a.checkpoint("n", 2)
    newest, oldest = (await bus.checkpoints.list("a")).items
    assert (newest.id, oldest.id) == (second.id, first.id)
    assert (oldest.owner_kind, oldest.owner, oldest.name, oldest.notes) == ("agent", "a", "m", "early")
    assert (oldest.size, oldest.files, oldest.created, newest.created) == (16, 0, START, START + 5_000)
    assert not hasattr(oldest, "snapshot")


async def test_lists_are_filtered_and_read_page_by_page(bus: Bus) -> None:
    a, b = await worker(bus, "a"), await worker(bus, "b")
    for n in range(7):
        await a.checkpoint("even" if n % 2 == 0 else "odd", n)
        await b.checkpoint("even", n)
    assert await names(bus, "a") == ["even", "odd", "even", "odd", "even", "odd", "even"]
    assert len(await names(bus)) == 14
    assert len(await names(bus, "a", "odd")) == 3
    assert len((await bus.checkpoints.list(name="even")).items) == 11
    assert len((await bus.checkpoints.list(kind="agent")).items) == 14
    assert (await bus.checkpoints.list(kind="session")).items == []
    assert (await bus.checkpoints.list("a", kind="session")).items == []
    several: list[dict[str, Any]] = [{}, {"owner": "a"}, {"owner": "a", "name": "even"}, {"name": "even"}]
    for filters in several:
        whole = (await bus.checkpoints.list(**filters)).items
        pages, cursor = [], None
        while True:
            page = await bus.checkpoints.list(**filters, limit=2, cursor=cursor)
            pages += page.items
            cursor = page.cursor
            if cursor is None:
                break
        assert pages == whole
        assert [summary.id for summary in whole] == sorted((summary.id for summary in whole), reverse=True)


# Saved by others, deleted, pruned


async def test_others_can_save_for_an_agent_whatever_its_status(bus: Bus) -> None:
    a = await worker(bus, "a")
    await a.fail("crashed")
    saved = await bus.checkpoints.save("a", "rescued", {"step": 3}, notes="by hand")
    assert (saved.owner_kind, saved.owner, saved.notes) == ("agent", "a", "by hand")
    assert await a.restore() == saved


async def test_a_checkpoint_can_be_deleted_once(bus: Bus) -> None:
    a = await worker(bus, "a")
    first, second = await a.checkpoint("n", 1), await a.checkpoint("n", 2)
    await bus.checkpoints.delete(second.id)
    assert await a.restore() == first
    async with refusing(bus, a, UnknownCheckpoint) as unknown:
        await bus.checkpoints.delete(second.id)
    assert unknown.value.id == second.id
    assert (await a.checkpoint("n", 3)).id > second.id, "ids are never used again"


async def test_pruning_keeps_the_newest_of_each_name(bus: Bus) -> None:
    a, b = await worker(bus, "a"), await worker(bus, "b")
    for n in range(5):
        for agent in (a, b):
            await agent.checkpoint("m", n)
            await agent.checkpoint("n", n)
    assert await bus.checkpoints.prune("a", "m", keep=1) == 4
    assert await bus.checkpoints.prune("a", "m", keep=1) == 0
    assert (await restored(a, "m")).snapshot == 4
    assert await bus.checkpoints.prune("a", keep=2) == 3
    assert await names(bus, "a") == ["n", "m", "n"]
    assert await bus.checkpoints.prune("a", keep=0) == 3
    assert await a.restore() is None
    assert len(await names(bus, "b")) == 10
    assert await bus.checkpoints.prune("nobody", keep=0) == 0


async def test_pruning_repeats_until_all_are_deleted(bus: Bus) -> None:
    a = await worker(bus, "a")
    await asyncio.gather(*(a.checkpoint("n", n) for n in range(250)))
    assert await bus.checkpoints.prune("a", keep=3) == 247
    assert len(await names(bus)) == 3
    events = [event.facts["count"] async for event in bus.events(kind="checkpoints_pruned")]
    assert sum(events) == 247


async def test_keep_limits_the_checkpoints_of_a_name(bus: Bus) -> None:
    a, b = await worker(bus, "a"), await worker(bus, "b")
    await a.checkpoint("other", 0)
    await b.checkpoint("n", 0)
    for n in range(5):
        await a.checkpoint("n", n, keep=2)
    assert await names(bus, "a") == ["n", "n", "other"]
    assert (await restored(a, "n")).snapshot == 4
    assert await names(bus, "b") == ["n"]
    await asyncio.gather(*(a.checkpoint("n", n, keep=1) for n in range(10)))
    assert await names(bus, "a", "n") == ["n"]


async def test_deleting_an_agent_deletes_its_checkpoints(bus: Bus) -> None:
    a, b = await worker(bus, "a"), await worker(bus, "b")
    await a.checkpoint("n", 1)
    await a.checkpoint("n", 2)
    await b.checkpoint("n", 3)
    await a.complete()
    await bus.agents.delete("a")
    assert [summary.owner for summary in (await bus.checkpoints.list()).items] == ["b"]
    again = await worker(bus, "a")
    assert await again.restore() is None
    (event,) = [event async for event in bus.events(kind="agent_deleted")]
    assert (event.subject, event.facts) == ("a", {"checkpoints": 2})


async def test_clearing_agents_clears_their_checkpoints(bus: Bus) -> None:
    for id in ("a", "b"):
        agent = await worker(bus, id)
        await agent.checkpoint("n", 1)
        await agent.stop()
    await bus.agents.clear()
    assert await names(bus) == []


# In units


async def test_a_unit_acknowledges_sends_and_saves_in_one_commit(bus: Bus, tmp_path: Path) -> None:
    (tmp_path / "plan.md").write_text("plan")
    a, b = await worker(bus, "a"), await worker(bus, "b")
    await b.send("a", "task_assignment")
    async with await take(a) as unit:
        unit.send("b", "completion_notification", "done")
        unit.checkpoint("after", {"step": 1}, notes="in a unit", files=["plan.md"], root=tmp_path)
        unit.checkpoint("after", {"step": 2})
        assert await a.restore() is None, "nothing is written before the end"
    assert (await bus.stats()).messages == {"acked": 1, "queued": 1}
    assert (await restored(a)).snapshot == {"step": 2}
    first = (await bus.checkpoints.list("a")).items[1]
    assert (first.name, first.notes, first.files) == ("after", "in a unit", 1)
    found = await bus.checkpoints.get(first.id)
    assert found is not None
    assert [(file.path, file.size) for file in found.files] == [("plan.md", 4)]


async def test_a_unit_that_fails_saves_nothing(bus: Bus) -> None:
    a = await worker(bus, "a")
    with pytest.raises(UnknownRecipient):
        async with a.unit() as unit:
            unit.checkpoint("n", 1)
            unit.send("nobody", "note")
    with pytest.raises(ValueError, match="stop"):
        async with a.unit() as unit:
            unit.checkpoint("n", 1)
            raise ValueError("stop")
    assert await a.restore() is None


@pytest.mark.one_engine
async def test_a_unit_whose_file_is_missing_writes_nothing_and_releases_the_message(bus: Bus, tmp_path: Path) -> None:
    a = await worker(bus, "a")
    receipt = await a.send("a", "note", 1)
    message = await take(a)
    with pytest.raises(UnknownFile):
        async with message as unit:
            unit.send("a", "note", 2)
            unit.checkpoint("n", 1, files=["missing"], root=tmp_path)
    record = await stored(bus, receipt.message_id)
    assert (record.status, record.attempts) == ("scheduled", 1)
    assert record.error is not None
    assert "missing" in record.error
    assert (await count(bus), await a.restore()) == (1, None)


async def test_a_unit_with_a_lost_lease_saves_nothing(bus: Bus, clock: FakeClock) -> None:
    a, b = await worker(bus, "a", pools=["p"]), await worker(bus, "b", pools=["p"])
    await a.send(agentbus.pool("p"), "note")
    slow = await take(a, lease=30)
    clock.advance(30)
    await take(b)
    with pytest.raises(LeaseLost):
        async with a.unit() as unit:
            unit.ack(slow)
            unit.checkpoint("n", 1)
    assert await a.restore() is None


async def test_concurrent_units_are_batched_and_stay_independent(bus: Bus) -> None:
    agents = [await worker(bus, f"a{n}") for n in range(12)]

    async def one(n: int) -> None:
        async with agents[n].unit() as unit:
            unit.checkpoint("n", n)
            unit.send("a0" if n % 3 else "nobody", "note", n)

    results = await asyncio.gather(*(one(n) for n in range(12)), return_exceptions=True)
    assert [isinstance(result, UnknownRecipient) for result in results] == [n % 3 == 0 for n in range(12)]
    saved = [await agent.restore() for agent in agents]
    assert [found and found.snapshot for found in saved] == [n if n % 3 else None for n in range(12)]
    assert len(await queued(bus, "a0")) == 8


@pytest.mark.one_engine
async def test_a_unit_checks_a_checkpoint_at_once(bus: Bus) -> None:
    a = await worker(bus, "a")
    async with a.unit() as unit:
        with pytest.raises(InvalidPayload):
            unit.checkpoint("n", float("nan"))
        with pytest.raises(UnsafePath):
            unit.checkpoint("n", 1, files=["../x"])
        unit.checkpoint("n", "good")
    assert (await restored(a)).snapshot == "good"


@pytest.mark.one_engine
async def test_the_snapshot_of_a_unit_is_that_of_the_moment_of_the_call(bus: Bus) -> None:
    a = await worker(bus, "a")
    value = {"n": 1}
    async with a.unit() as unit:
        unit.checkpoint("n", value)
        value["n"] = 2
    assert (await restored(a)).snapshot == {"n": 1}
