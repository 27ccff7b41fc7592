"""Copying a whole bus from one place to another, be it in a file or on a server.

The source is only read (once its tables are up to date), and must be at rest. The target begins empty, and is opened by
nobody else until the end: every batch is one commit together with the place that was reached, so that a copy which was
cut off goes on there. At the end both are read again and compared, table by table, and nobody can write to the source
meanwhile; only then the target becomes a bus.

A copy is the same bus in another place: it has the same name for itself, so that archives of the one come home to the
other, and all ids go on from where they were. What lies beside a bus (archives, backups, settings), and files that
checkpoints refer to, stay where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from hashlib import blake2b
from typing import Any

import msgspec

from agentbus.clock import Now
from agentbus.engine import presence
from agentbus.engine.blocking import BlockingEngine
from agentbus.errors import CopyDiffers, CopyFailed, FormatRefused, NotAtRest
from agentbus.operations import Row
from agentbus.operations.copying import (
    TABLES,
    BeginRequest,
    FinishRequest,
    LoadRequest,
    Resident,
    Survey,
    Wanted,
    begin_copy,
    finish_copy,
    load_copy,
    page,
    survey,
)
from agentbus.operations.unfinished import Place
from agentbus.records import CopiedTable, CopyReport

ROWS = 1000
CHARACTERS = 4 * 1024 * 1024
"""A batch has no more rows, nor much more text; but for one row that is longer by itself."""
_SILENT = 60_000
"""Milliseconds without a beat after which a process that cannot be seen from here does not count as live."""
_NAMED = 5

Progress = Callable[[int, int, str], object]
"""Hears how many rows are done, of how many, and what is at work: each row is written, then read twice more."""


def copy_bus(
    source: BlockingEngine, opened: Callable[[], BlockingEngine], progress: Progress | None = None
) -> CopyReport:
    """Make another bus the same as the source, or go on with that. The other one is opened, and made where there is
    none, only once the source was found to be at rest.

    >>> with closing(open_store("old")) as source:                                    # doctest: +SKIP
    ...     copy_bus(source, lambda: open_store("new", create=True)).rows
    1203
    """
    found = source.read(survey, None)
    _refuse_in_use(found, source.shown)
    with closing(opened()) as target:
        place = target.write(begin_copy, BeginRequest(found.bus, source.shown, target.shown))
        return _Copy(source, target, place, sum(found.counts.values()), progress).run()


class _Copy:
    def __init__(
        self, source: BlockingEngine, target: BlockingEngine, place: Place, rows: int, progress: Progress | None
    ) -> None:
        self._source = source
        self._target = target
        self._place = place
        self._resumed = bool(place.rows)
        self._total = 3 * rows
        self._done = place.rows
        self._progress = progress

    def run(self) -> CopyReport:
        while self._place.table:
            self._copy_some()
        with self._source.still():
            tables = [self._compared(table) for table in TABLES]
        # Only now: it may have turned out that somebody could write.
        self._target.write(finish_copy, FinishRequest(self._place))
        place = self._place
        return CopyReport(self._source.shown, self._target.shown, self._resumed, place.rows, tables)

    def _copy_some(self) -> None:
        """The next rows of the table that it is at; the next table, if there are none left in this one."""
        before = self._place
        rows = _read(self._source, before.table, before.after)
        after = _beyond(before) if not rows else _moved(before, rows)
        try:
            self._place = self._target.write(load_copy, LoadRequest(before, after, rows))
        except FormatRefused as error:
            reason = (
                f"it does not take a row of {before.table} from {_spelt(before, rows[0])} to {_spelt(before, rows[-1])}"
            )
            raise CopyFailed(path=self._target.shown, reason=f"{reason}: {error.reason}") from error
        self._tell(len(rows), before.table)

    def _compared(self, table: str) -> CopiedTable:
        """What both stores have of a table; it is an error if that is not the same."""
        source, target = (self._measured(store, table) for store in (self._source, self._target))
        if source != target:
            what = f"of {table} the one has {target.rows:,} rows and the other {source.rows:,}"
            if source.rows == target.rows:
                what = f"the {source.rows:,} rows of {table} have another checksum"
            raise CopyDiffers(path=self._target.shown, source=self._source.shown, what=what)
        return source

    def _measured(self, store: BlockingEngine, table: str) -> CopiedTable:
        count, checksum = 0, b""
        for rows in _pages(store, table):
            for row in rows:
                checksum = blake2b(checksum + msgspec.msgpack.encode(row), digest_size=16).digest()
            count += len(rows)
            self._tell(len(rows), f"comparing {table}")
        return CopiedTable(table, count, checksum.hex())

    def _tell(self, rows: int, what: str) -> None:
        self._done += rows
        if self._progress is not None:
            # What is there besides the tables is few, and was not counted.
            self._progress(min(self._done, self._total), self._total, what)


def _read(store: BlockingEngine, table: str, after: tuple[Any, ...]) -> list[Row]:
    return store.read(page, Wanted(table, after, ROWS, CHARACTERS))


def _pages(store: BlockingEngine, table: str) -> Iterator[list[Row]]:
    after = TABLES[table].start
    while rows := _read(store, table, after):
        yield rows
        after = _key(table, rows[-1])


def _key(table: str, row: Row) -> tuple[Any, ...]:
    return row[: len(TABLES[table].start)]


def _spelt(place: Place, row: Row) -> str:
    """A row, by its key."""
    return "/".join(map(str, _key(place.table, row)))


def _moved(place: Place, rows: list[Row]) -> Place:
    return msgspec.structs.replace(place, after=_key(place.table, rows[-1]), rows=place.rows + len(rows))


def _beyond(place: Place) -> Place:
    """At the beginning of the next table, or at the end."""
    names = [*TABLES, ""]
    table = names[names.index(place.table) + 1]
    return msgspec.structs.replace(place, table=table, after=TABLES[table].start if table else ())


def _refuse_in_use(found: Survey, path: str) -> None:
    """Whatever is written while it is copied may be missing in the copy."""
    there = [resident for resident in found.residents if _is_there(resident, found.now)]
    if there:
        who = ", ".join(map(_named, there[:_NAMED]))
        raise NotAtRest(path=path, who=who if len(there) <= _NAMED else f"{who} and {len(there) - _NAMED} more")


def _is_there(resident: Resident, now: Now) -> bool:
    if resident.boot != now.boot:
        return False
    if resident.host == presence.host_key():
        return not presence.is_gone(resident.pid, resident.started, resident.bell)
    return now.awake - resident.beat < max(_SILENT, 3 * resident.every)


def _named(resident: Resident) -> str:
    here = "" if resident.host == presence.host_key() else f" on {resident.host}"
    agents = f" ({', '.join(resident.agents[:_NAMED])})" if resident.agents else ""
    return f"process {resident.pid}{here}{agents}"
