"""Signal handlers that raise at any point of the writer: no caller hangs, and later calls are answered."""

from __future__ import annotations

import asyncio
import dis
import fcntl
import inspect
import os
import select
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from contextvars import Context
from functools import cache
from itertools import count, pairwise
from pathlib import Path
from types import CodeType
from typing import Any

import anyio
import pytest

from agentbus.engine.group_commit import PendingCall, resolve
from agentbus.engine.sqlite import wal
from agentbus.engine.sqlite import writer as writers
from agentbus.engine.sqlite.engine import SQLiteEngine
from agentbus.engine.sqlite.transaction import TransactionRunner
from agentbus.engine.sqlite.wal import KernelSync, WriteAheadLog, open_kernel_sync
from agentbus.engine.sqlite.writer import Writer
from agentbus.errors import OutcomeUnknown
from tests.engine.sqlite.log_syncs import (
    Interrupted,
    Kernel,
    Mark,
    Thread,
    is_marked,
    lines,
    mark,
    marked,
    marking,
    ready,
)
from tests.support.writing import opened, turns, writer

pytestmark = pytest.mark.skipif(not hasattr(os, "eventfd"), reason="no eventfd here")


@pytest.fixture
async def engine(tmp_path: Path, kernel: Kernel, thread: Thread) -> AsyncIterator[SQLiteEngine]:
    async with opened(tmp_path / "bus") as engine:
        await ready(engine)
        thread.files.clear()
        kernel.begun = 0
        yield engine
        thread.fails.clear()
        kernel.holds, kernel.error = False, 0


INTERRUPTED: tuple[Callable[..., object], ...] = (
    Writer._advance,
    Writer._start,
    Writer._on_synced,
    Writer._run_inline,
    Writer._end_sync,
    Writer._deliver,
    Writer._release_reads,
    Writer.wait_until_synced,
    TransactionRunner.run_nowait,
    TransactionRunner._begin_sync,
    TransactionRunner._end_wait,
    TransactionRunner.end_sync,
    WriteAheadLog._begin_sync,
    WriteAheadLog.begin_kernel_sync,
    WriteAheadLog.end_sync,
    KernelSync.begin,
    KernelSync.spin,
    KernelSync.result,
    KernelSync.end,
    resolve,
)


def entry(function: Callable[..., object]) -> range:
    """Return the lines of a function up to its first ``try``."""
    source, first = inspect.getsourcelines(function)
    stripped = [line.strip() for line in source]
    return range(first, first + (stripped.index("try:") if "try:" in stripped else 0) + 1)


async def interrupt(engine: SQLiteEngine, function: Callable[..., object], line: int) -> bool:
    """Write while a signal handler raises at a line; then write again. Return True if it was executed."""
    code = getattr(function, "__code__")  # noqa: B009

    def trace(frame: Any, event: str, _: Any) -> Any:
        if frame.f_code is not code:
            return None
        if event in {"call", "line"} and frame.f_lineno == line:
            sys.settrace(None)
            raised.append(line)
            raise Interrupted
        return trace

    raised: list[int] = []
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        first = begun(engine, f"{code.co_name}-{line}")
        reading = asyncio.ensure_future(_read(engine))
        if line in entry(function):
            # Where the loop calls the function, nothing knows of the call until the next write.
            await turns()
            await asyncio.wait([begun(engine, "next")], timeout=30)
        await asyncio.wait([first, reading], timeout=30)
    finally:
        sys.settrace(before)
    assert first.done(), f"the caller hangs: {code.co_qualname}, line {line}"
    assert first.exception() is None or isinstance(first.exception(), OutcomeUnknown | Interrupted)
    later = marking(engine, f"{code.co_name}-{line}-later")
    await asyncio.wait([later], timeout=30)
    assert later.done(), f"later callers hang: {code.co_qualname}, line {line}"
    assert later.exception() is None
    return bool(raised)


def begun(engine: SQLiteEngine, name: str, durable: bool = True) -> asyncio.Future[Any]:
    """Write; what is raised on the caller's stack is the exception of the future."""
    try:
        return asyncio.ensure_future(engine.write(mark, Mark(name), durable=durable))
    except Interrupted as error:
        failed = asyncio.get_running_loop().create_future()
        failed.set_exception(error)
        return failed


async def _read(engine: SQLiteEngine) -> None:
    with suppress(Interrupted):
        await engine.read_inline(is_marked, "ready")


@pytest.mark.parametrize("function", [Writer._run_inline, Writer._hand_over], ids=lambda it: it.__name__)
async def test_no_caller_hangs_if_a_handler_raises_before_the_thread_is_called(
    engine: SQLiteEngine, kernel: Kernel, function: Callable[..., object]
) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    kernel.refuses = True
    executed = []
    for line in lines(function):
        for inline, single in ((0, False), (63, False), (63, True)):
            await engine.write(mark, Mark("ready"))
            writer(engine)._inline_left, writer(engine)._single = inline, single
            executed.append(await interrupt(engine, function, line))
    assert executed.count(True) >= 2


@pytest.mark.parametrize("function", INTERRUPTED, ids=lambda function: function.__qualname__)
async def test_no_caller_hangs_if_a_signal_handler_raises(
    tmp_path: Path, function: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any line between a commit and the answer to its caller."""
    (tmp_path / "file-wal").touch()
    if (kernel := open_kernel_sync(str(tmp_path / "file"))) is None:
        pytest.skip("no asynchronous I/O here")
    kernel.close()
    monkeypatch.setattr(wal, "_FIRST_KERNEL_SYNC", 1)
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    async with opened(tmp_path / "bus") as engine:
        executed = []
        for line in lines(function):
            for single in (False, True):
                await ready(engine)
                writer(engine)._single = single
                executed.append(await interrupt(engine, function, line))
        assert executed.count(True) >= 2


POINTS = ("RESUME", "CALL", "PRECALL", "JUMP_BACKWARD")
"""Instructions after which the interpreter runs signal handlers."""
TRACED = ("writer.py", "wal.py", "transaction.py", "lock.py", "group_commit.py")


class Interrupts:
    """Raises, as signal handlers do, at some of the points where the interpreter would run them in the engine."""

    def __init__(self, *at: int, only: str = "") -> None:
        self.at = list(at)
        self.only = only
        self.points = 0
        self.where: list[str] = []

    def trace(self, frame: Any, event: str, _: Any) -> Any:
        if event == "call":
            code = frame.f_code
            if os.path.basename(code.co_filename) not in TRACED or self.only not in code.co_qualname:
                return None
            frame.f_trace_lines, frame.f_trace_opcodes = False, True
        elif event == "opcode" and frame.f_lasti in points(frame.f_code):
            self.points += 1
            if self.at and self.points > self.at[0]:
                del self.at[0]
                self.points = 0
                self.where.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
                raise Interrupted
        return self.trace


@cache
def points(code: CodeType) -> frozenset[int]:
    """Return the offsets of the instructions before which a signal handler may run."""
    found = list(dis.get_instructions(code))
    return frozenset(
        after.offset
        for before, after in pairwise(found)
        if before.opname.startswith(POINTS) and not after.opname.startswith("CALL")
    )


async def write_interrupted(engine: SQLiteEngine, interrupts: Interrupts, durable: bool, name: str) -> None:
    """Write and read while signal handlers raise. Every caller gets an answer, and nothing is left behind."""
    before = sys.gettrace()
    sys.settrace(interrupts.trace)
    try:
        first = begun(engine, name, durable)
        reading = asyncio.ensure_future(_read(engine))
        await asyncio.wait([first, reading], timeout=30)
    finally:
        sys.settrace(before)
        interrupts.at.clear()
    at = ", ".join(interrupts.where)
    assert first.done(), f"the caller hangs: {at}"
    assert reading.done(), f"the reader hangs: {at}"
    reading.result()
    error = first.exception()
    assert error is None or isinstance(error, OutcomeUnknown | Interrupted)
    assert error is not None or marked(engine, name)


async def check_nothing_is_left(engine: SQLiteEngine, at: str) -> None:
    later = asyncio.ensure_future(engine.write(mark, Mark("later")))
    await asyncio.wait([later], timeout=30)
    assert later.done(), f"later callers hang: {at}"
    assert later.exception() is None
    with open(engine._home.lock, "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    kernel = writer(engine)._kernel
    assert kernel is not None
    for _ in range(3000):
        if has_begun := kernel.begin():
            break
        # A sync that was given up is still in progress.
        await asyncio.sleep(0.01)
    assert has_begun, f"the kernel is not used any more: {at}"
    assert select.select([kernel.event], [], [], 30)[0]
    assert kernel.result() == 0
    kernel.end()


@pytest.fixture
async def real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SQLiteEngine]:
    """An engine whose log the kernel syncs, and that looks often for lost callbacks."""
    (tmp_path / "file-wal").touch()
    if (kernel := open_kernel_sync(str(tmp_path / "file"))) is None:
        pytest.skip("no asynchronous I/O here")
    kernel.close()
    monkeypatch.setattr(wal, "_FIRST_KERNEL_SYNC", 1)
    monkeypatch.setattr(writers, "_CHECK_EVERY", 0.01)
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    async with opened(tmp_path / "bus") as engine:
        await ready(engine)
        yield engine


STARTS = [(63, True, True), (63, False, True), (0, False, True), (63, True, False)]
"""Inline batches left, True if the last batch was a single call, True for a durable call."""


@pytest.mark.parametrize(("inline", "single", "durable"), STARTS)
async def test_a_lone_caller_gets_an_answer_wherever_a_handler_raises(
    real: SQLiteEngine, inline: int, single: bool, durable: bool
) -> None:
    """Also where asyncio loses the callback: there is no later call that would start it."""
    executed = 0
    while True:
        writer(real)._inline_left, writer(real)._single = inline, single
        interrupts = Interrupts(executed)
        await write_interrupted(real, interrupts, durable, f"{executed}")
        if not interrupts.where:
            break
        executed += 1
        await check_nothing_is_left(real, interrupts.where[0])
    assert executed >= 50


# Python ignores what is raised where it closes a coroutine that an exception has left behind.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(("inline", "single", "durable"), STARTS)
async def test_no_caller_hangs_if_a_second_handler_raises_in_the_recovery(
    real: SQLiteEngine, inline: int, single: bool, durable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it schedules what is to be done next, or in a callback after that."""
    loop = asyncio.get_running_loop()
    interrupts, schedule = Interrupts(), loop.call_soon

    def call_soon(callback: Callable[..., object], *arguments: Any, context: Context | None = None) -> asyncio.Handle:
        if interrupts.where and interrupts.at and callback == writer(real)._advance:
            if interrupts.at[0] < 0:
                interrupts.at.clear()
                interrupts.where.append("call_soon")
                raise Interrupted
            # The interpreter has ended the trace when it raised.
            sys.settrace(interrupts.trace)
        return schedule(callback, *arguments, context=context)

    monkeypatch.setattr(loop, "call_soon", call_soon)
    executed = 0
    for first in count():
        for second in (-1, *range(first % 4, 24, 4)):
            writer(real)._inline_left, writer(real)._single = inline, single
            interrupts = Interrupts(first, second, only="Writer.")
            await write_interrupted(real, interrupts, durable, f"{first}-{second}")
            executed += len(interrupts.where) == 2
            await check_nothing_is_left(real, ", ".join(interrupts.where))
        if not interrupts.where:
            break
    assert executed >= 10


async def test_a_later_call_starts_what_a_handler_has_interrupted(
    real: SQLiteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without waiting for the check, and however often it happened before."""
    monkeypatch.setattr(writers, "_CHECK_EVERY", 60)
    await asyncio.sleep(0.02)
    for lost in range(1, 4):
        writer(real)._inline_left = 0
        calls = []
        before = sys.gettrace()
        for number in range(lost):
            interrupts = Interrupts(0, only="Writer._advance")
            sys.settrace(interrupts.trace)
            try:
                calls.append(begun(real, f"{lost}-{number}"))
                await turns()
            finally:
                sys.settrace(before)
            assert interrupts.where
        assert not any(call.done() for call in calls)
        calls.append(marking(real, f"{lost}-last"))
        assert not (await asyncio.wait(calls, timeout=30))[1]


async def test_what_a_caller_got_is_not_abandoned_if_the_delivery_is_repeated() -> None:
    abandoned: list[object] = []
    loop = asyncio.get_running_loop()
    delivered, cancelled = loop.create_future(), loop.create_future()
    cancelled.cancel()
    calls = [PendingCall(mark, None, True, future=it, on_abandoned=abandoned.append) for it in (delivered, cancelled)]
    for number, call in enumerate(calls):
        call.outcome = number
    delivered.set_result(0)
    resolve(deque(calls))
    assert abandoned == [1]


async def test_a_lost_callback_of_a_doorbell_does_not_silence_it(
    real: SQLiteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writers, "_MAX_RING_RETRY", 0.05)
    target, loop = writer(real), asyncio.get_running_loop()
    lost: list[object] = []
    schedule = loop.call_soon_threadsafe

    def lose(callback: Callable[..., object], *arguments: Any, context: Context | None = None) -> asyncio.Handle:
        if getattr(callback, "__name__", "") == "_rung_again" and not lost:
            lost.append(callback)
            callback = bool
            arguments = ()
        return schedule(callback, *arguments, context=context)

    monkeypatch.setattr(loop, "call_soon_threadsafe", lose)
    rung: list[bool] = []

    def ring_again() -> bool:
        rung.append(True)
        return len(rung) > 1

    monkeypatch.setattr(target._runner, "ring_again", ring_again)
    monkeypatch.setattr(target._runner._ringer, "ring", lambda _: False)
    with anyio.fail_after(30):
        while len(rung) < 2:
            await real.write(mark, Mark("rings"))
        monkeypatch.undo()
        while target._ringing:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert lost
