"""A long reader with concurrent writers is reported, blocks no writer, and the WAL shrinks after it."""

import asyncio
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

import agentbus
from agentbus.api.monitor import Sweeper, Thresholds
from agentbus.operations.liveness import Rules
from tests.faults.rows import integrity, value
from tests.support.figures import Figure, Scale

MIB = 1024 * 1024


@pytest.mark.slow
@pytest.mark.fault(5)
async def test_a_reader_that_is_held_open_is_reported_and_the_log_shrinks_after_it(
    tmp_path: Path, figure: Figure, scale: Scale
) -> None:
    seconds = scale(0.1, 30.0)
    # In its whole size with the default threshold; else the log would have to grow for too long.
    threshold = Thresholds() if scale.full else Thresholds(log=20 * MIB)
    log = tmp_path / "bus.db-wal"
    sent = 0
    findings: list[str] = []
    async with agentbus.connect(tmp_path) as bus, bus.agent("a", type="worker") as agent:
        sweeper = Sweeper(bus._engine, Rules(60_000, 300_000), threshold)
        with closing(sqlite3.connect(tmp_path / "bus.db", isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM messages").fetchall()
            end = time.monotonic() + seconds
            longest = 0.0
            while time.monotonic() < end or log.stat().st_size < threshold.log + MIB:
                begun = time.monotonic()
                await agent.send_many([("a", "note", "x" * 50_000) for _ in range(10)])
                longest = max(longest, time.monotonic() - begun)
                sent += 10
                await asyncio.sleep(0.02)
            largest = log.stat().st_size
            findings += [finding.kind for finding in (await sweeper.sweep()).findings]
            reader.execute("ROLLBACK")
        await sweeper.sweep()
        after = log.stat().st_size
    lost = sent - value(tmp_path, "SELECT count(*) FROM messages")
    sizes = f"WAL {largest / 1e6:.0f} MB during it and {after / 1e6:.1f} MB after it"
    figure(f"{seconds:g} s, {sizes}, reported: {', '.join(findings)}", acknowledged=sent, lost=lost)
    assert "log_long" in findings
    assert after < MIB
    assert longest < 30
    assert lost == 0
    assert integrity(tmp_path) == "ok"
