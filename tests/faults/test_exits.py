"""Every way out of a process that has a bus open takes less than two seconds, and the orderly ones leave no bell."""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.faults.rows import integrity, lock_held, nobody_writes, rows
from tests.support.figures import Figure
from tests.support.processes import Team, Worker

SOON = 2.0
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
def test_an_orderly_way_out_is_quick_and_leaves_nothing_behind(
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
    nobody_writes(bus)


@pytest.mark.fault(10)
@pytest.mark.parametrize("how", ["never closed", "loop closed", "terminated"])
def test_a_bus_that_nobody_closed_does_not_hold_up_the_exit(short: Path, team: Team, figure: Figure, how: str) -> None:
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
@pytest.mark.parametrize(
    ("how", "status"),
    [
        ("contended idle", 0),
        ("contended exception", 1),
        ("contended exit", 3),
        ("contended interrupt", INTERRUPTED),
        ("contended while writing", INTERRUPTED),
    ],
)
def test_a_lock_that_another_process_holds_does_not_hold_up_the_exit(
    short: Path, team: Team, figure: Figure, how: str, status: int
) -> None:
    bus = short / "bus"
    worker = team.start("worker_exit", bus, how)
    worker.expect("holding")
    with lock_held(bus):
        worker.tell("leave")
        worker.expect("leaving")
        begun = time.monotonic()
        if how == "contended interrupt":
            worker.signal(signal.SIGINT)
        took = seconds_until_end(worker, begun)
    figure(f"{how}: {took * 1000:.0f} ms")
    assert worker.wait(0) == status
    assert took < SOON
    assert bells(bus) == []
    nobody_writes(bus)
    assert integrity(bus) == "ok"
