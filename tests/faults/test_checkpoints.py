"""Checkpoints survive kill -9 and the next incarnation resumes from them; followers in other processes see events."""

import asyncio
import random
import time
from pathlib import Path
from statistics import median

import pytest

import agentbus
from tests.faults.rows import integrity, rows
from tests.support.figures import Figure, Scale
from tests.support.processes import Team

STEPS = 12


@pytest.mark.slow
@pytest.mark.fault(26)
async def test_a_saved_step_survives_kill_9_and_is_resumed(
    short: Path, team: Team, figure: Figure, scale: Scale
) -> None:
    kills = scale(3, 6)
    path, root = short / "bus", short / "root"
    root.mkdir()
    rng = random.Random(20_240_613)
    async with agentbus.connect(path) as bus:
        await bus.expect("witness", type="worker")
        reached = 0
        for _ in range(kills):
            worker = team.start("worker_checkpoint", path, root)
            begun = int(worker.expect("begins"))
            assert begun in {reached, reached + 1}, "an unsaid step may be saved, a said one must be"
            for _ in range(STEPS):
                reached = int(worker.expect("saved"))
            await asyncio.sleep(rng.uniform(0, 0.01))
            worker.kill()
            reached = max([reached, *(int(line.split()[1]) for line in worker.said() if line.startswith("saved"))])
        last = await bus.checkpoints.latest("stepper", "steps")
        assert last is not None
        assert last.snapshot["step"] in {reached, reached + 1}
        # The checkpoint and the message of a step are one commit: each step was sent once, in its order.
        told = rows(path, "SELECT CAST(payload AS INTEGER) FROM messages ORDER BY id")
        assert [step for (step,) in told] == list(range(1, last.snapshot["step"] + 1))
        assert len((await bus.checkpoints.list("stepper")).items) == 3
        (root / "output").write_text(f"step {last.snapshot['step']}")
        assert [check.status for check in await bus.checkpoints.verify(last, root)] == ["ok"]
        (root / "output").write_text("another")
        assert [check.status for check in await bus.checkpoints.verify(last, root)] == ["changed"]
        figure(f"of a process that saves steps: {last.snapshot['step']} steps, 0 lost, 0 duplicated", kills=kills)
    assert integrity(path) == "ok"


async def test_followers_in_other_processes_are_notified_at_once(short: Path, team: Team) -> None:
    """Their beat comes once an hour: they hear because a bell rang."""
    path = short / "bus"
    async with agentbus.connect(path, beat_every=3600) as bus:
        followers = [team.start("worker_events", path, "follow", 21) for _ in range(2)]
        for follower in followers:
            follower.expect("ready")
        await bus.expect("first", type="worker")
        for follower in followers:
            assert follower.expect("event") == "1 first"
        times: list[float] = []
        for number in range(20):
            begun = time.perf_counter()
            await bus.expect(f"agent-{number}", type="worker")
            for follower in followers:
                assert follower.expect("event") == f"{number + 2} agent-{number}"
            times.append(time.perf_counter() - begun)
        print(f"20 events to 2 processes: p50 {median(times) * 1e3:.1f} ms")
        assert median(times) < 5
        for follower in followers:
            follower.finish()


async def test_a_follower_misses_nothing_of_many_processes_and_sees_it_in_order(short: Path, team: Team) -> None:
    path = short / "bus"
    writers, each = 3, 60
    follower = team.start("worker_events", path, "follow", writers * each)
    follower.expect("ready")
    workers = [team.start("worker_events", path, f"w{number}", each) for number in range(writers)]
    seen = [follower.expect("event").split() for _ in range(writers * each)]
    for worker in [*workers, follower]:
        worker.finish()
    assert [int(id) for id, _ in seen] == list(range(1, writers * each + 1))
    for number in range(writers):
        own = [subject for _, subject in seen if subject.startswith(f"w{number}-")]
        assert own == [f"w{number}-{n}" for n in range(each)]
