"""From a place and settings to a bus: ``agentbus.connect``; or to what can be seen of it from outside:
``agentbus.doctor``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal

from agentbus.aside import running_loop
from agentbus.bus import Bus
from agentbus.clock import Clock, SystemClock
from agentbus.engine.interface import Engine
from agentbus.engine.places import needing_driver, server_url
from agentbus.limits import MAX_PAYLOAD, MAX_SNAPSHOT, check_choice, check_number, check_range, check_seconds
from agentbus.records import Check
from agentbus.services.asking import Ask, asking
from agentbus.services.doctor import examine
from agentbus.services.outgrowing import bounds
from agentbus.watchdog import MAX_BLOCKED


def connect(
    url: str | os.PathLike[str] | None = None,
    *,
    durability: Literal["disk", "process"] = "disk",
    clock: Clock | None = None,
    max_payload: int = MAX_PAYLOAD,
    max_snapshot: int = MAX_SNAPSHOT,
    lock_timeout: float = 30.0,
    beat_every: float = 5.0,
    max_blocked: float = MAX_BLOCKED,
    auto_resume: bool | Ask | None = None,
    create: bool = True,
) -> Bus:
    """A bus to be used with ``async with``.

    ``url`` is the directory of the bus, or ``postgresql://user:password@host/database`` for one that several machines
    share (``?schema=`` chooses the schema, which is ``agentbus``); by default ``AGENTBUS_URL``, or ``.agentbus/`` here
    or in a directory above, made here if there is none. With ``durability="process"`` nothing is fsynced: what returned
    survives the death of any process, but not a power cut. Every ``beat_every`` seconds the process says that it is
    alive, and looks after its neighbours. While code blocks the event loop, a thread renews the leases that this
    process holds, until a lease would have run out ``max_blocked`` times; then it is given up. Where there is no bus,
    one is made; with ``create=False`` that is ``NoBus``.

    With ``auto_resume=True`` (or ``AGENTBUS_AUTO_RESUME=1``) sessions that were interrupted are resumed if that is
    their likeliest option: on a terminal it asks first. A function of yours decides instead: it gets the
    ``records.RecoveryRecord`` of each and answers True or False. It runs on a thread, so that it may wait for somebody;
    an async one is awaited.

    >>> async with agentbus.connect() as bus:                                         # doctest: +SKIP
    ...     print(await bus.stats())
    >>> agentbus.connect(auto_resume=lambda record: record.session.operation == "build")   # doctest: +SKIP
    """
    check_choice(durability, "durability", ("disk", "process"))
    check_range(max_payload, "max_payload", 1, 512 * 1024 * 1024)
    check_range(max_snapshot, "max_snapshot", 1, 512 * 1024 * 1024)
    check_seconds(lock_timeout, "lock_timeout", zero=True)
    check_seconds(beat_every, "beat_every")
    check_number(max_blocked, "max_blocked", 0, 1_000_000)
    return Bus(
        _engine(url, create=create, durability=durability, clock=clock, lock_timeout=lock_timeout),
        max_payload=max_payload,
        max_snapshot=max_snapshot,
        beat_every=beat_every,
        max_blocked=max_blocked,
        ask=asking(auto_resume),
    )


async def doctor(
    url: str | os.PathLike[str] | None = None,
    *,
    clock: Clock | None = None,
    outgrown: Mapping[str, float] | None = None,
) -> list[Check]:
    """Look at a bus without opening it, also at one that cannot be opened: damaged, locked, of a newer agentbus, or not
    there. ``url`` is as for ``connect``, ``outgrown`` as for ``bus.doctor``. Nothing is made and nothing is changed;
    what is wrong is said, never raised.

    >>> for check in await agentbus.doctor(".agentbus"):                              # doctest: +SKIP
    ...     if check.status != "ok":
    ...         print(check.status, check.name, check.text, check.fix or "")
    """
    running_loop()
    limits = bounds(outgrown)
    server = server_url(url)
    if server is not None:
        with needing_driver():
            from agentbus.engine.postgres.address import parse
            from agentbus.engine.postgres.closed import ClosedPostgres
        async with ClosedPostgres(parse(server), clock) as store:
            return await examine(store, limits)
    from agentbus.engine.sqlite import home
    from agentbus.engine.sqlite.closed import ClosedSQLite

    return await examine(ClosedSQLite(home.find(url), clock or SystemClock()), limits)


def _engine(
    url: str | os.PathLike[str] | None, *, create: bool, durability: str, clock: Clock | None, lock_timeout: float
) -> Engine:
    """The engine for a URL. Each is imported only where it is wanted."""
    server = server_url(url)
    if server is not None:
        with needing_driver():
            from agentbus.engine.postgres.address import parse
            from agentbus.engine.postgres.engine import PostgresEngine
        return PostgresEngine(
            parse(server), create=create, durability=durability, clock=clock, lock_timeout=lock_timeout
        )
    from agentbus.engine.sqlite import home
    from agentbus.engine.sqlite.engine import SQLiteEngine

    place = home.find_bus(url, create=create)
    return SQLiteEngine(place, durability=durability, clock=clock or SystemClock(), lock_timeout=lock_timeout)
