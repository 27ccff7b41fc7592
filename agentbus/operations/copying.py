"""Copying a whole bus into an empty one, table by table, row by row as it is; and what of it no longer holds then.

A table is read in the order of its key, and every batch is written together with the
place that was reached, so that a copy which was cut off goes on there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from agentbus.clock import Now
from agentbus.codec import plain
from agentbus.errors import CopyOvertaken, CopyUnfinished, NotEmpty, SameBus
from agentbus.operations import Each, Op, Outcome, Query, Row, one_by_one
from agentbus.operations.archives import bus_name
from agentbus.operations.events import event, record
from agentbus.operations.processes import begin_boot, void
from agentbus.operations.unfinished import PLACE, Place, read_place


class Table(msgspec.Struct, frozen=True):
    """A table that is copied: what comes before every key of it, and whether a row of it may be long."""

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
        Table("tasks", (0,), long=True),
        Table("steps", (0,), long=True),
        Table("approvals", (0,), long=True),
        Table("state", (0,), long=True),
        Table("state_floors", ("",)),
        Table("checkpoints", (0,), long=True),
        Table("documents", (0,), long=True),
        Table("document_floors", ("", "")),
        Table("events", (0,), long=True),
        Table("meta", ("",)),
        Table("counters", ("",)),
        Table("sequences", ("",)),
    )
}
"""In this order: what others refer to comes before them. Sequences are no table, but what a table's ids go on from."""
LEFT_OUT = {
    "listeners": "only processes that have the bus open listen",
    "workflows": "workers announce them when they start",
}
"""Tables of which nothing is copied, and why."""


class Resident(msgspec.Struct, frozen=True):
    """A process that counts as live: the agents that live in it, and enough to find out whether it is."""

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
    """A bus that shall be copied: its own name, how many rows each table has, who may have it open, and when that was
    found."""

    bus: str
    counts: dict[str, int]
    residents: list[Resident]
    now: Now


class Wanted(msgspec.Struct, frozen=True):
    """The rows of a table after a key: at most so many, and no more than about so many characters of them, but one."""

    table: str
    after: tuple[Any, ...]
    rows: int
    characters: int


class BeginRequest(msgspec.Struct, frozen=True):
    """This bus shall become a copy of ``bus``, or go on becoming one."""

    bus: str
    source: str
    target: str


class LoadRequest(msgspec.Struct, frozen=True):
    """The next rows, the place in which they find the copy, and the place that is reached with them."""

    before: Place
    after: Place
    rows: Sequence[Row]


class FinishRequest(msgspec.Struct, frozen=True):
    """The copy is whole, and was compared."""

    place: Place


def survey(_: None, now: Now) -> Op[Survey]:
    """What there is to copy. A bus that is only part of a copy itself is refused."""
    place = yield from read_place(None, now)
    if place is not None:
        raise CopyUnfinished(path=place.target, source=place.source, command=place.command)
    bus = yield from bus_name(None, now)
    counts = yield Query("copy_counts")
    living: dict[Row, list[str]] = {}
    for row in (yield Query("copy_residents")):
        living.setdefault(row[:-1], []).append(row[-1])
    residents = [Resident(tuple(filter(None, agents)), *process) for process, agents in living.items()]
    return Survey(bus or "", dict(counts), residents, now)


def page(wanted: Wanted, now: Now) -> Op[list[Row]]:
    """The next rows of a table, in the order of its key, with which each of them begins."""
    limit = wanted.rows
    table = TABLES[wanted.table]
    if table.long:
        sizes = yield Query(f"copy_sizes_{table.name}", (*wanted.after, limit))
        limit = _fitting([size for (size,) in sizes], wanted.characters)
    rows = yield Query(f"copy_read_{table.name}", (*wanted.after, limit))
    return rows


def _fitting(sizes: Sequence[int], room: int) -> int:
    """How many of the first rows are not too long together; one at least, however long it is."""
    for count, size in enumerate(sizes):
        room -= size
        if room < 0:
            return max(1, count)
    return len(sizes)


@one_by_one(durable=True)
def begin_copy(request: BeginRequest, now: Now) -> Op[Outcome[Place]]:
    """Make an empty bus the target of a copy; of one that was begun before, the outcome says how far it came."""
    place = yield from read_place(None, now)
    if place is not None and place.bus == request.bus:
        return place
    problem = yield from _occupied(request, place, now)
    if problem is not None:
        return problem
    first = next(iter(TABLES.values()))
    place = Place(request.bus, request.source, request.target, first.name, first.start)
    # Also the boot: whoever opens the bus now finds none, looks closer, and is refused.
    yield Query("copy_forget")
    yield Query("meta_set", (PLACE, plain(place)))
    return place


def _occupied(request: BeginRequest, place: Place | None, now: Now) -> Op[NotEmpty | SameBus | None]:
    """Why a bus cannot become a copy of another."""
    if place is not None:
        what = f"part of a copy of another bus, {place.source}, which `{place.command}` finishes"
        return NotEmpty(path=request.target, what=what)
    bus = yield from bus_name(None, now)
    if bus == request.bus:
        return SameBus(path=request.target)
    rows = yield Query("copy_counts")
    ((types,),) = yield Query("copy_types")
    counts: dict[str, int] = {**dict(rows), "vocabulary": types, "meta": 0}
    found = [f"{name} ({count:,})" for name, count in counts.items() if count]
    return NotEmpty(path=request.target, what=", ".join(found)) if found else None


@one_by_one(durable=False)
def load_copy(request: LoadRequest, now: Now) -> Op[Outcome[Place]]:
    """Write the next rows and the place that is reached with them. Nothing is fsynced before the end: whatever a power
    cut undoes is done again, because the place goes with it."""
    problem = yield from _overtaken(request.before, now)
    if problem is not None:
        return problem
    table = request.before.table
    if table == "sequences":
        yield Query("copy_open_sequences")
    if request.rows:
        yield Each(f"copy_write_{table}", request.rows)
    yield Query("meta_set", (PLACE, plain(request.after)))
    return request.after


@one_by_one(durable=True)
def finish_copy(request: FinishRequest, now: Now) -> Op[Outcome[None]]:
    """Open the bus to everybody. Its clocks are others now, so that it is as after a restart of the machine: who
    counted as live is struck off, and what was leased goes back to where it waited."""
    problem = yield from _overtaken(request.place, now)
    if problem is not None:
        return problem
    yield Query("copy_done")
    yield from begin_boot(now)
    # Whoever visits is not gone with the process that was watched: it will call here, or its patience ends.
    yield Query("copy_unwatch")
    live = yield Query("process_live")
    yield from void([process for (process,) in live], "the bus was copied", now.awake, now)
    facts = {"source": request.place.source, "rows": request.place.rows}
    yield from record([event(now.wall, "bus_copied", ("bus", "copy"), None, **facts)])
    return None


def _overtaken(expected: Place, now: Now) -> Op[CopyOvertaken | None]:
    """Somebody else copies into the same bus."""
    place = yield from read_place(None, now)
    return None if place == expected else CopyOvertaken(path=expected.target)
