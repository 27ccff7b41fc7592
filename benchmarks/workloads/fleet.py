"""A fleet: processes that work at the same time and meet the caller between the steps of a measurement."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import queue
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import connection
from threading import BrokenBarrierError, Thread
from typing import Any

from benchmarks.contestants import servers
from benchmarks.measure import format_error

TIMEOUT = 120.0
"""Seconds that a process waits for the others, without the time of the work itself."""
# The fork server has the modules imported: starting an interpreter takes longer than the measurement.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["benchmarks.contestants.queues.catalog", "benchmarks.writers"])

Meet = Callable[[], Awaitable[None]]
"""Wait for all processes of the fleet and the caller."""
Work = Callable[..., Coroutine[Any, Any, Any]]
"""The work of a process: it gets its number, ``meet`` and the arguments of the fleet, and returns its answer."""


class Fleet:
    """The caller's side."""

    def __init__(self, count: int, barrier: Any, queued: Any, timeout: float) -> None:
        self._count = count
        self._barrier = barrier
        self._queued = queued
        self._timeout = timeout
        self._answers: list[Any] = []

    def meet(self) -> None:
        """Wait for all processes; raise the error of one that failed."""
        try:
            self._barrier.wait(self._timeout)
        except BrokenBarrierError:
            self._collect(5.0)
            raise

    def answers(self) -> list[Any]:
        """Return the answer of each process, in no particular order."""
        self._collect(self._timeout)
        return self._answers

    def _collect(self, timeout: float) -> None:
        failures: list[str] = []
        with suppress(queue.Empty):
            while len(self._answers) + len(failures) < self._count:
                failure, answer = self._queued.get(timeout=timeout)
                if failure is None:
                    self._answers.append(answer)
                else:
                    failures.append(failure)
                    timeout = 1.0
        # A broken barrier is the consequence of another failure.
        for failure in failures:
            if not failure.startswith("BrokenBarrierError"):
                raise RuntimeError(failure)
        if len(self._answers) < self._count:
            silent = self._count - len(self._answers) - len(failures)
            raise RuntimeError(f"{silent} of {self._count} processes did not answer")


@contextmanager
def fleet(work: Work, count: int, *arguments: Any, seconds: float = 0.0) -> Iterator[Fleet]:
    """Run ``work`` in ``count`` processes, which end with the block. ``seconds`` is the longest step of the work."""
    timeout = TIMEOUT + seconds
    barrier, answers = FORKS.Barrier(count + 1), FORKS.Queue()
    shared = (servers.addresses(), barrier, answers, timeout)
    children = [
        FORKS.Process(target=_child, args=(work, number, *shared, arguments), daemon=True) for number in range(count)
    ]
    for child in children:
        child.start()
    Thread(target=_watch, args=(children, barrier), daemon=True).start()
    try:
        yield Fleet(count, barrier, answers, timeout)
        for child in children:
            child.join(5)
    finally:
        for child in children:
            child.kill()
            child.join()


def _watch(children: Sequence[Any], barrier: Any) -> None:
    """Let no process wait for one that died without an answer."""
    running = {child.sentinel: child for child in children}
    while running:
        for sentinel in connection.wait([*running]):
            if running.pop(sentinel).exitcode:
                barrier.abort()


def _child(
    work: Work, number: int, known: dict[str, str], barrier: Any, answers: Any, timeout: float, arguments: Any
) -> None:
    # An interrupt ends the run through the parent process, which waits for this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.update(known)

    async def meet() -> None:
        await asyncio.to_thread(barrier.wait, timeout)

    try:
        answer = asyncio.run(work(number, meet, *arguments))
    except Exception as error:
        answers.put((format_error(error), None))
        barrier.abort()
    else:
        answers.put((None, answer))
