"""The event loop and the disk: a batch is delivered when its sync has ended, whichever of kernel and thread does it."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentbus.core.clock import Now
from agentbus.engine.sqlite import engine as engines
from agentbus.engine.sqlite import wal
from agentbus.engine.sqlite.engine import SQLiteEngine
from agentbus.engine.sqlite.wal import KernelSync
from agentbus.errors import BusClosed, LogNotSynced, OutcomeUnknown
from agentbus.operations.processes import HeartbeatRequest, heartbeat
from agentbus.operations.protocol import Op, Query
from agentbus.operations.receive import Claim, ClaimRequest, claim
from agentbus.operations.send import send
from tests.engine.sqlite.log_syncs import (
    Interrupted,
    Kernel,
    Mark,
    Thread,
    counters,
    in_progress,
    is_marked,
    is_synced,
    mark,
    marked,
    marking,
    ready,
)
from tests.support.writing import agent, answer_to, message, opened, turns, writer

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
