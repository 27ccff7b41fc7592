"""Recovery with real processes: a killed team is resumed, concurrent recoveries, and a killed recovery."""

import asyncio
import random
import subprocess
import sys
import time
from pathlib import Path

import agentbus
from agentbus import Bus
from agentbus.records import Rollback
from tests.faults.rows import integrity, rows, value
from tests.faults.test_sessions import ask
from tests.faults.worker_team import WORKERS
from tests.support.processes import Team, eventually


def numbers(lines: list[str], word: str) -> set[int]:
    return {int(line.split()[1]) for line in lines if line.startswith(f"{word} ")}


def handled(bus: Path) -> dict[int, int]:
    """Return the number of executions of each task."""
    return {int(key): int(count) for key, count in rows(bus, "SELECT key, value FROM state WHERE scope = 'tasks'")}


def test_a_killed_team_resumes_from_its_checkpoints_and_nothing_is_lost_or_done_twice(short: Path, team: Team) -> None:
    bus = short / "bus"
    chair = team.start("worker_team", "chair", bus)
    chair.expect("begun")
    workers = [team.start("worker_team", "work", bus, name) for name in WORKERS]
    for worker in workers:
        assert worker.expect("ready") == "0"
    for worker in workers:
        for _ in range(10):
            worker.expect("done")
    for worker in workers:
        worker.kill_unreaped()
    # The workers may have kept up with the chair: it is killed once there is work left.
    sent = set(range(20))
    while not sent - set(handled(bus)):
        sent.add(int(chair.expect("sent")))
    chair.kill_unreaped()
    for process in (chair, *workers):
        process.wait()
    sent |= numbers(chair.said(), "sent")
    acknowledged = set().union(*(numbers(worker.said(), "done") for worker in workers))

    async def resume(bus: Bus) -> list[str]:
        # Opening the bus is enough to find them dead.
        plan = await bus.recovery.plan("s")
        assert (plan.session.status, plan.options[0].action) == ("interrupted", "resume")
        assert [agent.status for agent in plan.agents] == ["failed"] * 3
        assert all(agent.checkpoint is not None for agent in plan.agents if agent.id in WORKERS)
        return (await plan.resume()).agents

    assert ask(bus, resume) == ["chair", *WORKERS]
    before = handled(bus)
    assert acknowledged <= set(before)
    assert sent - set(before), "there is work left"
    newest = dict(rows(bus, "SELECT owner, max(id) FROM checkpoints GROUP BY owner"))
    again = [team.start("worker_team", "work", bus, name) for name in WORKERS]
    for name, worker in zip(WORKERS, again, strict=True):
        checkpoint, *done = worker.expect("ready").split()
        assert int(checkpoint) == newest[name]
        assert set(map(int, done)) == {task for task in before if WORKERS[task % len(WORKERS)] == name}
    everything = value(bus, "SELECT count(*) FROM messages WHERE type = 'task_assignment'")
    eventually(lambda: len(handled(bus)) == everything, "every task is done")
    for worker in again:
        worker.kill()
    found = handled(bus)
    assert set(found) >= sent
    assert set(found.values()) == {1}, "nothing is done twice"
    assert value(bus, "SELECT count(*) FROM messages WHERE type = 'task_assignment' AND status <> 'acked'") == 0
    assert integrity(bus) == "ok"


def test_of_many_processes_that_resume_at_once_one_does(short: Path, team: Team) -> None:
    bus = short / "bus"
    chair = team.start("worker_team", "chair", bus)
    chair.expect("sent")
    chair.kill()
    crowd = [team.start("worker_team", "resume", bus) for _ in range(6)]
    for one in crowd:
        assert one.expect("planned").split()[0] == "resume"
    for one in crowd:
        one.tell("go")
    answers = sorted(one.expect("resumed") for one in crowd)
    for one in crowd:
        one.finish()
    assert answers == ["0"] * 5 + ["1 chair"]
    assert value(bus, "SELECT count(*) FROM events WHERE kind = 'session_recovered'") == 1


def test_a_rollback_that_is_killed_is_done_or_not(short: Path, team: Team) -> None:
    bus = short / "bus"

    async def prepare(bus: Bus) -> tuple[int, int]:
        session = await bus.sessions.open("s")
        points = list[int]()
        for number in (1, 2):
            await session.document("d").save({"number": number, "filler": "x" * 100_000})
            for key in range(50):
                await session.state.set(f"k-{key}", number)
            meeting = await session.participants([f"m-{number}"])
            await meeting.finish(f"m-{number}", number)
            points.append((await session.checkpoint_all(f"p-{number}")).id)
        return points[0], points[1]

    async def look(bus: Bus) -> set[int]:
        session = await bus.sessions.open("s")
        meeting = await session.participants([])
        states = {entry.value for entry in (await session.state.list()).items}
        return {(await session.document("d").latest())["number"], len(meeting.members), *states}

    chair = team.start("worker_team", "chair", bus)
    chair.expect("sent")
    chair.kill()
    points = ask(bus, prepare)
    ends = random.Random(4)
    for _ in range(5):
        roller = team.start("worker_team", "roll", bus, *points)
        for _ in range(ends.randint(1, 4)):
            roller.expect("rolled")
        roller.kill()
        assert ask(bus, look) in ({1}, {2})
    assert integrity(bus) == "ok"


def test_a_rollback_and_a_resumption_survive_the_process_that_did_them(short: Path, team: Team) -> None:
    bus = short / "bus"
    chair = team.start("worker_team", "chair", bus)
    chair.expect("sent")
    chair.kill()

    async def roll_back() -> Rollback | None:
        async with agentbus.connect(bus) as mine:
            session = await mine.sessions.open("s")
            await session.state.set("k", 1)
            point = await session.checkpoint_all("p")
            await session.state.set("k", 2)
            return (await (await mine.recovery.plan("s")).rollback(point.id)).rollback

    done = asyncio.run(roll_back())
    assert done is not None
    assert done.state == {"session:s": ["k"]}
    assert rows(bus, "SELECT status FROM sessions") == [("active",)]
    assert rows(bus, "SELECT value FROM state WHERE key = 'k'") == [("1",)]
    assert rows(bus, "SELECT status, cut_off FROM agents WHERE id = 'chair'") == [("spawning", 1)]


ASKS = """
import asyncio, sys, threading
import agentbus

async def main(path):
    async with agentbus.connect(path) as bus:
        await bus.session("execution", id="s").__aenter__()
    try:
        async with asyncio.timeout(0.2):
            async with agentbus.connect(path, auto_resume=lambda record: threading.Event().wait(30)):
                print("resumed")
    except TimeoutError:
        print("given up")

asyncio.run(main(sys.argv[1]))
"""


def test_an_unanswered_prompt_does_not_keep_a_process_from_ending(short: Path) -> None:
    begun = time.monotonic()
    command = [sys.executable, "-c", ASKS, str(short / "bus")]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout == "given up\n"
    assert time.monotonic() - begun < 20
