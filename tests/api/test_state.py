"""State: JSON under a scope and a key, versions, compare-and-set, adding."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from agentbus import Bus
from agentbus.errors import AgentFenced, InvalidInput, PayloadMismatch, UnknownSession, VersionConflict, WrongState
from tests.api.helpers import worker
from tests.conftest import Engine
from tests.support.cases import each
from tests.support.clock import START, FakeClock


class Plan(msgspec.Struct):
    phase: str
    files: int = 0


@dataclass
class Point:
    x: int
    y: int


async def test_a_set_entry_is_visible_to_every_bus(engine: Engine) -> None:
    async with engine.connect() as bus, engine.connect() as other:
        a = await worker(bus, "a")
        await a.state.set("scope", {"files": 12})
        assert await a.state.get("scope") == {"files": 12}
        assert await bus.state("a").get("scope") == {"files": 12}
        assert await other.state("a").get("scope") == {"files": 12}


async def test_a_set_entry_is_there_after_reopening(engine: Engine) -> None:
    async with engine.connect() as bus:
        await bus.state("any").set("k", [1, 2])
    async with engine.connect() as bus:
        assert await bus.state("any").get("k") == [1, 2]
        assert await bus.state("any").set("k", 3) == 2


@each(
    "value",
    [
        None,
        True,
        0,
        -1.5,
        "",
        "text with\nlines, ünï and 🚌",
        [],
        {},
        [[{"a": [None]}]],
        2**63,
        -(2**63),
        "x" * 100_000,
    ],
)
async def test_any_json_comes_back_as_it_was(bus: Bus, value: Any) -> None:
    await bus.state("s").set("k", value)
    got = await bus.state("s").get("k", "not there")
    assert got == value
    assert type(got) is type(value)


async def test_nothing_there_is_no_error(bus: Bus) -> None:
    state = bus.state("s")
    assert await state.get("k") is None
    assert await state.get("k", 7) == 7
    assert await state.get("k", 7, as_=Plan) == 7
    assert await state.entry("k") is None
    assert await state.delete("k") is False
    assert (await state.list()).items == []


async def test_null_is_a_value(bus: Bus) -> None:
    await bus.state("s").set("k", None)
    assert await bus.state("s").get("k", "default") is None
    entry = await bus.state("s").entry("k")
    assert entry is not None
    assert (entry.value, entry.deleted) == (None, False)


async def test_scopes_do_not_mix(bus: Bus) -> None:
    a, b = await worker(bus, "a"), await worker(bus, "b")
    await a.state.set("k", 1)
    await b.state.set("k", 2)
    await bus.state("bus").set("k", 3)
    assert [await bus.state(scope).get("k") for scope in ("a", "b", "bus", "c")] == [1, 2, 3, None]


async def test_an_entry_says_all_that_is_known_of_it(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    await a.state.set("k", 1, type="progress")
    clock.advance(5)
    await a.state.set("k", 2, ttl=60, type="temp_data")
    entry = await a.state.entry("k")
    assert entry is not None
    assert (entry.scope, entry.key, entry.value, entry.type, entry.version) == ("a", "k", 2, "temp_data", 2)
    assert (entry.author, entry.deleted, entry.error) == ("a", False, None)
    assert (entry.created, entry.updated, entry.expires) == (START, START + 5000, START + 65_000)
    assert entry.change == 2


async def test_an_author_is_an_agent(bus: Bus) -> None:
    a = await worker(bus, "a")
    await bus.state("a").set("k", 1)
    assert (entry := await a.state.entry("k")) is not None
    assert entry.author is None
    await a.state.increment("k")
    assert (entry := await a.state.entry("k")) is not None
    assert entry.author == "a"


@each("type", ["checkpoint", "progress", "user_data", "system_data", "temp_data"])
async def test_every_state_type_is_taken(bus: Bus, type: str) -> None:
    await bus.state("s").set("k", 1, type=type)
    assert (entry := await bus.state("s").entry("k")) is not None
    assert entry.type == type


# Versions


async def test_versions_count_the_values_and_never_repeat(bus: Bus) -> None:
    state = bus.state("s")
    assert [await state.set("k", n) for n in range(3)] == [1, 2, 3]
    await state.delete("k")
    assert await state.set("k", 1) == 4
    assert await state.increment("k") == 2
    assert (entry := await state.entry("k")) is not None
    assert entry.version == 5


async def test_every_change_has_a_number_of_its_own_on_the_whole_bus(bus: Bus) -> None:
    changes = []
    for scope, key in (("a", "x"), ("b", "x"), ("a", "y"), ("a", "x")):
        await bus.state(scope).set(key, 1)
        entry = await bus.state(scope).entry(key)
        assert entry is not None
        changes.append(entry.change)
    assert changes == [1, 2, 3, 4]


async def test_compare_and_set(bus: Bus) -> None:
    state = bus.state("s")
    assert await state.set("k", "first", if_version=0) == 1
    with pytest.raises(VersionConflict) as conflict:
        await state.set("k", "second", if_version=0)
    assert conflict.value.facts == {"scope": "s", "key": "k", "expected": 0, "found": 1}
    assert (conflict.value.code, conflict.value.transient) == ("version_conflict", False)
    assert await state.set("k", "second", if_version=1) == 2
    with pytest.raises(VersionConflict):
        await state.set("k", "third", if_version=1)
    with pytest.raises(VersionConflict):
        await state.delete("k", if_version=1)
    assert await state.get("k") == "second"
    assert await state.delete("k", if_version=2) is True
    with pytest.raises(VersionConflict) as conflict:
        await state.set("k", "third", if_version=2)
    assert conflict.value.found == 0
    with pytest.raises(VersionConflict):
        await state.delete("k", if_version=2)
    assert await state.delete("k", if_version=0) is False
    assert await state.set("k", "third", if_version=0) == 3


async def test_of_many_concurrent_creations_of_one_entry_one_succeeds(bus: Bus) -> None:
    results = await asyncio.gather(
        *(bus.state("s").set("leader", n, if_version=0) for n in range(50)), return_exceptions=True
    )
    won = [n for n, result in enumerate(results) if result == 1]
    assert len(won) == 1
    assert sum(isinstance(result, VersionConflict) for result in results) == 49
    assert await bus.state("s").get("leader") == won[0]


# Adding


async def test_increment(bus: Bus) -> None:
    state = bus.state("s")
    assert await state.increment("n") == 1
    assert await state.increment("n", 41) == 42
    assert await state.increment("n", -50) == -8
    assert await state.increment("n", 0.5) == -7.5
    assert await state.get("n") == -7.5
    await state.delete("n")
    assert await state.increment("n", 3) == 3


async def test_adding_keeps_the_type_and_when_it_was_made(bus: Bus, clock: FakeClock) -> None:
    state = bus.state("s")
    await state.set("n", 1, type="progress")
    clock.advance(1)
    await state.increment("n")
    entry = await state.entry("n")
    assert entry is not None
    assert (entry.value, entry.type, entry.created, entry.updated) == (2, "progress", START, START + 1000)


async def test_concurrent_additions_lose_nothing(engine: Engine) -> None:
    async with engine.connect() as bus, engine.connect() as other:
        sums = await asyncio.gather(*((bus, other)[n % 2].state("s").increment("n") for n in range(200)))
        assert sorted(sums) == list(range(1, 201))
        assert await bus.state("s").get("n") == 200


@each("value", ["1", None, True, [1], {"n": 1}])
async def test_only_to_a_number_can_be_added(bus: Bus, value: Any) -> None:
    state = bus.state(f"s-{type(value).__name__}")
    await state.set("k", value)
    with pytest.raises(WrongState, match="'k' is not a number"):
        await state.increment("k")
    assert (entry := await state.entry("k")) is not None
    assert (entry.value, entry.version) == (value, 1)


@each(("value", "by"), [(2**63 - 1, 1), (-(2**63), -1), (2**64 - 1, 0), (1.7e308, 1.7e308), (-1.7e308, -1.7e308)])
async def test_a_sum_that_does_not_fit_is_refused(bus: Bus, value: Any, by: Any) -> None:
    await bus.state("s").set("k", value)
    with pytest.raises(WrongState, match="out of range"):
        await bus.state("s").increment("k", by)
    assert await bus.state("s").get("k") == value


async def test_the_largest_numbers_can_be_reached(bus: Bus) -> None:
    await bus.state("s").set("k", 2**63 - 2)
    assert await bus.state("s").increment("k") == 2**63 - 1
    assert await bus.state("s").increment("k", -(2**63)) == -1


# Typed


@pytest.mark.one_engine
async def test_a_value_can_be_wanted_as_a_type(bus: Bus) -> None:
    state = bus.state("s")
    await state.set("plan", Plan("design", 3))
    assert await state.get("plan") == {"phase": "design", "files": 3}
    plan = await state.get("plan", as_=Plan)
    assert plan == Plan("design", 3)
    await state.set("point", {"x": 1, "y": 2})
    assert await state.get("point", as_=Point) == Point(1, 2)
    assert await state.get("point", as_=dict[str, int]) == {"x": 1, "y": 2}
    when = datetime(2026, 1, 2, tzinfo=UTC)
    await state.set("when", when)
    assert await state.get("when", as_=datetime) == when
    assert await state.get("plan", as_=Plan | None) == Plan("design", 3)


@pytest.mark.one_engine
@each("value", [{"phase": 1}, {}, [], "design", None])
async def test_a_value_that_does_not_fit_its_type_is_a_named_error(bus: Bus, value: Any) -> None:
    await bus.state("s").set("plan", value)
    with pytest.raises(PayloadMismatch) as mismatch:
        await bus.state("s").get("plan", as_=Plan)
    assert mismatch.value.code == "payload_mismatch"
    assert mismatch.value.type == "Plan"
    assert "'plan' of s" in str(mismatch.value)
    assert await bus.state("s").get("plan") == value


@pytest.mark.one_engine
async def test_a_type_that_nothing_can_be_made_of_is_a_named_error(bus: Bus) -> None:
    class Opaque:
        def __init__(self, *, handle: int) -> None: ...

    await bus.state("s").set("k", 1)
    with pytest.raises(PayloadMismatch):
        await bus.state("s").get("k", as_=Opaque)
    for odd in ("Plan", 5):
        with pytest.raises(InvalidInput, match="not a type"):
            await bus.state("s").get("k", as_=odd)


# Agents


async def test_state_outlives_an_incarnation_of_its_agent(bus: Bus) -> None:
    async with bus.agent("a", type="worker") as a:
        await a.state.set("k", 1)
    async with bus.agent("a", type="worker") as a:
        assert await a.state.get("k") == 1


async def test_an_agent_that_was_taken_over_changes_nothing(bus: Bus) -> None:
    old = await worker(bus, "a")
    await old.state.set("k", "old")
    new = await worker(bus, "a", takeover=True)
    for change in (old.state.set("k", 2), old.state.delete("k"), old.state.increment("n")):
        with pytest.raises(AgentFenced):
            await change
    assert await new.state.get("k") == "old"
    assert await old.state.get("k") == "old"
    assert await new.state.entry("n") is None


async def test_a_fenced_agent_does_not_affect_other_calls_of_its_batch(bus: Bus) -> None:
    old = await worker(bus, "a")
    await worker(bus, "a", takeover=True)
    b = await worker(bus, "b")
    results = await asyncio.gather(
        b.state.set("k", 1), old.state.set("k", 1), bus.state("a").set("k", 1), return_exceptions=True
    )
    assert results[0] == results[2] == 1
    assert isinstance(results[1], AgentFenced)


async def test_deleting_an_agent_deletes_its_state(bus: Bus) -> None:
    for id in ("a", "b", "c"):
        async with bus.agent(id, type="worker") as agent:
            for n in range(3):
                await agent.state.set(f"k{n}", n)
    await bus.agents.delete("a")
    assert (await bus.state("a").list()).items == []
    assert len((await bus.state("b").list()).items) == 3
    assert await bus.agents.clear() == ["b", "c"]
    assert (await bus.state("b").list()).items == []
    a = await worker(bus, "a")
    assert await a.state.get("k1") is None
    assert await a.state.set("k1", 1) == 2


async def test_a_sessions_state_needs_the_session(bus: Bus) -> None:
    state = bus.state("session:nowhere")
    for change in (state.set("k", 1), state.delete("k"), state.increment("k")):
        with pytest.raises(UnknownSession) as unknown:
            await change
        assert unknown.value.session == "nowhere"
    assert await state.get("k") is None


async def test_fused_changes_are_what_they_would_be_one_after_another(bus: Bus) -> None:
    state = bus.state("s")
    results: list[Any] = await asyncio.gather(
        state.set("k", 10),
        state.increment("k"),
        state.set("k", 5, if_version=2),
        state.set("k", 6, if_version=2),
        state.delete("k"),
        state.delete("k"),
        state.set("k", "x", if_version=0),
        state.increment("k"),
        state.set("other", 1),
        return_exceptions=True,
    )
    assert results[:3] == [1, 11, 3]
    assert isinstance(results[3], VersionConflict)
    assert results[3].found == 3
    assert results[4:7] == [True, False, 4]
    assert isinstance(results[7], WrongState)
    assert results[8] == 1
    assert await state.get("k") == "x"


async def test_scopes_with_entries_are_listed_by_name(bus: Bus, clock: FakeClock) -> None:
    assert (await bus.scopes()).items == []
    for scope, key in (("b", "x"), ("a", "x"), ("a", "y"), ("c", "x"), ("d", "x")):
        await bus.state(scope).set(key, 1, ttl=5 if scope == "d" else None)
    await bus.state("c").delete("x")
    await clock.pass_time(6)
    page = await bus.scopes(limit=1)
    assert [(one.scope, one.entries) for one in page.items] == [("a", 2)]
    rest = await bus.scopes(cursor=page.cursor, limit=1)
    assert [(one.scope, one.entries) for one in rest.items] == [("b", 1)]
    assert rest.cursor is None
