"""A listening process is woken while the disk is busy, and rung when there is a message."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Literal

import pytest

import agentbus
from agentbus.engine.sqlite import doorbell


async def sent_when_rung(
    path: Path, durability: Literal["disk", "process"], monkeypatch: pytest.MonkeyPatch
) -> list[int]:
    """Return the number of visible messages at each ring of the other bus."""
    seen: list[int] = []
    send = doorbell.Ringer._send

    def counted(ringer: doorbell.Ringer, bell: str, channels: set[str]) -> bool:
        with closing(sqlite3.connect(path / "bus.db")) as connection:
            seen.append(connection.execute("SELECT count(*) FROM messages").fetchone()[0])
        return send(ringer, bell, channels)

    async with (
        agentbus.connect(path, durability=durability) as here,
        agentbus.connect(path, durability=durability) as there,
        here.agent("a", type="worker") as sender,
        there.agent("b", type="worker") as reader,
    ):
        monkeypatch.setattr(doorbell.Ringer, "_send", counted)
        await sender.send("b", "note", 1)
        message = await reader.receive(timeout=20)
        monkeypatch.setattr(doorbell.Ringer, "_send", send)
        assert message is not None
        assert message.payload == 1
        await message.ack()
    return seen


async def test_a_sleeping_process_is_rung_before_the_fsync_and_after_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doorbell, "_IDLE", 0.0)
    assert await sent_when_rung(tmp_path, "disk", monkeypatch) == [0, 1]


async def test_an_awake_process_is_rung_only_after_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doorbell, "_IDLE", float("inf"))
    assert await sent_when_rung(tmp_path, "disk", monkeypatch) == [1]


async def test_without_an_fsync_there_is_nothing_to_be_woken_during(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doorbell, "_IDLE", 0.0)
    assert await sent_when_rung(tmp_path, "process", monkeypatch) == [1]
