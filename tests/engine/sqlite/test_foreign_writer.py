"""Another program, the sqlite3 shell say, that writes to our database without our lock."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import anyio
import pytest

import agentbus
from agentbus.errors import LockTimeout
from tests.api.helpers import worker


@contextmanager
def _writing(directory: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(directory / "bus.db", isolation_level=None)) as shell:
        shell.execute("BEGIN IMMEDIATE")
        yield shell
        if shell.in_transaction:
            shell.execute("ROLLBACK")


async def test_a_foreign_writer_is_waited_for(tmp_path: Path) -> None:
    async with agentbus.connect(tmp_path) as bus:
        a = await worker(bus, "a")
        with _writing(tmp_path) as shell:
            sending = asyncio.create_task(a.send("a", "note", 1))
            progressing = asyncio.create_task(a.progress(5))
            await bus.stats()
            assert not sending.done()
            shell.execute("ROLLBACK")
            with anyio.fail_after(60):
                await sending
                await progressing
        message = await a.receive(timeout=0)
        assert message is not None


async def test_one_that_stays_is_a_named_error_and_nothing_is_written(tmp_path: Path) -> None:
    async with agentbus.connect(tmp_path, lock_timeout=0.2) as bus:
        a = await worker(bus, "a")
        with _writing(tmp_path):
            for attempt in (a.send("a", "note", 1), a.progress(5)):
                with pytest.raises(LockTimeout, match="another program") as refused:
                    await attempt
                assert refused.value.transient
        assert await a.receive(timeout=0) is None


async def test_it_does_not_hold_up_the_exit(tmp_path: Path) -> None:
    bus = agentbus.connect(tmp_path)
    await bus.__aenter__()
    await worker(bus, "a")
    with _writing(tmp_path):
        begun = time.monotonic()
        await bus.__aexit__(None, None, None)
        took = time.monotonic() - begun
    print(f"closed after {took:.2f} s")
    assert took < 10
