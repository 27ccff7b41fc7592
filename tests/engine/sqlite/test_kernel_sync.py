"""Syncs by the asynchronous I/O of the Linux kernel: one at a time, none lost, none mistaken for another."""

from __future__ import annotations

import errno
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from agentbus.engine.sqlite import wal
from agentbus.engine.sqlite.wal import KernelSync, open_kernel_sync
from tests.engine.sqlite.log_syncs import Interrupted, lines


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[KernelSync]:
    (tmp_path / "file-wal").write_bytes(b"x")
    kernel = open_kernel_sync(str(tmp_path / "file"))
    if kernel is None or not kernel._open_context():
        pytest.skip("no asynchronous I/O here")
    yield kernel
    kernel.close()


def ended(kernel: KernelSync) -> int | None:
    assert select.select([kernel.event], [], [], 30)[0]
    return kernel.result()


def until(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.001)


def is_signalled(kernel: KernelSync) -> bool:
    return bool(select.select([kernel.event], [], [], 0)[0])


def interrupted_at(function: Callable[..., object], line: int) -> Callable[[FrameType, str, Any], Any]:
    """Return a trace function that raises once before a line is executed."""
    code = getattr(function, "__code__")  # noqa: B009

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code is not code:
            return None
        if event == "line" and frame.f_lineno == line:
            sys.settrace(None)
            raise Interrupted
        return trace

    return trace


def run_interrupted(function: Callable[..., object], line: int, call: Callable[[], object]) -> None:
    before = sys.gettrace()
    sys.settrace(interrupted_at(function, line))
    try:
        with suppress(Interrupted):
            call()
    finally:
        sys.settrace(before)


def test_the_kernel_does_one_sync_at_a_time(kernel: KernelSync) -> None:
    for _ in range(3):
        assert kernel.begin()
        assert not kernel.begin()
        assert ended(kernel) == 0
        assert not kernel.begin(), "its result must be taken first"
        kernel.end()
        assert kernel.result() is None
        assert not is_signalled(kernel)


def test_a_result_survives_a_handler_that_raises_at_any_line(kernel: KernelSync) -> None:
    for line in lines(KernelSync.result):
        assert kernel.begin()
        assert select.select([kernel.event], [], [], 30)[0]
        run_interrupted(KernelSync.result, line, kernel.result)
        assert is_signalled(kernel)
        assert kernel.result() == 0, f"line {line}"
        kernel.end()


def test_a_sync_is_not_mistaken_for_the_one_before_if_a_handler_raises(kernel: KernelSync) -> None:
    """Right after the system call that begins it."""
    call = kernel._call

    def interrupted(number: int, *arguments: Any) -> int:
        call(number, *arguments)
        raise Interrupted

    kernel._call = interrupted
    with pytest.raises(Interrupted):
        kernel.begin()
    kernel._call = call
    assert not kernel.begin()
    assert ended(kernel) == 0
    kernel.end()
    assert kernel.begin()
    assert ended(kernel) == 0


def test_an_interrupted_end_of_a_sync_does_not_wake_the_loop_without_end(kernel: KernelSync) -> None:
    """Nor does it prevent the next one."""
    for line in lines(KernelSync.end):
        assert kernel.begin(), f"line {line}: the next sync is refused"
        assert kernel.result() is None or is_signalled(kernel), "the old result is taken for that of a new sync"
        assert ended(kernel) == 0
        run_interrupted(KernelSync.end, line, kernel.end)
        if is_signalled(kernel):
            # The loop is woken, and finds no batch that waits for it.
            kernel.end()
            assert not is_signalled(kernel)


def test_the_answer_to_a_sync_that_was_given_up_comes_before_the_next_one(kernel: KernelSync) -> None:
    """The system reports an error once for each descriptor: one of them would take that of the other."""
    call = kernel._call
    assert kernel.begin()
    kernel._call = lambda number, *rest: 0 if number == kernel._getevents else call(number, *rest)
    kernel.end()
    assert not kernel.begin()
    kernel._call = call
    until(kernel.begin)
    # The event of the first one may come after its answer.
    until(lambda: kernel.result() == 0)


def test_an_error_of_a_sync_that_was_given_up_leaves_the_next_one_to_the_thread(kernel: KernelSync) -> None:
    call = kernel._call

    def fail(number: int, *rest: Any) -> int:
        done: int = call(number, *rest)
        if number == kernel._getevents and done == 1:
            data, request, *_ = wal._AIO_EVENT.unpack(kernel._answer)
            wal._AIO_EVENT.pack_into(kernel._answer, 0, data, request, -errno.EIO, 0)
        return done

    assert kernel.begin()
    kernel._call = fail
    kernel.end()
    until(lambda: kernel.begin() or kernel._has_failed)
    kernel._call = call
    assert not kernel.begin(), "the error of the log's own descriptor has not been seen"
    kernel.forgive()
    assert kernel.begin()
    until(lambda: kernel.result() == 0)


def test_a_refused_system_call_leaves_the_next_sync_possible(kernel: KernelSync) -> None:
    call = kernel._call
    kernel._call = lambda *_: -1
    assert not kernel.begin()
    kernel._call = call
    assert kernel.begin()
    assert ended(kernel) == 0


class Time:
    """In place of the module: each look at it takes 10 µs."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def perf_counter(self) -> float:
        self.seconds += 0.00001
        return self.seconds


class LateEvent:
    """The event of a sync whose answer comes at once: it is signalled at that look at it."""

    def __init__(self, kernel: KernelSync, at: int | None) -> None:
        self.looks = 0
        self._kernel = kernel
        self._at = at

    def submit(self, number: int, *_: object) -> int:
        """In place of the system call: the kernel writes the answer before it signals."""
        if number == self._kernel._submit:
            wal._AIO_EVENT.pack_into(self._kernel._answer, 0, self._kernel._number, 1, 0, 0)
        return 1

    def poll(self, _: float) -> bool:
        self.looks += 1
        if self.looks == self._at:
            os.eventfd_write(self._kernel.event, 1)
        return is_signalled(self._kernel)


def late_event(kernel: KernelSync, monkeypatch: pytest.MonkeyPatch, at: int | None = None) -> LateEvent:
    event = LateEvent(kernel, at)
    monkeypatch.setattr(kernel, "_call", event.submit)
    monkeypatch.setattr(kernel, "_poll", event)
    return event


def test_a_brief_wait_ends_with_the_event_and_not_with_the_answer(
    kernel: KernelSync, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal after the end of the sync would wake the loop indefinitely: nothing would take it."""
    monkeypatch.setattr(wal, "time", Time())
    for looks in (1, 3, 9):
        event = late_event(kernel, monkeypatch, at=looks)
        assert kernel.begin()
        assert kernel.result() == 0, "the answer is there"
        assert kernel.spin()
        assert event.looks == looks
        assert kernel.result() == 0
        kernel.end()
        assert not is_signalled(kernel)


def test_after_a_brief_wait_nothing_is_left_of_the_sync(kernel: KernelSync, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal, "_MAX_SPIN", 30)
    for _ in range(3):
        assert kernel.begin()
        assert kernel.spin()
        assert kernel.result() == 0
        kernel.end()
        assert not is_signalled(kernel)
        assert kernel.result() is None


def test_a_disk_that_takes_too_long_is_waited_for_again_only_now_and_then(
    kernel: KernelSync, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = Time()
    monkeypatch.setattr(wal, "time", time)
    event = late_event(kernel, monkeypatch)
    assert kernel.begin()
    for _ in range(3):
        start, before = time.seconds, event.looks
        assert not kernel.spin()
        assert event.looks > before + 1
        assert time.seconds - start < 2 * wal._MAX_SPIN
        waited, looked = time.seconds, event.looks
        assert not any(kernel.spin() for _ in range(wal._SKIPPED_SPINS))
        assert (time.seconds, event.looks) == (waited, looked)
    os.eventfd_write(kernel.event, 1)
    assert all(kernel.spin() for _ in range(3)), "one that was long enough declines none"
    kernel.end()


def test_a_kernel_sync_reports_the_error(kernel: KernelSync) -> None:
    kernel._number = 1
    wal._AIO_EVENT.pack_into(kernel._answer, 0, kernel._number, 1, -errno.EIO, 0)
    assert kernel.result() == errno.EIO


def test_where_there_is_no_asynchronous_io_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal, "_AIO_CALLS", {})
    assert open_kernel_sync("file") is None


def test_the_kernel_is_asked_only_by_a_bus_that_syncs_often(tmp_path: Path) -> None:
    (tmp_path / "file-wal").write_bytes(b"x")
    kernel = open_kernel_sync(str(tmp_path / "file"))
    if kernel is None:
        pytest.skip("no asynchronous I/O here")
    begun = [kernel.begin() for _ in range(wal._FIRST_KERNEL_SYNC)]
    assert not any(begun[:-1])
    if begun[-1]:
        assert ended(kernel) == 0
        kernel.end()
        context = kernel._context.value
        kernel.close()
        assert context in wal._contexts, "the next bus has it"
    else:
        kernel.close()
