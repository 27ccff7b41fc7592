"""Choose the engine by the URL of a bus: PostgreSQL for a server's URL, otherwise SQLite in a directory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from agentbus.errors import NoDriver

if TYPE_CHECKING:
    from agentbus.core.clock import Clock
    from agentbus.engine.interface import Engine

_SERVERS = ("postgresql:", "postgres:")
DRIVER = "asyncpg>=0.32,<0.33"
"""As in pyproject.toml. Not named as an extra: ``agentbus`` on the package index is another project."""


def server_url(url: str | os.PathLike[str] | None) -> str | None:
    """Return the URL of the server, by default from ``AGENTBUS_URL``; None if the bus is in a directory.

    >>> server_url("postgresql://host/database"), server_url(".agentbus")
    ('postgresql://host/database', None)
    """
    given = os.environ.get("AGENTBUS_URL") if url is None else url
    return given if isinstance(given, str) and given.startswith(_SERVERS) else None


def directory_path(url: str) -> str:
    """Return the path of a directory: ``sqlite:///relative``, ``sqlite:////absolute``, or the path itself.

    >>> directory_path("sqlite:///bus"), directory_path("sqlite:////srv/bus"), directory_path("bus")
    ('bus', '/srv/bus', 'bus')
    """
    return url.removeprefix("sqlite://").removeprefix("/") if url.startswith("sqlite://") else url


@contextmanager
def require_driver() -> Iterator[None]:
    """Raise NoDriver if the import of an engine in the block lacks its driver."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "asyncpg":
            raise
        raise NoDriver(url="postgresql://…", package="asyncpg", requirement=DRIVER) from None


def choose_engine(
    url: str | os.PathLike[str] | None, *, create: bool, durability: str, clock: Clock | None, lock_timeout: float
) -> Engine:
    """Return the engine for a URL, which is imported here."""
    server = server_url(url)
    if server is not None:
        with require_driver():
            from agentbus.engine.postgres.engine import PostgresEngine
            from agentbus.engine.postgres.server import parse
        return PostgresEngine(
            parse(server), create=create, durability=durability, clock=clock, lock_timeout=lock_timeout
        )
    from agentbus.core.clock import SystemClock
    from agentbus.engine.sqlite import paths
    from agentbus.engine.sqlite.engine import SQLiteEngine

    location = paths.find_bus(url, create=create)
    return SQLiteEngine(location, durability=durability, clock=clock or SystemClock(), lock_timeout=lock_timeout)
