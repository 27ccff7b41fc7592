"""Opening a bus where it cannot work: each reason is an error of its own that says what to do."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import stat
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import agentbus
from agentbus.engine.sqlite.connection import NumberedConnection, require_sqlite
from agentbus.errors import DatabaseGone, InvalidUrl, NotADatabase, NotWritable, SchemaTooNew, SQLiteTooOld
from tests.api.helpers import take, worker
from tests.engine.sqlite.mount_namespace import run_mounted
from tests.support.figures import Figure


async def _make(directory: Path, messages: int = 1) -> None:
    async with agentbus.connect(directory) as bus:
        a = await worker(bus, "a")
        await a.send_many(("a", "note", {"n": n, "filling": "x" * 500}) for n in range(messages))


async def test_a_file_that_is_not_a_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    content = b"This is not a database, but someone's only copy of a thesis.\n" * 100
    (tmp_path / "bus.db").write_bytes(content)
    with pytest.raises(NotADatabase) as refused:
        async with agentbus.connect(tmp_path):
            pytest.fail("this block must not run")
    assert refused.value.code == "not_a_database"
    assert str(tmp_path / "bus.db") in str(refused.value)
    assert refused.value.fix is not None
    assert (tmp_path / "bus.db").read_bytes() == content


async def test_a_damaged_database_is_refused(tmp_path: Path) -> None:
    await _make(tmp_path, 200)
    database = tmp_path / "bus.db"
    content = bytearray(database.read_bytes())
    content[100:] = os.urandom(len(content) - 100)
    database.write_bytes(content)
    with pytest.raises(NotADatabase):
        async with agentbus.connect(tmp_path):
            pytest.fail("this block must not run")


async def test_an_empty_file_becomes_a_bus(tmp_path: Path) -> None:
    (tmp_path / "bus.db").touch()
    await _make(tmp_path)


async def test_a_payload_whose_bytes_changed_is_detected_by_its_reader(tmp_path: Path) -> None:
    """SQLite's own checks do not see it. The message becomes a dead letter; its neighbours are not to blame."""
    await _make(tmp_path, 3)
    with sqlite3.connect(tmp_path / "bus.db") as raw:
        raw.execute("UPDATE messages SET payload = replace(payload, '\"n\":1', '\"n\":7')")
    raw.close()
    async with agentbus.connect(tmp_path) as bus:
        third, second, first = (await bus.messages.list()).items
        assert (first.payload["n"], second.payload, third.payload["n"]) == (0, None, 2)
        assert second.error is not None
        assert "checksum" in second.error
        a = await worker(bus, "a")
        messages = await a.receive_many(3, timeout=0)
        assert [message.payload["n"] for message in messages] == [0, 2]
        # Receiving the others did not wait for that; two writes later it is done.
        await a.ack(messages)
        await a.progress(100)
        (letter,) = (await bus.messages.dead()).items
        assert (letter.message_id, letter.payload) == ("m-2", None)
        assert letter.error is not None
        assert "checksum" in letter.error


async def test_a_database_that_is_newer_than_the_code_is_refused_and_left_alone(tmp_path: Path) -> None:
    await _make(tmp_path)
    with sqlite3.connect(tmp_path / "bus.db") as raw:
        (known,) = raw.execute("PRAGMA user_version").fetchone()
        raw.execute("PRAGMA user_version = 999")
    raw.close()
    before = (tmp_path / "bus.db").read_bytes()
    with pytest.raises(SchemaTooNew) as refused:
        async with agentbus.connect(tmp_path):
            pytest.fail("this block must not run")
    assert refused.value.code == "schema_too_new"
    assert (refused.value.found, refused.value.known) == (999, known)
    assert "upgrade" in (refused.value.fix or "")
    assert (tmp_path / "bus.db").read_bytes() == before


def test_a_sqlite_that_is_too_old_is_refused() -> None:
    for found in ((3, 36, 0), (3, 7, 17), (2, 8, 17)):
        with pytest.raises(SQLiteTooOld) as refused:
            require_sqlite(found)
        assert refused.value.code == "sqlite_too_old"
        assert (refused.value.found, refused.value.needed) == (".".join(map(str, found)), "3.37.0")
    for found in ((3, 37, 0), (3, 37, 2), (3, 40, 1), (4, 0, 0)):
        require_sqlite(found)


async def test_a_failed_opening_leaves_nothing_open(tmp_path: Path) -> None:
    """A lock or a thread that was left behind would show in the next opening, or at exit."""
    for _ in range(3):
        (tmp_path / "bus.db").write_bytes(b"not a database" * 1000)
        with pytest.raises(NotADatabase):
            async with agentbus.connect(tmp_path, lock_timeout=1):
                pytest.fail("this block must not run")
    (tmp_path / "bus.db").unlink()
    await _make(tmp_path)


def test_a_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidUrl) as refused:
        agentbus.connect(tmp_path / "file")
    assert refused.value.code == "invalid_url"


@pytest.mark.parametrize(
    "place",
    [
        "",
        "~nobody-has-this-name/bus",
        "x" * 300,
        "x/" * 3000,
        "lone \ud800",
        b"bytes",
        "sqlite://",
        "sqlite:///",
        "ftp://x",
        "sqlite:///x.db",
        "deep/x.sqlite3",
    ],
    ids=[
        "empty",
        "no such home",
        "name too long",
        "path too long",
        "surrogate",
        "bytes",
        "sqlite",
        "sqlite/",
        "ftp",
        "sqlite file",
        "file",
    ],
)
def test_what_names_no_bus_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidUrl):
        agentbus.connect(place)
    assert list(tmp_path.iterdir()) == []


async def test_a_directory_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises((InvalidUrl, NotWritable)):
        async with agentbus.connect(tmp_path / "file" / "bus"):
            pytest.fail("this block must not run")


_READ_ONLY = """
import asyncio, json, sys
import agentbus

async def attempt(path):
    try:
        async with agentbus.connect(path) as bus:
            await bus.stats()
    except agentbus.errors.AgentBusError as error:
        return [error.code, str(error)]
    return ["opened", ""]

print(json.dumps([asyncio.run(attempt(sys.argv[1] + "/old")), asyncio.run(attempt(sys.argv[1] + "/new"))]))
"""


@pytest.mark.fault(20)
async def test_a_read_only_directory_is_refused(tmp_path: Path, figure: Figure) -> None:
    """Both with a bus in it and without. For root, permissions do not bind; a read-only mount does."""
    await _make(tmp_path / "old")
    mount = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1"'
    old, new = await asyncio.to_thread(run_mounted, mount, _READ_ONLY, tmp_path)
    figure(f"read-only directory: {old[0]}")
    assert (old[0], new[0]) == ("read_only_bus", "not_writable")
    assert str(tmp_path / "old") in old[1]
    assert str(tmp_path / "new") in new[1]


@pytest.mark.skipif(os.getuid() == 0, reason="permissions do not bind root")
async def test_a_directory_without_permission_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(NotWritable):
        async with agentbus.connect(tmp_path):
            pytest.fail("this block must not run")


@pytest.mark.parametrize("way", ["unlinked", "replaced", "directory removed"])
async def test_a_database_that_was_removed_or_replaced_is_noticed(tmp_path: Path, way: str) -> None:
    place = tmp_path / "bus"
    await _make(tmp_path / "other")
    async with agentbus.connect(place) as bus:
        a = await worker(bus, "a")
        await a.send("a", "note")
        if way == "directory removed":
            shutil.rmtree(place)
        else:
            (place / "bus.db").unlink()
        if way == "replaced":
            shutil.copy(tmp_path / "other" / "bus.db", place / "bus.db")
        with pytest.raises(DatabaseGone) as gone:
            await a.send("a", "note")
        assert gone.value.code == "database_gone"
        assert gone.value.fix is not None
    if way != "replaced":  # whose log is read then depends on how it was replaced
        await _make(place)


async def test_a_bus_is_for_its_user_only(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        async with agentbus.connect(tmp_path / "bus") as bus:
            await worker(bus, "a")
            modes = {
                path.name: stat.S_IMODE(path.stat().st_mode)
                for path in [tmp_path / "bus", *(tmp_path / "bus").iterdir()]
            }
    finally:
        os.umask(before)
    assert modes["bus"] == 0o700
    for name in ("bus.db", "bus.db-wal", "bus.db-shm", "bus.lock"):
        assert modes[name] == 0o600, name


async def test_a_bus_is_found_upwards_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AGENTBUS_URL", raising=False)
    below = tmp_path / "project" / "src" / "deep"
    below.mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "project")
    async with agentbus.connect() as bus:
        await worker(bus, "a")
    assert (tmp_path / "project" / ".agentbus" / "bus.db").is_file()
    monkeypatch.chdir(below)
    async with agentbus.connect() as bus:
        assert await bus.agents.get("a") is not None
    assert not (below / ".agentbus").exists()


async def test_the_environment_names_the_bus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AGENTBUS_URL", str(tmp_path / "elsewhere"))
    async with agentbus.connect() as bus:
        await worker(bus, "a")
    assert (tmp_path / "elsewhere" / "bus.db").is_file()
    assert not (tmp_path / ".agentbus").exists()


async def test_one_bus_has_several_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await _make(tmp_path / "bus")
    monkeypatch.chdir(tmp_path)
    for url in ("bus", tmp_path / "bus", tmp_path / "bus" / "bus.db", "./bus/", f"sqlite:///{tmp_path / 'bus'}"):
        async with agentbus.connect(url) as bus:
            assert await bus.agents.get("a") is not None, url


async def test_a_deep_directory_will_do(tmp_path: Path) -> None:
    """A socket's path is short: the doorbells of a deep bus are elsewhere, and still ring."""
    deep = tmp_path.joinpath(*["a-rather-long-name-of-a-directory"] * 6)
    async with agentbus.connect(deep, beat_every=3600) as here, agentbus.connect(deep, beat_every=3600) as there:
        a, b = await worker(here, "a"), await worker(there, "b")
        waiting = asyncio.create_task(b.receive())
        await a.send("b", "note", 1)
        message = await asyncio.wait_for(waiting, 30)
        assert message is not None
        await message.ack()
        await b.send("a", "note", 2)
        assert (await take(a)).payload == 2


def test_numbered_parameters_are_bound_without_a_warning() -> None:
    """Python 3.12.0 to 3.12.3 warns of a sequence for ``?1``; the bus is used with warnings as errors too."""
    with closing(sqlite3.connect(":memory:", factory=NumberedConnection)) as database:
        assert database.execute("SELECT ?2, ?1, ?2", (1, "two")).fetchall() == [("two", 1, "two")]
        assert database.execute("SELECT 1").fetchall() == [(1,)]
        database.execute("CREATE TABLE t (a, b)")
        database.executemany("INSERT INTO t VALUES (?2, ?1)", iter([(1, 2), [3, 4]]))
        assert database.execute("SELECT a, b FROM t WHERE a > ?1", [2]).fetchall() == [(4, 3)]
        assert database.execute("SELECT ?", [5]).fetchall() == [(5,)]


def test_a_relative_url_that_means_an_absolute_path_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in other tools, ``sqlite:///tmp/x`` is relative. Without a ``tmp`` here, ``/tmp/x`` was meant."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidUrl, match="sqlite:////usr/x"):
        agentbus.connect("sqlite:///usr/x")
    (tmp_path / "usr").mkdir()
    agentbus.connect("sqlite:///usr/x")
