"""Copy of a whole bus between files and servers.

The source is only read (once its tables are up to date) and must not be in use. The target starts empty and cannot be
opened until the end: every batch is one commit together with the position reached, so that an interrupted copy resumes
there. At the end both are read again and compared table by table, with writes to the source blocked; only then does the
target become a bus.

A copy is the same bus in another location: it has the same bus id, so that archives of one are recognized by the other,
and all ids continue. Archives, backups, settings and files that checkpoints refer to are not copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from hashlib import blake2b
from typing import Any

import msgspec

from agentbus.core import process_info
from agentbus.core.clock import Now
from agentbus.engine.blocking import BlockingEngine
from agentbus.errors import CopyDiffers, CopyFailed, FormatRefused, NotAtRest
from agentbus.operations.copy import (
    TABLES,
    BeginRequest,
    FinishRequest,
    LoadRequest,
    OpenProcess,
    Survey,
    Wanted,
    begin_copy,
    finish_copy,
    load_copy,
    read_page,
    survey,
)
from agentbus.operations.copy_position import CopyPosition
from agentbus.operations.protocol import Row
from agentbus.records import CopiedTable, CopyReport

ROWS = 1000
CHARACTERS = 4 * 1024 * 1024
"""Limits of a batch; a single longer row is a batch by itself."""
_SILENT = 60_000
"""Milliseconds without a heartbeat after which a process on another host does not count as live."""
_MAX_NAMED = 5

Progress = Callable[[int, int, str], object]
"""Called with rows done, total rows and the current table. Each row counts three times: one write, two reads."""


def copy_bus(
    source: BlockingEngine, open_target: Callable[[], BlockingEngine], progress: Progress | None = None
) -> CopyReport:
    """Copy the source to another bus, or resume an interrupted copy. ``open_target`` opens or creates the target; it is
    called once no other process uses the source.

    >>> with closing(open_store("old")) as source:                                    # doctest: +SKIP
    ...     copy_bus(source, lambda: open_store("new", create=True)).rows
    1203
    """
    found = source.read(survey, None)
    _refuse_in_use(found, source.shown)
    with closing(open_target()) as target:
        position = target.write(begin_copy, BeginRequest(found.bus, source.shown, target.shown))
        return _Copy(source, target, position, sum(found.counts.values()), progress).run()


class _Copy:
    def __init__(
        self,
        source: BlockingEngine,
        target: BlockingEngine,
        position: CopyPosition,
        rows: int,
        progress: Progress | None,
    ) -> None:
        self._source = source
        self._target = target
        self._position = position
        self._resumed = bool(position.rows)
        self._total = 3 * rows
        self._done = position.rows
        self._progress = progress

    def run(self) -> CopyReport:
        while self._position.table:
            self._copy_batch()
        with self._source.pause_writes():
            tables = [self._compare(table) for table in TABLES]
        # Only after the comparison: a concurrent write to the source would have shown there.
        self._target.write(finish_copy, FinishRequest(self._position))
        position = self._position
        return CopyReport(self._source.shown, self._target.shown, self._resumed, position.rows, tables)

    def _copy_batch(self) -> None:
        """Copy the next rows of the current table, or move to the next table if there are none."""
        before = self._position
        rows = _read(self._source, before.table, before.after)
        after = _next_table(before) if not rows else _advance(before, rows)
        try:
            self._position = self._target.write(load_copy, LoadRequest(before, after, rows))
        except FormatRefused as error:
            first, last = (_format_key(before, row) for row in (rows[0], rows[-1]))
            reason = f"the target rejects a row of {before.table} from {first} to {last}"
            raise CopyFailed(path=self._target.shown, reason=f"{reason}: {error.reason}") from error
        self._report(len(rows), before.table)

    def _compare(self, table: str) -> CopiedTable:
        """Compare a table of both stores; raise CopyDiffers if they differ."""
        source, target = (self._checksum(store, table) for store in (self._source, self._target))
        if source != target:
            what = f"{table} has {target.rows:,} rows in the copy and {source.rows:,} in the source"
            if source.rows == target.rows:
                what = f"the {source.rows:,} rows of {table} have a different checksum"
            raise CopyDiffers(path=self._target.shown, source=self._source.shown, what=what)
        return source

    def _checksum(self, store: BlockingEngine, table: str) -> CopiedTable:
        count, checksum = 0, b""
        for rows in _pages(store, table):
            for row in rows:
                checksum = blake2b(checksum + msgspec.msgpack.encode(row), digest_size=16).digest()
            count += len(rows)
            self._report(len(rows), f"comparing {table}")
        return CopiedTable(table, count, checksum.hex())

    def _report(self, rows: int, what: str) -> None:
        self._done += rows
        if self._progress is not None:
            # A few rows are not in the total.
            self._progress(min(self._done, self._total), self._total, what)


def _read(store: BlockingEngine, table: str, after: tuple[Any, ...]) -> list[Row]:
    return store.read(read_page, Wanted(table, after, ROWS, CHARACTERS))


def _pages(store: BlockingEngine, table: str) -> Iterator[list[Row]]:
    after = TABLES[table].start
    while rows := _read(store, table, after):
        yield rows
        after = _key(table, rows[-1])


def _key(table: str, row: Row) -> tuple[Any, ...]:
    return row[: len(TABLES[table].start)]


def _format_key(position: CopyPosition, row: Row) -> str:
    """Format the key of a row."""
    return "/".join(map(str, _key(position.table, row)))


def _advance(position: CopyPosition, rows: list[Row]) -> CopyPosition:
    return msgspec.structs.replace(position, after=_key(position.table, rows[-1]), rows=position.rows + len(rows))


def _next_table(position: CopyPosition) -> CopyPosition:
    """Return the start of the next table, or the end."""
    names = [*TABLES, ""]
    table = names[names.index(position.table) + 1]
    return msgspec.structs.replace(position, table=table, after=TABLES[table].start if table else ())


def _refuse_in_use(found: Survey, path: str) -> None:
    """Refuse a source that is in use: writes during the copy could be missing in it."""
    live = [process for process in found.processes if _is_live(process, found.now)]
    if live:
        who = ", ".join(map(_describe, live[:_MAX_NAMED]))
        raise NotAtRest(path=path, who=who if len(live) <= _MAX_NAMED else f"{who} and {len(live) - _MAX_NAMED} more")


def _is_live(process: OpenProcess, now: Now) -> bool:
    if process.boot != now.boot:
        return False
    if process.host == process_info.host_key():
        return not process_info.is_gone(process.pid, process.started, process.bell)
    return now.awake - process.beat < max(_SILENT, 3 * process.every)


def _describe(process: OpenProcess) -> str:
    here = "" if process.host == process_info.host_key() else f" on {process.host}"
    agents = f" ({', '.join(process.agents[:_MAX_NAMED])})" if process.agents else ""
    return f"process {process.pid}{here}{agents}"
