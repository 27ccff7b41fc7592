"""Checkpoints against what another program wrote into the database: damage is detected, paths are not trusted."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import agentbus
from agentbus.errors import DamagedPayload, UnknownSession, WrongState


def change(path: Path, sql: str, *parameters: object) -> None:
    """As the sqlite3 shell would."""
    with closing(sqlite3.connect(path / "bus.db", isolation_level=None, timeout=10)) as connection:
        assert connection.execute(sql, parameters).rowcount == 1


@pytest.mark.parametrize("size", [10, 1_000_000], ids=["small", "large"])
async def test_a_damaged_snapshot_is_noticed(tmp_path: Path, size: int) -> None:
    async with agentbus.connect(tmp_path) as bus, bus.agent("a", type="worker") as a:
        first = await a.checkpoint("n", "x" * size)
        second = await a.checkpoint("n", "y" * size)
        change(tmp_path, "UPDATE checkpoints SET snapshot = replace(snapshot, 'yy', 'yz') WHERE id = ?", second.id)
        for reading in (a.restore(), a.restore("n"), bus.checkpoints.get(second.id), bus.checkpoints.latest("a")):
            with pytest.raises(DamagedPayload) as damaged:
                await reading
            assert damaged.value.what == f"checkpoint {second.id}"
        # What is whole can be read, and the list still shows both.
        assert await a.restore(id=first.id) == first
        assert [item.id for item in (await bus.checkpoints.list()).items] == [second.id, first.id]
        await bus.checkpoints.delete(second.id)
        assert await a.restore() == first


async def test_a_damaged_checksum_is_noticed(tmp_path: Path) -> None:
    async with agentbus.connect(tmp_path) as bus, bus.agent("a", type="worker") as a:
        await a.checkpoint("n", 1)
        change(tmp_path, "UPDATE checkpoints SET checksum = ?", "0" * 64)
        with pytest.raises(DamagedPayload):
            await a.restore()


@pytest.mark.parametrize("files", ["[1]", '[{"path": "x"}]', '[{"path": 1, "size": 1, "sha256": ""}]', "[null]"])
async def test_files_that_are_no_references_are_noticed(tmp_path: Path, files: str) -> None:
    async with agentbus.connect(tmp_path) as bus, bus.agent("a", type="worker") as a:
        saved = await a.checkpoint("n", 1)
        change(tmp_path, "UPDATE checkpoints SET files = ?, file_count = 1", files)
        with pytest.raises(DamagedPayload):
            await a.restore()
        with pytest.raises(DamagedPayload):
            await bus.checkpoints.verify(saved.id)


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "", ".", "a/../../secret", "nul\\u0000", "lone \\ud800"])
async def test_a_path_from_the_database_never_leaves_the_root(tmp_path: Path, path: str) -> None:
    (tmp_path / "secret").write_text("secret")
    root = tmp_path / "root"
    root.mkdir()
    async with agentbus.connect(tmp_path / "bus") as bus, bus.agent("a", type="worker") as a:
        saved = await a.checkpoint("n", 1)
        files = f'[{{"path": "{path}", "size": 6, "sha256": "{"0" * 64}"}}]'
        change(tmp_path / "bus", "UPDATE checkpoints SET files = ?, file_count = 1", files)
        if "ud800" in path:
            with pytest.raises(DamagedPayload):
                await bus.checkpoints.verify(saved.id, root)
        else:
            assert [check.status for check in await bus.checkpoints.verify(saved.id, root)] == ["outside"]


def make_session(path: Path, id: str, status: str) -> None:
    ended = 1 if status in {"completed", "failed"} else None
    change(
        path,
        "INSERT INTO sessions (id, operation, status, created, updated, ended) VALUES (?, 'planning', ?, 0, 0, ?)",
        id,
        status,
        ended,
    )


async def test_a_session_has_checkpoints_until_it_ends(tmp_path: Path) -> None:
    async with agentbus.connect(tmp_path) as bus:
        for status in ("active", "paused", "interrupted", "completed", "failed"):
            make_session(tmp_path, f"s-{status}", status)
        for status in ("active", "paused", "interrupted"):
            saved = await bus.checkpoints.save(f"s-{status}", "half", {"step": 3}, kind="session")
            assert (saved.owner_kind, saved.session) == ("session", f"s-{status}")
            assert await bus.checkpoints.latest(f"s-{status}", kind="session") == saved
            assert await bus.checkpoints.latest(f"s-{status}") is None
        for status in ("completed", "failed"):
            with pytest.raises(WrongState):
                await bus.checkpoints.save(f"s-{status}", "half", 1, kind="session")
        with pytest.raises(UnknownSession):
            await bus.checkpoints.save("s-none", "half", 1, kind="session")
        assert len((await bus.checkpoints.list(kind="session")).items) == 3
        assert await bus.checkpoints.prune("s-active", keep=0, kind="session") == 1


async def test_an_agents_checkpoint_knows_its_session(tmp_path: Path) -> None:
    async with agentbus.connect(tmp_path) as bus:
        make_session(tmp_path, "s-1", "active")
        async with bus.agent("a", type="worker", session="s-1") as a:
            assert (await a.checkpoint("n", 1)).session == "s-1"
            assert (await bus.checkpoints.save("a", "n", 2)).session == "s-1"
            async with a.unit() as unit:
                unit.checkpoint("n", 3)
        assert [item.session for item in (await bus.checkpoints.list("a")).items] == ["s-1"] * 3
