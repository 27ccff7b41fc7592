"""Who listens in another process is woken while the disk is still busy, and told when there is something."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Literal

import pytest

import agentbus
from agentbus.engine.sqlite import bells


async def sent_when_rung(
    path: Path, durability: Literal["disk", "process"], monkeypatch: pytest.MonkeyPatch
) -> list[int]:
    """How many messages everybody could see, each time that the other bus was rung for one of them."""
    seen: list[int] = []
    ring = bells.Ringer.ring

    def counted(ringer: bells.Ringer, rung: dict[str, set[str]]) -> bool:
        if rung:
            with closing(sqlite3.connect(path / "bus.db")) as connection:
                seen.append(connection.execute("SELECT count(*) FROM messages").fetchone()[0])
        return ring(ringer, rung)

    async with (
        agentbus.connect(path, durability=durability) as here,
        agentbus.connect(path, durability=durability) as there,
        here.agent("a", type="worker") as sender,
        there.agent("b", type="worker") as reader,
    ):
        monkeypatch.setattr(bells.Ringer, "ring", counted)
        await sender.send("b", "note", 1)
        message = await reader.receive(timeout=20)
        monkeypatch.setattr(bells.Ringer, "ring", ring)
        assert message is not None
        assert message.payload == 1
        await message.ack()
    return seen


async def test_who_sleeps_is_rung_before_the_fsync_and_again_when_the_message_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bells, "_WHILE", 0.0)
    assert await sent_when_rung(tmp_path, "disk", monkeypatch) == [0, 1]


async def test_who_is_awake_is_only_rung_when_the_message_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bells, "_WHILE", float("inf"))
    assert await sent_when_rung(tmp_path, "disk", monkeypatch) == [1]


async def test_without_an_fsync_there_is_nothing_to_be_woken_during(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bells, "_WHILE", 0.0)
    assert await sent_when_rung(tmp_path, "process", monkeypatch) == [1]
