"""All queues, in the order of the tables."""

from __future__ import annotations

from benchmarks.contestants.queues.base import Contestant
from benchmarks.contestants.queues.bus import DISK, PROCESS
from benchmarks.contestants.queues.dbos import DBOS
from benchmarks.contestants.queues.files import FILES, UNSYNCED_FILES
from benchmarks.contestants.queues.libraries import LIBRARIES
from benchmarks.contestants.queues.nats import NATS
from benchmarks.contestants.queues.plain import AUTOCOMMIT, PLAIN, UNSYNCED
from benchmarks.contestants.queues.postgres import POSTGRES
from benchmarks.contestants.queues.raw import RAW
from benchmarks.contestants.queues.redis import REDIS

CONTESTANTS: tuple[Contestant, ...] = (
    DISK, PROCESS, RAW, FILES, UNSYNCED_FILES, *LIBRARIES, PLAIN, UNSYNCED, AUTOCOMMIT, DBOS, *REDIS, *NATS, *POSTGRES,
)  # fmt: skip


def available() -> list[Contestant]:
    """Return the contestants that can be measured here."""
    return [one for one in CONTESTANTS if one.missing() is None]


def unavailable() -> list[str]:
    """Return a note with the reason for each of the others."""
    return [f"{one.title}: left out, {reason}." for one in CONTESTANTS if (reason := one.missing()) is not None]
