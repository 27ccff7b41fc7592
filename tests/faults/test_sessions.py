"""Sessions with real processes: an owner that is killed, interrupted or alive, and concurrent participants."""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

import agentbus
from agentbus import Bus
from agentbus.errors import SessionExists
from tests.faults.rows import integrity, lock_held, rows
from tests.faults.worker_session import MEMBERS
from tests.support.processes import Team, Worker

T = TypeVar("T")


def ask(path: Path, question: Callable[[Bus], Awaitable[T]]) -> T:
    async def asked() -> T:
        async with agentbus.connect(path) as bus:
            return await question(bus)

    return asyncio.run(asked())


def finish(worker: Worker, count: int) -> list[str]:
    names: list[str] = []
    for _ in range(count):
        worker.tell("next")
        names.append(worker.expect("finished"))
    return names


def trail(bus: Path) -> list[str]:
    found = rows(bus, "SELECT kind FROM events WHERE subject_kind = 'session' AND subject = 's' ORDER BY id")
    return [kind for (kind,) in found]


def test_a_meeting_whose_owner_is_killed_continues_with_the_remaining_participants(short: Path, team: Team) -> None:
    bus = short / "bus"
    left = list(MEMBERS)
    for life in range(3):
        owner = team.start("worker_session", "own", bus)
        continued, *remaining = owner.expect("begun").split()
        assert (continued, remaining) == (str(int(life > 0)), left)
        assert finish(owner, 3) == left[:3]
        left = left[3:]
        owner.kill()

    async def look(bus: Bus) -> tuple[str, str | None, int]:
        # Opening the bus is enough to find the owner dead.
        record = await bus.sessions.get("s")
        assert record is not None
        history = await (await bus.sessions.open("s")).document("minutes").history()
        return record.status, record.error, len(history)

    assert ask(bus, look) == ("interrupted", "its own process died", 9)
    owner = team.start("worker_session", "own", bus)
    assert owner.expect("begun").split() == ["1", *left]
    finish(owner, 3)
    owner.tell("end")
    owner.finish()

    async def results(bus: Bus) -> tuple[str, dict[str, object], list[str], dict[str, str]]:
        session = await bus.sessions.open("s")
        meeting = await session.participants(MEMBERS)
        status = (await session.record()).status
        return status, meeting.results, list(meeting.remaining), await session.missing()

    assert ask(bus, results) == ("completed", {name: {"by": "owner"} for name in MEMBERS}, [], {})
    assert trail(bus) == [
        "session_started",
        *["session_interrupted", "session_continued"] * 3,
        "session_completed",
    ]  # fmt: skip
    assert integrity(bus) == "ok"


def test_a_dead_owner_is_detected_when_the_session_is_requested(short: Path, team: Team) -> None:
    bus = short / "bus"

    async def resume() -> bool:
        # Opened while the owner lives, and long before the next beat would find it dead.
        async with agentbus.connect(bus, beat_every=3600) as mine:
            with pytest.raises(SessionExists) as exists:
                async with mine.session("meeting", id="s"):
                    pytest.fail("this block must not run")
            assert exists.value.pid == owner.pid
            owner.kill()
            async with mine.session("meeting", id="s") as session:
                assert (await session.participants(MEMBERS)).remaining == tuple(MEMBERS[2:])
                return session.continued

    owner = team.start("worker_session", "own", bus)
    owner.expect("begun")
    finish(owner, 2)
    assert asyncio.run(resume())
    assert trail(bus) == ["session_started", "session_interrupted", "session_continued", "session_completed"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_interrupts_the_session_and_its_agent_is_stopped(
    short: Path, team: Team, number: signal.Signals
) -> None:
    bus = short / "bus"
    owner = team.start("worker_session", "own", bus)
    owner.expect("begun")
    finish(owner, 1)
    owner.signal(number)
    owner.wait()
    if number is signal.SIGTERM:
        # That signal has no handler: it is a sudden death like any other, and the next process detects it.
        ask(bus, lambda bus: bus.stats())
    assert rows(bus, "SELECT status FROM sessions") == [("interrupted",)]
    assert rows(bus, "SELECT status FROM agents") == [("stopped" if number is signal.SIGINT else "failed",)]


def test_a_lock_held_by_another_process_does_not_delay_leaving_a_session(short: Path, team: Team) -> None:
    bus = short / "bus"
    owner = team.start("worker_session", "own", bus)
    owner.expect("begun")
    with lock_held(bus):
        begun = time.monotonic()
        owner.signal(signal.SIGINT)
        owner.wait()
        took = time.monotonic() - begun
    assert took < 10
    # What could not be written on the way out is made up for by the next who comes.
    ask(bus, lambda bus: bus.stats())
    assert rows(bus, "SELECT status FROM sessions") == [("interrupted",)]


def test_processes_that_finish_members_at_once_lose_none(short: Path, team: Team) -> None:
    bus = short / "bus"
    owner = team.start("worker_session", "own", bus)
    owner.expect("begun")
    helpers = [
        # Each member is finished by two of the four.
        team.start("worker_session", "join", bus, f"h{place}", *(MEMBERS * 2)[place * 3 : place * 3 + 6])
        for place in range(4)
    ]
    for helper in helpers:
        helper.expect("ready")
    for helper in helpers:
        helper.tell("go")
    for helper in helpers:
        helper.expect("done")
        helper.finish()
    owner.tell("end")
    owner.finish()

    async def results(bus: Bus) -> dict[str, object]:
        return (await (await bus.sessions.open("s")).participants([])).results

    found = ask(bus, results)
    assert list(found) == MEMBERS
    assert all(result in [{"by": f"h{place}"} for place in range(4)] for result in found.values())
