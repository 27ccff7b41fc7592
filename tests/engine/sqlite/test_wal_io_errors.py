"""After an I/O error nothing is promised until the log is on the disk again; callers may retry."""

from __future__ import annotations

import errno
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from agentbus.engine.sqlite import wal
from agentbus.engine.sqlite.lock import FileLock
from agentbus.engine.sqlite.wal import WriteAheadLog
from agentbus.errors import LogNotSynced


def failing(_: object) -> None:
    raise OSError(errno.EIO, "Input/output error")


def test_a_log_that_cannot_be_synced_again_refuses_until_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bus.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = wal")
        connection.execute("CREATE TABLE kept (value)")
        content = (tmp_path / "bus.db-wal").read_bytes()
        log = WriteAheadLog(connection, str(path), FileLock(tmp_path / "lock", 10))
        monkeypatch.setattr(wal, "_rewrite_in_place", failing)
        log.mark_doubtful()
        with pytest.raises(LogNotSynced) as caught:
            log.require()
        assert caught.value.transient
        monkeypatch.undo()
        log.require()
        assert (tmp_path / "bus.db-wal").read_bytes() == content
        log.close()
