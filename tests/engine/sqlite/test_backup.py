"""Backups: whole, verified, private, and made while everybody works on."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import agentbus
from agentbus import Bus
from agentbus.engine.sqlite import backup, paths
from agentbus.errors import BackupFailed, BusClosed, DiskFull, InvalidInput, NotWritable, OutOfRange
from tests.api.helpers import worker
from tests.conftest import Engine
from tests.engine.sqlite.mount_namespace import run_mounted
from tests.support.clock import FakeClock


@contextmanager
def opened(path: str | Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        yield connection
    finally:
        connection.close()


def payloads(path: str | Path) -> list[Any]:
    """Return the payloads in a sound backup."""
    with opened(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return [payload for (payload,) in connection.execute("SELECT payload FROM messages ORDER BY id")]


def made(bus: Bus) -> list[str]:
    """The names in backups/, whatever they are."""
    return sorted(os.listdir(bus._engine.directory / "backups"))


async def test_a_backup_is_one_private_file_with_everything(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note", "in the log")
    record = await bus.backup()
    path = Path(record.path)
    assert path.parent == bus._engine.directory / "backups"
    assert path.name.startswith("bus-20231114T221320.000Z-")
    assert record.created == clock.now().wall
    assert record.size == path.stat().st_size
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert payloads(path) == ['"in the log"']
    assert made(bus) == [path.name], "no log, no journal, nothing unfinished"
    await a.send("a", "note", "the bus still works")


async def test_the_newest_backups_stay(bus: Bus, clock: FakeClock) -> None:
    mine = bus._engine.directory / "backups" / "mine.db"
    names = []
    for _ in range(13):
        names.append(Path((await bus.backup()).path).name)
        mine.write_text("not yours to delete")
        clock.advance(1)
    assert made(bus) == [*names[3:], "mine.db"]
    last = Path((await bus.backup(keep=2)).path).name
    assert made(bus) == [names[12], last, "mine.db"]
    assert (await bus.backup(keep=1)).path.endswith(made(bus)[0])


async def test_a_clock_that_was_set_back_costs_no_new_backup(bus: Bus, clock: FakeClock) -> None:
    async def named() -> str:
        clock.advance(1)
        return Path((await bus.backup(keep=3)).path).name

    old = [await named() for _ in range(3)]
    clock.jump(-365 * 24 * 3600)
    new = [await named() for _ in range(2)]
    assert made(bus) == sorted([*new, old[-1]])
    new.append(await named())
    assert made(bus) == sorted(new)


async def test_a_backup_can_be_put_anywhere_where_nothing_is(bus: Bus, tmp_path: Path) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note", 1)
    record = await bus.backup(tmp_path / "nightly.db")
    assert record.path == str(tmp_path / "nightly.db")
    assert payloads(record.path) == ["1"]
    inside = Path((await bus.backup(tmp_path)).path)
    assert inside.parent == tmp_path
    assert not (bus._engine.directory / "backups").exists()


async def test_nothing_that_exists_is_ever_overwritten(bus: Bus, tmp_path: Path) -> None:
    a = await worker(bus, "a")
    (tmp_path / "file").write_text("precious")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for path in (tmp_path / "file", tmp_path / "link", bus._engine.directory / "bus.db"):
        with pytest.raises(BackupFailed):
            await bus.backup(path)
    with pytest.raises(BackupFailed):
        await bus.backup(tmp_path / "missing" / "backup.db")
    assert (tmp_path / "file").read_text() == "precious"
    assert sorted(os.listdir(tmp_path)) == ["file", "link"]
    await a.send("a", "note", "the bus still works")


async def test_bad_input_is_refused(bus: Bus) -> None:
    for keep in (0, -1, True, 1.5, "3"):
        with pytest.raises(OutOfRange):
            await bus.backup(keep=keep)  # type: ignore[arg-type]
    for path in (7, "", "a\0b", b"x"):
        with pytest.raises(InvalidInput):
            await bus.backup(path)  # type: ignore[arg-type]
    assert not (bus._engine.directory / "backups").exists()


@pytest.mark.parametrize("own", [True, False])
async def test_what_a_killed_backup_left_is_swept_by_the_next_and_nothing_else(
    bus: Bus, tmp_path: Path, own: bool
) -> None:
    await bus.backup()
    folder = bus._engine.directory / "backups" if own else tmp_path
    mark = backup.mark(paths.Home(bus._engine.directory))
    mine = [".hidden", ".thesis.unfinished", ".thesis.unfinished.md", ".agentbus-00000000-01234567.unfinished"]
    for name in (*mine, *(f"{mark}01234567.unfinished{ending}" for ending in ("", "-journal", "-wal", "-shm"))):
        (folder / name).write_text("half")
    await bus.backup(None if own else tmp_path)
    assert sorted(name for name in os.listdir(folder) if name.startswith(".")) == sorted(mine)


async def test_two_buses_can_be_backed_up_to_one_directory_at_once(bus: Bus, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    async with agentbus.connect(tmp_path / "other") as other:
        records = await asyncio.gather(*(one.backup(tmp_path / "here") for one in (bus, other) * 8))
    assert sorted(os.listdir(tmp_path / "here")) == sorted(Path(record.path).name for record in records)


async def test_no_backup_is_put_among_the_files_of_a_bus(bus: Bus, tmp_path: Path) -> None:
    a = await worker(bus, "a")
    directory = bus._engine.directory
    async with agentbus.connect(tmp_path / "other"):
        pass
    places = ["bus.db-journal", "mine.db", "bells/mine.db", "../bus/mine.db"]
    for place in (*(directory / name for name in places), directory, tmp_path / "other", tmp_path / "x.db-journal"):
        before = {*os.listdir(directory)} - {"backup.lock"}
        with pytest.raises(BackupFailed):
            await bus.backup(place)
        assert {*os.listdir(directory)} - {"backup.lock"} == before
    (directory / "backups").mkdir()
    await bus.backup(directory / "backups" / "named.db")
    await a.send("a", "note", "the bus still works")
    assert (await bus.doctor())[0].status == "ok"


async def test_a_name_that_is_too_long_is_a_named_error_and_a_long_one_is_fine(bus: Bus, tmp_path: Path) -> None:
    with pytest.raises(NotWritable):
        await bus.backup(tmp_path / ("x" * 300))
    await bus.backup(tmp_path / ("ä" * 127))


async def test_backups_under_load_each_hold_all_that_was_acknowledged_before(engine: Engine, tmp_path: Path) -> None:
    async with engine.connect() as bus, engine.connect() as other:
        acknowledged = 0
        stop = False
        more = asyncio.Event()

        async def load(bus: Bus, name: str) -> None:
            nonlocal acknowledged
            agent = await worker(bus, name)
            while not stop:
                await agent.send_many([(name, "note", "x" * 500) for _ in range(5)])
                acknowledged += 5
                more.set()
                await agent.state.set("k", acknowledged)
                await agent.ack(await agent.receive_many(2, timeout=0))

        tasks = [asyncio.create_task(load(one, f"w{n}")) for n, one in enumerate((bus, bus, other))]
        counts: list[tuple[int, int]] = []
        meanwhile = 0
        # More than are kept.
        for _ in range(12):
            for _ in range(3):
                more.clear()
                await more.wait()
            before = acknowledged
            record = await bus.backup()
            meanwhile += acknowledged - before
            counts.append((before, await asyncio.to_thread(lambda path: len(payloads(path)), record.path)))
        stop = True
        await asyncio.gather(*tasks)
        assert all(found >= before for before, found in counts), counts
        assert meanwhile, "messages were acknowledged during backups"
        assert len(made(bus)) == 10


async def test_backups_of_several_buses_at_once_wait_for_each_other(engine: Engine) -> None:
    async with engine.connect() as bus, engine.connect() as other:
        records = await asyncio.gather(*(one.backup() for one in (bus, other) * 4))
        assert len({record.path for record in records}) == 8
        assert all(payloads(record.path) == [] for record in records)


async def test_a_damaged_copy_never_gets_its_name(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup, "verify", lambda _: "page 7 is damaged")
    with pytest.raises(BackupFailed, match="page 7"):
        await bus.backup()
    assert made(bus) == []


async def test_a_backup_that_would_not_fit_is_refused_before_it_takes_the_last_room(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage:
        free = 100_000

    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage)
    with pytest.raises(DiskFull):
        await bus.backup()
    assert made(bus) == []


async def test_a_directory_that_cannot_be_made_is_a_named_error(bus: Bus) -> None:
    (bus._engine.directory / "backups").write_text("in the way")
    with pytest.raises((NotWritable, BackupFailed)):
        await bus.backup()


async def test_the_bus_is_not_closed_before_a_backup_is_through(engine: Engine) -> None:
    async with engine.connect() as bus:
        task = asyncio.create_task(bus.backup())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        folder = bus._engine.directory / "backups"
    assert payloads((await task).path) == []
    with pytest.raises(BusClosed):
        await bus.backup()
    assert len(os.listdir(folder)) == 1


async def test_a_cancelled_caller_leaves_a_whole_backup_or_none(engine: Engine) -> None:
    """Whenever that is. What the thread is still at is hidden, and over when the bus is closed."""
    async with engine.connect() as bus:
        a = await worker(bus, "a")
        await a.send("a", "note", 1)
        folder = Path((await bus.backup()).path).parent
        finished = 1
        for pause in (0, 0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05):
            task = asyncio.create_task(bus.backup())
            await asyncio.sleep(pause)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
                finished += 1
            assert all(name.startswith(("bus-", ".agentbus-")) for name in made(bus))
            listed = backup.list_backups(paths.Home(bus._engine.directory))
            assert all(payloads(record.path) == ["1"] for record in listed)
        record = await bus.backup()
        assert payloads(record.path) == ["1"]
    names = sorted(os.listdir(folder))
    assert Path(record.path).name in names
    assert finished + 1 <= len(names) <= 10
    assert all(name.startswith("bus-") and payloads(folder / name) == ["1"] for name in names)


async def test_a_cancelled_backup_stops_at_its_next_step(engine: Engine) -> None:
    """Closing does not wait until gigabytes are copied that no caller waits for."""
    reached, resume = asyncio.Event(), threading.Event()
    told: list[int] = []
    async with engine.connect() as bus:
        a = await worker(bus, "a")
        for _ in range(40):
            await a.send("a", "note", "x" * 500_000)
        loop = asyncio.get_running_loop()
        folder = bus._engine.directory / "backups"

        def report(done: int, total: int) -> None:
            told.append(done)
            loop.call_soon_threadsafe(reached.set)
            assert resume.wait(30)

        task = asyncio.create_task(bus.backup(progress=report))
        try:
            await reached.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert all(name.startswith(".agentbus-") for name in made(bus))
            assert backup.list_backups(paths.Home(bus._engine.directory)) == []
        finally:
            resume.set()
    assert len(told) == 1
    assert os.listdir(folder) == []


@pytest.mark.parametrize(("value", "count"), [("1", 1), ("yes", 1), ("0", 0), ("", 0), ("off", 0)])
async def test_opening_makes_a_backup_when_asked(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, value: str, count: int
) -> None:
    monkeypatch.setenv("AGENTBUS_BACKUP_ON_OPEN", value)
    async with engine.connect() as bus:
        folder = bus._engine.directory / "backups"
        assert (len(made(bus)) if folder.exists() else 0) == count


async def test_a_backup_on_opening_that_fails_is_a_warning(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with engine.connect() as bus:
        (bus._engine.directory / "backups").write_text("in the way")
    monkeypatch.setenv("AGENTBUS_BACKUP_ON_OPEN", "1")
    async with engine.connect() as bus:
        await worker(bus, "a")
    assert "no backup on opening" in caplog.text
    monkeypatch.setenv("AGENTBUS_BACKUP_ON_OPEN", "perhaps")
    with pytest.raises(InvalidInput):
        async with engine.connect() as bus:
            pass


_SCRIPT = """
import asyncio, json, os, shutil, sys
import agentbus
from agentbus.errors import AgentBusError
from agentbus.engine.sqlite import backup

place = sys.argv[1]
told = {}

async def attempt(call):
    try:
        await call
    except AgentBusError as error:
        return error.code
    return "done"

async def main():
    async with agentbus.connect(os.path.join(place, "bus")) as bus:
        a = await bus.register("a", type="worker")
        for n in range(100):
            await a.send("a", "note", "x" * 40_000)
        told["refused"] = await attempt(bus.backup())
        # As if the disk had filled while the copy was made.
        class Usage:
            free = 2 ** 40
        backup.shutil.disk_usage = lambda _: Usage
        told["filled"] = await attempt(bus.backup())
        told["left"] = os.listdir(os.path.join(place, "bus", "backups"))
        told["works"] = await attempt(a.send("a", "note", "after"))
        told["stored"] = sum((await bus.stats()).messages.values())

asyncio.run(main())
print(json.dumps(told))
"""


def test_no_space_for_the_backup_is_a_named_error_and_the_bus_works(tmp_path: Path) -> None:
    told = run_mounted('mount -t tmpfs -o size=10m tmpfs "$1"', _SCRIPT, tmp_path)
    assert told == {"refused": "disk_full", "filled": "disk_full", "left": [], "works": "done", "stored": 101}


async def test_the_file_is_a_bus_of_its_own(bus: Bus, tmp_path: Path) -> None:
    """A backup is an ordinary database: it can also be opened where it was put, as a bus."""
    a = await worker(bus, "a")
    await a.send("a", "note", 7)
    (tmp_path / "copy").mkdir()
    await bus.backup(tmp_path / "copy" / "bus.db")
    async with agentbus.connect(tmp_path / "copy") as copy:
        assert (await copy.stats()).messages == {"queued": 1}


async def test_progress_is_reported_while_others_write(bus: Bus) -> None:
    """The copy is made in steps, and must neither restart with a write nor contain half of one."""
    a = await worker(bus, "a")
    for number in range(40):
        await a.send("a", "note", f"{number}" + "x" * 500_000)
    told: list[tuple[int, int]] = []
    stop = False

    async def write_on() -> None:
        while not stop:
            await a.send("a", "note", "later")

    writing = asyncio.create_task(write_on())
    try:
        record = await bus.backup(progress=lambda done, total: told.append((done, total)))
    finally:
        stop = True
        await writing
    found = payloads(record.path)
    assert len([text for text in found if text != '"later"']) == 40
    assert told[-1] == (1, 1)
    copied = [done / total for done, total in told[:-1]]
    assert len(copied) > 3
    assert copied == sorted(copied), "never again from the beginning"
    assert copied[-1] == 0.5


async def test_the_backups_of_a_bus_are_listed_newest_first(bus: Bus, clock: FakeClock) -> None:
    place = paths.Home(bus._engine.directory)
    assert backup.list_backups(place) == []
    first = await bus.backup()
    clock.advance(3600)
    second = await bus.backup()
    (bus._engine.directory / "backups" / "notes.txt").write_text("not a backup")
    (bus._engine.directory / "backups" / "bus-20239999T999999.000Z-00000000.db").write_text("no time")
    assert backup.list_backups(place) == [second, first]
