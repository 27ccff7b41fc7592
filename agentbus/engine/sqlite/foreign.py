"""SQLite databases of other programs, opened read-only for import, whatever engine the bus itself uses."""

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

from agentbus.core.files import SIDECAR_SUFFIXES
from agentbus.core.threads import is_interrupted
from agentbus.engine.queries import named

MAGIC = b"SQLite format 3\0"
_TABLES = "SELECT name FROM pragma_table_list WHERE type = 'table' AND schema = 'main'"
_OURS = {"meta", "counters", "processes", "mailboxes", "vocabulary"}
_MAX_VALUE = 64 * 1024 * 1024
"""Maximum bytes of one value."""
_INSTRUCTIONS = 100_000
"""Virtual machine instructions between two checks for cancellation; a few milliseconds."""


class UnreadableDatabase(Exception):
    """SQLite cannot read the database, or not to its end; the text says why."""


class Foreign:
    """A snapshot of another program's database."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.tables = frozenset(str(name) for (name,) in connection.execute(_TABLES))
        self.encoding = "utf-8"

    @property
    def is_bus(self) -> bool:
        return self.tables >= _OURS

    def rows(self, table: str) -> Iterator[dict[str, Any]]:
        """Yield the rows of a known table as dictionaries with lower-case column names."""
        with _translate_errors():
            cursor = self._connection.execute(_queries()[table])
            names = [str(column[0]).lower() for column in cursor.description]
            # One by one: a few hundred rows may not fit into memory.
            for row in cursor:
                yield {name: _plain(value) for name, value in zip(names, row, strict=True)}


@contextmanager
def open_foreign(path: Path) -> Iterator[Foreign]:
    """Open a database read-only; if it has no log, without taking locks or creating files."""
    for name in (path, *(Path(f"{path}{ending}") for ending in SIDECAR_SUFFIXES)):
        # Opening a pipe would block until another program writes to it.
        if os.path.lexists(name) and not stat.S_ISREG(os.lstat(name).st_mode):
            raise UnreadableDatabase(f"{name.name} is not a regular file")
    log = Path(f"{path}-wal")
    no_log = not log.exists() or not log.stat().st_size
    # Without a log there is no writer, or one with a rollback journal, against which SQLite's locks protect.
    mode = "mode=ro&immutable=1" if no_log and not Path(f"{path}-journal").exists() else "mode=ro"
    with _translate_errors():
        connection = sqlite3.connect(
            f"file:{quote(os.fsencode(path))}?{mode}",
            uri=True,
            isolation_level=None,
            timeout=2,
            check_same_thread=False,
        )
        try:
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_VALUE)
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
def _translate_errors() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise UnreadableDatabase(str(error)) from error


@cache
def _queries() -> dict[str, str]:
    return named("sqlite/foreign")


def _text(data: bytes) -> str:
    """Escape bytes that are not UTF-8, so that the rest of the row can be imported."""
    return data.decode("utf-8", "backslashreplace")


def _plain(value: Any) -> Any:
    """Convert bytes, which JSON does not have."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": b64encode(value).decode()}
    return value
