"""``bus.agents``: list, update and delete agents."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentbus import Bus, pool, topic
from agentbus.errors import InvalidInput, InvalidName, OutOfRange, UnknownAgent, WrongState
from tests.api.helpers import known, queued, stored, take, worker
from tests.support.cases import each
from tests.support.clock import START, FakeClock


async def _ids(bus: Bus, **filters: Any) -> list[str]:
    return [record.id for record in (await bus.agents.list(**filters)).items]


async def test_an_unknown_agent_is_none(bus: Bus) -> None:
    assert await bus.agents.get("nobody") is None


async def test_agents_are_listed_in_the_order_of_their_ids(bus: Bus) -> None:
    for id in ("c", "a", "B", "b"):
        await worker(bus, id)
    assert await _ids(bus) == ["B", "a", "b", "c"]


async def test_a_list_is_read_page_by_page(bus: Bus) -> None:
    for n in range(7):
        await worker(bus, f"w{n}")
    seen: list[str] = []
    cursor, pages = None, 0
    while True:
        page = await bus.agents.list(limit=3, cursor=cursor)
        seen += [record.id for record in page.items]
        pages += 1
        cursor = page.cursor
        if cursor is None:
            break
    assert (seen, pages) == ([f"w{n}" for n in range(7)], 3)


async def test_a_page_that_holds_the_last_has_no_cursor(bus: Bus) -> None:
    for n in range(3):
        await worker(bus, f"w{n}")
    assert (await bus.agents.list(limit=3)).cursor is None
    assert (await bus.agents.list(limit=2)).cursor is not None
    assert (await bus.agents.list(status="failed")).items == []


async def test_what_has_changed_since_a_time_is_listed(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    await worker(bus, "b")
    clock.advance(60)
    assert await _ids(bus, updated_after=clock.now().wall) == []
    await a.progress(40, "half")
    await bus.expect("c", type="worker")
    assert await _ids(bus, updated_after=clock.now().wall) == ["a", "c"]
    assert await _ids(bus, updated_after=clock.now().wall, status="running") == ["a"]


async def test_lists_can_be_filtered(bus: Bus) -> None:
    await worker(bus, "a")
    await bus.register("b", type="tester", parent="a")
    await (await worker(bus, "c")).complete()
    await (await worker(bus, "d")).fail("crashed")
    await (await worker(bus, "e")).stop()
    await bus.expect("f", type="worker")
    assert await _ids(bus, status="running") == ["a", "b"]
    assert await _ids(bus, status=["failed", "stopped"]) == ["d", "e"]
    assert await _ids(bus, status="incomplete") == ["a", "b", "f"]
    assert await _ids(bus, type="tester") == ["b"]
    assert await _ids(bus, parent="a") == ["b"]
    assert await _ids(bus, kind="resident") == ["a", "b", "c", "d", "e", "f"]
    assert await _ids(bus, kind="visiting") == []
    assert await _ids(bus, session="none") == []
    assert await _ids(bus, status="running", type="worker", parent=None) == ["a"]


@pytest.mark.one_engine
@each("filters", [{"status": "runing"}, {"status": ["running", "ended"]}, {"kind": "permanent"}])
async def test_a_filter_that_can_never_match_is_an_error(bus: Bus, filters: dict[str, Any]) -> None:
    """An empty list would look like an answer."""
    await worker(bus, "a", takeover=True)
    with pytest.raises(OutOfRange):
        await bus.agents.list(**filters)


@pytest.mark.one_engine
@each("limit", [0, -1, 1001, True, 1.5, "10"])
async def test_a_limit_out_of_range_is_refused(bus: Bus, limit: int) -> None:
    with pytest.raises(OutOfRange):
        await bus.agents.list(limit=limit)


async def test_agents_are_found_by_capability(bus: Bus) -> None:
    await worker(bus, "a", capabilities=["python", "sql"])
    await worker(bus, "b", capabilities=["python"])
    await worker(bus, "c", capabilities=["pythonic"])
    await (await worker(bus, "d", capabilities=["python"])).complete()
    assert [record.id for record in await bus.agents.find("python")] == ["a", "b"]
    assert [record.id for record in await bus.agents.find("python", status="completed")] == ["d"]
    assert [record.id for record in await bus.agents.find("sql")] == ["a"]
    assert list(await bus.agents.find("cobol")) == []


async def test_agents_are_found_however_many_there_are(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentbus.api.agents.MAX_PAGE", 20)
    await asyncio.gather(*(bus.expect(f"w{n:04}", type="worker", capabilities=["python"]) for n in range(45)))
    found = await bus.agents.find("python")
    assert [record.id for record in found] == [f"w{n:04}" for n in range(45)]


async def test_the_attributes_of_an_agent_can_be_changed(bus: Bus, clock: FakeClock) -> None:
    await worker(bus, "a", capabilities=["x"], load=10, model="old")
    clock.advance(5)
    await bus.agents.update(
        "a", load=80, capabilities=["python"], metadata={"k": [1]}, name="A", milestone="ms-1", parent="boss",
        model="new", prompt="do it", estimate=3, patience=60,
    )  # fmt: skip
    record = await known(bus, "a")
    assert (record.load, record.capabilities, record.metadata, record.name) == (80, ["python"], {"k": [1]}, "A")
    assert (record.milestone, record.parent, record.model, record.prompt) == ("ms-1", "boss", "new", "do it")
    assert (record.estimate, record.patience, record.updated) == (3, 60, START + 5_000)
    await bus.agents.update("a", load=0, capabilities=[])
    record = await known(bus, "a")
    assert (record.load, record.capabilities, record.model) == (0, [], "new")


@pytest.mark.one_engine
@each(
    ("changes", "expected"),
    [
        ({"load": 101}, OutOfRange),
        ({"load": -1}, OutOfRange),
        ({"load": True}, OutOfRange),
        ({"estimate": -1}, OutOfRange),
        ({"estimate": float("nan")}, OutOfRange),
        ({"patience": 0}, OutOfRange),
        ({"capabilities": "python"}, InvalidName),
        ({"capabilities": ["two words"]}, InvalidName),
        ({"capabilities": [""]}, InvalidName),
        ({"milestone": ""}, InvalidName),
        ({"parent": "no one"}, InvalidName),
        ({"name": ""}, InvalidInput),
        ({"name": "x" * 201}, OutOfRange),
        ({"name": "nul \0"}, OutOfRange),
        ({"model": "lone \ud800"}, OutOfRange),
        ({"prompt": 5}, OutOfRange),
        ({"metadata": [1]}, InvalidInput),
        ({"metadata": {"x": float("inf")}}, InvalidInput),
        ({"metadata": {"x": 2**64}}, InvalidInput),
        ({"metadata": {"x": "y" * 2_000_000}}, InvalidInput),
    ],
)
async def test_bad_changes_are_refused_and_change_nothing(
    bus: Bus, changes: dict[str, Any], expected: type[InvalidInput]
) -> None:
    await worker(bus, "a", load=10, takeover=True)
    before = await known(bus, "a")
    with pytest.raises(expected):
        await bus.agents.update("a", **changes)
    with pytest.raises(expected):
        await bus.register("b", type="worker", **changes)
    with pytest.raises(expected):
        await bus.expect("b", type="worker", **changes)
    assert await known(bus, "a") == before
    assert await bus.agents.get("b") is None


async def test_an_unknown_agent_cannot_be_changed_or_deleted(bus: Bus) -> None:
    for call in (bus.agents.update("nobody", load=1), bus.agents.delete("nobody")):
        with pytest.raises(UnknownAgent) as unknown:
            await call
        assert (unknown.value.code, unknown.value.agent) == ("unknown_agent", "nobody")


async def test_an_ended_or_expected_agent_can_be_deleted(bus: Bus) -> None:
    for id, end in (("a", "complete"), ("b", "stop")):
        await getattr(await worker(bus, id, pools=["p"], topics=["t"]), end)()
    await (await worker(bus, "c", pools=["p"], topics=["t"])).fail("crashed")
    await bus.expect("d", type="worker")
    for id in "abcd":
        await bus.agents.delete(id)
    assert await _ids(bus) == []


async def test_a_living_agent_cannot_be_deleted(bus: Bus) -> None:
    a = await worker(bus, "a")
    with pytest.raises(WrongState) as wrong:
        await bus.agents.delete("a")
    assert (wrong.value.code, wrong.value.name, wrong.value.status) == ("wrong_state", "a", "running")
    await a.send("a", "note")


async def test_messages_waiting_for_a_deleted_agent_become_dead_letters(bus: Bus) -> None:
    a = await worker(bus, "a")
    await bus.expect("b", type="worker")
    waiting = [await a.send("b", "note"), await a.send("b", "note", delay=60)]
    await bus.agents.delete("b")
    for receipt in waiting:
        record = await stored(bus, receipt.message_id)
        assert record.status == "dead"
        assert record.error is not None
        assert "deleted" in record.error


async def test_a_deleted_id_can_be_used_again(bus: Bus) -> None:
    first = await worker(bus, "a")
    await first.complete()
    await bus.agents.delete("a")
    again = await worker(bus, "a")
    await again.send("a", "note", 1)
    assert (await take(again)).payload == 1


async def test_clearing_deletes_agents_that_completed_or_stopped_long_enough_ago(bus: Bus, clock: FakeClock) -> None:
    await (await worker(bus, "a")).complete()
    await (await worker(bus, "b")).stop()
    await (await worker(bus, "c")).fail("crashed")
    await worker(bus, "d")
    await bus.expect("e", type="worker")
    clock.advance(100)
    await (await worker(bus, "f")).complete()
    assert sorted(await bus.agents.clear(older_than=50)) == ["a", "b"]
    assert await _ids(bus) == ["c", "d", "e", "f"]
    assert list(await bus.agents.clear()) == ["f"]
    assert list(await bus.agents.clear()) == []


async def test_progress_is_recorded(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    clock.advance(1)
    await a.progress(40, "writing tests")
    record = await known(bus, "a")
    assert (record.progress, record.note, record.updated) == (40, "writing tests", START + 1_000)
    await a.progress(100)
    record = await known(bus, "a")
    assert (record.progress, record.note) == (100, "writing tests")


async def test_busy_is_recorded_and_can_be_withdrawn(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    await a.busy(600)
    assert (await known(bus, "a")).busy_until == clock.now().awake + 600_000
    await a.busy(0)
    assert (await known(bus, "a")).busy_until is None


async def test_calls_and_waits_count_as_activity(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    before = (await known(bus, "a")).last_call
    await clock.pass_time(5)
    await a.send("a", "note")
    await clock.pass_time(5)
    after = (await known(bus, "a")).last_call
    assert before is not None
    assert after is not None
    assert after >= before + 5_000


async def test_declaring_a_pool_or_topic_again_is_harmless(bus: Bus) -> None:
    a = await worker(bus, "a")
    for _ in range(2):
        await bus.declare(pool("p"), topic("t"))
    await a.send(pool("p"), "note", 1)
    assert await queued(bus, pool("p")) == [1]
    assert (await a.publish("t", "note")).delivered == 0


@pytest.mark.one_engine
async def test_only_pools_and_topics_can_be_declared(bus: Bus) -> None:
    for wrong in ("p", None, 5):
        with pytest.raises(InvalidInput):
            await bus.declare(pool("good"), wrong)  # type: ignore[arg-type]
