"""Periodic checkpoints: saved while a block runs if the snapshot changed, despite failures."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import anyio
import pytest

from agentbus import Agent, Bus
from agentbus.errors import AgentFenced, InvalidPayload
from tests.api.helpers import worker
from tests.conftest import Engine
from tests.support.clock import START, FakeClock


class Work:
    """Something whose state is worth keeping."""

    def __init__(self) -> None:
        self.step = 0
        self.asked = 0
        self.problem: BaseException | None = None

    def state(self) -> dict[str, Any]:
        self.asked += 1
        if self.problem is not None:
            raise self.problem
        return {"step": self.step}

    async def state_later(self) -> dict[str, Any]:
        await asyncio.sleep(0)
        return self.state()


@pytest.fixture
async def a(bus: Bus) -> Agent:
    return await worker(bus, "a")


async def saved(bus: Bus, name: str | None = None) -> list[Any]:
    """The snapshots, oldest first."""
    found = [await bus.checkpoints.get(summary.id) for summary in (await bus.checkpoints.list("a", name)).items]
    return [item.snapshot["step"] for item in reversed(found) if item is not None]


@pytest.mark.parametrize("make", [Work.state, Work.state_later])
async def test_a_block_is_saved_at_every_interval_and_at_its_end(
    bus: Bus, a: Agent, clock: FakeClock, make: Callable[[Work], Any]
) -> None:
    work = Work()
    async with a.checkpoint_every(10, lambda: make(work)):
        await clock.pass_time(9)
        assert await saved(bus) == []
        for step in (1, 2, 3):
            work.step = step
            await clock.pass_time(10)
        assert await saved(bus) == [1, 2, 3]
        work.step = 4
    assert await saved(bus) == [1, 2, 3, 4]
    newest = (await bus.checkpoints.list("a")).items[0]
    assert (newest.name, newest.created) == ("auto", START + 39_000)
    work.step = 5
    await clock.pass_time(100)
    assert await saved(bus) == [1, 2, 3, 4], "the block is over"


@pytest.mark.one_engine
async def test_an_unchanged_snapshot_is_not_saved_again(bus: Bus, a: Agent, clock: FakeClock) -> None:
    work = Work()
    async with a.checkpoint_every(10, work.state):
        await clock.pass_time(50)
        assert work.asked == 5
        assert await saved(bus) == [0]
        work.step = 1
        await clock.pass_time(10)
        work.step = 0
        await clock.pass_time(20)
    assert await saved(bus) == [0, 1, 0]


async def test_only_the_newest_are_kept(bus: Bus, a: Agent, clock: FakeClock) -> None:
    work = Work()
    await a.checkpoint("mine", {"step": -1})
    async with a.checkpoint_every(1, work.state), a.checkpoint_every(1, work.state, name="few", keep=2):
        for step in range(15):
            work.step = step
            await clock.pass_time(1)
    assert await saved(bus, "auto") == list(range(5, 15))
    assert await saved(bus, "few") == [13, 14]
    assert await saved(bus, "mine") == [-1]


@pytest.mark.one_engine
async def test_after_an_exception_nothing_more_is_saved(bus: Bus, a: Agent, clock: FakeClock) -> None:
    work = Work()
    with pytest.raises(ValueError, match="stop"):
        async with a.checkpoint_every(10, work.state):
            await clock.pass_time(10)
            work.step = 1
            raise ValueError("stop")
    await clock.pass_time(100)
    assert await saved(bus) == [0]


@pytest.mark.one_engine
async def test_a_cancelled_block_ends_at_once_and_saves_nothing_more(bus: Bus, a: Agent, clock: FakeClock) -> None:
    work = Work()
    inside = asyncio.Event()

    async def block() -> None:
        async with a.checkpoint_every(10, work.state):
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(block())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await clock.pass_time(100)
    assert await saved(bus) == []


@pytest.mark.one_engine
async def test_a_failing_function_is_logged_and_called_again(
    bus: Bus, a: Agent, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    work = Work()
    async with a.checkpoint_every(10, work.state):
        work.problem = ZeroDivisionError("oh no")
        await clock.pass_time(20)
        assert work.asked == 2
        assert [record.exc_text for record in caplog.records if "ZeroDivisionError" in (record.exc_text or "")]
        work.problem = None
        await clock.pass_time(10)
        assert await saved(bus) == [0]


@pytest.mark.one_engine
async def test_a_snapshot_that_cannot_be_saved_is_logged_and_the_next_one_is(
    bus: Bus, a: Agent, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    snapshots: list[Any] = [{"step": float("nan")}, {"step": 1}]
    async with a.checkpoint_every(10, lambda: snapshots.pop(0) if snapshots else {"step": 1}):
        await clock.pass_time(10)
        assert "nan is not a finite number" in caplog.text
        await clock.pass_time(10)
    assert await saved(bus) == [1]


@pytest.mark.one_engine
async def test_leaving_the_block_raises_if_the_last_checkpoint_cannot_be_saved(bus: Bus, a: Agent) -> None:
    work = Work()
    work.problem = ZeroDivisionError("oh no")
    with pytest.raises(ZeroDivisionError):
        async with a.checkpoint_every(10, work.state):
            pass
    with pytest.raises(InvalidPayload):
        async with a.checkpoint_every(10, lambda: float("nan")):
            pass
    assert await saved(bus) == []


async def test_a_fenced_agent_saves_nothing_more_and_gets_an_error(
    bus: Bus, a: Agent, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    work = Work()
    with pytest.raises(AgentFenced):
        async with a.checkpoint_every(10, work.state):
            await clock.pass_time(10)
            await worker(bus, "a", takeover=True)
            work.step = 1
            await clock.pass_time(10)
            asked = work.asked
            await clock.pass_time(100)
            assert work.asked == asked, "it was given up"
    warnings = [record for record in caplog.records if "stopped saving" in record.message]
    assert len(warnings) == 1
    assert await saved(bus) == [0]


@pytest.mark.one_engine
async def test_nothing_is_saved_after_the_agent_ended_in_the_block(bus: Bus, a: Agent) -> None:
    work = Work()
    async with a.checkpoint_every(10, work.state):
        await a.complete()
    assert await saved(bus) == []


@pytest.mark.one_engine
async def test_a_function_that_never_returns_does_not_delay_the_end(bus: Bus, a: Agent, clock: FakeClock) -> None:
    calls = 0

    async def slow() -> dict[str, int]:
        nonlocal calls
        calls += 1
        if calls == 1:
            await asyncio.Event().wait()
        return {"step": calls}

    async with a.checkpoint_every(10, slow):
        await clock.pass_time(50)
        assert calls == 1
    assert await saved(bus) == [2]


async def test_a_bus_that_is_closed_inside_the_block_ends_it_quietly(
    engine: Engine, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    work = Work()
    bus = engine.connect()
    async with bus:
        a = await worker(bus, "a")
        saving = a.checkpoint_every(10, work.state)
        await saving.__aenter__()
    await clock.pass_time(100)
    assert not await saving.__aexit__(ValueError, ValueError("stop"), None)
    assert caplog.records == []
    assert work.asked <= 1


@pytest.mark.one_engine
async def test_a_function_that_swallows_its_cancellation_does_not_delay_the_end(bus: Bus, clock: FakeClock) -> None:
    making = asyncio.Event()

    async def make() -> int:
        if not making.is_set():
            making.set()
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        return 1

    a = await worker(bus, "a")
    with anyio.fail_after(60):
        async with a.checkpoint_every(30, make):
            while not making.is_set():
                clock.advance(30)
                await asyncio.sleep(0)
    assert (await a.restore("auto")) is not None
