"""Growth: the cost of a claim and its acknowledgement with few and with many queued messages, finished messages and
mailboxes. The databases are filled in bulk by plain SQL."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import agentbus
from agentbus import Agent, Bus
from benchmarks.command import Options
from benchmarks.contestants.queues.base import Contestant
from benchmarks.contestants.queues.catalog import available
from benchmarks.measure import Results, Series
from benchmarks.payload import PAYLOAD, TEXT
from benchmarks.progress import Progress
from benchmarks.report import Check
from benchmarks.workloads.lifecycles import BATCH

FEW = 1000
BOXES = 1000
BATCHES_IN_A_ROUND = 8
SINGLES_IN_A_ROUND = 50
OTHERS_IN_A_ROUND = 20
OTHER_KEYS = {"files-hasty", "litequeue"}
AGENT = "reader"
TOGETHER, SINGLE, OTHERS = "growth", "growth-single", "growth-others"
UNIT = "µs per message, one by one"
MAX_RATIO = 1.3
"""Maximum cost of a message among many, as a multiple of its cost among few."""

_FILL = """
WITH RECURSIVE numbers (number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM numbers WHERE number < :count)
INSERT INTO messages (id, mailbox, sender, type, payload, checksum, priority, status, attempts, max_attempts, lease,
    holder, created, finished)
SELECT :last + number, :mailbox + number % :boxes, :agent, 'note', :payload, :checksum, 5, :status, :attempts, 5,
    :attempts, :holder, :now, :finished
FROM numbers
"""
_BOXES = """
WITH RECURSIVE numbers (number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM numbers WHERE number < :count)
INSERT INTO mailboxes (id, kind, name, owner, created)
SELECT :first + number, 'agent', 'other-' || number, 'other-' || number, 0 FROM numbers
"""


@dataclass(frozen=True)
class Depth:
    """The numbers of mailboxes and of queued and finished messages in all of them."""

    key: str
    title: str
    queued: int
    finished: int = 0
    boxes: int = 1


@dataclass(frozen=True)
class Reader:
    """The agent that claims at one depth, and its bus."""

    bus: Bus
    agent: Agent


@dataclass(frozen=True)
class Step:
    """A call that is measured at each depth; ``run`` returns its figure, or None if it is not to be measured again."""

    workload: str
    unit: str
    run: Callable[[Reader], Awaitable[float | None]]


def depths(many: int) -> list[Depth]:
    between = [depth for depth in (10_000, 100_000) if depth < many]
    return [
        Depth("few", f"{FEW:,} queued", FEW),
        *(Depth(str(depth), f"{depth:,} queued", depth) for depth in between),
        Depth("queued", f"{many:,} queued", many),
        Depth("finished", f"{FEW:,} queued, {many:,} finished kept", FEW, many),
        Depth("boxes", f"{many:,} queued in {BOXES:,} mailboxes", many, boxes=BOXES),
        Depth("boxes-finished", f"{FEW:,} queued, {many:,} finished kept in {BOXES:,} mailboxes", FEW, many, BOXES),
    ]


def measure(directory: Path, many: int, rounds: int, options: Options, results: Results, progress: Progress) -> None:
    """Claim and acknowledge in each database in turn, round after round; then the same with some other systems."""
    if options.wants("agentbus"):
        asyncio.run(in_turn(directory, depths(many), rounds, open_readers, results, progress))
    reachable = [depth for depth in (FEW, 3_000, 10_000, 100_000) if depth < many]
    asyncio.run(_measure_others(directory, reachable, options, results, progress))


def checks(results: Results) -> list[Check]:
    found: list[Check] = []
    for workload, how in ((TOGETHER, f"{BATCH} at once"), (SINGLE, "one by one")):
        for series in results.of(workload):
            ratio = results.ratio_of_medians(workload, series.contestant, "few")
            if series.contestant != "few" and ratio is not None:
                found.append(Check(f"claim + ack {how}: {series.title}, against few", ratio, "x", most=MAX_RATIO))
    return found


OpenReaders = Callable[[Path, Sequence[Depth], AsyncExitStack, Progress], Awaitable[list[Reader]]]


async def in_turn(
    directory: Path,
    chosen: Sequence[Depth],
    rounds: int,
    open_readers: OpenReaders,
    results: Results,
    progress: Progress,
    steps: Sequence[Step] | None = None,
) -> None:
    """Measure the readers of each depth in turn; the consumed messages are sent again, untimed."""
    steps = CLAIMS if steps is None else steps
    progress.expect(len(chosen) + rounds + 1)
    series = [
        [results.add(Series(step.workload, depth.key, step.unit, title=depth.title)) for depth in chosen]
        for step in steps
    ]
    async with AsyncExitStack() as stack:
        readers = await open_readers(directory, chosen, stack, progress)
        # The first round warms the caches.
        for number in range(rounds + 1):
            progress.say(f"round {number} of {rounds}")
            for turn in range(len(readers)):
                # Each round starts with another reader, so that the order varies.
                index = (number + turn) % len(readers)
                for step, of_step in zip(steps, series, strict=True):
                    figure = await step.run(readers[index])
                    if number and figure is not None:
                        of_step[index].values.append(figure)


async def open_readers(
    directory: Path, chosen: Sequence[Depth], stack: AsyncExitStack, progress: Progress
) -> list[Reader]:
    """Fill a file for each depth and return its reader."""
    readers: list[Reader] = []
    for depth in chosen:
        progress.say(f"filling {depth.title}")
        home = directory / depth.key
        async with agentbus.connect(home) as bus, bus.agent(AGENT, type="worker"):
            pass
        _fill(home / "bus.db", depth)
        bus = await stack.enter_async_context(agentbus.connect(home))
        readers.append(Reader(bus, await bus.register(AGENT, type="worker")))
    return readers


async def many_at_once(reader: Reader) -> float:
    """Return the microseconds of a message that is claimed and acknowledged with others."""
    agent = reader.agent
    started = time.perf_counter()
    batch = await agent.receive_many(BATCH)
    for _ in range(BATCHES_IN_A_ROUND - 1):
        batch = await agent.receive_many(BATCH, ack=batch)
    await agent.ack(batch)
    taken = time.perf_counter() - started
    await agent.send_many([(AGENT, "note", PAYLOAD)] * (BATCHES_IN_A_ROUND * BATCH))
    return taken / (BATCHES_IN_A_ROUND * BATCH) * 1e6


async def one_by_one(reader: Reader) -> float:
    """Return the microseconds of a message that is claimed and acknowledged alone."""
    agent = reader.agent
    started = time.perf_counter()
    for _ in range(SINGLES_IN_A_ROUND):
        message = await agent.receive()
        assert message is not None
        await message.ack()
    taken = time.perf_counter() - started
    await agent.send_many([(AGENT, "note", PAYLOAD)] * SINGLES_IN_A_ROUND)
    return taken / SINGLES_IN_A_ROUND * 1e6


CLAIMS = (
    Step(TOGETHER, f"µs per message, {BATCH} at once", many_at_once),
    Step(SINGLE, UNIT, one_by_one),
)


def _fill(database: Path, depth: Depth) -> None:
    """Insert rows as agentbus writes them, while no bus has the database open."""
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA cache_size = -200000")
        (own,) = connection.execute("SELECT mailbox FROM agents WHERE id = ?", (AGENT,)).fetchone()
        (first,) = connection.execute("SELECT max(id) FROM mailboxes").fetchone()
        moment = time.time_ns() // 1_000_000
        common = {
            "mailbox": own, "boxes": 1, "agent": AGENT, "payload": TEXT, "checksum": crc32(TEXT.encode()),
            "now": moment,
        }  # fmt: skip
        finished = {"status": "acked", "attempts": 1, "holder": AGENT, "finished": moment}
        queued = {"status": "queued", "attempts": 0, "holder": None, "finished": None}
        connection.execute("BEGIN IMMEDIATE")
        if depth.boxes > 1:
            connection.execute(_BOXES, {"first": first, "count": depth.boxes - 1})
        elsewhere = {"mailbox": first + 1, "boxes": depth.boxes - 1}
        last = 0
        for count, status in ((depth.finished, finished), (depth.queued, queued)):
            # Of many mailboxes, the one of the reader has few messages.
            ours = min(count, FEW) if depth.boxes > 1 else count
            for share, where in ((count - ours, elsewhere), (ours, {})):
                if share:
                    connection.execute(_FILL, {**common, **status, **where, "last": last, "count": share})
                    last += share
        connection.execute("UPDATE counters SET value = ? WHERE name = 'message'", (last,))
        connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


async def _measure_others(
    directory: Path, chosen: Sequence[int], options: Options, results: Results, progress: Progress
) -> None:
    """Measure common alternatives, up to the depth that can be filled within seconds."""
    others = [one for one in available() if one.key in OTHER_KEYS and options.wants(one.key)]
    progress.expect(len(others) * len(chosen))
    for contestant in others:
        series = {
            depth: results.add(
                Series(OTHERS, f"{contestant.key} {depth}", UNIT, title=f"{contestant.title}: {depth:,} queued")
            )
            for depth in chosen
        }
        try:
            await _measure_other(directory / contestant.key, contestant, series, progress)
        except Exception as error:
            for one in series.values():
                one.failed(error)


async def _measure_other(
    directory: Path, contestant: Contestant, series: dict[int, Series], progress: Progress
) -> None:
    directory.mkdir(parents=True)
    async with contestant.open(directory, 1) as (box,):
        queued = 0
        for depth, figures in series.items():
            progress.say(f"{contestant.title}, {depth:,} queued")
            await box.send_many([PAYLOAD] * (depth - queued))
            for _ in range(OTHERS_IN_A_ROUND):
                started = time.perf_counter()
                await box.ack(await box.receive())
                figures.values.append((time.perf_counter() - started) * 1e6)
            queued = depth - OTHERS_IN_A_ROUND
