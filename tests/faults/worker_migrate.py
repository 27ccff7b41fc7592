"""Opens a bus again and again, each time in a child that is killed before the next statement of its migration.

``fresh`` makes a new bus; ``upgrade`` brings one to a schema of the test's own that comes after the newest.
"""

import os
import shutil
import signal
import sqlite3
import sys
from itertools import count
from pathlib import Path

from agentbus.engine.sqlite import connection, home
from agentbus.engine.sqlite.lock import FileLock
from tests.support.processes import say

NEXT = """
ALTER TABLE agents ADD COLUMN mood TEXT;
UPDATE agents SET mood = 'calm';
CREATE TABLE moods (name TEXT PRIMARY KEY) STRICT;
INSERT INTO moods SELECT DISTINCT mood FROM agents;
CREATE INDEX agents_by_mood ON agents (mood);
UPDATE messages SET priority = 9 - priority;
DROP INDEX messages_dead;
"""


def migrate(place: home.Home, last: int) -> None:
    """In the child: end before the last statement, however far that is."""
    migrating = connection.migrate
    number = 0

    def die(statement: str) -> None:
        nonlocal number
        number += 1
        if number == last:
            os.kill(os.getpid(), signal.SIGKILL)

    def watched(connection: sqlite3.Connection, home: home.Home) -> None:
        connection.set_trace_callback(die)
        migrating(connection, home)
        connection.set_trace_callback(None)

    connection.migrate = watched
    home.prepare(place)
    lock = FileLock(place.lock, 10)
    connection.open_writer(place, lock).close()


def main(how: str, folder: str, source: str) -> None:
    if how == "upgrade":
        steps = {**connection.migrations(), connection.newest_schema() + 1: NEXT}
        connection.migrations = lambda: steps  # type: ignore[assignment]
        connection.newest_schema = lambda: max(steps)
    for last in count(1):
        place = Path(folder) / str(last)
        if how == "upgrade":
            shutil.copytree(source, place, ignore=shutil.ignore_patterns("bells"))
        child = os.fork()
        if child == 0:
            migrate(home.Home(place), last)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        say("ended", last, os.waitstatus_to_exitcode(status))
        if status == 0:
            return


main(*sys.argv[1:])
