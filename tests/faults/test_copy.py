"""kill -9 during a copy, repeatedly: it resumes, and the result is complete."""

import asyncio
import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import agentbus
from agentbus.errors import CopyUnfinished
from agentbus.operations.copy import TABLES
from agentbus.sync.bus import open_store
from tests.faults.rows import integrity
from tests.support.figures import Figure, Scale
from tests.support.postgres import Schemas, at_schema
from tests.support.processes import Team


@pytest.fixture
def schema(schemas: Schemas) -> Iterator[str]:
    """A schema with an empty bus in it."""
    name = schemas.take()
    yield name
    schemas.give_back(name)


async def fill(url: str) -> None:
    async with agentbus.connect(url, durability="process") as bus:
        for number in range(5):
            async with bus.session("planning") as session, session.agent(f"w-{number}", type="worker") as worker:
                await worker.send_many([(worker.id, "note", {"n": n, "ballast": "x" * 300}) for n in range(200)])
                await worker.ack(await worker.receive_many(100, timeout=0))
                for key in range(20):
                    await worker.state.set(f"k{key}", key)
                await worker.checkpoint("c", {"x": "y" * 2000})
                await session.document("plan").save(["z" * 2000])


def everything(path: Path) -> dict[str, list[Any]]:
    """Every row of every table that is copied as it is; read without us."""
    connection = sqlite3.connect(f"file:{path / 'bus.db'}?mode=ro", uri=True)
    try:
        found = {
            table: connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2, 3 LIMIT -1").fetchall()
            for table in TABLES
            if table not in {"meta", "counters", "sequences", "state_floors"}
        }
        own = "('directory', 'topology')"
        found["counters"] = connection.execute(f"SELECT * FROM counters WHERE name NOT IN {own}").fetchall()
        found["bus"] = connection.execute("SELECT value FROM meta WHERE key = 'bus'").fetchall()
        return found
    finally:
        connection.close()


@pytest.mark.slow
@pytest.mark.fault(26)
async def test_a_copy_killed_at_any_moment_resumes_and_is_complete(
    short: Path, team: Team, figure: Figure, scale: Scale
) -> None:
    kills = scale(3, 6)
    rng = random.Random(20_261_116)
    source, target = short / "source", short / "target"
    await fill(str(source))
    before = everything(source)
    places: list[str] = []
    for kill in range(kills):
        kind = "" if kill < kills - 2 else "comparing"
        worker = team.start("worker_copy", source, target, rng.randint(1, 12), kind)
        places.append(worker.expect("here"))
        await asyncio.sleep(rng.uniform(0, 0.01))
        worker.kill()
        with pytest.raises(CopyUnfinished):
            async with agentbus.connect(target):
                pass
    assert [place for place in places if "comparing" in place]
    assert [place for place in places if "comparing" not in place]
    worker = team.start("worker_copy", source, target)
    rows, resumed = worker.expect("copied").split()
    worker.finish()
    assert resumed == "True"
    figure(f"of copies, then {rows} rows", kills=kills)
    assert everything(source) == before, "the source is only read"
    after = everything(target)
    (copied,) = after["events"][len(before["events"]) :]
    assert copied[2] == "bus_copied"
    assert {**after, "events": after["events"][:-1]} == before
    assert integrity(target) == "ok"
    async with agentbus.connect(target) as bus:
        assert [check for check in await bus.doctor() if check.status == "error"] == []


@pytest.mark.slow
async def test_copies_between_engines_killed_at_any_moment_lose_nothing(
    short: Path, team: Team, schemas: Schemas, schema: str
) -> None:
    """From a file to a server and back, and both of them killed on the way."""
    rng = random.Random(20_261_117)
    source, server, back = short / "source", at_schema(schemas.url, schema), short / "back"
    await fill(str(source))
    before = everything(source)
    for here, there in ((source, server), (server, back)):
        for kill in range(2):
            worker = team.start("worker_copy", here, there, rng.randint(1, 15), "" if kill < 1 else "comparing")
            worker.expect("here")
            await asyncio.sleep(rng.uniform(0, 0.01))
            worker.kill()
            with pytest.raises(CopyUnfinished):
                async with agentbus.connect(there):
                    pass
        worker = team.start("worker_copy", here, there)
        assert worker.expect("copied").endswith("True")
        worker.finish()
    after = everything(back)
    assert [row[2] for row in after["events"][-2:]] == ["bus_copied", "bus_copied"]
    assert {**after, "events": after["events"][:-2]} == before
    assert integrity(back) == "ok"


@pytest.mark.slow
async def test_two_concurrent_copies_do_no_harm(short: Path, team: Team) -> None:
    source, target = short / "source", short / "target"
    await fill(str(source))
    open_store(target, create=True).close()
    workers = [team.start("worker_copy", source, target) for _ in range(3)]
    codes = [worker.wait() for worker in workers]
    if 0 not in codes:
        # Each gave way to another at the same time: the next one continues.
        worker = team.start("worker_copy", source, target)
        worker.expect("copied")
        worker.finish()
    before, after = everything(source), everything(target)
    assert {**after, "events": after["events"][:-1]} == before
