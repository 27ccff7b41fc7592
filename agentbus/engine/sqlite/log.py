"""The write-ahead log: moved into the database, and begun anew after an fsync that failed.

Linux forgets what an fsync that failed should have written: it counts as clean, and no later fsync writes it again. A
commit that is synced later would follow a gap in the log, and be gone with all that follows the gap after a power cut.
Moving the log into the database writes all of it once more, from memory, to another place; then it begins anew.
"""

from __future__ import annotations

import sqlite3
from contextlib import suppress

from agentbus.errors import StoreError

_PATIENCE = 1000
"""Milliseconds to wait for readers; nothing that is to last can be written before."""


class Log:
    """The log as a writer sees it. Everything here is done under the lock."""

    def __init__(self, connection: sqlite3.Connection, path: str) -> None:
        self._connection = connection
        self._path = path
        self._doubtful = False

    def move(self, *, whole: bool) -> bool:
        """Move it into the database as far as nobody reads it; with ``whole`` also make the file small again, if nobody
        reads it at all. Whether all was done."""
        mode = "TRUNCATE" if whole else "PASSIVE"
        ((busy, pages, moved),) = self._connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()
        return not busy and pages == moved

    def doubt(self) -> None:
        """An I/O error at a commit: what is in the log may be nowhere else."""
        self._doubtful = True
        self._begin_anew()

    def require(self) -> None:
        """Before something that is to last is written: the log must be one that can be relied on."""
        if self._doubtful:
            self._begin_anew()
            if self._doubtful:
                raise StoreError(path=self._path, reason="after an I/O error the log could not be begun anew yet")

    def _begin_anew(self) -> None:
        with suppress(sqlite3.Error):
            self._connection.execute(f"PRAGMA busy_timeout = {_PATIENCE:d}")
            try:
                self._doubtful = not self.move(whole=True)
            finally:
                self._connection.execute("PRAGMA busy_timeout = 0")
