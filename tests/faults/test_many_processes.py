"""Many concurrent processes: opening a new bus, and writing without pause."""

import asyncio
import json
from pathlib import Path

import pytest

import agentbus
from tests.faults.rows import integrity, rows, value
from tests.support.figures import Figure, Scale
from tests.support.processes import Team

LARGEST_LOG = 32 * 1024 * 1024


@pytest.mark.slow
@pytest.mark.fault(16)
def test_many_processes_open_a_new_bus_at_once(tmp_path: Path, team: Team, figure: Figure, scale: Scale) -> None:
    processes, times = scale((10, 1), (48, 5), (48, 50))
    slowest = max(_open(tmp_path / f"bus-{time}", team, processes) for time in range(times))
    opened = times * processes
    figure(f"the slowest after {slowest:.2f} s", opened=f"{opened:,} of {opened:,}", times=times)


def _open(bus: Path, team: Team, processes: int) -> float:
    """Open this bus in each of them; return the seconds of the slowest."""
    answers = json.loads(team.start("worker_crowd", "open", bus, processes).expect("answers", 60))
    errors = [answer["error"] for answer in answers if "error" in answer]
    assert not errors, f"{len(errors)} of {processes} failed, the first with\n{errors[0]}"
    there = value(bus, "SELECT count(*) FROM messages")
    assert there == processes
    assert sorted(answer["id"] for answer in answers) == list(range(1, processes + 1))
    assert dict(rows(bus, "SELECT status, count(*) FROM agents GROUP BY status")) == {"completed": processes}
    assert integrity(bus) == "ok"
    return float(max(answer["opened"] for answer in answers))


@pytest.mark.slow
@pytest.mark.fault(4)
def test_many_processes_write_without_pause_and_none_starves(
    tmp_path: Path, team: Team, figure: Figure, scale: Scale
) -> None:
    writers, seconds = scale((6, 1.0), (64, 30.0), (64, 300.0))
    # Jain's index of the writers' counts: 1 if all are equal, 1/n if one has everything.
    least_fairness = scale(0.5, 0.9)
    # Seconds that one send may wait behind all other writers; measured: 0.1 to 0.2 behind 15 with two idle cores.
    longest_wait = scale(15.0, 1.0)
    bus = tmp_path / "bus"
    asyncio.run(_declare(bus))
    answers = json.loads(team.start("worker_crowd", "write", bus, writers, seconds).expect("answers", seconds + 90))
    errors = [answer["error"] for answer in answers if "error" in answer]
    assert not errors, f"{len(errors)} of {writers} failed, the first with\n{errors[0]}"
    counts = [answer["count"] for answer in answers]
    fairness = sum(counts) ** 2 / (writers * sum(count**2 for count in counts))
    longest = max(answer["longest"] for answer in answers)
    log = max(answer["wal"] for answer in answers)
    there = value(bus, "SELECT count(*) FROM messages")
    figure(
        f"Jain {fairness:.3f}, longest wait {longest * 1000:.0f} ms, WAL at most {log / 1e6:.1f} MB",
        writers=writers,
        errors=len(errors),
        acknowledged=sum(counts),
        lost=sum(counts) - there,
    )
    assert there == sum(counts)
    assert fairness >= least_fairness
    assert longest < longest_wait
    assert 0 < log < LARGEST_LOG
    assert integrity(bus) == "ok"


async def _declare(bus: Path) -> None:
    async with agentbus.connect(bus) as opened:
        await opened.declare(agentbus.pool("jobs"))
