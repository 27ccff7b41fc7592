"""Bytes of a document or a result that changed on the disk are detected when they are read."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import agentbus
from agentbus.errors import DamagedPayload


async def test_damaged_bytes_are_noticed_and_the_other_versions_are_still_there(tmp_path: Path) -> None:
    async with agentbus.connect(tmp_path / "bus") as bus, bus.session("planning", id="s") as session:
        document = session.document("plan")
        await document.save({"n": 1})
        await document.save({"n": 2})
        meeting = await session.participants(["a"])
        await meeting.finish("a", 1)
        with closing(sqlite3.connect(tmp_path / "bus" / "bus.db", timeout=10)) as connection, connection:
            connection.execute("""UPDATE documents SET value = '{"n":3}' WHERE version = 2""")
            connection.execute("UPDATE participants SET result = '2'")
        for reading in (document.latest(), document.latest(as_=dict[str, int]), document.record(), document.history()):
            with pytest.raises(DamagedPayload) as damaged:
                await reading
            assert "version 2 of document plan of session s" in str(damaged.value)
        with pytest.raises(DamagedPayload):
            await document.export(tmp_path / "plan.json")
        assert not (tmp_path / "plan.json").exists()
        earlier = await document.record(1)
        assert earlier is not None
        assert earlier.value == {"n": 1}
        await meeting.refresh()
        with pytest.raises(DamagedPayload) as damaged:
            _ = meeting.results
        assert "result of a" in str(damaged.value)
