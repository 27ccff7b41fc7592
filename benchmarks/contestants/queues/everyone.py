"""Every queue, in the order of the tables."""

from __future__ import annotations

from benchmarks.contestants.queues.base import Contestant
from benchmarks.contestants.queues.bus import DISK, PROCESS
from benchmarks.contestants.queues.dbos import DBOS
from benchmarks.contestants.queues.files import FILES, HASTY_FILES
from benchmarks.contestants.queues.libraries import LIBRARIES
from benchmarks.contestants.queues.nats import NATS
from benchmarks.contestants.queues.plain import AUTOCOMMIT, HASTY, PLAIN
from benchmarks.contestants.queues.postgres import POSTGRES
from benchmarks.contestants.queues.raw import RAW
from benchmarks.contestants.queues.redis import REDIS

EVERYONE: tuple[Contestant, ...] = (
    DISK, PROCESS, RAW, FILES, HASTY_FILES, *LIBRARIES, PLAIN, HASTY, AUTOCOMMIT, DBOS, *REDIS, *NATS, *POSTGRES,
)  # fmt: skip


def present() -> list[Contestant]:
    """Those that can be measured here."""
    return [one for one in EVERYONE if one.missing() is None]


def left_out() -> list[str]:
    """The others, each with the reason."""
    return [f"{one.title}: left out, {reason}." for one in EVERYONE if (reason := one.missing()) is not None]
