"""A complete unit and kill -9: before every statement of its commit, right after it, and at any moment."""

import asyncio
import random
import signal
from pathlib import Path

import pytest

import agentbus
from tests.faults.rows import integrity, rows, value
from tests.support.figures import Figure, Scale
from tests.support.processes import Team, Worker

SEED = 20_240_702


async def prepare(bus: Path, jobs: int) -> None:
    async with agentbus.connect(bus) as mine:
        async with mine.session("planning", id="s") as session:
            await session.pause()
            session.ended = True  # a process that is killed in it must not end it
        await mine.expect("out", type="worker")
        listener = await mine.register("listener", type="worker", topics=["news"])
        await listener.fail("it will come back")  # it keeps its subscription until then
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
        """Return whether its unit was committed, and what the killed process printed."""
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
def lives(short: Path, team: Team, scale: Scale) -> Lives:
    bus, root = short / "bus", short / "root"
    root.mkdir()
    asyncio.run(prepare(bus, scale(10, 60)))
    worker = team.start("worker_units", bus, root)
    worker.expect("ready")
    return Lives(bus, worker)


@pytest.mark.slow
@pytest.mark.fault(26)
def test_a_unit_killed_before_any_statement_of_its_commit_writes_nothing_and_after_it_all(
    short: Path, lives: Lives, figure: Figure, scale: Scale
) -> None:
    killed_at: list[str] = []

    statements = 0

    def kill(number: int) -> bool:
        """Return whether there is such a statement."""
        nonlocal statements
        whole, said = lives.kill("statement", number)
        if said[-1].startswith("returned"):
            assert whole, "killed after the call returned"
            statements = int(said[-1].split()[1])
            return False
        killed_at.extend(line.split()[1] for line in said)
        assert not whole, f"killed before statement {number}, {killed_at[-1]}, and the unit is committed"
        return True

    step = scale(11, 1)
    number = 1
    while kill(number):
        number += step
    # The last one, which is COMMIT. A later unit may have a few statements more or less than the first.
    number = statements
    while not kill(number):
        number = statements
    while kill(number + 1):
        number += 1
    assert killed_at[-1] == "COMMIT"
    assert len(killed_at) >= scale(5, 20)
    for _ in range(scale(1, 4)):
        assert lives.kill("after", 0) == (True, []), "committed, though the process did not learn it"
    figure(
        f"of units before a statement and after COMMIT: {lives.nothing} left nothing, {lives.whole} all",
        kills=lives.whole + lives.nothing,
    )
    assert integrity(short / "bus") == "ok"


@pytest.mark.slow
@pytest.mark.fault(26)
def test_a_unit_killed_at_any_moment_of_its_commit_is_all_or_nothing(
    short: Path, lives: Lives, figure: Figure, scale: Scale
) -> None:
    chance = random.Random(seed := scale.seed(SEED))
    moments = scale(4, 12, 50)
    for _ in range(moments):
        lives.kill("moment", chance.randrange(0, 3_000))
    figure(f"of units at any moment (seed {seed}): {lives.nothing} left nothing, {lives.whole} all", kills=moments)
    assert integrity(short / "bus") == "ok"
