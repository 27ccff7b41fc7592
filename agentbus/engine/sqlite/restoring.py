"""Restoring a backup: verified and brought up to date beside the bus, then put in its place in one step."""

from __future__ import annotations

import os
import secrets
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from agentbus.clock import Clock
from agentbus.disk import BESIDE, make_private, refusal, require_file, stamp, sync
from agentbus.engine import forking, presence
from agentbus.engine.queries import load
from agentbus.engine.sqlite import home
from agentbus.engine.sqlite.backup import copy_into, opened_backup
from agentbus.engine.sqlite.blocking import BlockingSQLite
from agentbus.engine.sqlite.connection import identity, migrations
from agentbus.engine.sqlite.lock import FileLock
from agentbus.engine.sqlite.shape import foreign, missing
from agentbus.errors import (
    BusForked,
    BusInUse,
    DamagedBackup,
    DiskFull,
    LockTimeout,
    NotADatabase,
    SchemaTooNew,
)
from agentbus.operations.processes import DisownRequest, disown
from agentbus.safe_files import check_file

WORKSHOP = "restoring-"
_PATIENCE = 2.0
"""Seconds to wait for the lock: whoever writes for longer has the bus open."""


def restore(source: Path, place: home.Home, clock: Clock) -> Path:
    """Put a backup in the place of a bus, as ``agentbus.restore_backup`` says."""
    try:
        if os.path.lexists(place.root):
            home.check(place)
        _refuse_source(source, place)
        home.refuse_unshared(place.directory)
        with ExitStack() as stack:
            taken = os.path.exists(place.lock)
            if taken:
                stack.enter_context(_locked(place))
                _clear_up(place)
            workshop = stack.enter_context(_workshop(_nearest(place.directory)))
            _copy(source, workshop)
            _bring_up_to_date(workshop, source, clock)
            if not taken:
                # Not earlier: a backup that is refused must leave nothing where no bus was.
                place.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                home.check(place)
                stack.enter_context(_locked(place))
            _refuse_in_use(place)
            _put_in_place(workshop, place, stamp(clock.now().wall))
    except OSError as error:
        raise refusal(place.directory, error) from error
    return place.directory


def _refuse_source(source: Path, place: home.Home) -> None:
    """A backup that the caller names may be a link, but not one among the bus's own, which are found by their names."""
    if source.parent == place.backups:
        # After a backup that was killed it has two names.
        check_file(str(source), links=2)
    found = require_file(source)
    if not stat.S_ISREG(found.st_mode):
        raise DamagedBackup(path=str(source), reason="it is not an ordinary file")


def _nearest(directory: Path) -> Path:
    """The directory, or the next one above it that there is: on the same disk, so that renaming is one step."""
    return next(folder for folder in (directory, *directory.parents) if folder.is_dir())


@contextmanager
def _locked(place: home.Home) -> Iterator[None]:
    """Nobody can open the bus meanwhile: that needs the lock too."""
    lock = FileLock(place.lock, _PATIENCE)
    try:
        lock.acquire()
    except LockTimeout as error:
        lock.close()
        raise BusInUse(path=str(place.directory), reason=f"process {error.pid} holds its lock") from None
    try:
        yield
    finally:
        lock.close()


@contextmanager
def _workshop(directory: Path) -> Iterator[home.Home]:
    """A directory beside the bus, for as long as it is needed."""
    workshop = Path(tempfile.mkdtemp(prefix=WORKSHOP, dir=directory))
    try:
        yield home.Home(workshop)
    finally:
        shutil.rmtree(workshop, ignore_errors=True)


def _clear_up(place: home.Home) -> None:
    """What a restore left behind that was killed: under the lock, it belongs to nobody who lives."""
    for leftover in place.directory.glob(f"{WORKSHOP}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    for other in place.backups.glob(f"{home.REPLACING}*"):
        if place.database.exists() and other.samefile(place.database):
            other.unlink()
        else:
            os.rename(other, other.with_name(f"replaced-{other.name.removeprefix(home.REPLACING)}"))


def _copy(source: Path, workshop: home.Home) -> None:
    os.close(os.open(workshop.database, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    with opened_backup(source) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        tables = {row[1] for row in connection.execute("PRAGMA table_list")}
        if not {"meta", "messages", "processes"} <= tables or version < 1:
            raise DamagedBackup(path=str(source), reason="it is not a backup of a bus")
        if version > max(migrations()):
            raise SchemaTooNew(path=str(source), found=version, known=max(migrations()))
        if version == max(migrations()) and (lacking := missing(connection)):
            raise DamagedBackup(path=str(source), reason=f"it lacks {', '.join(lacking[:5])}")
        if objects := foreign(connection, version):
            reason = f"it has what agentbus did not create: {', '.join(objects[:5])}"
            raise DamagedBackup(path=str(source), reason=reason)
        try:
            problem = copy_into(connection, workshop.database)
        except sqlite3.OperationalError as error:
            if (error.sqlite_errorcode & 0xFF) == sqlite3.SQLITE_FULL:
                raise DiskFull(path=str(workshop.directory)) from error
            raise
    if problem is not None:
        raise DamagedBackup(path=str(source), reason=problem)


def _bring_up_to_date(workshop: home.Home, source: Path, clock: Clock) -> None:
    """Bring the schema up to date; and who was live in the backup is of another time: agents failed, sessions were cut
    off."""
    try:
        bus = BlockingSQLite(workshop, durability="disk", clock=clock, lock_timeout=_PATIENCE)
        try:
            bus.write(disown, DisownRequest(source.name, "the bus was restored from a backup"))
        finally:
            bus.close()
    except NotADatabase as error:
        raise DamagedBackup(path=str(source), reason=error.reason) from error
    sync(workshop.database)


def _refuse_in_use(place: home.Home) -> None:
    """A database that anybody has open, be it another program, cannot be taken out of WAL mode."""
    if not place.database.exists():
        return
    if forking.is_inherited(identity(place.database)):
        raise BusForked(parent=os.getppid())
    if any(presence.answers(str(bell)) for bell in _bells(place)):
        raise BusInUse(path=str(place.directory), reason=f"open in {_who(place)}")
    try:
        connection = sqlite3.connect(place.database, timeout=0, isolation_level=None)
        try:
            connection.execute("PRAGMA journal_mode = DELETE").fetchone()
        finally:
            connection.close()
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
            raise BusInUse(path=str(place.directory), reason=f"open in {_who(place)}") from None
        if code not in {sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT}:
            raise
        # A damaged one cannot be asked; that is why it is replaced.


def _bells(place: home.Home) -> list[Path]:
    try:
        return [bell for bell in place.bells.iterdir() if stat.S_ISSOCK(bell.lstat().st_mode)]
    except OSError:
        return []


def _who(place: home.Home) -> str:
    """The processes that say that they have the bus open."""
    with suppress(sqlite3.Error):
        connection = sqlite3.connect(place.database, timeout=0, isolation_level=None)
        try:
            queries = load("sqlite")
            pids = [str(pid) for (pid,) in connection.execute(queries["process_pids"])]
        finally:
            connection.close()
        if pids:
            return f"process {', '.join(pids)}"
    return "another program"


def _put_in_place(workshop: home.Home, place: home.Home, moment: str) -> None:
    name = f"{moment}-{secrets.token_hex(4)}.db"
    kept = f"replaced-{name}"
    old = place.database.exists()
    if old:
        make_private(place.backups)
        _keep(place.database, place.backups / f"{home.REPLACING}{name}")
        # What the old database has beside it must not be replayed into the new one.
        for suffix in BESIDE:
            log = place.directory / f"bus.db{suffix}"
            if log.exists():
                os.replace(log, place.backups / f"{kept}{suffix}")
        sync(place.backups)
    os.replace(workshop.database, place.database)
    sync(place.directory)
    if old:
        os.rename(place.backups / f"{home.REPLACING}{name}", place.backups / kept)
        sync(place.backups)


def _keep(file: Path, name: Path) -> None:
    try:
        os.link(file, name)
    except OSError:
        # A file system without hard links. Nobody has the database open, so that it may be opened here.
        shutil.copy2(file, name)
