"""The event loop and the disk: a batch is delivered when its sync has ended, whichever of kernel and thread does it."""

from __future__ import annotations

import asyncio
import dis
import errno
import fcntl
import inspect
import os
import select
import sqlite3
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from contextvars import Context
from dataclasses import dataclass
from functools import cache
from itertools import count, pairwise
from pathlib import Path
from types import CodeType
from typing import Any

import anyio
import pytest

from agentbus.core.clock import Now
from agentbus.engine.group_commit import PendingCall, resolve
from agentbus.engine.sqlite import engine as engines
from agentbus.engine.sqlite import wal
from agentbus.engine.sqlite import writer as writers
from agentbus.engine.sqlite.engine import SQLiteEngine
from agentbus.engine.sqlite.lock import CommitCounters
from agentbus.engine.sqlite.transaction import TransactionRunner
from agentbus.engine.sqlite.wal import KernelSync, WriteAheadLog, open_kernel_sync
from agentbus.engine.sqlite.writer import Writer
from agentbus.errors import BusClosed, LogNotSynced, OutcomeUnknown
from agentbus.operations.processes import HeartbeatRequest, heartbeat
from agentbus.operations.protocol import Op, Outcome, Query, operation
from agentbus.operations.receive import Claim, ClaimRequest, claim
from agentbus.operations.send import send
from tests.support.writing import agent, answer_to, message, opened, turns, writer

pytestmark = pytest.mark.skipif(not hasattr(os, "eventfd"), reason="no eventfd here")


class Kernel(KernelSync):
    """Syncs by the kernel that end when a test says so; at first, at once."""

    def __init__(self) -> None:
        self.event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.file = -1
        self.path = ""
        self.begun = 0
        self.error = 0
        self.refuses = False
        self.holds = False
        """A sync that begins does not end by itself."""
        self.is_brief = True
        """A brief wait is long enough for a sync that ends by itself."""
        self.brief_waits = 0
        self._running = False
        self._done: int | None = None

    def open(self, path: str) -> Kernel:
        self.path = f"{path}-wal"
        self.file = os.open(self.path, os.O_RDWR)
        return self

    def begin(self) -> bool:
        if self._running or self.refuses:
            return False
        self.begun += 1
        self._running = True
        if not self.holds:
            self.finish()
        return True

    def finish(self) -> None:
        """End the sync in progress, with ``error``."""
        assert self._running
        self._done = self.error
        os.eventfd_write(self.event, 1)

    def spin(self) -> bool:
        self.brief_waits += 1
        return self._done is not None and self.is_brief

    def result(self) -> int | None:
        return self._done

    def end(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self.event)
        self._done, self._running = None, False

    def close(self) -> None:
        self.forget()


class Thread:
    """The syncs of the log on a thread; and the log written again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.files: list[int] = []
        self.rewrites = 0
        self.fails: set[str] = set()
        sync, rewrite = wal._sync, wal._rewrite_in_place

        def watched_sync(file: int) -> None:
            self.files.append(file)
            if "sync" in self.fails:
                raise OSError(errno.EIO, "Input/output error")
            sync(file)

        def watched_rewrite(path: str) -> None:
            self.rewrites += 1
            if "rewrite" in self.fails:
                raise OSError(errno.EIO, "Input/output error")
            rewrite(path)

        monkeypatch.setattr(wal, "_sync", watched_sync)
        monkeypatch.setattr(wal, "_rewrite_in_place", watched_rewrite)


@pytest.fixture
def thread(monkeypatch: pytest.MonkeyPatch) -> Thread:
    return Thread(monkeypatch)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    kernel = Kernel()
    monkeypatch.setattr(engines, "open_kernel_sync", kernel.open)
    return kernel


@pytest.fixture
async def engine(tmp_path: Path, kernel: Kernel, thread: Thread) -> AsyncIterator[SQLiteEngine]:
    async with opened(tmp_path / "bus") as engine:
        await ready(engine)
        thread.files.clear()
        kernel.begun = 0
        yield engine
        thread.fails.clear()
        kernel.holds, kernel.error = False, 0


async def ready(engine: SQLiteEngine) -> None:
    """From now on small calls run on the loop's own thread, until a number of them has."""
    await engine.write(mark, Mark("ready"))
    writer(engine)._inline_left = 63


def in_progress(engine: SQLiteEngine) -> None:
    """Announce a commit of another process, whose sync has not ended."""
    with counters(engine) as found:
        found.announce()


def is_synced(engine: SQLiteEngine) -> bool:
    with counters(engine) as found:
        return found.unsynced() == 0


@contextmanager
def counters(engine: SQLiteEngine) -> Iterator[CommitCounters]:
    descriptor = os.open(engine._home.lock, os.O_RDWR)
    try:
        yield CommitCounters(descriptor)
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class Mark:
    """A small promise: it may run on the loop's own thread."""

    name: str
    row_estimate = 1


@operation(durable=True)
def mark(requests: Sequence[Mark], now: Now) -> Op[list[Outcome[None]]]:
    for request in requests:
        yield Query("meta_set", (request.name, "marked"))
    return [None] * len(requests)


def is_marked(name: str, now: Now) -> Op[bool]:
    return bool((yield Query("meta_get", (name,))))


def marked(engine: SQLiteEngine, name: str) -> bool:
    """Look into the database."""
    with closing(sqlite3.connect(engine._home.database)) as connection:
        ((found,),) = connection.execute("SELECT count(*) FROM meta WHERE key = ?", (name,))
    return bool(found)


def marking(engine: SQLiteEngine, name: str) -> asyncio.Task[None]:
    return asyncio.ensure_future(answer_to(engine.write(mark, Mark(name))))


# The kernel


async def test_a_lone_promise_is_synced_by_the_kernel_and_waits_for_it(
    engine: SQLiteEngine, kernel: Kernel, thread: Thread, tmp_path: Path
) -> None:
    kernel.holds = True
    task = marking(engine, "a")
    await turns()
    assert kernel.begun == 1
    assert marked(engine, "a"), "it is committed"
    assert not task.done()
    assert not is_synced(engine)
    kernel.finish()
    await task
    assert is_synced(engine)
    assert thread.files == []


async def test_kernel_and_thread_sync_by_descriptors_of_their_own(engine: SQLiteEngine, kernel: Kernel) -> None:
    """Linux reports an error once to each: one may not take it from the other."""
    log = writer(engine)._runner._log
    assert log._file != kernel.file
    assert os.path.samestat(os.fstat(log._file), os.fstat(kernel.file))


async def test_a_kernel_that_refuses_leaves_it_to_the_thread(
    engine: SQLiteEngine, kernel: Kernel, thread: Thread
) -> None:
    kernel.refuses = True
    await engine.write(mark, Mark("a"))
    assert (kernel.begun, len(thread.files)) == (0, 1)
    assert is_synced(engine)


async def test_without_asynchronous_io_everything_works_on_the_thread(
    tmp_path: Path, thread: Thread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "open_kernel_sync", lambda _: None)
    async with opened(tmp_path / "bus") as engine:
        sender, _ = await agent(engine, "a")
        actor, registration = await agent(engine, "b")
        thread.files.clear()
        await engine.write(send, message(sender, "b"))
        assert len(thread.files) == 1
        found = await engine.write(claim, ClaimRequest(actor, (), (registration.mailbox,), (), 1, 60_000))
        assert isinstance(found, Claim)
        assert len(found.rows) == 1
        in_progress(engine)
        thread.files.clear()
        assert await engine.read(is_marked, "boot") is True
        assert len(thread.files) == 1
        await asyncio.gather(marking(engine, "x"), marking(engine, "y"))
        assert marked(engine, "x")
        assert marked(engine, "y")


# Reads


async def isolated(engine: SQLiteEngine) -> object:
    return await engine.read_isolated(is_marked, "ready")


READS: dict[str, Callable[[SQLiteEngine], Awaitable[object]]] = {
    "inline": lambda engine: engine.read_inline(is_marked, "ready"),
    "on the thread": lambda engine: engine.read(is_marked, "ready"),
    "isolated": isolated,
}


@pytest.mark.parametrize("kind", READS)
async def test_a_read_waits_for_a_sync_of_what_it_may_have_seen(
    engine: SQLiteEngine, kernel: Kernel, thread: Thread, kind: str
) -> None:
    assert await READS[kind](engine) is True
    assert thread.files == [], "everything is synced"
    in_progress(engine)
    assert await READS[kind](engine) is True
    assert len(thread.files) == 1
    assert is_synced(engine)
    assert await READS[kind](engine) is True
    assert (len(thread.files), kernel.begun) == (1, 0)


async def test_reads_share_a_sync(engine: SQLiteEngine, thread: Thread) -> None:
    in_progress(engine)
    await asyncio.gather(*(engine.read_inline(is_marked, "ready") for _ in range(20)))
    assert len(thread.files) == 1


async def test_a_read_waits_for_the_sync_of_its_own_process(
    engine: SQLiteEngine, kernel: Kernel, thread: Thread
) -> None:
    kernel.holds = True
    task = marking(engine, "a")
    await turns()
    reading = asyncio.ensure_future(engine.read_inline(is_marked, "a"))
    await turns()
    assert not reading.done()
    kernel.finish()
    assert await reading is True
    await task
    assert thread.files == [], "the same sync is enough"


async def test_a_cancelled_read_takes_no_sync_from_another(engine: SQLiteEngine, thread: Thread) -> None:
    in_progress(engine)
    reading = [asyncio.ensure_future(engine.read_inline(is_marked, "ready")) for _ in range(2)]
    await asyncio.sleep(0)
    reading[0].cancel()
    cancelled, answer = await asyncio.gather(*reading, return_exceptions=True)
    assert isinstance(cancelled, asyncio.CancelledError)
    assert answer is True
    await engine.write(mark, Mark("a"))


async def test_a_read_that_cannot_be_synced_raises(engine: SQLiteEngine, thread: Thread) -> None:
    in_progress(engine)
    thread.fails = {"sync", "rewrite"}
    for kind in READS.values():
        with pytest.raises(LogNotSynced):
            await kind(engine)
    thread.fails.clear()
    assert await engine.read_inline(is_marked, "ready") is True


async def test_durability_process_waits_for_no_disk(tmp_path: Path, kernel: Kernel, thread: Thread) -> None:
    async with opened(tmp_path / "bus", "process") as engine:
        await ready(engine)
        in_progress(engine)
        assert await engine.read_inline(is_marked, "ready") is True
        assert (thread.files, kernel.begun) == ([], 0)


# Claims


async def test_a_claim_of_a_message_whose_sender_still_syncs_waits(
    engine: SQLiteEngine, kernel: Kernel, tmp_path: Path
) -> None:
    sender, _ = await agent(engine, "a")
    receiver, registration = await agent(engine, "b")
    request = ClaimRequest(receiver, (), (registration.mailbox,), (), 1, 60_000)
    await engine.write(send, message(sender, "b"))
    in_progress(engine)
    writer(engine)._inline_left = 63
    kernel.holds = True
    begun = kernel.begun
    claiming = asyncio.ensure_future(answer_to(engine.write(claim, request)))
    await turns()
    assert kernel.begun == begun + 1
    assert not claiming.done()
    kernel.finish()
    assert len((await claiming).rows) == 1
    # Of what is synced it syncs nothing.
    await engine.write(claim, request)
    assert kernel.begun == begun + 1


async def test_calls_that_return_no_rows_do_not_wait(engine: SQLiteEngine, kernel: Kernel, thread: Thread) -> None:
    in_progress(engine)
    kernel.holds = True
    await engine.write(heartbeat, HeartbeatRequest(engine.process, ()))
    assert (kernel.begun, thread.files) == (0, [])


# Syncs that fail


async def test_after_a_kernel_sync_that_failed_the_log_is_rewritten(
    engine: SQLiteEngine, kernel: Kernel, thread: Thread, tmp_path: Path
) -> None:
    kernel.error = errno.EIO
    with pytest.raises(OutcomeUnknown, match="Input/output error"):
        await engine.write(mark, Mark("a"))
    assert thread.rewrites == 1
    assert set(thread.files) == {writer(engine)._runner._log._file, kernel.file}, "both learn of old errors"
    kernel.error = 0
    await ready(engine)
    await engine.write(mark, Mark("b"))
    assert thread.rewrites == 1
    assert marked(engine, "a")
    assert marked(engine, "b")


@pytest.mark.parametrize("repaired", [True, False])
async def test_a_claim_in_a_batch_whose_sync_failed_is_right_or_raises(
    engine: SQLiteEngine, kernel: Kernel, thread: Thread, repaired: bool
) -> None:
    sender, _ = await agent(engine, "a")
    receiver, registration = await agent(engine, "b")
    request = ClaimRequest(receiver, (), (registration.mailbox,), (), 1, 60_000)
    writer(engine)._inline_left = 63
    kernel.error = errno.EIO
    thread.fails = set() if repaired else {"rewrite"}
    calls: list[Awaitable[Any]] = [engine.write(send, message(sender, "b")), engine.write(claim, request)]
    sent, claimed = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(sent, OutcomeUnknown)
    if repaired:
        assert isinstance(claimed, Claim)
        assert len(claimed.rows) == 1
        assert is_synced(engine)
    else:
        assert isinstance(claimed, OutcomeUnknown)
        assert not is_synced(engine)


async def test_a_promise_after_a_failure_waits_for_the_rewrite(
    engine: SQLiteEngine, kernel: Kernel, thread: Thread
) -> None:
    kernel.error = errno.EIO
    thread.fails = {"rewrite", "sync"}
    with pytest.raises(OutcomeUnknown):
        await engine.write(mark, Mark("a"))
    kernel.error = 0
    with pytest.raises(LogNotSynced):
        await engine.write(mark, Mark("b"))
    thread.fails.clear()
    await engine.write(mark, Mark("b"))
    assert is_synced(engine)


async def test_a_failure_of_another_process_during_a_kernel_sync_causes_a_rewrite(
    engine: SQLiteEngine, kernel: Kernel, thread: Thread
) -> None:
    kernel.holds = True
    task = marking(engine, "a")
    await turns()
    with counters(engine) as found:
        found.count_failure()
    kernel.finish()
    await task
    assert thread.rewrites == 1


# Brief waits


class LateKernel(Kernel):
    """While it is late, its answer comes before its event, which is signalled at the third look at it."""

    _spins_to_skip = 0

    def __init__(self) -> None:
        super().__init__()
        self.is_late = False
        self.looks = 0
        self._poll: Any = self

    def finish(self) -> None:
        self._done = 0
        self.looks = 0
        if not self.is_late:
            self.signal()

    def signal(self) -> None:
        """Signal the event of the answer that came last."""
        if self.looks < 3:
            self.looks = 3
            os.eventfd_write(self.event, 1)

    def poll(self, _: float) -> bool:
        self.looks += 1
        if self.looks == 3:
            os.eventfd_write(self.event, 1)
        return self.looks >= 3

    def spin(self) -> bool:
        return KernelSync.spin(self)


def wakes(engine: SQLiteEngine) -> list[None]:
    """Return a list that grows with each wake-up of the loop by the kernel."""
    found: list[None] = []
    used = writer(engine)
    assert used._kernel is not None

    def woken() -> None:
        found.append(None)
        used._on_synced()

    used._loop.add_reader(used._kernel.event, woken)
    return found


async def test_after_a_brief_wait_the_loop_is_not_woken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, thread: Thread
) -> None:
    """Also where the answer was there before the event: it would stay readable, and the loop would never rest."""
    kernel = LateKernel()
    monkeypatch.setattr(engines, "open_kernel_sync", kernel.open)
    monkeypatch.setattr(wal, "_MAX_SPIN", 30)
    async with opened(tmp_path / "bus") as engine:
        await ready(engine)
        kernel.is_late = True
        woken, begun = wakes(engine), kernel.begun
        for name in "abc":
            writer(engine)._inline_left = 63
            answer = asyncio.ensure_future(engine.write(mark, Mark(name)))
            is_delivered = answer.done()
            kernel.signal()
            await turns()
            assert is_delivered, "on the caller's stack"
            assert marked(engine, name)
        kernel.is_late = False
        assert is_synced(engine)
        assert (kernel.begun - begun, woken) == (3, [])


async def test_a_sync_that_takes_longer_than_a_brief_wait_is_delivered_by_the_loop(
    engine: SQLiteEngine, kernel: Kernel
) -> None:
    await ready(engine)
    woken = wakes(engine)
    kernel.is_brief, waits = False, kernel.brief_waits
    for name in "abc":
        writer(engine)._inline_left = 63
        await engine.write(mark, Mark(name))
    assert (kernel.brief_waits - waits, len(woken)) == (3, 3)
    assert is_synced(engine)


@pytest.mark.parametrize("is_brief", [True, False])
async def test_an_error_of_a_sync_reaches_the_caller_after_a_brief_wait_too(
    engine: SQLiteEngine, kernel: Kernel, thread: Thread, is_brief: bool
) -> None:
    await ready(engine)
    woken = wakes(engine)
    kernel.is_brief, kernel.error, waits = is_brief, errno.EIO, kernel.brief_waits
    with pytest.raises(OutcomeUnknown, match="Input/output error"):
        await engine.write(mark, Mark("a"))
    assert (kernel.brief_waits - waits, len(woken)) == (1, 0 if is_brief else 1)
    assert thread.rewrites == 1, "the log is rewritten first"
    kernel.error = 0
    await ready(engine)
    await engine.write(mark, Mark("b"))
    assert is_synced(engine)


async def test_a_loop_that_has_something_else_to_do_is_not_held(engine: SQLiteEngine, kernel: Kernel) -> None:
    loop = asyncio.get_running_loop()
    handle = loop.call_soon(lambda: None)

    def work() -> None:
        nonlocal handle
        handle = loop.call_soon(work)

    await ready(engine)
    work()
    begun, waits = kernel.begun, kernel.brief_waits
    for name in "ab":
        writer(engine)._inline_left = 63
        await engine.write(mark, Mark(name))
    assert (kernel.begun - begun, kernel.brief_waits - waits) == (2, 0)
    handle.cancel()
    await engine.write(mark, Mark("c"))
    assert kernel.brief_waits - waits <= 1


# An interrupt between a batch and its delivery


class Interrupting(deque[Any]):
    """Raises once, as a signal handler, right after something was added."""

    is_armed = True

    def append(self, item: Any) -> None:
        super().append(item)
        if self.is_armed:
            self.is_armed = False
            raise Interrupted


async def test_what_is_done_is_delivered_before_the_next_batch_starts(
    engine: SQLiteEngine, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its delivery would take the thread of the next batch for idle, and a third would run beside that."""
    await ready(engine)
    target = writer(engine)
    started: list[tuple[bool, int]] = []
    run = target._runner.run_nowait

    def noting(calls: Any) -> Any:
        started.append((target._handed_over is not None, len(target._done)))
        return run(calls)

    target._done, target._single, target._inline_left = Interrupting(target._done), True, 63
    with pytest.raises(Interrupted):
        engine.write(mark, Mark("a"), durable=False)
    assert len(target._done) == 1
    kernel.refuses = True
    monkeypatch.setattr(target._runner, "run_nowait", noting)
    assert not (await asyncio.wait([marking(engine, name) for name in "bcd"], timeout=30))[1]
    assert started
    assert set(started) == {(False, 0)}


# Closing


async def test_closing_waits_for_a_slow_kernel_sync(
    engine: SQLiteEngine, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = 0
    wait = asyncio.wait
    several = asyncio.Event()

    async def impatient(futures: Any, *, timeout: float | None = None) -> Any:
        nonlocal waits
        waits += 1
        if waits > 3:
            several.set()
        return await wait(futures, timeout=timeout and 0.001)

    kernel.holds = True
    task = marking(engine, "a")
    await turns()
    with monkeypatch.context() as patch, anyio.fail_after(60):
        patch.setattr(asyncio, "wait", impatient)
        closing = asyncio.ensure_future(engine.close())
        await several.wait()
        assert not closing.done()
        assert not task.done()
        kernel.finish()
        await closing
    await task


async def test_a_read_that_ends_while_the_bus_closes_waits_for_the_disk_or_raises(
    engine: SQLiteEngine, thread: Thread
) -> None:
    entered, released = threading.Event(), threading.Event()

    def look(_: None, now: Now) -> Op[str]:
        yield Query("meta_get", ("boot",))
        entered.set()
        assert released.wait(30)
        in_progress(engine)
        return "rows"

    reading = asyncio.ensure_future(engine.read(look, None))
    assert await asyncio.to_thread(entered.wait, 30)
    closing = asyncio.ensure_future(engine.close())
    await turns()
    thread.files.clear()
    released.set()
    try:
        assert await reading == "rows"
        assert thread.files
    except BusClosed:
        pass
    await closing


async def test_a_writer_that_is_closed_vouches_for_nothing(engine: SQLiteEngine) -> None:
    """A read may end after it."""
    closed = writer(engine)
    await engine.close()
    with pytest.raises(BusClosed):
        await closed.wait_until_synced()


# Signal handlers that raise


class Interrupted(Exception):
    """As a signal handler of the user may raise it."""


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


def lines(function: Callable[..., object]) -> list[int]:
    source, first = inspect.getsourcelines(function)
    code = getattr(function, "__code__")  # noqa: B009
    return sorted({line for _, _, line in code.co_lines() if line and first <= line < first + len(source)})


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
    assert kernel.begin(), f"the kernel is not used any more: {at}"
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
