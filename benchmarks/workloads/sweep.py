"""Sweeps: the cost of one pass of the monitor, by the number of live agents, and after the death of a process."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import agentbus
from agentbus.core import process_info
from benchmarks.command import Options
from benchmarks.measure import Results, Series
from benchmarks.progress import Progress
from benchmarks.report import Check

UNIT = "ms per sweep"
MANY = 10_000
FEW = 100
PROCESSES = 20
MAX_MILLISECONDS = 5.0
"""Maximum duration of a sweep over many live agents."""
SUSPECT_AFTER = 3600
NOTE = (
    f"Sweeps: agents of {PROCESSES} processes, which are really there; medians, and the range, of the sweeps of a "
    "monitor, seen from the caller."
)
CHOICES = ("sweep", "death")

_FILL = """
WITH RECURSIVE numbers (number) AS (SELECT 0 UNION ALL SELECT number + 1 FROM numbers WHERE number + 1 < :count)
INSERT INTO agents (id, name, type, status, process, epoch, last_call, busy_until, mailbox, replies, created, started,
    updated)
SELECT 'agent-' || number, 'agent', 'worker', 'running', :first + number % :processes, 1, :call, :busy, :mailbox,
    :mailbox, :wall, :wall, :wall
FROM numbers
"""

_BOXES = "INSERT INTO mailboxes (kind, name, owner, created) SELECT 'agent', id, id, 0 FROM agents LIMIT :count"
_MAIL = """
INSERT INTO messages (mailbox, sender, type, checksum, priority, status, max_attempts, expires, created, payload)
SELECT id, 'a', 'note', 0, 5, 'queued', 5, :wall + 3600000, :wall, '1' FROM mailboxes WHERE kind = 'agent'
"""


@dataclass(frozen=True)
class Case:
    """A population of agents and the duration of their silence."""

    key: str
    title: str
    agents: int
    silent: int = 0
    busy: bool = False
    mail: bool = False


CASES = (
    Case("few", f"{FEW} live agents", FEW),
    Case("many", f"{MANY:,} live agents", MANY),
    Case("mail", f"{MANY:,} live agents, a message with a ttl waiting for each", MANY, mail=True),
    Case("busy", f"{MANY:,} live agents, all silent for long and busy", MANY, silent=2 * SUSPECT_AFTER, busy=True),
)


def measure(options: Options, directory: Path, results: Results, progress: Progress) -> dict[str, Any]:
    sweeps = 20 if options.quick else 200
    if "sweep" in options.chosen:
        progress.expect(len(CASES))
        for case in CASES:
            progress.say(f"sweep: {case.title}")
            series = results.add(Series("sweep", case.key, UNIT, title=case.title))
            with idle_processes() as pids:
                series.values += asyncio.run(_quiet(directory / case.key, case, pids, sweeps))
    if "death" in options.chosen:
        title = f"one of {PROCESSES} processes died, with {MANY // PROCESSES} of {MANY:,} agents"
        series = results.add(Series("death", "death", UNIT, title=title))
        progress.expect(options.rounds)
        for number in range(options.rounds):
            progress.say(f"death: round {number + 1} of {options.rounds}")
            with idle_processes() as pids:
                series.values.append(asyncio.run(_death(directory / f"death-{number}", pids)))
    return {"sweeps": sweeps}


def checks(results: Results) -> list[Check]:
    return [
        Check(f"sweep, {series.title}", series.median, " ms", most=MAX_MILLISECONDS)
        for series in results.of("sweep")
        if series.contestant != "few"
    ]


@contextmanager
def idle_processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run processes that only sleep."""
    children = [subprocess.Popen(["sleep", "3600"]) for _ in range(PROCESSES)]
    try:
        yield children
    finally:
        for child in children:
            child.kill()
            child.wait()


async def _quiet(home: Path, case: Case, children: list[subprocess.Popen[bytes]], sweeps: int) -> list[float]:
    async with agentbus.connect(home, beat_every=SUSPECT_AFTER / 2) as bus:
        _fill(home, case, children)
        # One sweeper, as in a monitor: it checks the depth of queues in its first sweep, then once a minute.
        sweeper = bus._sweeper(SUSPECT_AFTER, SUSPECT_AFTER, None, 1000)
        await sweeper.sweep()
        times: list[float] = []
        for _ in range(sweeps):
            started = time.perf_counter()
            sweep = await sweeper.sweep()
            times.append((time.perf_counter() - started) * 1000)
            _require(sweep.findings == [], f"unexpected findings: {sweep.findings}")
    shutil.rmtree(home)
    return times


async def _death(home: Path, children: list[subprocess.Popen[bytes]]) -> float:
    async with agentbus.connect(home, beat_every=SUSPECT_AFTER / 2) as bus:
        _fill(home, CASES[1], children)
        children[0].kill()
        children[0].wait()
        started = time.perf_counter()
        sweep = await bus.sweep(suspect_after=SUSPECT_AFTER, fail_after=SUSPECT_AFTER)
        took = (time.perf_counter() - started) * 1000
        _require(sweep.counts["agents_failed"] == MANY // PROCESSES, f"{sweep.counts}")
    shutil.rmtree(home)
    return took


def _fill(home: Path, case: Case, children: list[subprocess.Popen[bytes]]) -> None:
    """Insert the population in bulk by plain SQL."""
    now: Callable[[], agentbus.Now] = agentbus.SystemClock().now
    at = now()
    with closing(sqlite3.connect(home / "bus.db", isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        rows = [
            (process_info.host_key(), at.boot, child.pid, process_info.start_time(child.pid), at.awake, at.wall)
            for child in children
        ]
        ((before,),) = connection.execute("SELECT coalesce(max(id), 0) FROM processes")
        connection.executemany(
            "INSERT INTO processes (host, boot, pid, started, beat, created) VALUES (?, ?, ?, ?, ?, ?)", rows
        )
        connection.execute("INSERT INTO mailboxes (kind, name, owner, created) VALUES ('agent', 'a', 'a', 0)")
        ((mailbox,),) = connection.execute("SELECT max(id) FROM mailboxes")
        parameters = {
            "count": case.agents,
            "first": before + 1,
            "processes": PROCESSES,
            "call": max(0, at.awake - case.silent * 1000),
            "busy": at.awake + 3_600_000 if case.busy else None,
            "mailbox": mailbox,
            "wall": at.wall,
        }
        connection.execute(_FILL, parameters)
        if case.mail:
            connection.execute(_BOXES, parameters)
            connection.execute(_MAIL, parameters)
        connection.execute("COMMIT")


def _require(true: bool, otherwise: str) -> None:
    if not true:
        raise RuntimeError(otherwise)
