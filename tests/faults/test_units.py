"""A complete unit and kill -9: before every statement of its commit, right after it, and at any moment."""

import asyncio
import random
import signal
from pathlib import Path

import pytest

import agentbus
from tests.faults.rows import integrity, rows, value
from tests.support.processes import Team, Worker

SEED = 20_240_702
MOMENTS = 12


async def prepare(bus: Path, jobs: int) -> None:
    async with agentbus.connect(bus) as mine:
        async with mine.session("planning", id="s") as session:
            await session.pause()
            session.ended = True  # whoever is killed in it must not end it
        await mine.expect("out", type="worker")
        listener = await mine.register("listener", type="worker", topics=["news"])
        await listener.fail("it will come back")  # and keeps its subscription until then
        await mine.declare(agentbus.pool("jobs"))
        async with mine.agent("driver", type="worker") as driver:
            await driver.send_many(
                {"to": agentbus.pool("jobs"), "type": "task_assignment", "payload": n, "max_attempts": 1000}
                for n in range(jobs)
            )
        for n in range(jobs):
            await mine.state("handler").set(f"draft-{n}", n)


class Lives:
    """One life after the other; after each, all of its unit is there or nothing."""

    def __init__(self, bus: Path, worker: Worker) -> None:
        self._bus = bus
        self._worker = worker
        self.whole = 0
        self.nothing = 0

    def kill(self, how: str, number: int) -> tuple[bool, list[str]]:
        """Whether its unit was committed, and what the one that was killed said."""
        self._worker.tell(f"{how} {number}")
        said: list[str] = []
        while not (line := self._worker.line()).startswith("died"):
            said.append(line)
        _, life, status = line.split()
        assert int(status) == -signal.SIGKILL, self._worker.errors()
        whole = self._look(int(life))
        self.whole += whole
        self.nothing += not whole
        return whole, said

    def _look(self, life: int) -> bool:
        found: dict[str, bool] = {
            "acknowledged": value(self._bus, "SELECT count(*) FROM messages WHERE status = 'acked'") == self.whole + 1,
            "draft deleted": value(self._bus, "SELECT count(*) FROM state WHERE key GLOB 'draft-*' AND value IS NULL")
            == self.whole + 1,
            "counted": rows(self._bus, "SELECT value FROM state WHERE key = 'handled'") == [(str(self.whole + 1),)],
        }
        text = str(life)
        places = {"reply": "name = 'driver'", "message": "name = 'out'", "copy": "kind = 'subscription'"}
        for name, place in places.items():
            sql = (
                f"SELECT count(*) FROM messages JOIN mailboxes ON mailboxes.id = mailbox WHERE {place} AND payload = ?"
            )
            found[name] = bool(value(self._bus, sql, text))
        for scope, key in (("handler", "last"), ("shared", "by"), ("session:s", "phase")):
            sql = "SELECT count(*) FROM state WHERE scope = ? AND key = ? AND value = ?"
            found[f"state of {scope}"] = bool(value(self._bus, sql, scope, key, text))
        found["checkpoint"] = bool(value(self._bus, "SELECT count(*) FROM checkpoints WHERE snapshot = ?", text))
        found["document"] = bool(value(self._bus, "SELECT count(*) FROM documents WHERE value = ?", text))
        found["progress"] = rows(self._bus, "SELECT note FROM agents WHERE id = 'handler'") == [(text,)]
        assert len(set(found.values())) == 1, f"life {life} left a part of its unit: {found}"
        return found["counted"]


@pytest.fixture
def lives(short: Path, team: Team) -> Lives:
    bus, root = short / "bus", short / "root"
    root.mkdir()
    asyncio.run(prepare(bus, 60))
    worker = team.start("worker_units", bus, root)
    worker.expect("ready")
    return Lives(bus, worker)


@pytest.mark.slow
def test_a_unit_killed_before_any_statement_of_its_commit_writes_nothing_and_after_it_all(
    short: Path, lives: Lives
) -> None:
    killed_at: list[str] = []
    for number in range(1, 200):
        whole, said = lives.kill("statement", number)
        if said == ["returned"]:
            break
        killed_at += [line.split()[1] for line in said]
        assert not whole, f"killed before statement {number}, {killed_at[-1]}, and yet it is there"
    assert whole, "this one was killed after it heard that it is done"
    assert killed_at[-1] == "COMMIT"
    assert len(killed_at) >= 20
    for _ in range(4):
        assert lives.kill("after", 0) == (True, []), "committed, though nobody heard of it"
    print(f"{lives.whole + lives.nothing} kills: {lives.nothing} left nothing, {lives.whole} everything")
    assert integrity(short / "bus") == "ok"


@pytest.mark.slow
def test_a_unit_killed_at_any_moment_of_its_commit_is_all_or_nothing(short: Path, lives: Lives) -> None:
    chance = random.Random(SEED)
    for _ in range(MOMENTS):
        lives.kill("moment", chance.randrange(0, 3_000))
    print(f"seed {SEED}: {MOMENTS} kills: {lives.nothing} left nothing, {lives.whole} everything")
    assert integrity(short / "bus") == "ok"
