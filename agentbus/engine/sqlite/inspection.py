"""Answering a question about what may be damaged, on a connection of its own. Everything here blocks."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import TypeVar, cast

from agentbus.engine.queries import bound, load
from agentbus.engine.sqlite.connection import translated
from agentbus.engine.sqlite.home import Home
from agentbus.errors import NotADatabase
from agentbus.operations import Op, Query

T = TypeVar("T")


def answered(op: Op[T], connection: sqlite3.Connection) -> T:
    """Drive a question to its answer."""
    queries = load("sqlite")
    try:
        step = next(op)
        while True:
            query = cast(Query, step)
            step = op.send(connection.execute(queries[query.name], bound(query)).fetchall())
    except StopIteration as stop:
        return cast(T, stop.value)


def inspected(op: Op[T], connect: Callable[[], sqlite3.Connection], home: Home) -> T:
    """The same on a new connection, which also takes what is not Unicode."""
    connection = connect()
    try:
        connection.text_factory = _text
        return answered(op, connection)
    except sqlite3.Error as error:
        raise translated(error, home) from error
    except (TypeError, ValueError, LookupError) as error:
        raise NotADatabase(path=home.file, reason="something in it is of another kind than it should be") from error
    finally:
        connection.close()


def _text(stored: bytes) -> str:
    return stored.decode(errors="surrogateescape")
