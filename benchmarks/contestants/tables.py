"""The tables of agentbus without agentbus: the schema and pragmas for contestants on plain SQLite."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from agentbus.engine.sqlite.connection import Connection, migrations

PRAGMAS = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    "PRAGMA foreign_keys = ON",
    "PRAGMA temp_store = MEMORY",
    "PRAGMA cache_size = -16000",
)
SENDER = "agent-0"
TYPE = "note"
PRIORITY = 5
MAX_ATTEMPTS = 5
LEASE = 60_000


def schema(boxes: int) -> str:
    """Return a script that creates every table and ``boxes`` mailboxes with ids from 1."""
    mailboxes = "\n".join(
        "INSERT INTO mailboxes (id, kind, name, owner, created) "
        f"VALUES ({number}, 'agent', 'agent-{number}', 'agent-{number}', 0);"
        for number in range(1, boxes + 1)
    )
    steps = migrations()
    tables = "\n".join(steps[version] for version in sorted(steps))
    return f"BEGIN IMMEDIATE;\n{tables}\n{mailboxes}\nCOMMIT;"


def database(directory: Path) -> str:
    return str(directory / "queue.db")


def now() -> int:
    return time.time_ns() // 1_000_000


def create_database(directory: Path, boxes: int) -> sqlite3.Connection:
    """Create the tables and return a connection in autocommit mode."""
    connection = sqlite3.connect(database(directory), isolation_level=None, factory=Connection)
    for pragma in PRAGMAS:
        connection.execute(pragma)
    connection.executescript(schema(boxes))
    return connection
