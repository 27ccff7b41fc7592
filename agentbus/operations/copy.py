"""Copy a whole bus into an empty one, table by table.

A table is read in the order of its key. Every batch is written together with the position that it reaches, so that an
interrupted copy resumes there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from agentbus.core.clock import Now
from agentbus.core.codec import plain
from agentbus.errors import CopyOvertaken, CopyUnfinished, NotEmpty, SameBus
from agentbus.operations.archive_rows import bus_name
from agentbus.operations.copy_position import COPY_POSITION, CopyPosition, read_copy_position
from agentbus.operations.events import event, record
from agentbus.operations.processes import invalidate_boot, record_boot
from agentbus.operations.protocol import ExecuteMany, Op, Outcome, Query, Row, single_operation


class Table(msgspec.Struct, frozen=True):
    """A table that is copied: a key before all others, and whether its rows may be long."""

    name: str
    start: tuple[int | str, ...]
    long: bool = False


TABLES = {
    table.name: table
    for table in (
        Table("vocabulary", ("", "")),
        Table("processes", (0,)),
        Table("sessions", ("",), long=True),
        Table("participants", ("", "", ""), long=True),
        Table("mailboxes", (0,)),
        Table("agents", ("",), long=True),
        Table("pool_members", (0, "")),
        Table("subscriptions", (0, "")),
        Table("messages", (0,), long=True),
        Table("receipts", (0, "", 0, "")),
        Table("tasks", (0,), long=True),
        Table("dependencies", (0, "")),
        Table("steps", (0,), long=True),
        Table("approvals", (0,), long=True),
        Table("signals", (0,), long=True),
        Table("state", (0,), long=True),
        Table("state_floors", ("",)),
        Table("checkpoints", (0,), long=True),
        Table("documents", (0,), long=True),
        Table("document_floors", ("", "")),
        Table("histories", (0,), long=True),
        Table("history_items", (0,), long=True),
        Table("threads", ("",)),
        Table("holds", (0,)),
        Table("events", (0,), long=True),
        Table("meta", ("",)),
        Table("counters", ("",)),
        Table("sequences", ("",)),
    )
}
"""In this order, because of foreign keys. Sequences are not a table: they hold the last ids that tables have issued."""
LEFT_OUT = {
    "listeners": "only processes that have the bus open listen",
    "notifiers": "a copy notifies of nothing that happened before",
    "reach": "adapters declare it with their next call",
    "tokens": "a copy must not admit the HTTP clients of the original",
    "workflows": "workers announce them when they start",
}
"""Tables that are not copied, and why."""


class OpenProcess(msgspec.Struct, frozen=True):
    """A live process: its agents, and what it takes to check it."""

    agents: tuple[str, ...]
    process: int
    host: str
    boot: str
    pid: int
    started: str
    bell: str | None
    beat: int
    every: int


class Survey(msgspec.Struct, frozen=True):
    """A bus to copy: its name, the number of rows of each table, the processes that may have it open, and the time."""

    bus: str
    counts: dict[str, int]
    processes: list[OpenProcess]
    now: Now


class Wanted(msgspec.Struct, frozen=True):
    """The rows of a table after a key: at most ``rows``, and about ``characters`` of them, but at least one."""

    table: str
    after: tuple[Any, ...]
    rows: int
    characters: int


class BeginRequest(msgspec.Struct, frozen=True):
    """Start or resume a copy of ``bus`` into this bus."""

    bus: str
    source: str
    target: str


class LoadRequest(msgspec.Struct, frozen=True):
    """The next rows, the position of the copy before them, and the position after them."""

    before: CopyPosition
    after: CopyPosition
    rows: Sequence[Row]


class FinishRequest(msgspec.Struct, frozen=True):
    """A copy that is complete and was compared."""

    position: CopyPosition


def survey(_: None, now: Now) -> Op[Survey]:
    """Return what is to be copied. A bus that is an unfinished copy itself is refused."""
    position = yield from read_copy_position(None, now)
    if position is not None:
        raise CopyUnfinished(path=position.target, source=position.source, command=position.command)
    bus = yield from bus_name(None, now)
    counts = yield Query("copy_counts")
    agents_of: dict[Row, list[str]] = {}
    for row in (yield Query("copy_processes")):
        agents_of.setdefault(row[:-1], []).append(row[-1])
    processes = [OpenProcess(tuple(filter(None, agents)), *process) for process, agents in agents_of.items()]
    return Survey(bus or "", dict(counts), processes, now)


def read_page(wanted: Wanted, now: Now) -> Op[list[Row]]:
    """Return the next rows of a table in the order of its key, which is the first part of each row."""
    limit = wanted.rows
    table = TABLES[wanted.table]
    if table.long:
        sizes = yield Query(f"copy_sizes_{table.name}", (*wanted.after, limit))
        limit = _count_fitting([size for (size,) in sizes], wanted.characters)
    rows = yield Query(f"copy_read_{table.name}", (*wanted.after, limit))
    return rows


def _count_fitting(sizes: Sequence[int], room: int) -> int:
    """Return how many of the first rows fit into ``room`` characters, at least one."""
    for count, size in enumerate(sizes):
        room -= size
        if room < 0:
            return max(1, count)
    return len(sizes)


@single_operation(durable=True)
def begin_copy(request: BeginRequest, now: Now) -> Op[Outcome[CopyPosition]]:
    """Make an empty bus the target of a copy; the outcome is the position, which is not the first if a copy resumes."""
    position = yield from read_copy_position(None, now)
    if position is not None and position.bus == request.bus:
        return position
    problem = yield from _occupied(request, position, now)
    if problem is not None:
        return problem
    first = next(iter(TABLES.values()))
    position = CopyPosition(request.bus, request.source, request.target, first.name, first.start)
    # Also the boot: a process that opens the bus now finds none, checks further, and is refused.
    yield Query("copy_forget")
    yield Query("meta_set", (COPY_POSITION, plain(position)))
    return position


def _occupied(request: BeginRequest, position: CopyPosition | None, now: Now) -> Op[NotEmpty | SameBus | None]:
    """Return the error if a bus cannot become a copy of another."""
    if position is not None:
        what = f"part of a copy of another bus, {position.source}, which `{position.command}` finishes"
        return NotEmpty(path=request.target, what=what)
    bus = yield from bus_name(None, now)
    if bus == request.bus:
        return SameBus(path=request.target)
    rows = yield Query("copy_counts")
    ((types,),) = yield Query("copy_types")
    counts: dict[str, int] = {**dict(rows), "vocabulary": types, "meta": 0}
    found = [f"{name} ({count:,})" for name, count in counts.items() if count]
    return NotEmpty(path=request.target, what=", ".join(found)) if found else None


@single_operation(durable=False)
def load_copy(request: LoadRequest, now: Now) -> Op[Outcome[CopyPosition]]:
    """Write the next rows together with the position that they reach. Nothing is fsynced before the end: rows that a
    power failure loses are copied again, because their position is lost with them."""
    problem = yield from _overtaken(request.before, now)
    if problem is not None:
        return problem
    table = request.before.table
    if table == "sequences":
        yield Query("copy_open_sequences")
    if request.rows:
        yield ExecuteMany(f"copy_write_{table}", request.rows)
    yield Query("meta_set", (COPY_POSITION, plain(request.after)))
    return request.after


@single_operation(durable=True)
def finish_copy(request: FinishRequest, now: Now) -> Op[Outcome[None]]:
    """Open the bus. Its clocks are other ones now, as after a reboot: live processes are marked dead, and leased
    messages are queued again."""
    problem = yield from _overtaken(request.position, now)
    if problem is not None:
        return problem
    yield Query("copy_done")
    yield from record_boot(now)
    # A visiting agent is not gone with the process that was watched: it calls here, or its patience ends.
    yield Query("copy_unwatch")
    live = yield Query("process_live")
    yield from invalidate_boot([process for (process,) in live], "the bus was copied", now.awake, now)
    facts = {"source": request.position.source, "rows": request.position.rows}
    yield from record([event(now.wall, "bus_copied", ("bus", "copy"), None, **facts)])
    return None


def _overtaken(expected: CopyPosition, now: Now) -> Op[CopyOvertaken | None]:
    """Return an error if another copy into the same bus has advanced."""
    position = yield from read_copy_position(None, now)
    return None if position == expected else CopyOvertaken(path=expected.target)
