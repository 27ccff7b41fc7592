"""Importing damaged, hostile or changing sources: reported, never fatal, never silently partial."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import sqlite3
import threading
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from agentbus import Bus
from agentbus.api.maintenance.importer import json_files
from agentbus.errors import InvalidInput, NotImportable
from tests.api.helpers import known, soon, worker
from tests.api.legacy_files import agent, coordination, session, write
from tests.support.cases import each

BOMBS: dict[str, bytes] = {
    "empty": b"",
    "blank": b"  \n",
    "truncated": b'{"agent_id": "a", "agent_type": "worker", "status',
    "nested lists": b"[" * 100_000 + b"]" * 100_000,
    "nested maps": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "nested inside": b'{"agent_id":"a","status":"done","metadata":' + b'{"a":' * 500 + b"1" + b"}" * 501,
    "nan": b'{"agent_id": "a", "status": "done", "load": NaN}',
    "huge number": b'{"agent_id": "a", "status": "done", "x": 1e999}',
    "beyond 64 bits": b'{"agent_id": "a", "status": "done", "x": 123456789012345678901234567890}',
    "surrogate": b'{"agent_id": "a\\ud800", "status": "done"}',
    "latin-1": '{"agent_id": "a", "status": "done", "x": "é"}'.encode("latin-1"),
    "utf-16": '{"agent_id": "a", "status": "done"}'.encode("utf-16"),
    "too large": b'{"agent_id": "a", "status": "done", "x": "' + b"x" * (2 * 1024 * 1024) + b'"}',
    "far too large": b" " * (17 * 1024 * 1024),
    "binary": bytes(range(256)) * 10,
}


@pytest.mark.one_engine
@each("how", BOMBS)
async def test_a_damaged_file_is_reported_and_the_others_are_imported(bus: Bus, tmp_path: Path, how: str) -> None:
    folder = tmp_path / how
    before = [record.id for record in (await bus.agents.list()).items]
    new = f"b-{len(before):02}"
    write(folder / "b.json", agent(new))
    (folder / "a-1705314600.json").write_bytes(BOMBS[how])
    report = await bus.import_path(folder)
    assert report.imported == {"agent": 1}
    assert (report.refused, report.problems[0].file) == (1, "a-1705314600.json")
    assert report.problems[0].reason
    assert [record.id for record in (await bus.agents.list()).items] == [*before, new]


@pytest.mark.one_engine
async def test_values_that_can_only_just_be_decoded_do_not_end_the_import(bus: Bus, tmp_path: Path) -> None:
    """Values made of a nested one may need more of the stack than its decoding did; an integer has no bound."""
    for depth in range(880, 1000, 3):
        deep = "[" * depth + "]" * depth
        for field in ("error", "load", "status", "agent_id", "capabilities"):
            text = f'{{"agent_type": "w", "agent_name": "n", "status": "failed", "{field}": {deep}}}'
            (tmp_path / f"{depth}-{field}.json").write_text(text)
    for field in ("created_at", "load", "progress"):
        text = f'{{"agent_id": "{field}", "agent_type": "w", "agent_name": "n", "{field}": 1{"0" * 400}}}'
        (tmp_path / f"{field}.json").write_text(text)
    write(tmp_path / "z.json", agent("z"))
    report = await bus.import_path(tmp_path)
    assert await bus.agents.get("z") is not None
    assert report.refused > 0


@pytest.mark.one_engine
async def test_a_folder_of_too_many_entries_is_refused_as_a_whole(
    bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_files, "MAX_ENTRIES", 50)
    for number in range(20):
        write(tmp_path / "few" / f"{number}.json", agent(f"a-{number}"))
    for number in range(40):
        (tmp_path / "many" / f"{number}").mkdir(parents=True)
    report = await bus.import_path(tmp_path)
    assert report.imported == {"agent": 20}
    assert [(problem.file, problem.reason[:24]) for problem in report.problems] == [
        ("many", "there are more than 50 f")
    ]


@pytest.mark.one_engine
@pytest.mark.parametrize("beside", ["-journal", "-wal", "-shm"])
async def test_a_pipe_next_to_a_database_does_not_block(bus: Bus, tmp_path: Path, beside: str) -> None:
    """SQLite would open it, and wait for another program to write into it."""
    coordination(tmp_path / "old.db")
    os.mkfifo(tmp_path / f"old.db{beside}")
    write(tmp_path / "a.json", agent("a"))
    report = await soon(bus.import_path(tmp_path))
    assert report.imported == {"agent": 1}
    assert [problem.file for problem in report.problems if f"old.db{beside}" in problem.reason] == ["old.db"]


@pytest.mark.one_engine
async def test_large_values_of_a_database_are_read_one_by_one(bus: Bus, tmp_path: Path) -> None:
    """A computed column: a database of a few kilobytes can contain gigabytes."""
    connection = sqlite3.connect(tmp_path / "old.db")
    connection.executescript("""
        CREATE TABLE agent_state (agent_id TEXT, state_key TEXT, state_value TEXT AS (hex(zeroblob(4000000))));
        WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 30)
        INSERT INTO agent_state SELECT 'a', 'k' || i FROM n;
    """)
    connection.close()
    tracemalloc.start()
    try:
        report = await bus.import_path(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 100_000_000, "all of them have 240 million bytes"
    finally:
        tracemalloc.stop()
    assert (report.imported, report.refused) == ({}, 30)


@pytest.mark.one_engine
@pytest.mark.parametrize("name", ["current_session.json", "agent_state.json", "metrics_state.json"])
@pytest.mark.parametrize("value", [None, 7, "text", [], {}, [[]], {"agents": 7}, {"session_id": []}, {"x": {"y": [1]}}])
async def test_any_json_under_a_known_name_is_taken_or_reported(
    bus: Bus, tmp_path: Path, name: str, value: object
) -> None:
    write(tmp_path / name, value)
    report = await bus.import_path(tmp_path)
    assert report.imported or report.refused or value in ([], {}), report
    assert (await bus.import_path(tmp_path)).imported == {}


@pytest.mark.one_engine
async def test_a_file_with_a_mark_of_its_byte_order_is_read(bus: Bus, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b"\xef\xbb\xbf" + json.dumps(agent("a")).encode())
    assert (await bus.import_path(tmp_path)).imported == {"agent": 1}


@pytest.mark.one_engine
async def test_links_pipes_and_what_may_not_be_read_are_left_out(bus: Bus, tmp_path: Path) -> None:
    outside = write(tmp_path / "outside" / "a.json", agent("outside"))
    folder = tmp_path / "folder"
    write(folder / "a.json", agent("a"))
    (folder / "link.json").symlink_to(outside)
    (folder / "links").symlink_to(outside.parent)
    (folder / "loop").symlink_to(folder)
    os.mkfifo(folder / "pipe-1705314600.json")
    write(folder / "secret.json", agent("secret")).chmod(0)
    (folder / "closed").mkdir(mode=0)
    report = await bus.import_path(folder)
    (folder / "closed").chmod(0o700)
    root = os.geteuid() == 0
    assert report.imported == {"agent": 2 if root else 1}
    left = {problem.file for problem in report.problems}
    assert {"link.json", "links", "loop", "pipe-1705314600.json"} <= left
    assert root or {"secret.json", "closed"} <= left
    assert await bus.agents.get("outside") is None


@pytest.mark.one_engine
async def test_a_link_given_as_the_source_is_followed(bus: Bus, tmp_path: Path) -> None:
    write(tmp_path / "folder" / "a.json", agent("a"))
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    assert (await bus.import_path(tmp_path / "link")).imported == {"agent": 1}


@pytest.mark.one_engine
async def test_names_that_are_no_unicode(bus: Bus, tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/\xff\xfe"
    os.mkdir(folder)
    for name in (b"\xe9-1705314600.json", b"metrics_state.json", b"\xe9.json", b"x\n-1705314600.json"):
        with open(folder + b"/" + name, "wb") as file:
            file.write(b'{"a": 1}')
    report = await bus.import_path(tmp_path)
    assert report.imported == {"state": 2, "document": 1, "session": 1}
    assert [problem.file for problem in report.problems if not problem.taken] == ["\\xff\\xfe/\\xe9.json"]
    assert (await bus.import_path(tmp_path)).imported == {}


@pytest.mark.one_engine
async def test_more_files_than_a_report_names(bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentbus.api.maintenance.importer.importer._MAX_LISTED_FILES", 40)
    monkeypatch.setattr("agentbus.api.maintenance.importer.importer._MAX_FILES", 10)
    text = json.dumps(agent("ID"))
    for number in range(60):
        (tmp_path / f"{number:05}.json").write_text(text.replace("ID", f"a-{number}"))
    report = await bus.import_path(tmp_path)
    assert report.imported == {"agent": 60}
    assert (report.file_count, len(report.files)) == (60, 40)
    assert (await bus.import_path(tmp_path)).present == 60


@pytest.mark.one_engine
async def test_a_folder_that_changes_while_it_is_read(bus: Bus, tmp_path: Path) -> None:
    for number in range(60):
        write(tmp_path / f"{number}.json", agent(f"a-{number}"))
    stop = threading.Event()

    def churn() -> None:
        count = 0
        while not stop.is_set():
            count += 1
            name = tmp_path / f"{count % 60}.json"
            if count % 3 == 0:
                name.unlink(missing_ok=True)
            elif count % 3 == 1:
                name.write_text(json.dumps(agent(f"a-{count % 60}", prompt="x" * (count % 5000))))
            else:
                other = tmp_path / "other.tmp"
                other.write_text(json.dumps(agent(f"a-{count % 60}")))
                os.replace(other, name)

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(3):
            report = await bus.import_path(tmp_path)
            assert all(problem.reason for problem in report.problems)
    finally:
        stop.set()
        thread.join()
    assert all(record.type == "milestone-planner" for record in (await bus.agents.list()).items)


async def test_an_import_that_is_cancelled_is_finished_by_the_next(
    bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentbus.api.maintenance.importer.importer._MAX_FILES", 10)
    for number in range(60):
        write(tmp_path / f"{number}.json", agent(f"a-{number}"))
    heard = asyncio.Event()
    task = asyncio.create_task(bus.import_path(tmp_path, progress=lambda *_: heard.set()))
    await heard.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    report = await bus.import_path(tmp_path)
    assert report.imported["agent"] + report.present == 60


@pytest.mark.one_engine
async def test_an_archive_in_a_folder_and_one_that_is_damaged(bus: Bus, tmp_path: Path) -> None:
    a = await worker(bus, "a")
    await a.checkpoint("n", 1)
    await bus.export(tmp_path / "export.jsonl.gz")
    (tmp_path / "bad.jsonl.gz").write_bytes(gzip.compress(b"hello"))
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(b"\0" * 5_000_000))
    report = await bus.import_path(tmp_path)
    assert report.present > 0
    assert {problem.file for problem in report.problems} >= {"bad.jsonl.gz", "bomb.gz"}
    assert (await known(bus, "a")).status == "running"


@pytest.mark.one_engine
@each("wrong", [None, 7, "", "a\0b", b"bytes", "\udcff" * 3 + "\ud800"])
async def test_an_invalid_path_is_refused(bus: Bus, wrong: object) -> None:
    with pytest.raises((InvalidInput, NotImportable)):
        await bus.import_path(wrong)  # type: ignore[arg-type]


def missing(path: Path) -> None:
    """Nothing is there."""


def pipe(path: Path) -> None:
    os.mkfifo(path)


def dangling(path: Path) -> None:
    path.symlink_to(path.with_name("nowhere"))


@pytest.mark.one_engine
@pytest.mark.parametrize("make", [missing, pipe, dangling])
async def test_a_path_that_is_neither_a_folder_nor_a_file_is_refused(
    bus: Bus, tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(tmp_path / "x")
    with pytest.raises(NotImportable):
        await bus.import_path(tmp_path / "x")
    with pytest.raises(InvalidInput):
        await bus.import_path(tmp_path, progress=7)  # type: ignore[arg-type]


@pytest.mark.one_engine
async def test_an_empty_folder_imports_nothing(bus: Bus, tmp_path: Path) -> None:
    report = await bus.import_path(tmp_path)
    assert (report.imported, report.refused, report.problems) == ({}, 0, [])


async def test_a_cancelled_import_is_cancelled_and_can_be_repeated(
    bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentbus.api.maintenance.importer.importer._MAX_FILES", 10)
    coordination(tmp_path / "old.db")
    for number in range(60):
        write(tmp_path / f"{number}.json", agent(f"a-{number}"))
    for number in range(15):
        task = asyncio.create_task(bus.import_path(tmp_path))
        await asyncio.sleep(0.003 * number)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert task.cancelled() or not task.exception()
    report = await bus.import_path(tmp_path)
    again = await bus.import_path(tmp_path)
    assert again.imported == {}
    assert again.present == report.present + sum(report.imported.values())


async def test_data_of_an_older_session_is_not_imported_into_one_of_the_same_name(bus: Bus, tmp_path: Path) -> None:
    write(tmp_path / "current_session.json", session())
    write(tmp_path / "last_planning_output.json", {"old": True})
    write(tmp_path / "checkpoint_20240115_100000.json", {"old": True})
    async with bus.session("execution", id=session()["session_id"]) as mine:
        await mine.document("last_planning_output").save({"new": True})
        report = await bus.import_path(tmp_path)
        assert set(report.imported) <= {"agent"}
        assert report.refused >= 5
        assert all("different session" in problem.reason for problem in report.problems)
        assert await mine.document("last_planning_output").latest() == {"new": True}
        assert (await mine.state.list()).items == []
        assert await mine.restore("checkpoint") is None
