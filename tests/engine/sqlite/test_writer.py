"""Group commit on a real database: calls that wait together are committed together, and none is lost."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentbus.core.clock import Now
from agentbus.engine.sqlite import disk_reserve, wal
from agentbus.engine.sqlite.engine import SQLiteEngine
from agentbus.errors import AgentFenced, BusClosed, DiskFull, LockTimeout, OutcomeUnknown
from agentbus.operations.processes import HeartbeatRequest, heartbeat
from agentbus.operations.protocol import Actor, Op, Operation, Outcome, Query, operation
from agentbus.operations.receive import AckRequest, Claim, ClaimRequest, ack, claim
from agentbus.operations.send import send
from agentbus.operations.types import define
from tests.support.writing import (
    Gate,
    agent,
    answer_to,
    break_off,
    defined,
    message,
    opened,
    pause,
    paused,
    rows,
    start,
    trace,
    turns,
    wanted,
    writer,
)


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[SQLiteEngine]:
    async with opened(tmp_path / "bus") as engine:
        yield engine


# Together


async def test_callers_that_wait_together_share_a_transaction(engine: SQLiteEngine, tmp_path: Path) -> None:
    names = {f"type-{number}" for number in range(100)}
    statements = trace(engine)
    # Otherwise the thread may take some of the calls before the last one is queued.
    gate = await paused(engine)
    callers = start(engine, *names)
    gate.opened.set()
    await asyncio.gather(*callers)
    assert statements.count("BEGIN IMMEDIATE") == 2
    assert statements.count("COMMIT") == 2
    assert defined(tmp_path) == names


async def test_what_comes_while_a_batch_is_written_goes_into_the_next(engine: SQLiteEngine) -> None:
    statements = trace(engine)
    gate = await paused(engine)
    first = start(engine, "a", "b")
    await turns()
    later = start(engine, "c")
    await turns()
    gate.opened.set()
    await asyncio.gather(*first, *later)
    assert statements.count("COMMIT") == 2


async def test_neighbours_of_a_kind_share_their_statements(engine: SQLiteEngine) -> None:
    actor, _ = await agent(engine, "a")
    await agent(engine, "b")
    statements = trace(engine)
    await asyncio.gather(*(engine.write(send, message(actor, "b")) for _ in range(50)))
    assert len([text for text in statements if "JOIN agents" in text]) == 1


async def test_a_claim_sees_what_is_sent_beside_it(engine: SQLiteEngine) -> None:
    sender, _ = await agent(engine, "a")
    receiver, registration = await agent(engine, "b")
    # After a batch of several, a call waits for those that come in the same turn of the loop.
    await asyncio.gather(engine.write(define, wanted("x")), engine.write(define, wanted("y")))
    statements = trace(engine)
    found, _ = await asyncio.gather(
        engine.write(claim, ClaimRequest(receiver, (), (registration.mailbox,), (), 1, 1_000)),
        engine.write(send, message(sender, "b")),
    )
    assert isinstance(found, Claim)
    assert len(found.rows) == 1
    assert statements.count("COMMIT") == 1


async def test_each_caller_gets_its_own_answer(engine: SQLiteEngine) -> None:
    sender, _ = await agent(engine, "a")
    stale = Actor("a", sender.epoch + 1)
    answers = await asyncio.gather(
        *(engine.write(send, message(stale if number % 3 == 0 else sender, "a")) for number in range(30)),
        return_exceptions=True,
    )
    assert [isinstance(answer, AgentFenced) for answer in answers] == [number % 3 == 0 for number in range(30)]
    ids = [answer[0].id or 0 for answer in answers if isinstance(answer, list)]
    assert ids == sorted(set(ids))


async def test_one_that_writes_and_fails_leaves_its_neighbours_untouched(engine: SQLiteEngine, tmp_path: Path) -> None:
    calls = [engine.write(define, wanted("a")), engine.write(break_off, "x"), engine.write(define, wanted("b"))]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(answer) for answer in answers] == [type(None), ZeroDivisionError, type(None)]
    assert defined(tmp_path) == {"a", "b"}
    ((found,),) = await rows(engine, "SELECT count(*) FROM meta WHERE key = 'x'")
    assert found == 0
    await engine.write(define, wanted("c"))
    assert defined(tmp_path) == {"a", "b", "c"}


async def test_one_that_fails_alone_writes_nothing_and_the_next_call_works(
    engine: SQLiteEngine, tmp_path: Path
) -> None:
    with pytest.raises(ZeroDivisionError):
        await engine.write(break_off, "x")
    assert not writer(engine)._connection._conn.in_transaction
    await engine.write(define, wanted("a"))
    assert defined(tmp_path) == {"a"}


class Refusing(logging.Filter):
    """A filter of the program that raises once."""

    has_raised = False

    def filter(self, record: logging.LogRecord) -> bool:
        if not self.has_raised and "calls (" in str(record.msg):
            self.has_raised = True
            raise RuntimeError("filter")
        return True


async def test_callers_get_an_answer_if_logging_raises_on_the_thread(engine: SQLiteEngine, tmp_path: Path) -> None:
    logger, refusing = logging.getLogger("agentbus.engine"), Refusing()
    level = logger.level
    logger.addFilter(refusing)
    logger.setLevel(logging.DEBUG)
    try:
        with anyio.fail_after(60), pytest.raises(OutcomeUnknown):
            await engine.write(define, wanted("a"))
    finally:
        logger.removeFilter(refusing)
        logger.setLevel(level)
    assert refusing.has_raised
    with anyio.fail_after(60):
        await engine.write(define, wanted("b"))
    assert "b" in defined(tmp_path)


@dataclass(frozen=True)
class Small:
    """A request that may run on the loop's own thread."""

    name: str
    row_estimate = 1


@operation(durable=True)
def refuse(requests: Sequence[Small], now: Now) -> Op[list[Outcome[None]]]:
    yield Query("meta_get", ("boot",))
    raise ZeroDivisionError


@operation(durable=True)
def promote(requests: Sequence[Small], now: Now) -> Op[list[Outcome[None]]]:
    """Run a query that may not run on the loop's own thread."""
    yield Query("message_promote", (now.wall, [1]))
    return [None] * len(requests)


def begin_inline(engine: SQLiteEngine) -> None:
    """Let the next batch begin on the loop's own thread, as one of several calls."""
    target = writer(engine)
    target._inline_left, target._single = 63, False


async def test_a_failed_neighbour_does_not_refuse_a_call_that_needs_the_thread(engine: SQLiteEngine) -> None:
    begin_inline(engine)
    answers = await asyncio.gather(
        answer_to(engine.write(refuse, Small("a"))),
        answer_to(engine.write(promote, Small("b"))),
        return_exceptions=True,
    )
    assert [type(answer) for answer in answers] == [ZeroDivisionError, type(None)]


async def test_a_call_that_is_committed_on_a_full_disk_does_not_run_again(
    engine: SQLiteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its neighbour is tried again with the space of the disk reserve, and would have to wait."""
    monkeypatch.setattr(disk_reserve, "release", lambda _: True)
    ran: list[str] = []

    @operation(durable=True)
    def count(requests: Sequence[Small], now: Now) -> Op[list[Outcome[None]]]:
        ran.extend(request.name for request in requests)
        yield Query("meta_set", ("counted", "1"))
        return [None] * len(requests)

    @operation(durable=True)
    def claim_on_full_disk(requests: Sequence[Small], now: Now) -> Op[list[Outcome[None]]]:
        if ran.count("b") == 0:
            ran.append("b")
            yield Query("meta_get", ("boot",))
            return [DiskFull(path="x")]
        yield Query("message_promote", (now.wall, [1]))
        return [None]

    begin_inline(engine)
    answers = await asyncio.gather(
        answer_to(engine.write(count, Small("a"))),
        answer_to(engine.write(claim_on_full_disk, Small("b"))),
        return_exceptions=True,
    )
    assert ran.count("a") == 1
    assert answers[0] is None
    assert isinstance(answers[1], LockTimeout)


# Cancelled callers


async def test_a_withdrawn_call_is_not_written(engine: SQLiteEngine, tmp_path: Path) -> None:
    gate = await paused(engine)
    tasks = start(engine, "a", "b", "c")
    await turns()
    tasks[1].cancel()
    await turns()
    gate.opened.set()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(answers[1], asyncio.CancelledError)
    assert defined(tmp_path) == {"a", "c"}


async def test_when_all_withdraw_nothing_is_written_and_the_writer_continues(
    engine: SQLiteEngine, tmp_path: Path
) -> None:
    gate = await paused(engine)
    tasks = start(engine, "a", "b")
    await turns()
    for task in tasks:
        task.cancel()
    gate.opened.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    await engine.write(define, wanted("c"))
    assert defined(tmp_path) == {"c"}


async def orphan(
    engine: SQLiteEngine, operation: Operation[Any, Any], request: Any, results: list[Any]
) -> asyncio.Task[Any]:
    """A caller that is cancelled while its call is being written."""
    gate = Gate()
    held = asyncio.ensure_future(answer_to(engine.write(pause, gate)))
    task = asyncio.ensure_future(answer_to(engine.write(operation, request, on_abandoned=results.append)))
    await gate.reached()
    task.cancel()
    await turns()
    gate.opened.set()
    await held
    return task


async def test_the_result_of_a_cancelled_caller_goes_to_on_abandoned(engine: SQLiteEngine) -> None:
    sender, _ = await agent(engine, "a")
    results: list[Any] = []
    task = await orphan(engine, send, message(sender, "a"), results)
    with pytest.raises(asyncio.CancelledError):
        await task
    await turns()
    ((receipt,),) = results
    assert receipt.message_id == f"m-{receipt.id}"


async def test_the_error_of_a_cancelled_caller_is_dropped(engine: SQLiteEngine) -> None:
    await agent(engine, "a")
    results: list[Any] = []
    task = await orphan(engine, send, message(Actor("a", 99), "a"), results)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert results == []


async def test_a_caller_cancelled_after_its_result_came_abandons_it(engine: SQLiteEngine) -> None:
    sender, _ = await agent(engine, "a")
    results: list[Any] = []
    gate = await paused(engine)
    first = asyncio.ensure_future(engine.write(define, wanted("first")))
    task = asyncio.ensure_future(answer_to(engine.write(send, message(sender, "a"), on_abandoned=results.append)))
    # Both are answered in one go; the answer is there, but the caller has not run yet.
    first.add_done_callback(lambda _: task.cancel())
    gate.opened.set()
    await first
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(results) == 1


async def test_a_caller_that_took_its_result_does_not_abandon_it(engine: SQLiteEngine) -> None:
    sender, _ = await agent(engine, "a")
    results: list[Any] = []
    await engine.write(send, message(sender, "a"), on_abandoned=results.append)
    assert results == []


# Durability


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The syncs of the log."""
    done: list[int] = []
    sync = wal._sync

    def counted(file: int) -> None:
        done.append(file)
        sync(file)

    monkeypatch.setattr(wal, "_sync", counted)
    return done


async def test_only_a_batch_with_a_promise_in_it_is_fsynced(engine: SQLiteEngine, syncs: list[int]) -> None:
    def cheap() -> Awaitable[bool]:
        return engine.write(heartbeat, HeartbeatRequest(engine.process, ()))

    def promise(name: str) -> Awaitable[None]:
        return engine.write(define, wanted(name))

    steps: list[tuple[Callable[[], Awaitable[Any]], int]] = [
        (cheap, 0),
        (lambda: promise("a"), 1),
        (lambda: asyncio.gather(cheap(), cheap()), 0),
        (lambda: asyncio.gather(cheap(), promise("b"), cheap()), 1),
        (cheap, 0),
    ]
    for step, expected in steps:
        syncs.clear()
        await step()
        assert len(syncs) == expected


async def test_a_caller_may_say_otherwise(engine: SQLiteEngine, syncs: list[int]) -> None:
    await engine.write(heartbeat, HeartbeatRequest(engine.process, ()), durable=True)
    assert len(syncs) == 1
    await engine.write(define, wanted("a"), durable=False)
    assert len(syncs) == 1


async def test_durability_process_fsyncs_nothing(tmp_path: Path, syncs: list[int]) -> None:
    async with opened(tmp_path / "bus", "process") as engine:
        await engine.write(define, wanted("a"))
        assert syncs == []
    assert defined(tmp_path) == {"a"}


# Closing


async def test_closing_writes_what_waits(tmp_path: Path) -> None:
    async with opened(tmp_path / "bus") as engine:
        gate = await paused(engine)
        tasks = start(engine, "a", "b", "c")
        await turns()
        closing = asyncio.ensure_future(engine.close())
        await turns()
        gate.opened.set()
        with anyio.fail_after(60):
            await asyncio.gather(*tasks, closing)
    assert defined(tmp_path) == {"a", "b", "c"}


async def test_a_closed_engine_refuses_calls(tmp_path: Path) -> None:
    async with opened(tmp_path / "bus") as engine:
        gate = await paused(engine)
        closing = asyncio.ensure_future(engine.close())
        await turns()
        with pytest.raises(BusClosed):
            await engine.write(define, wanted("a"))
        gate.opened.set()
        await closing
        with pytest.raises(BusClosed):
            await engine.write(define, wanted("a"))


async def test_closing_twice_is_fine(tmp_path: Path) -> None:
    async with opened(tmp_path / "bus") as engine:
        await engine.close()
        await engine.close()


async def test_a_call_that_runs_out_of_stack_hangs_no_other_call(engine: SQLiteEngine) -> None:
    actor, _ = await agent(engine, "a")

    async def deep(frames: int) -> None:
        if frames:
            await deep(frames - 1)
        else:
            await engine.write(ack, AckRequest(actor, ()))

    refused = 0
    for frames in range(sys.getrecursionlimit() - 200, sys.getrecursionlimit()):
        try:
            await deep(frames)
        except RecursionError:
            refused += 1
        with anyio.fail_after(60):
            await engine.write(ack, AckRequest(actor, ()))
    assert 0 < refused < 200


async def test_any_number_of_calls_that_touch_nothing_are_answered(engine: SQLiteEngine) -> None:
    actor, _ = await agent(engine, "a")
    with anyio.fail_after(60):
        await asyncio.gather(*(engine.write(ack, AckRequest(actor, ())) for _ in range(1500)))
        await engine.write(define, wanted("x"))


async def test_an_on_abandoned_callback_that_raises_hangs_no_other_call(
    engine: SQLiteEngine, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: object) -> None:
        raise ZeroDivisionError

    async def call() -> None:
        await engine.write(define, wanted("a"), on_abandoned=fail)

    gate = Gate()
    held = asyncio.ensure_future(answer_to(engine.write(pause, gate)))
    task = asyncio.create_task(call())
    await gate.reached()
    task.cancel()
    gate.opened.set()
    with anyio.fail_after(60):
        await asyncio.wait([task])
        await engine.write(define, wanted("b"))
        await held
    assert task.cancelled()
