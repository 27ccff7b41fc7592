"""Open a bus repeatedly, each time in a child that is killed before the next statement of its migration.

``fresh`` creates a new bus; ``upgrade`` migrates one to a later schema of the test; ``rebuild`` to one that rebuilds
tables, and is also killed within statements. ``crowd`` opens it in N processes at once; ``open`` in one, which prints
the growth of its memory.
"""

import json
import os
import resource
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path

from agentbus.engine.sqlite import connection, paths
from agentbus.engine.sqlite.lock import FileLock
from agentbus.sync.bus import open_bus
from tests.support.processes import crowd, say
from tests.support.widening import for_sqlite

_WITHIN = 5_000
"""Instructions of SQLite's machine after which a statement is interrupted by the next kill."""

NEXT = """
ALTER TABLE agents ADD COLUMN mood TEXT;
UPDATE agents SET mood = 'calm';
CREATE TABLE moods (name TEXT PRIMARY KEY) STRICT;
INSERT INTO moods SELECT DISTINCT mood FROM agents;
CREATE INDEX agents_by_mood ON agents (mood);
UPDATE messages SET priority = 9 - priority;
DROP INDEX messages_dead;
"""


def migrate(place: paths.Home, last: int, *, within: bool) -> None:
    """In the child: end before the last statement, or within a statement, however far that is."""
    migrating = connection.migrate
    number = 0

    def die(_: str = "") -> None:
        nonlocal number
        number += 1
        if number == last:
            os.kill(os.getpid(), signal.SIGKILL)

    def watched(connection: sqlite3.Connection, home: paths.Home) -> bool:
        if within:
            connection.set_progress_handler(die, _WITHIN)
        else:
            connection.set_trace_callback(die)
        created = migrating(connection, home)
        connection.set_progress_handler(None, 0)
        connection.set_trace_callback(None)
        return created

    connection.migrate = watched
    paths.prepare(place)
    lock = FileLock(place.lock, 10)
    connection.open_writer(place, lock).close()


def kill(folder: Path, source: str | None, *, every: int = 1, within: bool = False) -> None:
    """Kill at the first, the second … moment, until it is not reached any more. ``every``: the step between two."""
    for last in count(1, every):
        place = folder / f"{'within-' if within else ''}{last}"
        if source is not None:
            shutil.copytree(source, place, ignore=shutil.ignore_patterns("bells"))
        child = os.fork()
        if child == 0:
            migrate(paths.Home(place), last, within=within)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        say("ended", place.name, os.waitstatus_to_exitcode(status))
        if status == 0:
            return


def inject(script: str) -> None:
    steps = {**connection.migrations(), connection.newest_schema() + 1: script}
    connection.migrations = lambda: steps  # type: ignore[assignment]


def opening(path: str, gate: Callable[[], None]) -> dict[str, int]:
    gate()
    with open_bus(path) as bus:
        return bus.stats().messages


def memory() -> int:
    """Return the most that this process had, in bytes. What getrusage says may be of the process that started it."""
    if sys.platform == "darwin":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


def main(how: str, folder: str, source: str = "", every: str = "1") -> None:
    if how != "fresh":
        inject(NEXT if how == "upgrade" else for_sqlite())
    if how == "crowd":
        say("answers", json.dumps(crowd(int(source), lambda _, gate: opening(folder, gate))))
    elif how == "open":
        before = memory()
        open_bus(folder).close()
        say("grew", memory() - before)
    else:
        kill(Path(folder), source if how != "fresh" else None, every=int(every))
        if how == "rebuild":
            kill(Path(folder), source, within=True)


main(*sys.argv[1:])
