"""After an I/O error nothing is promised until the log is on the disk again; callers may retry."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from agentbus.engine.sqlite.wal import WriteAheadLog
from agentbus.errors import LogNotSynced


def test_a_log_that_cannot_be_synced_again_refuses_until_it_can(tmp_path: Path) -> None:
    path = tmp_path / "bus.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = wal")
        connection.execute("CREATE TABLE kept (value)")
        log = WriteAheadLog(connection, str(tmp_path / "elsewhere.db"))
        log.mark_doubtful()
        with pytest.raises(LogNotSynced) as caught:
            log.require()
        assert caught.value.transient
        # Now there is a log that can be written and synced.
        (tmp_path / "elsewhere.db-wal").write_bytes(b"frames")
        log.require()
        assert (tmp_path / "elsewhere.db-wal").read_bytes() == b"frames"
