"""A composite checkpoint whose bytes were damaged, or written by another program, restores no session."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import pytest

import agentbus
from agentbus.errors import DamagedPayload


@pytest.mark.parametrize("checksum", ["of what was there", "of what is there"])
@pytest.mark.parametrize("text", ['{"session":"s"}', "[]", '{"session":"s","operation":1}'])
async def test_a_damaged_composite_changes_nothing(tmp_path: Path, text: str, checksum: str) -> None:
    async with agentbus.connect(tmp_path / "bus") as bus, bus.session("execution", id="s") as session:
        await session.state.set("k", 1)
        point = await session.checkpoint_all("p")
        await session.state.set("k", 2)
        with closing(sqlite3.connect(tmp_path / "bus" / "bus.db", timeout=10)) as connection, connection:
            connection.execute("UPDATE checkpoints SET snapshot = ?, size = ?", (text, len(text)))
            if checksum == "of what is there":
                connection.execute("UPDATE checkpoints SET checksum = ?", (sha256(text.encode()).hexdigest(),))
        with pytest.raises(DamagedPayload, match=f"checkpoint {point.id}"):
            await session.rollback(point.id)
        assert await session.state.get("k") == 2
        assert len((await bus.checkpoints.list("s", kind="composite")).items) == 1
