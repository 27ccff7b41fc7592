"""A listening process is rung when there is a message, before the disk has it."""

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


@pytest.mark.parametrize("durability", ["disk", "process"])
async def test_a_process_is_rung_once_when_the_message_is_visible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: Literal["disk", "process"]
) -> None:
    assert await sent_when_rung(tmp_path, durability, monkeypatch) == [1]
