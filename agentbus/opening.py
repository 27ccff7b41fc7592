"""``agentbus.connect``: from a place and settings to a bus."""

from __future__ import annotations

import os
from typing import Literal

from agentbus.bus import Bus
from agentbus.clock import Clock, SystemClock
from agentbus.engine.interface import Engine
from agentbus.errors import InvalidUrl
from agentbus.limits import MAX_PAYLOAD, MAX_SNAPSHOT, check_choice, check_range, check_seconds
from agentbus.records import RetentionPolicy
from agentbus.services.recovery import Ask, asking


def connect(
    url: str | os.PathLike[str] | None = None,
    *,
    durability: Literal["disk", "process"] = "disk",
    clock: Clock | None = None,
    max_payload: int = MAX_PAYLOAD,
    max_snapshot: int = MAX_SNAPSHOT,
    lock_timeout: float = 30.0,
    beat_every: float = 5.0,
    auto_resume: bool | Ask | None = None,
    retention: RetentionPolicy | None = None,
) -> Bus:
    """A bus to be used with ``async with``.

    ``url`` is the directory of the bus, or ``postgresql://user:password@host/database`` for one that several machines
    share (``?schema=`` chooses the schema, which is ``agentbus``); by default ``AGENTBUS_URL``, or ``.agentbus/`` here
    or in a directory above, made here if there is none. With ``durability="process"`` nothing is fsynced: what returned
    survives the death of any process, but not a power cut. With ``auto_resume`` (or ``AGENTBUS_AUTO_RESUME=1``)
    sessions that were interrupted are resumed: on a terminal it asks, a function of yours decides instead.
    ``retention`` says how long things are kept.

    >>> async with agentbus.connect() as bus:                                         # doctest: +SKIP
    ...     print(await bus.stats())
    """
    check_choice(durability, "durability", ("disk", "process"))
    check_range(max_payload, "max_payload", 1, 512 * 1024 * 1024)
    check_range(max_snapshot, "max_snapshot", 1, 512 * 1024 * 1024)
    check_seconds(lock_timeout, "lock_timeout", zero=True)
    check_seconds(beat_every, "beat_every")
    return Bus(
        _engine(url, durability=durability, clock=clock, lock_timeout=lock_timeout),
        max_payload=max_payload,
        max_snapshot=max_snapshot,
        beat_every=beat_every,
        ask=asking(auto_resume),
        retention=retention,
    )


def _engine(url: str | os.PathLike[str] | None, *, durability: str, clock: Clock | None, lock_timeout: float) -> Engine:
    """The engine for a URL. Each is imported only where it is wanted."""
    wanted = os.environ.get("AGENTBUS_URL") if url is None else url
    if isinstance(wanted, str) and wanted.startswith(("postgresql:", "postgres:")):
        return _server(wanted, durability=durability, clock=clock, lock_timeout=lock_timeout)
    from agentbus.engine.sqlite import home
    from agentbus.engine.sqlite.engine import SQLiteEngine

    place = home.find(url)
    return SQLiteEngine(place, durability=durability, clock=clock or SystemClock(), lock_timeout=lock_timeout)


def _server(url: str, *, durability: str, clock: Clock | None, lock_timeout: float) -> Engine:
    try:
        from agentbus.engine.postgres.address import parse
        from agentbus.engine.postgres.engine import PostgresEngine
    except ModuleNotFoundError as error:
        if error.name != "asyncpg":
            raise
        raise InvalidUrl(url="postgresql://…", reason="that needs pip install 'agentbus[postgres]'") from None
    return PostgresEngine(parse(url), durability=durability, clock=clock, lock_timeout=lock_timeout)
