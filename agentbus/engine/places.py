"""Which engine a bus has: that of a server, if the URL of one names it, or the one that keeps it in a directory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from agentbus.errors import NoDriver

_SERVERS = ("postgresql:", "postgres:")
_DRIVER = "asyncpg>=0.32,<0.33"
"""As in pyproject.toml. Not an extra of ours: the package of this name on the index is another project."""


def server_url(url: str | os.PathLike[str] | None) -> str | None:
    """The URL of the server that is meant, by default by ``AGENTBUS_URL``; None if the bus is in a directory.

    >>> server_url("postgresql://host/database"), server_url(".agentbus")
    ('postgresql://host/database', None)
    """
    wanted = os.environ.get("AGENTBUS_URL") if url is None else url
    return wanted if isinstance(wanted, str) and wanted.startswith(_SERVERS) else None


@contextmanager
def needing_driver() -> Iterator[None]:
    """Import an engine of a server; without its driver, say which package that is."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "asyncpg":
            raise
        raise NoDriver(url="postgresql://…", package="asyncpg", requirement=_DRIVER) from None
