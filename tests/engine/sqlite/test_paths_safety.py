"""A home that another user prepared: no link in it is followed, and one that others own or can write to is refused."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

import agentbus
from agentbus.api.maintenance.backup import list_backups
from agentbus.core import process_info
from agentbus.core.clock import SystemClock
from agentbus.core.trust import distrust, entries, trust
from agentbus.errors import DamagedBackup, NoSuchFile, UnsafeFile, UntrustedHome
from agentbus.records import Check
from agentbus.sync.bus import open_bus

FILES = ("bus.db", "bus.db-wal", "bus.db-shm", "bus.db-journal", "bus.lock", "backup.lock", "bus.ballast")
FOLDERS = ("bells", "backups", "archive")
STRANGER = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")


@pytest.fixture(autouse=True)
def configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing is trusted, and what a test trusts is forgotten."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("AGENTBUS_TRUST", raising=False)
    monkeypatch.delenv("SUDO_UID", raising=False)
    return tmp_path / "config" / "agentbus" / "trusted"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A bus that was used: it has all its files but those that it only has while it is open."""
    open_bus(tmp_path / "bus", create=True).close()
    return tmp_path / "bus"


async def opened(place: Path) -> None:
    async with agentbus.connect(place) as bus:
        await bus.backup()


def visited(place: Path) -> None:
    open_bus(place, create=True).close()


async def permissions(place: Path) -> Check:
    return next(check for check in await agentbus.doctor(place) if check.name == "permissions")


def put(path: Path, way: str, victim: Path) -> None:
    if path.exists():
        path.unlink()
    if way == "symbolic link":
        path.symlink_to(victim)
    elif way == "link to nothing":
        path.symlink_to(victim.with_name("nothing"))
    elif way == "hard link":
        os.link(victim, path)
    elif way == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()


@pytest.mark.parametrize("way", ["symbolic link", "link to nothing", "hard link", "pipe", "directory"])
@pytest.mark.parametrize("name", FILES)
async def test_what_is_no_plain_file_of_the_bus_is_neither_followed_nor_written(
    tmp_path: Path, place: Path, name: str, way: str
) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"the only copy of a thesis\n" * 400)
    before = victim.read_bytes()
    put(place / name, way, victim)
    with pytest.raises(UnsafeFile) as refused:
        visited(place)
    assert (refused.value.code, refused.value.path) == ("unsafe_file", str(place / name))
    with pytest.raises(UnsafeFile):
        await opened(place)
    if way == "pipe":
        check = await permissions(place)
        assert (check.status, str(place / name) in check.text) == ("error", True)
    assert victim.read_bytes() == before
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("name", FOLDERS)
async def test_a_folder_of_the_bus_that_is_a_link_is_not_followed(tmp_path: Path, place: Path, name: str) -> None:
    shutil.rmtree(place / name, ignore_errors=True)
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (place / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnsafeFile):
        await opened(place)
    with pytest.raises(UnsafeFile):
        visited(place)
    assert (await permissions(place)).status == "error"
    assert not list((tmp_path / "elsewhere").iterdir())


async def test_a_restore_that_was_killed_leaves_a_link_that_is_its_own(place: Path) -> None:
    (place / "backups").mkdir(mode=0o700)
    os.link(place / "bus.db", place / "backups" / ".replacing-20260101T000000.000Z-1a2b3c4d.db")
    await opened(place)
    os.link(place / "bus.db", place / "backups" / "of-another.db")
    with pytest.raises(UnsafeFile):
        await opened(place)


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
async def test_a_home_that_others_can_write_to_is_refused_until_it_is_trusted(
    tmp_path: Path, place: Path, mode: int, configuration: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.chmod(mode)
    with pytest.raises(UntrustedHome) as refused:
        await opened(place)
    assert refused.value.fix == f"chmod go-w {place}; or, if you trust those users: agentbus trust {place}"
    with pytest.raises(UntrustedHome):
        visited(place)
    assert (await permissions(place)).status == "error"
    monkeypatch.setenv("AGENTBUS_TRUST", f"/nowhere:{place}")
    await opened(place)
    monkeypatch.delenv("AGENTBUS_TRUST")
    trust("home", str(place.resolve()))
    trust("home", str(place.resolve()))
    assert entries() == [("home", str(place.resolve()))]
    assert (configuration.stat().st_mode & 0o777, configuration.read_text()) == (0o600, f"home {place.resolve()}\n")
    await opened(place)
    check = await permissions(place)
    assert (check.status, "trusted" in check.text) == ("warning", True)
    distrust("home", str(place.resolve()))
    with pytest.raises(UntrustedHome):
        await opened(place)
    # What lies below a trusted directory is trusted; links never are.
    trust("home", str(tmp_path.resolve()))
    visited(place)
    put(place / "bus.lock", "symbolic link", tmp_path / "victim")
    with pytest.raises(UnsafeFile):
        visited(place)


@as_root
async def test_a_home_of_another_user_is_refused_until_it_is_trusted(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.chown(place, STRANGER, -1)
    check = await permissions(place)
    assert (check.status, "belongs to" in check.text) == ("error", True)
    with pytest.raises(UntrustedHome) as refused:
        await opened(place)
    assert f"agentbus trust {place}" in str(refused.value.fix)
    # As Git decides it: who became root by sudo is still the user who did.
    monkeypatch.setenv("SUDO_UID", str(STRANGER))
    await opened(place)
    monkeypatch.delenv("SUDO_UID")
    monkeypatch.setenv("AGENTBUS_TRUST", "*")
    await opened(place)


@as_root
@pytest.mark.parametrize("name", ["bus.db", "bus.lock", "bus.ballast"])
async def test_a_file_of_another_user_is_refused(place: Path, name: str) -> None:
    os.chown(place / name, STRANGER, -1)
    with pytest.raises(UnsafeFile):
        await opened(place)
    check = await permissions(place)
    assert (check.status, f"{place / name}" in check.text) == ("error", True)


@as_root
async def test_the_doctor_reports_the_owner_of_the_files(place: Path) -> None:
    check = await permissions(place)
    assert (check.status, check.text) == ("ok", "for this user only")
    async with agentbus.connect(place) as bus:
        os.chown((await bus.backup()).path, STRANGER, -1)
    check = await permissions(place)
    assert (check.status, check.text.startswith(f"other users own {place / 'backups'}")) == ("warning", True)


def test_a_list_of_trusted_directories_that_others_can_write_counts_for_nothing(
    place: Path, configuration: Path
) -> None:
    trust("home", str(place.resolve()))
    configuration.chmod(0o666)
    place.chmod(0o777)
    with pytest.raises(UntrustedHome):
        visited(place)


def test_a_link_is_a_home_only_where_it_is_named(tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "repository" / "deep").mkdir(parents=True)
    (tmp_path / "repository" / ".agentbus").symlink_to(place)
    monkeypatch.delenv("AGENTBUS_URL", raising=False)
    for here in ("repository", "repository/deep"):
        monkeypatch.chdir(tmp_path / here)
        with pytest.raises(UnsafeFile) as refused:
            open_bus(create=True)
        assert str(place.resolve()) in str(refused.value.fix)
    visited(tmp_path / "repository" / ".agentbus")


async def test_a_bell_that_a_row_names_is_only_removed_if_it_is_one(place: Path, tmp_path: Path) -> None:
    """Another program may have prepared the database, and named any path in it."""
    (tmp_path / "bells").mkdir()
    victims = [tmp_path / "bells" / "1-0a1b2c3d", tmp_path / "thesis"]
    row = (process_info.host_key(), SystemClock().now().boot)
    raw = sqlite3.connect(place / "bus.db", isolation_level=None)
    for victim in victims:
        victim.write_text("the only copy")
        raw.execute(
            "INSERT INTO processes (host, boot, pid, started, bell, beat, created) VALUES (?, ?, ?, 'x', ?, 0, 0)",
            (*row, 4_194_305, str(victim)),
        )
    raw.close()
    await opened(place)
    raw = sqlite3.connect(place / "bus.db", isolation_level=None)
    assert raw.execute("SELECT count(*) FROM processes WHERE status = 'dead'").fetchone() == (2,)
    raw.close()
    assert [victim.read_text() for victim in victims] == ["the only copy"] * 2


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda path, _: os.mkfifo(path), DamagedBackup),
        (lambda path, _: path.mkdir(), NoSuchFile),
        (lambda path, _: path.symlink_to("/dev/zero"), DamagedBackup),
        (lambda path, backup: path.symlink_to(backup), None),
    ],
    ids=["pipe", "directory", "link to a device", "link to a backup"],
)
async def test_a_backup_that_is_named_may_be_a_link_but_must_be_a_file(
    tmp_path: Path, place: Path, make: Callable[[Path, str], None], error: type[Exception] | None
) -> None:
    async with agentbus.connect(place) as bus:
        backup = (await bus.backup(tmp_path / "kept.db")).path
    make(tmp_path / "source", backup)
    if error is None:
        assert agentbus.restore_backup(tmp_path / "source", tmp_path / "new") == tmp_path / "new"
    else:
        with pytest.raises(error):
            agentbus.restore_backup(tmp_path / "source", tmp_path / "new")
        assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["bus.db", "bus.lock", "backups", "bus.db-wal"])
async def test_nothing_is_restored_through_a_link(tmp_path: Path, place: Path, name: str) -> None:
    async with agentbus.connect(place) as bus:
        backup = (await bus.backup(tmp_path / "kept.db")).path
    target = tmp_path / "target"
    target.mkdir(mode=0o700)
    (tmp_path / "victim").mkdir(mode=0o700)
    (tmp_path / "victim" / "file").write_text("a thesis")
    (target / name).symlink_to(tmp_path / "victim" / ("" if name == "backups" else "file"))
    with pytest.raises(UnsafeFile):
        agentbus.restore_backup(backup, target)
    assert [path.name for path in (tmp_path / "victim").iterdir()] == ["file"]
    assert (tmp_path / "victim" / "file").read_text() == "a thesis"
    target.chmod(0o777)
    (target / name).unlink()
    with pytest.raises(UntrustedHome):
        agentbus.restore_backup(backup, target)
    with pytest.raises(UntrustedHome):
        open_bus(target, create=True)


async def test_what_is_in_backups_and_is_no_file_is_no_backup(place: Path, tmp_path: Path) -> None:
    """Not for the list, nor for the doctor, who would wait for a pipe without end, nor for a restore by its name."""
    async with agentbus.connect(place) as bus:
        backup = await bus.backup(tmp_path / "kept.db")
    (place / "backups").mkdir(mode=0o700, exist_ok=True)
    os.mkfifo(place / "backups" / "bus-20990101T000000.000Z-1a2b3c4d.db")
    (place / "backups" / "bus-20990102T000000.000Z-1a2b3c4d.db").symlink_to(backup.path)
    assert list_backups(place) == []
    (place / "bus.db").write_bytes(b"no database" * 1000)
    checks = {check.name: check for check in await agentbus.doctor(place)}
    assert "there is no sound backup" in str(checks["integrity"].fix)
    with pytest.raises(UnsafeFile):
        agentbus.restore_backup(place / "backups" / "bus-20990102T000000.000Z-1a2b3c4d.db", place)
