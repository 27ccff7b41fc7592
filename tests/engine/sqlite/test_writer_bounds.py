"""The bounds of the writer: how much goes into one transaction, how many may wait, and that the rest get their turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentbus.engine.sqlite.engine import SQLiteEngine
from agentbus.errors import BusClosed
from agentbus.operations.protocol import Part, UnitRequest, unit
from agentbus.operations.send import send
from agentbus.operations.types import define
from tests.support.writing import (
    Gate,
    agent,
    defined,
    message,
    open_and_finish,
    opened,
    pause,
    paused,
    start,
    trace,
    turns,
    wanted,
    writer,
)

BOUNDS = "agentbus.engine.sqlite.writer"
TAKING = "agentbus.engine.group_commit"


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[SQLiteEngine]:
    async with opened(tmp_path / "bus") as engine:
        yield engine


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that a test can reach: two calls wait, further callers are held back."""
    monkeypatch.setattr(f"{BOUNDS}.MAX_QUEUED_CALLS", 2)


async def test_a_batch_is_bounded_by_bytes(engine: SQLiteEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{TAKING}.MAX_BATCH_BYTES", 1_000)
    actor, _ = await agent(engine, "a")
    # After a batch of several, a call waits for those that come in the same turn of the loop.
    await asyncio.gather(*(engine.write(define, wanted(name)) for name in "xy"))
    statements = trace(engine)
    await asyncio.gather(*(engine.write(send, message(actor, "a", "x" * 600)) for _ in range(6)))
    assert statements.count("COMMIT") == 3


async def test_units_are_bounded_by_bytes_too(engine: SQLiteEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{TAKING}.MAX_BATCH_BYTES", 1_000)
    actor, _ = await agent(engine, "a")
    statements = trace(engine)
    request = UnitRequest((Part(send, message(actor, "a", "x" * 600)),))
    await asyncio.gather(*(engine.write(unit, request) for _ in range(6)))
    assert statements.count("COMMIT") == 3


async def test_a_batch_is_bounded_by_count(engine: SQLiteEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{TAKING}.MAX_BATCH_CALLS", 10)
    statements = trace(engine)
    gate = await paused(engine)
    callers = start(engine, *(f"type-{number}" for number in range(35)))
    gate.opened.set()
    await asyncio.gather(*callers)
    assert statements.count("COMMIT") == 1 + 4


async def test_a_checkpoint_is_not_held_up_by_calls_that_keep_coming(
    engine: SQLiteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{TAKING}.MAX_BATCH_CALLS", 1)
    gate = await paused(engine)
    checkpoint = asyncio.ensure_future(writer(engine).checkpoint(truncate=False))
    callers = start(engine, *(f"type-{number}" for number in range(10)))
    ended: list[asyncio.Future[Any]] = []
    for future in (checkpoint, *callers):
        future.add_done_callback(ended.append)
    await turns()
    gate.opened.set()
    await asyncio.gather(checkpoint, *callers)
    assert ended.index(checkpoint) <= 2


async def test_a_message_larger_than_the_bound_goes_by_itself(
    engine: SQLiteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{TAKING}.MAX_BATCH_BYTES", 10)
    actor, _ = await agent(engine, "a")
    statements = trace(engine)
    await asyncio.gather(*(engine.write(send, message(actor, "a", "x" * 100)) for _ in range(3)))
    assert statements.count("COMMIT") == 3


@pytest.mark.usefixtures("few")
async def test_no_more_than_the_bound_wait_and_the_rest_are_held_back(engine: SQLiteEngine, tmp_path: Path) -> None:
    gate = await paused(engine)
    names = [f"type-{number}" for number in range(20)]
    tasks = start(engine, *names)
    await turns()
    assert len(writer(engine)._queue) == 2
    gate.opened.set()
    with anyio.fail_after(60):
        await asyncio.gather(*tasks)
    assert defined(tmp_path) == set(names)


@pytest.mark.usefixtures("few")
async def test_held_back_callers_that_are_cancelled_delay_no_other(engine: SQLiteEngine, tmp_path: Path) -> None:
    gate = await paused(engine)
    tasks = start(engine, *(f"type-{number}" for number in range(20)))
    await turns()
    for task in tasks[2::2]:
        task.cancel()
    gate.opened.set()
    with anyio.fail_after(60):
        answers = await asyncio.gather(*tasks, return_exceptions=True)
    cancelled = [number for number, answer in enumerate(answers) if isinstance(answer, asyncio.CancelledError)]
    assert cancelled == list(range(2, 20, 2))
    assert defined(tmp_path) == {f"type-{number}" for number in range(20) if number not in cancelled}


@pytest.mark.usefixtures("few")
async def test_a_turn_that_is_cancelled_goes_to_the_next(engine: SQLiteEngine, tmp_path: Path) -> None:
    gate = Gate()
    pausing, first = engine.write(pause, gate), asyncio.ensure_future(engine.write(define, wanted("first")))
    await gate.reached()
    tasks = start(engine, "q-1", "q-2", *(f"h-{number}" for number in range(1, 7)))
    await turns()

    def cancel(_: object) -> None:
        # It is the turn of these, but they have not run yet.
        for task in tasks[2:6]:
            task.cancel()

    first.add_done_callback(cancel)
    open_and_finish(engine, gate)
    with anyio.fail_after(60):
        await asyncio.gather(pausing, first, *tasks[:2], *tasks[6:])
    assert {"q-1", "q-2", "h-5", "h-6"} <= defined(tmp_path)


@pytest.mark.usefixtures("few")
async def test_held_back_calls_come_before_later_ones(engine: SQLiteEngine) -> None:
    gate = Gate()
    order: list[str] = []
    late: list[asyncio.Task[None]] = []

    async def call(name: str) -> None:
        await engine.write(define, wanted(name))
        order.append(name)

    async def answered(name: str, answer: Awaitable[None]) -> None:
        await answer
        order.append(name)

    pausing, first = engine.write(pause, gate), asyncio.ensure_future(engine.write(define, wanted("first")))
    await gate.reached()
    names = ["q-1", "q-2", "h-1", "h-2", "h-3", "h-4"]
    tasks = [asyncio.ensure_future(call(name)) for name in names]
    await turns()

    def come_late(_: object) -> None:
        # There is room again, but it belongs to those who have waited for it.
        late.extend(
            asyncio.ensure_future(answered(name, engine.write(define, wanted(name)))) for name in ("n-1", "n-2")
        )

    first.add_done_callback(come_late)
    open_and_finish(engine, gate)
    with anyio.fail_after(60):
        await asyncio.gather(pausing, first, *tasks)
        await asyncio.gather(*late)
    assert order == [*names, "n-1", "n-2"]


@pytest.mark.usefixtures("few")
async def test_closing_leaves_no_held_back_caller_hanging(tmp_path: Path) -> None:
    async with opened(tmp_path / "bus") as engine:
        gate = await paused(engine)
        tasks = start(engine, *(f"type-{number}" for number in range(20)))
        await turns()
        closing = asyncio.ensure_future(engine.close())
        await turns()
        gate.opened.set()
        with anyio.fail_after(60):
            answers = await asyncio.gather(*tasks, return_exceptions=True)
            await closing
    written = defined(tmp_path)
    for number, answer in enumerate(answers):
        assert answer is None or isinstance(answer, BusClosed)
        assert (f"type-{number}" in written) is (answer is None)
    assert answers[:2] == [None, None]
