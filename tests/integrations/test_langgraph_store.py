"""LangGraph's store on a bus: it answers as LangGraph's own one in memory does, and items expire in the bus's time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import agentbus
from agentbus.errors import InvalidInput, InvalidPayload, Misuse, OutOfRange, SnapshotTooLarge
from tests.conftest import Engine
from tests.support.clock import FakeClock

base = pytest.importorskip("langgraph.store.base", reason="langgraph-checkpoint is not installed")
memory = pytest.importorskip("langgraph.store.memory", reason="langgraph-checkpoint is not installed")

from agentbus.integrations.langgraph import AgentBusStore  # noqa: E402

NAMESPACES = [("a",), ("a", "b"), ("a", "b", "c"), ("ab",), ("a", "c", "v1"), ("ünï ☃/%_'", "v1"), ("z", "b")]
VALUES: list[dict[str, Any]] = [
    {"n": 1, "colour": "red", "deep": {"x": 1, "y": [1, 2]}, "tags": ["p", "q"]},
    {"n": 2.5, "colour": "green", "deep": {"x": 2}, "flag": True, "nothing": None},
    {"n": 10, "colour": "red", "tags": []},
]
FILTERS: list[dict[str, Any] | None] = [
    None,
    {},
    {"colour": "red"},
    {"colour": "red", "n": {"$gt": 1}},
    {"n": {"$gte": 1, "$lt": 10}},
    {"n": {"$lte": 2.5}},
    {"n": {"$ne": 1}},
    {"colour": {"$eq": "green"}},
    {"deep": {"x": 1}},
    {"deep": {"x": {"$eq": 2}}},
    {"deep": {"y": [1, 2]}},
    {"tags": ["p", "q"]},
    {"tags": []},
    {"flag": True},
    {"nothing": None},
    {"absent": "x"},
]


async def keys(store: Any, *namespace: str, **options: Any) -> list[str]:
    return [item.key for item in await store.asearch(namespace, **options)]


async def test_it_answers_as_the_store_of_langgraph_in_memory_does(bus: agentbus.Bus) -> None:
    own, other = AgentBusStore(bus), memory.InMemoryStore()
    puts = [
        base.PutOp(namespace, f"{key}-{number}", value)
        for namespace in NAMESPACES
        for number, value in enumerate(VALUES)
        for key in ("k", "☃/'%", "00000000000000000009")
    ]
    deletes = [base.PutOp(("z", "b"), f"{key}-{number}", None) for key in ("k", "☃/'%") for number in range(3)]
    changes = [base.PutOp(("a",), "k-0", {"n": 0}), base.PutOp(("a",), "k-0", {"n": 7, "deep": 1})]
    for ops in (puts, deletes, changes):
        assert await own.abatch(ops) == other.batch(ops) == [None] * len(ops)
    for one in (own, other):
        # All that is left of a namespace: it is none any more.
        await one.aput(("gone",), "only", {})
        await one.adelete(("gone",), "only")
        await one.adelete(("gone",), "never")
    await own.adelete(("never",), "any")
    assert await bus.histories.find("langgraph-store", "never") is None
    for prefix in [(), *NAMESPACES, ("a", "x"), ("none",), ("gone",)]:
        for wanted in FILTERS:
            found = await own.asearch(prefix, filter=wanted, limit=1000)
            expected = other.search(prefix, filter=wanted, limit=1000)
            assert {(item.namespace, item.key): item.value for item in found} == {
                (item.namespace, item.key): item.value for item in expected
            }, (prefix, wanted)
            assert len(found) == len(expected)
    for namespace in NAMESPACES:
        for key in ("k-0", "☃/'%-1", "00000000000000000009-2", "none"):
            mine, theirs = await own.aget(namespace, key), other.get(namespace, key)
            assert (mine and mine.value) == (theirs and theirs.value)
    del other._data["gone",]
    listings: list[dict[str, Any]] = [
        {},
        {"prefix": ("a",)},
        {"prefix": ("*", "b")},
        {"suffix": ("v1",)},
        {"suffix": ("*", "v1"), "prefix": ("a",)},
        {"max_depth": 1},
        {"prefix": ("a", "b"), "max_depth": 2},
        {"limit": 2, "offset": 1},
        {"limit": 0},
        {"prefix": ("none",)},
    ]
    for options in listings:
        assert await own.alist_namespaces(**options) == other.list_namespaces(**options), options


async def test_the_latest_change_is_found_first_and_the_times_are_those_of_the_bus(
    bus: agentbus.Bus, clock: FakeClock
) -> None:
    store = AgentBusStore(bus)
    for number in range(5):
        await store.aput(("a", str(number % 2)), f"k{number}", {"n": number, "even": number % 2 == 0})
        clock.advance(1)
    await store.aput(("a", "0"), "k2", {"n": 2, "even": True})
    assert await keys(store, "a") == ["k2", "k4", "k3", "k1", "k0"]
    assert await keys(store, "a", limit=2, offset=1) == ["k4", "k3"]
    assert await keys(store, "a", filter={"even": True}, limit=2, offset=1) == ["k4", "k0"]
    item = await store.aget(("a", "0"), "k2")
    assert (item.updated_at - item.created_at).total_seconds() == 3
    assert item.updated_at.timestamp() * 1000 == clock.now().wall


async def test_an_item_expires_in_the_time_of_the_bus_and_is_removed(bus: agentbus.Bus, clock: FakeClock) -> None:
    store = AgentBusStore(bus, ttl={"default_ttl": 10, "refresh_on_read": False})
    await store.aput(("a",), "short", {"n": 1}, ttl=1)
    await store.aput(("a",), "default", {"n": 2})
    await store.aput(("a",), "forever", {"n": 3}, ttl=None)
    await store.aput(("b",), "short", {"n": 4}, ttl=1)
    clock.advance(59)
    assert sorted(await keys(store, "a")) == ["default", "forever", "short"]
    clock.advance(1)
    assert await store.aget(("b",), "short") is None
    # What was met is removed with its expiry.
    assert await bus.histories.items("langgraph-store", "b") == []
    assert sorted(await keys(store)) == ["default", "forever"]
    assert len(await bus.histories.items("langgraph-store", "a")) == 3
    assert await store.alist_namespaces() == [("a",)]
    clock.advance(540)
    await store.aput(("c",), "k", {}, ttl=1e-3)
    clock.advance(1)
    assert await store.alist_namespaces() == [("a",)]
    assert await store.asweep_ttl() == 1
    assert await store.asweep_ttl() == 0
    # Writing an item again, without a time to live, ends it.
    await store.aput(("a",), "again", {"n": 1}, ttl=1)
    await store.aput(("a",), "again", {"n": 2}, ttl=None)
    clock.advance(3600)
    assert sorted(await keys(store)) == ["again", "forever"]


async def test_reading_refreshes_the_time_to_live(bus: agentbus.Bus, clock: FakeClock) -> None:
    store = AgentBusStore(bus)
    for key in ("got", "found", "left", "filtered"):
        await store.aput(("a",), key, {"key": key}, ttl=1)
    version = (await bus.histories.find("langgraph-store", "a")).version  # type: ignore[union-attr]
    assert await store.aget(("a",), "got")
    # Read again at once, it is as good as new: nothing is written.
    assert (await bus.histories.find("langgraph-store", "a")).version == version  # type: ignore[union-attr]
    clock.advance(40)
    assert await store.aget(("a",), "got")
    assert await store.aget(("a",), "left", refresh_ttl=False)
    assert await keys(store, "a", filter={"key": "found"}) == ["found"]
    assert await keys(store, "a", filter={"key": "filtered"}, refresh_ttl=False) == ["filtered"]
    clock.advance(40)
    assert sorted(await keys(store, "a", refresh_ttl=False)) == ["found", "got"]
    clock.advance(20)
    assert await keys(store, "a") == []


async def test_a_put_with_a_time_to_live_sweeps_now_and_then(bus: agentbus.Bus, clock: FakeClock) -> None:
    store = AgentBusStore(bus, ttl={"sweep_interval_minutes": 2})
    await store.aput(("a",), "k", {}, ttl=1)
    clock.advance(119)
    await store.aput(("b",), "k", {}, ttl=5)
    assert await bus.histories.items("langgraph-store", "a")
    clock.advance(1)
    await store.aput(("b",), "k", {}, ttl=5)
    assert not await bus.histories.items("langgraph-store", "a")


async def test_an_item_that_is_written_while_it_is_removed_stays(
    bus: agentbus.Bus, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = AgentBusStore(bus)
    await store.aput(("a",), "k", {"n": 1}, ttl=1)
    clock.advance(60)
    items, writes = bus.histories.items, [{"n": 2}]

    async def overtaken(*arguments: Any, **options: Any) -> Any:
        """Another process writes the item, between the read of the sweep and its write."""
        found = await items(*arguments, **options)
        if writes:
            await store.aput(("a",), "k", writes.pop())
        return found

    monkeypatch.setattr(bus.histories, "items", overtaken)
    assert await store.asweep_ttl() == 0
    assert (await store.aget(("a",), "k")).value == {"n": 2}


@pytest.mark.one_engine
async def test_threads_use_it_and_what_it_cannot_do_is_refused(engine: Engine) -> None:
    async with engine.connect(max_snapshot=10_000) as bus:
        store = AgentBusStore(bus)

        def work() -> list[str]:
            store.put(("a",), "k", {"n": 1}, ttl=5)
            assert store.get(("a",), "k").value == {"n": 1}
            assert store.list_namespaces() == [("a",)]
            assert store.sweep_ttl() == 0
            return [item.key for item in store.search(("a",), filter={"n": 1})]

        assert await asyncio.to_thread(work) == ["k"]
        for refused, error in [
            (base.SearchOp(("a",), query="like this"), InvalidInput),
            (base.SearchOp(("a",), filter={"n": {"$in": [1]}}), InvalidInput),
            (base.SearchOp(("a",), offset=-1), OutOfRange),
            (base.PutOp(("a",), "k", {"n": float("nan")}), InvalidPayload),
            (base.PutOp(("a",), "k", {"n": "x" * 10_000}), SnapshotTooLarge),
            (base.PutOp(("a",), "k", {}, ttl=0), OutOfRange),
            (base.PutOp(("a",), "k", {"deep": [{"raw": b"x"}]}), InvalidInput),
            (base.PutOp(("a.b",), "k", {}), base.InvalidNamespaceError),
            ("get", InvalidInput),
        ]:
            with pytest.raises(error):
                # Nothing of a batch is written if a part of it is refused.
                await store.abatch([base.PutOp(("new",), "k", {}), refused])
        with pytest.raises(Misuse):
            store.get(("a",), "k")
        assert await store.alist_namespaces() == [("a",)]
    with AgentBusStore(engine.url) as store:
        assert store.get(("a",), "k", refresh_ttl=False) is None  # in the time of the machine it expired long ago
