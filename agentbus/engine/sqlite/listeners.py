"""Who is to be woken by a commit in other processes, and ringing their bells."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from agentbus.codec import plain
from agentbus.engine.logs import engine_log
from agentbus.engine.queries import Queries
from agentbus.engine.sqlite.bells import Ringer, is_bell

_MOST_BELLS = 10_000
"""Channels whose listeners are remembered."""


class Listeners:
    """The bells of all channels that were ever rung, learnt from the database."""

    def __init__(self, connection: sqlite3.Connection, queries: Queries) -> None:
        self._connection = connection
        self._queries = queries
        self._ringer = Ringer()
        self._topology = -1
        self._bells: dict[str, list[str]] = {}

    def look(self, channels: Sequence[str], process: int) -> None:
        """Learn whom to ring for these channels, but for this process; anew only when the topology changed.

        Inside the transaction, where it costs a look-up and no transaction of its own: a listener that comes later
        looks for messages after it began to listen, and finds what is committed here.
        """
        if not channels:
            return
        ((topology,),) = self._connection.execute(self._queries["topology"]).fetchall()
        if topology != self._topology or len(self._bells) > _MOST_BELLS:
            self._bells.clear()
            self._topology = topology
        unknown = {channel.partition("#")[0] for channel in channels} - self._bells.keys()
        if unknown:
            rows = self._connection.execute(self._queries["listeners_of"], (plain(list(unknown)), process))
            self._bells.update({channel: [] for channel in unknown})
            for channel, bell in rows.fetchall():
                if is_bell(bell):
                    self._bells[channel].append(bell)

    def hint(self, channels: Sequence[str]) -> None:
        """Before a commit that takes time: ring those who are likely to sleep deeply, so that they wake up while the
        disk is busy. That there is something for them is rung afterwards."""
        if channels and self._ringer.rested:
            self.ring(channels)

    def ring(self, channels: Sequence[str]) -> bool:
        """Ring the other processes that listen. What is committed stays so if that fails; they look now and then."""
        bells: dict[str, set[str]] = {}
        for channel in channels:
            for bell in self._bells.get(channel.partition("#")[0], ()):
                bells.setdefault(bell, set()).add(channel)
        try:
            return self._ringer.ring(bells)
        except OSError as error:
            if (log := engine_log()) is not None:
                log.warning("nobody was rung: %s", error)
            return True

    def ring_again(self) -> bool:
        return self._ringer.ring_again()

    def close(self) -> None:
        self._ringer.close()
