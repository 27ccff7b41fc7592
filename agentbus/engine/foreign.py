"""SQLite databases of other programs: opened to be read, never written to, not even by SQLite itself. No part of an
engine: whatever the bus itself is kept in, they can be imported."""

from __future__ import annotations

import os
import sqlite3
import stat
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from agentbus.aside import is_interrupted
from agentbus.disk import BESIDE
from agentbus.engine.queries import parse, text

MAGIC = b"SQLite format 3\0"
_TABLES = "SELECT name FROM pragma_table_list WHERE type = 'table' AND schema = 'main'"
_OURS = {"meta", "counters", "processes", "mailboxes", "vocabulary"}
_MOST = 64 * 1024 * 1024
"""Bytes of one value."""
_INSTRUCTIONS = 100_000
"""Of SQLite's machine, after which it looks whether it shall end; some milliseconds."""


class UnreadableDatabase(Exception):
    """SQLite cannot read it, or not on; the text says why."""


class Foreign:
    """A database of another program's, at one moment."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.tables = frozenset(str(name) for (name,) in connection.execute(_TABLES))
        self.encoding = "utf-8"

    @property
    def is_bus(self) -> bool:
        return self.tables >= _OURS

    def rows(self, table: str) -> Iterator[dict[str, Any]]:
        """The rows of a table that we know of, by the names of their columns in small letters."""
        with _explained():
            cursor = self._connection.execute(_known()[table])
            names = [str(column[0]).lower() for column in cursor.description]
            # One by one: a few hundred at a time may be more than fits into memory.
            for row in cursor:
                yield {name: _plain(value) for name, value in zip(names, row, strict=True)}


@contextmanager
def opened_foreign(path: Path) -> Iterator[Foreign]:
    """Read-only, and without any lock or file of SQLite's where no log lies beside it."""
    for name in (path, *(Path(f"{path}{ending}") for ending in BESIDE)):
        # SQLite would wait for another program to write into a pipe, and nothing could end that.
        if os.path.lexists(name) and not stat.S_ISREG(os.lstat(name).st_mode):
            raise UnreadableDatabase(f"{name.name} is not a plain file")
    log = Path(f"{path}-wal")
    alone = not log.exists() or not log.stat().st_size
    # Without a log nobody writes, or only with a rollback journal, which a lock shows; then a moment's copy is read.
    mode = "mode=ro&immutable=1" if alone and not Path(f"{path}-journal").exists() else "mode=ro"
    with _explained():
        connection = sqlite3.connect(
            f"file:{quote(os.fsencode(path))}?{mode}",
            uri=True,
            isolation_level=None,
            timeout=2,
            check_same_thread=False,
        )
        try:
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST)
            connection.text_factory = _text
            # A mapped file that another process truncates ends this one (SIGBUS).
            connection.execute("PRAGMA mmap_size = 0").fetchall()
            connection.set_progress_handler(is_interrupted, _INSTRUCTIONS)
            connection.execute("PRAGMA query_only = ON")
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute("BEGIN")
            yield Foreign(connection)
        finally:
            connection.close()


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise UnreadableDatabase(str(error)) from error


@cache
def _known() -> dict[str, str]:
    return parse(text("foreign"))


def _text(data: bytes) -> str:
    """Text that is no UTF-8 is read all the same; nothing else of its row is to blame."""
    return data.decode("utf-8", "backslashreplace")


def _plain(value: Any) -> Any:
    """JSON has no bytes."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": b64encode(value).decode()}
    return value
