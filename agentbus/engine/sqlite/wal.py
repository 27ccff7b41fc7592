"""The write-ahead log: checkpoints, and recovery from a failed fsync.

After a failed fsync Linux marks the pages clean, and no later fsync writes them. A later synced commit would follow a
gap in the log and be lost in a power cut with everything after the gap; a checkpoint of such a log could damage the
database when it is replayed. So after an I/O error the whole log is rewritten in place from memory and synced before
anything else is promised.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress

from agentbus.core.files import open_file
from agentbus.errors import LogNotSynced

_CHUNK = 1024 * 1024
_HEADER, _FRAME = 32, 24
"""Bytes of the file header and of the header of each page; both contain the salt."""


class WriteAheadLog:
    """The log of one writer connection. Every method runs under the lock."""

    def __init__(self, connection: sqlite3.Connection, path: str) -> None:
        self._connection = connection
        self._path = path
        self.doubtful = False
        """True from an I/O error until the log was rewritten: part of it may exist only in memory."""
        self.synced = True
        """True if the last commit of this connection, and so every commit before it, was synced."""

    def checkpoint(self, *, truncate: bool) -> bool:
        """Move the log into the database up to the oldest reader; with ``truncate`` also shrink its file if it has no
        reader. Return True if all of it was done."""
        self.require()
        mode = "TRUNCATE" if truncate else "PASSIVE"
        try:
            ((busy, pages, moved),) = self._connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()
        except sqlite3.Error:
            self.mark_doubtful()
            raise
        return not busy and pages == moved

    def mark_doubtful(self) -> None:
        """Rewrite the log after an I/O error."""
        self.doubtful = True
        self._rewrite()

    def require(self) -> None:
        """Raise LogNotSynced if the log is doubtful and cannot be rewritten."""
        if not self._is_sound():
            raise LogNotSynced(path=self._path)

    def is_due(self, pages: int) -> bool:
        """Return True if the log has that many pages and can be checkpointed."""
        return self._has(pages) and self._is_sound()

    def sync(self) -> None:
        """Sync before closing: the last connection to close checkpoints, and SQLite does not report a failed fsync."""
        if self.synced:
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
            self.mark_doubtful()

    def _is_sound(self) -> bool:
        if self.doubtful:
            self._rewrite()
        return not self.doubtful

    def _has(self, pages: int) -> bool:
        """Compare salts: the file keeps its size when the log restarts, but pages of an earlier round have another."""
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

    def _rewrite(self) -> None:
        with suppress(sqlite3.Error, OSError):
            # No other program may append meanwhile, not even one that does not use the bus's lock.
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                _rewrite_in_place(f"{self._path}-wal")
                self.doubtful = False
            finally:
                self._connection.execute("ROLLBACK")


def _rewrite_in_place(path: str) -> None:
    """Write the contents of a file to the file itself, and sync it.

    SQLite holds no lock on the log itself, so opening and closing it drops none.
    """
    file = open_file(path, os.O_RDWR)
    try:
        offset = 0
        while chunk := os.pread(file, _CHUNK, offset):
            offset += os.pwrite(file, chunk, offset)
        os.fsync(file)
    finally:
        os.close(file)
