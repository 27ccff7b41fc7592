"""Bad input for checkpoints and events: a named error, nothing written, and the bus still works."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from agentbus import Agent, Bus
from agentbus.errors import (
    InvalidInput,
    InvalidName,
    InvalidPayload,
    Misuse,
    OutOfRange,
    SnapshotTooLarge,
    UnknownAgent,
    UnknownSession,
    UnknownTask,
)
from tests.api.helpers import refusing, worker
from tests.api.refusals import refused_each
from tests.conftest import Engine
from tests.support.cases import each
from tests.support.values import NOT_JSON, nested

SIXTEEN = 16 * 1024 * 1024


@pytest.fixture
async def a(bus: Bus) -> Agent:
    return await worker(bus, "a")


LARGE = "x" * 300_000


@pytest.mark.one_engine
@pytest.mark.parametrize("large", [False, True])
async def test_a_snapshot_that_is_not_json_is_refused(bus: Bus, a: Agent, large: bool) -> None:
    """A large one is checked on a thread, no less closely."""

    async def save_in_a_unit(snapshot: Any) -> None:
        async with a.unit() as unit:
            unit.send("a", "note")
            unit.checkpoint("n", snapshot)

    bad = [[LARGE, value] if large else value for value in NOT_JSON.values()]
    await refused_each(bus, a, InvalidPayload, lambda snapshot: a.checkpoint("n", snapshot), bad)
    await refused_each(bus, a, InvalidPayload, save_in_a_unit, bad)
    assert await a.restore() is None


async def test_the_depth_of_a_snapshot_is_limited_exactly(bus: Bus, a: Agent) -> None:
    await a.checkpoint("n", nested(128))
    await a.checkpoint("n", [LARGE, nested(127)])
    async with refusing(bus, a, InvalidPayload):
        await a.checkpoint("n", [LARGE, nested(128)])


async def test_the_size_of_a_snapshot_is_limited_exactly(bus: Bus, a: Agent) -> None:
    text = "x" * (SIXTEEN - 2)
    await a.checkpoint("n", text)
    async with refusing(bus, a, SnapshotTooLarge) as refused:
        await a.checkpoint("n", text + "x")
    assert (refused.value.size, refused.value.limit) == (SIXTEEN + 1, SIXTEEN)
    with pytest.raises(SnapshotTooLarge):
        await bus.checkpoints.save("a", "n", text + "x")
    async with a.unit() as unit:
        with pytest.raises(SnapshotTooLarge):
            unit.checkpoint("n", text + "x")
    (summary,) = (await bus.checkpoints.list("a")).items
    assert summary.size == SIXTEEN
    found = await a.restore()
    assert found is not None
    assert found.snapshot == text


@pytest.mark.one_engine
async def test_the_limit_counts_bytes_and_can_be_set(engine: Engine) -> None:
    async with engine.connect(max_snapshot=12) as bus:
        a = await worker(bus, "a")
        await a.checkpoint("n", "ü" * 5)
        with pytest.raises(SnapshotTooLarge) as refused:
            await a.checkpoint("n", "ü" * 5 + "x")
        assert (refused.value.size, refused.value.limit) == (13, 12)
    for wrong in (0, -1, 1.5, True, "1", 2**40):
        with pytest.raises(OutOfRange):
            engine.connect(max_snapshot=wrong)


async def test_many_large_snapshots_at_once_are_all_saved(bus: Bus) -> None:
    """More than fits into one batch of the writer."""
    agents = [await worker(bus, f"a{n}") for n in range(8)]
    await asyncio.gather(*(agent.checkpoint("n", str(n) * 2_000_000) for n, agent in enumerate(agents)))
    found = [await agent.restore() for agent in agents]
    assert [item and item.snapshot for item in found] == [str(n) * 2_000_000 for n in range(8)]


@pytest.mark.one_engine
@each("name", ["", "two words", "x" * 129, "ü", "a\nb", "a\0b", None, 5, b"n"])
async def test_an_invalid_name_is_refused(bus: Bus, a: Agent, name: Any) -> None:
    async with refusing(bus, a, InvalidName):
        await a.checkpoint(name, 1)
    with pytest.raises(InvalidName):
        a.checkpoint_every(1, dict, name=name)
    for call in (bus.checkpoints.latest(name), bus.checkpoints.save(name, "n", 1), bus.checkpoints.prune(name, keep=1)):
        with pytest.raises(InvalidName):
            await call
    if name is not None:
        with pytest.raises(InvalidName):
            await a.restore(name)
        with pytest.raises(InvalidName):
            await bus.checkpoints.list("a", name)
        with pytest.raises(InvalidName):
            await bus.checkpoints.list(name)
    assert await a.restore() is None


@pytest.mark.one_engine
@each("notes", ["x" * 10_001, "nul \0", "lone \ud800", None, 5, b"n"])
async def test_notes_that_are_no_text_are_refused(bus: Bus, a: Agent, notes: Any) -> None:
    async with refusing(bus, a, OutOfRange):
        await a.checkpoint("n", 1, notes=notes)
    await a.checkpoint("n", 1, notes="ü" * 10_000)


@pytest.mark.one_engine
@each("id", [0, -1, 1.5, True, "1", None, 2**63])
async def test_an_invalid_id_is_refused(bus: Bus, a: Agent, id: Any) -> None:
    calls: list[Callable[[Any], Coroutine[Any, Any, Any]]] = [
        bus.checkpoints.get, bus.checkpoints.delete, bus.checkpoints.verify,
    ]  # fmt: skip
    for call in calls:
        # A caller that verifies the result of restore() may have got None: that has a text of its own.
        nothing = id is None and call == bus.checkpoints.verify
        async with refusing(bus, a, InvalidInput if nothing else OutOfRange):
            await call(id)
    if id is not None:
        async with refusing(bus, a, OutOfRange):
            await a.restore(id=id)


@pytest.mark.one_engine
async def test_a_checkpoint_is_restored_by_name_or_by_id(bus: Bus, a: Agent) -> None:
    async with refusing(bus, a, InvalidInput):
        await a.restore("n", id=1)


@pytest.mark.one_engine
@each("keep", [0, -1, 1.5, True, "1", 10_001])
async def test_the_number_to_keep_has_a_range(bus: Bus, a: Agent, keep: Any) -> None:
    async with refusing(bus, a, OutOfRange):
        await a.checkpoint("n", 1, keep=keep)
    with pytest.raises(OutOfRange):
        a.checkpoint_every(1, dict, keep=keep)
    if keep != 0:
        with pytest.raises(OutOfRange):
            await bus.checkpoints.prune("a", keep=keep)
    assert await a.restore() is None


@pytest.mark.one_engine
@each("kind", ["tasks", "bus", "", None, 5])
async def test_only_agents_sessions_and_tasks_have_checkpoints(bus: Bus, a: Agent, kind: Any) -> None:
    async with refusing(bus, a, OutOfRange):
        await bus.checkpoints.save("a", "n", 1, kind=kind)
    with pytest.raises(OutOfRange):
        await bus.checkpoints.latest("a", kind=kind)
    if kind is not None:
        with pytest.raises(OutOfRange):
            await bus.checkpoints.list(kind=kind)


async def test_an_unknown_owner_has_no_checkpoints(bus: Bus, a: Agent) -> None:
    async with refusing(bus, a, UnknownAgent):
        await bus.checkpoints.save("nobody", "n", 1)
    async with refusing(bus, a, UnknownSession):
        await bus.checkpoints.save("nowhere", "n", 1, kind="session")
    async with refusing(bus, a, UnknownTask):
        await bus.checkpoints.save("nothing", "n", 1, kind="task")
    assert (await bus.checkpoints.list()).items == []


@pytest.mark.one_engine
@each("filters", [{"limit": 0}, {"limit": 1001}, {"cursor": "x"}, {"cursor": "-1"}, {"cursor": 5}])
async def test_an_invalid_page_is_refused(bus: Bus, filters: dict[str, Any]) -> None:
    with pytest.raises(OutOfRange):
        await bus.checkpoints.list(**filters)


@pytest.mark.one_engine
@each("seconds", [0, -1, float("nan"), float("inf"), "1", None, True])
async def test_periodic_checkpoints_need_an_interval(a: Agent, seconds: Any) -> None:
    with pytest.raises(OutOfRange):
        a.checkpoint_every(seconds, dict)


@pytest.mark.one_engine
async def test_periodic_checkpoints_need_a_function(a: Agent) -> None:
    with pytest.raises(OutOfRange):
        a.checkpoint_every(1, {"a": "snapshot"})  # type: ignore[arg-type]


@pytest.mark.one_engine
async def test_a_unit_that_is_over_takes_no_checkpoint(a: Agent) -> None:
    async with a.unit() as unit:
        pass
    with pytest.raises(Misuse):
        unit.checkpoint("n", 1)


@pytest.mark.one_engine
@each(
    "options",
    [
        {"after": -1}, {"after": "then"}, {"after": None}, {"after": 1.5}, {"after": True}, {"after": 2**63},
        {"kind": "agent_exploded"}, {"kind": ""}, {"kind": 5}, {"subject": "a"}, {"subject": "agent:"},
        {"subject": ":a"}, {"subject": "planet:mars"}, {"subject": 5}, {"subject": ""}, {"limit": 0}, {"limit": -1},
        {"limit": "1"},
    ],
)  # fmt: skip
async def test_invalid_event_filters_are_refused_at_once(bus: Bus, options: dict[str, Any]) -> None:
    """An empty answer would look like one."""
    with pytest.raises(OutOfRange):
        bus.events(**options)
