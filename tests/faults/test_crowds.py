"""Many processes at once: opening a new bus, and writing without pause."""

import asyncio
import json
from pathlib import Path

import pytest

import agentbus
from tests.faults.rows import integrity, rows, value
from tests.support.processes import Team

OPENERS = 48
WRITERS = 16
SECONDS = 5.0
LONGEST = 1.0
"""Seconds that one send may wait behind 15 other writers; measured: 0.1 to 0.2 with two cores."""
FAIR = 0.9
"""Jain's index of the writers' counts: 1 if all are equal, 1/16 if one has everything."""
LARGEST_LOG = 16 * 1024 * 1024


@pytest.mark.slow
def test_48_processes_open_a_new_bus_at_once(tmp_path: Path, team: Team) -> None:
    bus = tmp_path / "bus"
    answers = json.loads(team.start("worker_crowd", "open", bus, OPENERS).expect("answers", 60))
    errors = [answer["error"] for answer in answers if "error" in answer]
    assert not errors, f"{len(errors)} of {OPENERS} failed, the first with\n{errors[0]}"
    there = value(bus, "SELECT count(*) FROM messages")
    slowest = max(answer["opened"] for answer in answers)
    print(f"{OPENERS} processes: 0 errors, {there} messages there, the slowest had it open after {slowest:.2f} s")
    assert there == OPENERS
    assert sorted(answer["id"] for answer in answers) == list(range(1, OPENERS + 1))
    assert dict(rows(bus, "SELECT status, count(*) FROM agents GROUP BY status")) == {"completed": OPENERS}
    assert integrity(bus) == "ok"


@pytest.mark.slow
def test_16_processes_write_for_5_seconds_and_nobody_starves(tmp_path: Path, team: Team) -> None:
    bus = tmp_path / "bus"
    asyncio.run(_declare(bus))
    answers = json.loads(team.start("worker_crowd", "write", bus, WRITERS, SECONDS).expect("answers", SECONDS + 40))
    errors = [answer["error"] for answer in answers if "error" in answer]
    assert not errors, f"{len(errors)} of {WRITERS} failed, the first with\n{errors[0]}"
    counts = [answer["count"] for answer in answers]
    fairness = sum(counts) ** 2 / (WRITERS * sum(count**2 for count in counts))
    longest = max(answer["longest"] for answer in answers)
    log = max(answer["wal"] for answer in answers)
    print(
        f"{WRITERS} writers: {sum(counts) / SECONDS:.0f} sends/s, 0 errors, {min(counts)} to {max(counts)} each, "
        f"Jain {fairness:.3f}, longest wait {longest * 1000:.0f} ms, WAL at most {log / 1e6:.1f} MB"
    )
    assert value(bus, "SELECT count(*) FROM messages") == sum(counts)
    assert fairness >= FAIR
    assert longest < LONGEST
    assert 0 < log < LARGEST_LOG
    assert integrity(bus) == "ok"


async def _declare(bus: Path) -> None:
    async with agentbus.connect(bus) as opened:
        await opened.declare(agentbus.pool("jobs"))
