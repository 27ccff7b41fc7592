"""Histories in everything that knows all data of a bus: export, archive, retention, doctor, overview."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import agentbus
from agentbus import Bus, HistoryItem, HistoryPut, RetentionPolicy
from agentbus.api.overview import capacity_limits, gather_overview
from agentbus.errors import DamagedPayload, HistoryConflict
from agentbus.records import History
from tests.api.retention_helpers import NOTHING, applied, lines
from tests.conftest import Engine, copy_bus
from tests.support.clock import FakeClock

DAY = 24 * 3600.0
NAME = "thread ä/\u2028"
BODY = bytes(range(256))


@pytest.fixture
async def other(clock: FakeClock, tmp_path: Path, template: Path) -> AsyncIterator[Bus]:
    """An empty bus."""
    copy_bus(template, tmp_path / "other")
    async with agentbus.connect(tmp_path / "other", clock=clock) as bus:
        yield bus


async def filled(bus: Bus, clock: FakeClock) -> None:
    """Two histories, one with a gap in its numbers."""
    puts = [HistoryPut(key=f"k{n}", part="p" * (n % 2), body=BODY, meta={"n": n, "s": "ü"}) for n in range(5)]
    await bus.histories.write("langgraph", NAME, puts, meta={"user": "ada"})
    clock.advance(1)
    await bus.histories.write("langgraph", NAME, [HistoryPut(body=b"last")], delete=[("", "k4")])
    await bus.histories.write("openai", "empty")


async def contents(bus: Bus) -> tuple[list[History], list[HistoryItem]]:
    return (await bus.histories.list()).items, await bus.histories.items("langgraph")


async def test_an_export_restores_histories_and_brings_nothing_deleted_back(
    bus: Bus, other: Bus, clock: FakeClock, tmp_path: Path
) -> None:
    await filled(bus, clock)
    before = await contents(bus)
    report = await bus.export(tmp_path / "bus.jsonl.gz")
    assert (report.exported["history"], report.exported["history_item"]) == (2, 5)
    imported = await other.import_path(report.path)
    assert (imported.imported, imported.refused) == (report.exported, 0)
    assert await contents(other) == before
    again = await other.import_path(report.path)
    assert (again.imported, again.refused) == ({}, 0)
    # A number is not used again, and an item that was deleted since stays deleted.
    await other.histories.write("langgraph", NAME, [HistoryPut(body=b"new")], delete=[("", "k0")])
    assert (await other.histories.items("langgraph"))[-1].number == 7
    after = await contents(other)
    third = await other.import_path(report.path)
    assert (third.imported, third.refused) == ({}, 1)
    assert "its history has changed since" in third.problems[0].reason
    # Another history of this name is not mixed with the exported one.
    await other.histories.delete("openai", "empty")
    clock.advance(1)
    await other.histories.write("openai", "empty")
    assert (await other.import_path(report.path)).refused == 2
    assert (await contents(other))[1] == after[1]


async def test_retention_archives_histories_and_removes_them_whole(bus: Bus, clock: FakeClock) -> None:
    await filled(bus, clock)
    clock.advance(DAY)
    await bus.histories.write("openai", "new", [HistoryPut(body=b"x")])
    before = await contents(bus)
    assert (await bus.retention.policy()).histories is None
    assert (await applied(bus, policy=NOTHING)).removed == {}
    await bus.retention.change(histories=DAY)
    report = await applied(bus)
    assert report.removed["history"] == 2
    assert [one.name for one in (await bus.histories.list()).items] == ["new"]
    assert await bus.histories.items("langgraph") == []
    kinds = [line["record"] for line in lines(report) if line["record"].startswith("history")]
    assert sorted(kinds) == ["history"] * 2 + ["history_item"] * 5
    deleted = [event.facts["history"] async for event in bus.events(kind="history_deleted")]
    assert sorted(deleted) == ["empty", NAME]
    assert report.archive is not None
    assert (await bus.import_archive(report.archive)).refused == 0
    histories, items = await contents(bus)
    assert items == before[1]
    assert [replace(one, version=0) for one in histories] == [replace(one, version=0) for one in before[0]]
    # Version 2 of the first was deleted after version 1 of the other: that one gets a version above both.
    assert {one.name: one.version for one in histories} == {NAME: 2, "empty": 3, "new": 1}


async def test_a_restored_history_gives_no_version_again(bus: Bus, clock: FakeClock, tmp_path: Path) -> None:
    await bus.histories.write("k", "h", [HistoryPut(body=b"1"), HistoryPut(body=b"2")])
    report = await bus.export(tmp_path / "bus.jsonl.gz")
    for _ in range(2):
        seen = await bus.histories.write("k", "h", [HistoryPut(body=b"seen")])
    await bus.histories.delete("k", "h")
    assert (await bus.import_path(report.path)).refused == 0
    assert [item.body for item in await bus.histories.items("k", "h")] == [b"1", b"2"]
    written = await bus.histories.write("k", "h", [HistoryPut(body=b"3")])
    assert written.version > seen.version
    with pytest.raises(HistoryConflict):
        await bus.histories.write("k", "h", [HistoryPut(body=b"stale")], if_version=seen.version)
    # An item that is deleted now stays deleted.
    clock.advance(1)
    await bus.histories.write("k", "h", [], delete=[("", f"{1:020d}")])
    assert (await bus.import_path(report.path)).refused == 1
    assert [item.body for item in await bus.histories.items("k", "h")] == [b"2", b"3"]


@pytest.mark.one_engine
async def test_a_large_history_is_archived_in_parts_and_one_that_changes_stays(
    bus: Bus, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentbus.api.maintenance.retention._MAX_BYTES", 4000)
    await bus.histories.write("k", "large", [HistoryPut(body=b"x" * 1000) for _ in range(120)])
    await bus.histories.write("k", "used", [HistoryPut(body=b"x")])
    clock.advance(10)
    policy = RetentionPolicy(histories=5)
    write = bus.retention._engine.write

    async def late(operation: Any, request: Any, **options: Any) -> Any:
        if operation.name == "remove" and any(piece.size < 1000 for piece in request.pieces):
            await bus.histories.write("k", "used", [HistoryPut(body=b"y")])
        return await write(operation, request, **options)

    monkeypatch.setattr(bus.retention._engine, "write", late)
    report = await bus.retention.apply(policy=policy)
    assert (report.removed["history"], report.kept) == (1, 1)
    assert report.archive is not None
    assert gzip.decompress(Path(report.archive).read_bytes()).count(b'"record":"archive"') > 10
    assert [item.body for item in await bus.histories.items("k", "used")] == [b"x", b"y"]
    assert (await bus.import_archive(report.archive)).imported["history_item"] == 120
    assert [item.number for item in await bus.histories.items("k", "large")] == list(range(1, 121))


@pytest.mark.one_engine
async def test_a_hostile_archive_is_refused_line_by_line(bus: Bus, clock: FakeClock, tmp_path: Path) -> None:
    await bus.histories.write("k", "h", [HistoryPut(key="a", body=BODY)])
    report = await bus.export(tmp_path / "bus.jsonl.gz")
    good = [json.loads(line) for line in gzip.decompress(Path(report.path).read_bytes()).splitlines()]
    (head,) = [line for line in good if line["record"] == "history"]
    (item,) = [line for line in good if line["record"] == "history_item"]
    bad = [
        {**head, "kind": "two words"},
        {**head, "name": ""},
        {**head, "name": "x" * 513},
        {**head, "meta": "[]"},
        {**head, "meta": '{"k":"' + "x" * 65536 + '"}'},
        {**item, "body": "AAAA"},
        {**item, "body": "no base64"},
        {**item, "part": "p\0"},
        {**item, "part": "\U0010ffff" * 512},
        {**item, "number": 0},
        {**item, "history": "none", "key": "b", "number": 2},
    ]
    # The key that the bus chooses for the next item.
    ahead = {**item, "key": f"{2:020}"}
    await bus.histories.delete("k", "h")
    path = tmp_path / "bad.jsonl.gz"
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(f"{json.dumps(line)}\n" for line in [good[0], *bad, head, ahead, item])
    imported = await bus.import_archive(path)
    assert (imported.imported, imported.refused) == ({"history": 1, "history_item": 1}, len(bad) + 1)
    await bus.histories.write("k", "h", [HistoryPut(body=BODY)])
    assert [found.body for found in await bus.histories.items("k", "h")] == [BODY, BODY]


async def test_a_damaged_body_is_reported(engine: Engine, bus: Bus) -> None:
    await bus.histories.write("k", "h", [HistoryPut(key="a", body=b"1"), HistoryPut(key="b", body=b"2")])

    async def check() -> Any:
        (found,) = [check for check in await bus.doctor() if check.name == "payloads of histories"]
        return found

    assert (await check()).text == "all 2 match their checksums"
    assert await engine.tamper("UPDATE history_items SET checksum = checksum + 1 WHERE key = 'a'")
    found = await check()
    assert (found.status, found.text) == ("error", "1 of 2 does not match its checksum: item 'a' of history 'h' (k)")
    with pytest.raises(DamagedPayload, match="item 'a' of history 'h'"):
        await bus.histories.get("k", "h", "a")
    with pytest.raises(DamagedPayload):
        await bus.histories.items("k", "h")
    assert [item.key for item in await bus.histories.items("k", "h", bodies=False)] == ["a", "b"]
    assert (await bus.histories.items("k", "h", key="b"))[0].body == b"2"


async def test_the_overview_counts_histories_by_kind(bus: Bus, clock: FakeClock) -> None:
    await filled(bus, clock)
    found = await gather_overview(bus, None, capacity_limits())
    kinds = [(one.kind, one.histories, one.items, one.size) for one in found.histories]
    assert kinds == [("langgraph", 1, 5, 4 * 256 + 4), ("openai", 1, 0, 0)]
