"""kill -9 during retention, backup and restore: nothing is lost, nothing is half done."""

import asyncio
import gzip
import json
import os
import random
import signal
import sqlite3
import zlib
from pathlib import Path

import pytest

import agentbus
from agentbus.errors import DamagedArchive
from tests.faults.rows import integrity, rows
from tests.support.figures import Figure, Scale
from tests.support.processes import Team, Worker

KILLS = 4
MAX_KILLS = 40
"""Kills until one of them came in the middle."""


async def finished(path: Path, count: int) -> None:
    """Make ``count`` acknowledged messages, and some ended sessions with all that belongs to them."""
    async with agentbus.connect(path, durability="process") as bus:
        async with bus.agent("a", type="worker", takeover=True) as agent:
            for _ in range(count // 500):
                await agent.send_many([("a", "note", {"n": n, "ballast": "x" * 200}) for n in range(500)])
                await agent.ack(await agent.receive_many(500, timeout=0))
        for _ in range(20):
            async with bus.session("planning") as session:
                async with session.agent(f"w-{session.id}", type="worker") as worker:
                    await worker.checkpoint("n", {"x": "y" * 2000})
                    await worker.state.set("k", 1)
                await session.document("plan").save(["z" * 2000])


def everything(path: Path) -> dict[str, set[object]]:
    """The keys of all that retention may take."""
    return {
        "message": {id for (id,) in rows(path, "SELECT id FROM messages")},
        "session": {id for (id,) in rows(path, "SELECT id FROM sessions")},
        "agent": {id for (id,) in rows(path, "SELECT id FROM agents")},
        "checkpoint": {id for (id,) in rows(path, "SELECT id FROM checkpoints")},
        "document": {session for (session,) in rows(path, "SELECT session FROM documents")},
    }


def archived(path: Path) -> dict[str, set[object]]:
    """The keys of all that the archives hold; a torn end is skipped, its rows must still be in the database."""
    found: dict[str, set[object]] = {kind: set() for kind in ("message", "session", "agent", "checkpoint", "document")}
    for file in (path / "archive").glob("*.gz"):
        try:
            with gzip.open(file, "rt", encoding="utf-8") as lines:
                for text in lines:
                    line = json.loads(text)
                    if line["record"] in found:
                        found[line["record"]].add(line["session" if line["record"] == "document" else "id"])
        except (EOFError, json.JSONDecodeError, gzip.BadGzipFile):
            continue
    return found


def portions(file: Path) -> list[bytes]:
    """The first portion of an archive, if it is whole."""
    inflater = zlib.decompressobj(wbits=31)
    portion = inflater.decompress(file.read_bytes())
    return [portion] if inflater.eof else []


@pytest.mark.slow
@pytest.mark.fault(26)
async def test_retention_killed_at_any_moment_loses_nothing(
    short: Path, team: Team, figure: Figure, scale: Scale
) -> None:
    path = short / "bus"
    rng = random.Random(20_261_116)
    # A portion is written to the archive, synced and removed in one transaction. A session here weighs 57 rows.
    messages, portion = scale((1_000, 60), (10_000, 500))
    await finished(path, messages)
    before = everything(path)
    killed = 0
    for number in range(KILLS):
        # The first is killed long before it can be done, also where this process has to wait for the processor.
        worker = team.start("worker_upkeep", "apply", path, "on", portion, rng.uniform(0.001, 0.02 * 2**number))
        assert worker.wait(60) == -signal.SIGALRM
        killed += not [line for line in worker.said() if line.startswith("removed")]
        worker.close()
        left, gone = everything(path), archived(path)
        for kind, keys in before.items():
            assert keys <= left[kind] | gone[kind], f"a {kind} is neither here nor there"
        # A session of this size goes as a whole: none has lost its documents or agents and stayed.
        assert left["session"] == left["document"]
    figure(f"of retentions: {killed} in the middle", kills=KILLS)
    assert killed, "at least one was killed in the middle"
    worker = team.start("worker_upkeep", "apply", path, "once")
    worker.tell("go")
    worker.expect("removed")
    worker.finish()
    assert all(not keys for keys in everything(path).values())
    assert integrity(path) == "ok"
    async with agentbus.connect(short / "other") as other:
        for file in sorted((path / "archive").iterdir()):
            try:
                report = await other.import_archive(file)
            except DamagedArchive:
                assert not portions(file), "killed before its first portion was whole"
                continue
            assert {problem.line for problem in report.problems} <= {0}, "nothing but torn ends"
    back = everything(short / "other")
    assert {kind: back[kind] >= keys for kind, keys in before.items()} == dict.fromkeys(before, True)


@pytest.mark.slow
async def test_retentions_of_several_processes_race_and_do_no_harm(short: Path, team: Team) -> None:
    path = short / "bus"
    await finished(path, 1_000)
    before = everything(path)
    workers = [team.start("worker_upkeep", "apply", path, "once", 50) for _ in range(3)]
    for worker in workers:
        worker.expect("ready")
    for worker in workers:
        worker.tell("go")
    counts = [int(worker.expect("removed")) for worker in workers]
    for worker in workers:
        worker.finish()
    gone = archived(path)
    assert {kind: gone[kind] >= keys for kind, keys in before.items()} == dict.fromkeys(before, True)
    assert all(not keys for keys in everything(path).values())
    took = sum(len(keys) for keys in before.values())
    assert took <= sum(counts) <= took + 20, "each row was removed by one of them; processes are counted too"
    assert integrity(path) == "ok"


def highest(file: str) -> dict[str, int]:
    """The highest number that each sender has in a sound backup."""
    connection = sqlite3.connect(f"file:{file}?mode=ro", uri=True)
    try:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        found = connection.execute(
            "SELECT sender, max(json_extract(payload, '$.number')) FROM messages GROUP BY sender"
        )
        return dict(found.fetchall())
    finally:
        connection.close()


def last_said(worker: Worker, known: int) -> int:
    return max([known, *(int(line.split()[1]) for line in worker.said() if line.startswith("sent"))])


@pytest.mark.slow
@pytest.mark.fault(18)
async def test_twenty_backups_while_other_processes_write(
    short: Path, team: Team, figure: Figure, scale: Scale
) -> None:
    path = short / "bus"
    backups = scale(11, 20)
    async with agentbus.connect(path) as bus:
        workers = {f"w{n}": team.start("worker_upkeep", "send", path, f"w{n}") for n in range(2)}
        said = dict.fromkeys(workers, 0)
        lost = 0
        for name, worker in workers.items():
            said[name] = int(worker.expect("sent"))
        for _ in range(backups):
            for name, worker in workers.items():
                # However busy the machine is, each of them has written since the last backup.
                said[name] = last_said(worker, int(worker.expect("sent")))
            record = await bus.backup()
            found = await asyncio.to_thread(highest, record.path)
            lost += sum(max(0, number - found[name]) for name, number in said.items())
        figure("counted against each backup", backups=backups, acknowledged=sum(said.values()), lost=lost)
        assert lost == 0
        assert min(said.values()) >= backups
        for worker in workers.values():
            worker.kill()
        assert len(os.listdir(path / "backups")) == 10


@pytest.mark.slow
@pytest.mark.fault(26)
async def test_a_backup_killed_at_any_moment_is_whole_or_not_there(
    short: Path, team: Team, figure: Figure, scale: Scale
) -> None:
    path = short / "bus"
    rng = random.Random(7)
    await finished(path, scale(2_000, 5_000))
    unfinished = kills = 0
    while kills < KILLS or (not unfinished and kills < MAX_KILLS):
        kills += 1
        worker = team.start("worker_upkeep", "backup", path, "-")
        worker.expect("made")
        await asyncio.sleep(rng.uniform(0, 0.08))
        worker.kill()
        names = os.listdir(path / "backups")
        unfinished += any(".unfinished" in name for name in names)
        for name in names:
            if not name.startswith("."):
                assert await asyncio.to_thread(highest, str(path / "backups" / name)) is not None
    figure(f"of backups: {unfinished} in the middle", kills=kills)
    assert unfinished, "at least one was killed in the middle"
    async with agentbus.connect(path) as bus:
        await bus.backup(keep=1)
        assert len(os.listdir(path / "backups")) == 1
    assert integrity(path) == "ok"


@pytest.mark.slow
@pytest.mark.fault(26)
async def test_a_restore_killed_at_any_moment_leaves_the_old_bus_or_the_new(
    short: Path, team: Team, figure: Figure
) -> None:
    path = short / "bus"
    rng = random.Random(9)
    await finished(path, 2_000)
    async with agentbus.connect(path) as bus:
        copy = (await bus.backup(short / "copy.db")).path
    expected = len(everything(path)["message"])
    in_the_middle = kills = 0
    while kills < KILLS or (not in_the_middle and kills < MAX_KILLS):
        kills += 1
        worker = team.start("worker_upkeep", "restore", path, copy)
        worker.expect("restored")
        await asyncio.sleep(rng.uniform(0, 0.06))
        worker.kill()
        in_the_middle += any(name.startswith("restoring-") for name in os.listdir(path))
        # Opening it rolls back an interrupted check of the old bus, which a read-only connection cannot.
        async with agentbus.connect(path) as bus:
            assert (await bus.stats()).messages == {"acked": expected}
        assert integrity(path) == "ok"
    figure(f"of restores: {in_the_middle} in the middle", kills=kills)
    assert in_the_middle, "at least one was killed in the middle"
    agentbus.restore_backup(copy, path)
    assert not [name for name in os.listdir(path) if name.startswith("restoring-")]


async def test_a_bus_in_use_by_another_process_is_not_replaced_even_if_that_is_stopped(short: Path, team: Team) -> None:
    path = short / "bus"
    async with agentbus.connect(path) as bus:
        copy = (await bus.backup(short / "copy.db")).path
    worker = team.start("worker_upkeep", "send", path, "w")
    worker.expect("sent")
    with pytest.raises(agentbus.errors.BusInUse):
        agentbus.restore_backup(copy, path)
    worker.stop()
    with pytest.raises(agentbus.errors.BusInUse):
        agentbus.restore_backup(copy, path)
    worker.resume()
    worker.expect("sent")
    worker.kill()
    last = last_said(worker, 0)
    async with agentbus.connect(path) as bus:
        assert sum((await bus.stats()).messages.values()) >= last
    agentbus.restore_backup(copy, path)
    async with agentbus.connect(path) as bus:
        assert (await bus.stats()).messages == {}
