"""Every exit of a process with an open bus takes less than two seconds; orderly exits leave no doorbell."""

import asyncio
import os
import signal
import threading
import time
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path

import pytest

import agentbus
from agentbus.core import cancellation
from tests.faults.rows import integrity, lock_held, no_process_writes, rows
from tests.support.figures import Figure
from tests.support.processes import Team, Worker, eventually

SOON = 10.0
INTERRUPTED = -signal.SIGINT
"""An interpreter that ends by KeyboardInterrupt ends itself by that signal."""


def bells(bus: Path) -> list[str]:
    return os.listdir(bus / "bells")


def seconds_until_end(worker: Worker, since: float) -> float:
    worker.wait(SOON + 40)
    return time.monotonic() - since


@pytest.mark.fault(10)
@pytest.mark.parametrize(
    ("how", "number", "status", "agent"),
    [
        ("exception", None, 1, "failed"),
        ("exit", None, 3, "stopped"),
        ("interrupt", signal.SIGINT, INTERRUPTED, "stopped"),
        ("sigterm", signal.SIGTERM, 1, "stopped"),
    ],
)
def test_an_orderly_exit_is_quick_and_leaves_nothing_behind(
    short: Path, team: Team, figure: Figure, how: str, number: signal.Signals | None, status: int, agent: str
) -> None:
    bus = short / "bus"
    worker = team.start("worker_exit", bus, how)
    worker.expect("leaving")
    begun = time.monotonic()
    if number is not None:
        worker.signal(number)
    took = seconds_until_end(worker, begun)
    figure(f"{how}: {took * 1000:.0f} ms")
    assert worker.wait(0) == status
    assert took < SOON
    assert bells(bus) == []
    assert rows(bus, "SELECT status FROM agents") == [(agent,)]
    assert rows(bus, "SELECT status FROM processes") == [("ended",)]
    # Given back: an exception counts as an attempt and waits for its next one, the others do not.
    (message,) = rows(bus, "SELECT status, attempts FROM messages")
    assert message == (("scheduled", 1) if how == "exception" else ("queued", 0))
    no_process_writes(bus)


@pytest.mark.fault(10)
@pytest.mark.parametrize("how", ["never closed", "loop closed", "terminated"])
def test_an_unclosed_bus_does_not_delay_the_exit(short: Path, team: Team, figure: Figure, how: str) -> None:
    bus = short / "bus"
    worker = team.start("worker_exit", bus, how)
    worker.expect("leaving")
    begun = time.monotonic()
    if how == "terminated":
        worker.signal(signal.SIGTERM)
    took = seconds_until_end(worker, begun)
    figure(f"{how}: {took * 1000:.0f} ms")
    assert worker.wait(0) == (-signal.SIGTERM if how == "terminated" else 0)
    assert took < SOON
    assert rows(bus, "SELECT count(*) FROM messages") == [(1,)]

    # The next one to come finds it dead, and sweeps its bell away.
    following = team.start("worker_exit", bus, "exit")
    following.expect("leaving")
    following.wait()
    assert bells(bus) == []
    assert rows(bus, "SELECT status FROM processes ORDER BY id") == [("dead",), ("ended",)]
    assert integrity(bus) == "ok"


@pytest.mark.fault(10)
async def test_a_lock_held_by_another_process_does_not_delay_the_exit(short: Path, team: Team, figure: Figure) -> None:
    statuses = {
        "contended idle": 0,
        "contended exception": 1,
        "contended exit": 3,
        "contended interrupt": INTERRUPTED,
        "contended while writing": INTERRUPTED,
    }

    def leave_contended(how: str) -> tuple[int, float]:
        """Return the exit status and the seconds that the exit took."""
        bus = short / how
        worker = team.start("worker_exit", bus, how)
        worker.expect("holding")
        with lock_held(bus):
            worker.tell("leave")
            worker.expect("leaving")
            begun = time.monotonic()
            if how == "contended interrupt":
                worker.signal(signal.SIGINT)
            took = seconds_until_end(worker, begun)
        return worker.wait(0), took

    # At once, each on a bus of its own: they mostly wait.
    ends = await asyncio.gather(*(asyncio.to_thread(leave_contended, how) for how in statuses))
    for how, (status, took) in zip(statuses, ends, strict=True):
        figure(f"{how}: {took * 1000:.0f} ms")
        assert status == statuses[how], how
        assert took < SOON, how
        assert bells(short / how) == [], how
        no_process_writes(short / how)
        assert integrity(short / how) == "ok", how


@pytest.mark.fault(10)
async def test_a_process_that_continues_keeps_no_thread_and_no_descriptor(
    short: Path, figure: Figure, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways = ("normal", "exception", "cancelled", "contended")
    # Once before counting: some threads and descriptors are the program's from its first use on.
    await leave(short / "bus", "normal")
    eventually(lambda: not waiting_for_lock(), "no thread waits for the lock")
    # By identity, not by number: a thread of an earlier test may end meanwhile.
    threads, descriptors = set(threading.enumerate()), open_files()
    for how in ways:
        with monkeypatch.context() as patch:
            if how == "contended":
                # The lock does not become free, however long the exit waits.
                patch.setattr(cancellation, "SHUTDOWN_TIMEOUT", 0.1)
            for _ in range(3):
                await leave(short / "bus", how)

    def kept() -> tuple[set[threading.Thread], set[tuple[str, str]]]:
        return {one for one in threading.enumerate() if not is_of_loop(one)} - threads, open_files() - descriptors

    # A thread that waited for the lock without success ends as soon as the lock is free.
    eventually(lambda: kept() == (set(), set()), lambda: f"the buses keep nothing, but {kept()}")
    figure(f"{3 * len(ways)} buses left behind {len(kept()[0])} threads and {len(kept()[1])} descriptors")
    # Where the lock was held by another process, a doorbell without a listener shows the next process that the bus was
    # left.
    await leave(short / "bus", "normal")
    assert bells(short / "bus") == []


async def leave(bus: Path, how: str) -> None:
    """Open a bus, be in the middle of something, and leave it in one of these ways."""

    async def work() -> None:
        async with agentbus.connect(bus) as opened, opened.agent("a", type="worker", takeover=True) as agent:
            await agent.send("a", "note")
            async for message in agent.inbox():
                async with message:
                    contending.enter_context(lock_held(bus) if how == "contended" else nullcontext())
                    if how in {"exception", "contended"}:
                        raise ZeroDivisionError
                    if how == "cancelled":
                        task.cancel()
                        await asyncio.Event().wait()
                return

    with ExitStack() as contending:
        task = asyncio.create_task(work())
        with suppress(ZeroDivisionError, asyncio.CancelledError):
            await task


def waiting_for_lock() -> bool:
    return any(thread.name == "agentbus-lock" for thread in threading.enumerate())


def is_of_loop(thread: threading.Thread) -> bool:
    """Return whether a thread is of the executor of the event loop, which starts and keeps as many as it likes."""
    return thread.name.startswith("asyncio_")


def open_files() -> set[tuple[str, str]]:
    """Return the descriptors of this process, by number and file."""
    found: set[tuple[str, str]] = set()
    for number in os.listdir("/dev/fd"):
        # The one of the list itself is closed by now.
        with suppress(OSError):
            found.add((number, os.readlink(f"/dev/fd/{number}")))
    return found
