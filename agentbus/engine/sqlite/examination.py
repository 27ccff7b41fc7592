"""What the doctor asks of an SQLite store: its file, its surroundings, the library itself.

Everything here blocks, on a connection of its own that only reads: never under the write lock. The files themselves are
only looked at from outside: opening one that SQLite has open would drop its locks.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from agentbus.engine import presence
from agentbus.engine.queries import load
from agentbus.engine.sqlite.connection import migrations, open_reader, translated
from agentbus.engine.sqlite.home import Home, filesystem, refuse_unshared
from agentbus.errors import AgentBusError, UnsupportedFileSystem
from agentbus.operations import Rows
from agentbus.records import Check

LARGE_LOG = 64 * 1024 * 1024
_WITHOUT_RESET_BUG = (3, 51, 3)
"""The first SQLite in which a checkpoint and a writer cannot damage the database between them."""
_LOW, _LOWEST = 1024 * 1024 * 1024, 64 * 1024 * 1024
_VOLATILE = ("tmpfs", "ramfs")


def examine(home: Home, timeout: float) -> list[Check]:
    """Every check that needs no table of the bus."""
    checks: list[Check] = []
    for name, look in _LOOKS.items():
        try:
            checks.append(look(home, timeout))
        except AgentBusError as error:
            checks.append(Check(name, "error", str(error.args[0]), error.fix))
        except sqlite3.Error as error:
            found = translated(error, home)
            checks.append(Check(name, "error", str(found.args[0]), found.fix))
        except OSError as error:
            checks.append(Check(name, "error", f"could not be looked at: {error.strerror or error}"))
    return checks


def _integrity(home: Home, timeout: float) -> Check:
    rows = _asked(home, timeout, "PRAGMA integrity_check(10)")
    problems = [str(text) for (text,) in rows if text != "ok"]
    if problems:
        return Check("integrity", "error", "; ".join(problems), "restore a backup: agentbus.restore_backup(…)")
    return Check("integrity", "ok", "every page and index is sound")


def _foreign_keys(home: Home, timeout: float) -> Check:
    rows = _asked(home, timeout, "PRAGMA foreign_key_check")
    if rows:
        tables = ", ".join(sorted({f"{row[0]} to {row[2]}" for row in rows}))
        text = f"{len(rows)} rows refer to rows that are not there: {tables}"
        return Check("foreign keys", "error", text, "restore a backup; somebody wrote without foreign_keys")
    return Check("foreign keys", "ok", "every reference leads somewhere")


def _schema(home: Home, timeout: float) -> Check:
    ((found,),) = _asked(home, timeout, "PRAGMA user_version")
    newest = max(migrations())
    if found != newest:
        fix = "upgrade agentbus" if found > newest else "open the bus again: that brings it up to date"
        return Check("schema", "error", f"schema {found}, this agentbus uses {newest}", fix)
    return Check("schema", "ok", f"schema {found}")


def _library(home: Home, timeout: float) -> Check:
    version = sqlite3.sqlite_version
    if sqlite3.sqlite_version_info < _WITHOUT_RESET_BUG:
        text = (
            f"SQLite {version} has the WAL-reset bug; the lock of the bus keeps it away, but only from the bus itself"
        )
        fix = "do not write with other programs while the bus is open, or use a Python with SQLite 3.51.3 or newer"
        return Check("sqlite", "warning", text, fix)
    return Check("sqlite", "ok", f"SQLite {version}")


def _file_system(home: Home, timeout: float) -> Check:
    try:
        mounts = os.fsdecode(Path("/proc/self/mountinfo").read_bytes())
    except OSError:
        return Check("file system", "ok", "this system does not say which it is")
    kind = filesystem(home.directory.resolve(), mounts)
    try:
        refuse_unshared(home.directory, mounts)
    except UnsupportedFileSystem as error:
        return Check("file system", "error", str(error.args[0]), error.fix)
    if kind in _VOLATILE:
        text = f"{kind} is in memory: the bus is gone after a reboot"
        return Check("file system", "warning", text, "put the bus on a local disk")
    return Check("file system", "ok", kind or "unknown")


def _permissions(home: Home, timeout: float) -> Check:
    open_to_others = [str(path) for path, mode in _modes(home) if mode & 0o077]
    if open_to_others:
        first = ", ".join(open_to_others[:5])
        text = f"others may reach into {first}{' …' if len(open_to_others) > 5 else ''}"
        return Check("permissions", "warning", text, f"chmod -R go= {home.directory}")
    return Check("permissions", "ok", "for this user only")


def _log(home: Home, timeout: float) -> Check:
    size = home.log.stat().st_size if home.log.exists() else 0
    if size > LARGE_LOG:
        text = f"the log has {size // 2**20} MiB: somebody reads for very long, or nothing moves it into the database"
        return Check("log", "warning", text, "end long readers; it shrinks when all processes have closed the bus")
    return Check("log", "ok", f"{size // 1024} KiB")


def _disk(home: Home, timeout: float) -> Check:
    free = shutil.disk_usage(home.directory).free
    size = home.database.stat().st_size
    text = f"{free // 2**20} MiB free"
    if free < _LOWEST:
        return Check("disk", "error", text, "make room: the bus cannot be written to when the disk is full")
    if free < max(_LOW, 2 * size):
        return Check("disk", "warning", f"{text}, the bus has {size // 2**20} MiB", "make room for it and a backup")
    return Check("disk", "ok", text)


def _orphans(home: Home, timeout: float) -> Check:
    """Doorbells that nobody answers to, and what was left behind by somebody who was killed."""
    queries = load("sqlite")
    live = {bell for (bell,) in _asked(home, timeout, queries["process_bells"])}
    found = [
        str(bell)
        for bell in _entries(home.bells)
        if bell.is_socket() and str(bell) not in live and presence.answers(str(bell)) is False
    ]
    found += [str(path) for path in _entries(home.directory) if path.name.startswith("restoring-")]
    found += [str(path) for path in _entries(home.directory) if ".of-" in path.name]
    found += [str(path) for path in _entries(home.backups) if ".unfinished" in path.name]
    if found:
        text = f"left behind by somebody who is gone: {', '.join(found[:5])}{' …' if len(found) > 5 else ''}"
        return Check("orphans", "warning", text, "remove them; bells go when the bus is opened next")
    return Check("orphans", "ok", "no bells and files without an owner")


def _lock(home: Home, timeout: float) -> Check:
    """Whether the write lock can be had: a moment's look, without waiting and without taking it from anybody."""
    descriptor = os.open(home.lock, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.pread(descriptor, 16, 0).decode(errors="replace").strip() or "unknown"
            return Check("lock", "ok", f"process {pid} has it at this moment", f"if it stays so, end process {pid}")
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)
    return Check("lock", "ok", "free")


_LOOKS: dict[str, Callable[[Home, float], Check]] = {
    "integrity": _integrity,
    "foreign keys": _foreign_keys,
    "schema": _schema,
    "sqlite": _library,
    "file system": _file_system,
    "permissions": _permissions,
    "log": _log,
    "disk": _disk,
    "orphans": _orphans,
    "lock": _lock,
}


def _asked(home: Home, timeout: float, question: str) -> Rows:
    connection = open_reader(home, timeout)
    try:
        return connection.execute(question).fetchall()
    finally:
        connection.close()


def _modes(home: Home) -> Iterator[tuple[Path, int]]:
    """The permissions of all that belongs to a bus; links and sockets have none of their own."""
    yield home.directory, home.directory.stat().st_mode
    for folder in (home.directory, home.backups, home.directory / "archive"):
        for path in _entries(folder):
            mode = path.lstat().st_mode
            if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
                yield path, mode


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
