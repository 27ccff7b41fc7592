"""The write-ahead log: moved into the database, and written once more after an fsync that failed.

Linux forgets what an fsync that failed should have written: it counts as clean, and no later fsync writes it again. A
commit that is synced later would follow a gap in the log, and be gone with all that follows the gap after a power cut;
and a log with a gap that was moved into the database could damage it when it is replayed. So all of the log is written
to its own place again, from memory, and synced, before anything else is promised.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress

from agentbus.errors import LogNotSynced
from agentbus.safe_files import open_file

_PORTION = 1024 * 1024
_HEADER, _FRAME = 32, 24
"""Bytes at the beginning of the log, which have its salt, and in front of each page, which have it too."""


class Log:
    """The log as a writer sees it. Everything here is done under the lock."""

    def __init__(self, connection: sqlite3.Connection, path: str) -> None:
        self._connection = connection
        self._path = path
        self._doubtful = False
        self._synced = True
        """Whether the last commit of this connection was synced, and with it all before."""

    def move(self, *, whole: bool) -> bool:
        """Move it into the database as far as nobody reads it; with ``whole`` also make the file small again, if nobody
        reads it at all. Whether all was done."""
        self.require()
        mode = "TRUNCATE" if whole else "PASSIVE"
        try:
            ((busy, pages, moved),) = self._connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()
        except sqlite3.Error:
            self.doubt()
            raise
        return not busy and pages == moved

    def doubt(self) -> None:
        """An I/O error: what is in the log may be nowhere else."""
        self._doubtful = True
        self._write_again()

    def require(self) -> None:
        """Before something that is to last is written: the log must be one that can be relied on."""
        if not self.is_sound():
            raise LogNotSynced(path=self._path)

    def is_sound(self) -> bool:
        """Whether it can be relied on, if need be after it was written again."""
        if self._doubtful:
            self._write_again()
        return not self._doubtful

    def committed(self, *, synced: bool) -> None:
        self._synced = synced

    def is_due(self, pages: int) -> bool:
        """Whether it has so many pages that it should be moved, and can be relied on."""
        return self._has(pages) and self.is_sound()

    def _has(self, pages: int) -> bool:
        """Its file does not shrink when it is begun anew, but what is left of an earlier round has another salt."""
        try:
            file = open_file(f"{self._path}-wal", os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            header = os.pread(file, _HEADER, 0)
            page = int.from_bytes(header[8:12], "big") + _FRAME
            return os.pread(file, 8, _HEADER + (pages - 1) * page + 8) == header[16:24] != b""
        finally:
            os.close(file)

    def sync(self) -> None:
        """Before it is closed: whoever closes it last moves it, and does not tell of an fsync that fails."""
        if self._synced:
            return
        try:
            file = open_file(f"{self._path}-wal", os.O_RDWR)
            try:
                os.fsync(file)
            finally:
                os.close(file)
        except FileNotFoundError:
            pass
        except OSError:
            self.doubt()

    def _write_again(self) -> None:
        with suppress(sqlite3.Error, OSError):
            # Nobody else adds to it meanwhile, not even a program that does not know our lock.
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                _rewrite(f"{self._path}-wal")
                self._doubtful = False
            finally:
                self._connection.execute("ROLLBACK")


def _rewrite(path: str) -> None:
    """Write what a file has to where it is, and sync it. SQLite has locks on the database and its shared memory, but
    none on the log: this one may be opened and closed beside it."""
    file = open_file(path, os.O_RDWR)
    try:
        place = 0
        while portion := os.pread(file, _PORTION, place):
            place += os.pwrite(file, portion, place)
        os.fsync(file)
    finally:
        os.close(file)
