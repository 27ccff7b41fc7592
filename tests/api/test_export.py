"""Exporting a bus or a session and importing it into another gives the same data."""

from __future__ import annotations

import asyncio
import fcntl
import gzip
import json
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

import agentbus
from agentbus import Bus
from agentbus.errors import InvalidInput, InvalidName, NotWritable, UnknownSession
from tests.api.helpers import eventually, held, known, nothing_for, running, stored, take, take_all, worker
from tests.conftest import copy_bus
from tests.support.clock import FakeClock

HOUR = 3600.0
T = TypeVar("T", bound=msgspec.Struct)


@pytest.fixture
async def other(clock: FakeClock, tmp_path: Path, template: Path) -> AsyncIterator[Bus]:
    """An empty bus."""
    copy_bus(template, tmp_path / "other")
    async with agentbus.connect(tmp_path / "other", clock=clock) as bus:
        yield bus


async def filled(bus: Bus) -> None:
    """Something of every kind: ended, open, waiting, held, dead, to come."""
    await bus.define("plan", schema={"type": "object"}, description="a plan")
    await bus.define("log-watcher", kind="agent")
    await bus.declare(agentbus.pool("spare"), agentbus.topic("news"))
    async with bus.session("planning", id="s1", milestone="ms-1", metadata={"a": [1]}) as session:
        async with session.agent("a", type="log-watcher", capabilities=["python"]) as a:
            await a.send("a", "plan", {"text": "grüße"}, message_id="mine", correlation="c-1")
            await a.seen("mine", channel="receive", client="s-1")
            await (await take(a)).ack()
            await a.send("a", "note", "dead")
            await (await take(a)).reject("bad")
            await a.state.set("k", {"v": 1}, type="progress", ttl=HOUR)
            await a.state.set("gone", 1)
            await a.state.delete("gone")
            await a.checkpoint("n", {"step": 1}, notes="half")
        await session.document("plan").save({"v": 1}, author="a")
        await session.document("plan").save({"v": 2})
        await (await session.participants(["x", "y"])).finish("x", {"agrees": True})
        await session.state.set("key", [1])
    b = await bus.register("b", type="worker", pools=["workers"])
    await bus.expect("c", type="worker")
    await b.send("c", "note", "waits", priority=9)
    await b.send("c", "note", "later", delay=HOUR)
    await b.send("b", "note", "held", ttl=2 * HOUR)
    await b.send(agentbus.pool("workers"), "note", "for the pool")
    held = await b.receive(timeout=0)
    assert held is not None
    await bus.state("builds").set("count", 7)


def placeless(record: T) -> T:
    """Return a record without the fields that have a meaning on its own bus only."""
    gone = {name: None for name in ("process", "last_call", "busy_until") if hasattr(record, name)}
    return msgspec.structs.replace(record, **gone)


async def contents(bus: Bus) -> dict[str, Any]:
    """Return all contents of a bus."""
    sessions = (await bus.sessions.list()).items
    documents = {}
    for record in sessions:
        opened = await bus.sessions.open(record.id)
        for document in await opened.documents():
            documents[record.id, document.name] = await opened.document(document.name).history()
    state = [
        (entry.scope, entry.key, entry.value, entry.version, entry.expires)
        for scope in ("a", "session:s1", "builds")
        for entry in (await bus.state(scope).list()).items
    ]
    return {
        "sessions": [placeless(record) for record in sessions],
        "agents": [placeless(record) for record in (await bus.agents.list()).items],
        "documents": documents,
        "state": state,
        "checkpoints": [await bus.checkpoints.get(item.id) for item in (await bus.checkpoints.list()).items],
        "messages": [await bus.messages.get(one.message_id) for one in (await bus.messages.list()).items],
        "events": [event async for event in bus.events()],
        "types": {(type.kind, type.name, str(type.schema)) for type in await bus.types()},
    }


async def test_exported_and_imported_data_is_the_same(bus: Bus, other: Bus, tmp_path: Path) -> None:
    await filled(bus)
    before = await contents(bus)
    report = await bus.export(tmp_path / "bus.jsonl.gz")
    assert report.exported == {
        "type": 2, "place": 3, "session": 1, "participant": 2, "agent": 3, "state": 4, "document": 2, "checkpoint": 1,
        "message": 6, "event": len(before["events"]),
    }  # fmt: skip
    assert report.size == os.path.getsize(report.path)
    assert os.stat(report.path).st_mode & 0o777 == 0o600
    imported = await other.import_path(report.path)
    assert (imported.imported, imported.refused, imported.present) == (report.exported, 0, 0)
    after = await contents(other)
    for kind in ("sessions", "documents", "state", "checkpoints", "types"):
        assert after[kind] == before[kind], kind
    assert after["events"][:-1] == before["events"]
    assert after["events"][-1].kind == "archive_imported"
    assert [agent.id for agent in after["agents"]] == ["a", "b", "c"]
    a, b, c = after["agents"]
    assert a == before["agents"][0]
    assert (b.status, b.error, c.status) == ("failed", "imported", "pending")
    messages = {record.id: record for record in after["messages"]}
    for record in before["messages"]:
        if record.status != "leased":
            assert messages[record.id] == record
    again = await other.import_path(report.path)
    assert (again.imported, again.present) == ({}, sum(report.exported.values()))
    assert await bus.import_path(report.path) == again or (await bus.import_path(report.path)).imported == {}


async def test_open_messages_wait_for_their_agents_again(
    bus: Bus, other: Bus, clock: FakeClock, tmp_path: Path
) -> None:
    await filled(bus)
    await other.import_path((await bus.export(tmp_path / "x.jsonl.gz")).path)
    b = await other.register("b", type="worker", pools=["workers"])
    assert {message.payload for message in await take_all(b)} == {"held", "for the pool"}
    assert b.epoch == 2
    c = await worker(other, "c")
    waits = await take(c)
    assert waits.payload == "waits"
    await waits.ack()
    assert await nothing_for(c)
    clock.advance(HOUR)
    assert (await take(c)).payload == "later"
    receipt = await c.send("c", "note", "new")
    assert receipt.id == 7


async def test_a_request_that_waits_can_still_be_answered(
    bus: Bus, other: Bus, clock: FakeClock, tmp_path: Path
) -> None:
    a, b = await worker(bus, "a"), await worker(bus, "b")
    async with running(a.request("b", "coordination_request", {"q": 1}, timeout=60)):
        await eventually(clock, lambda: True)
        path = (await bus.export(tmp_path / "x.jsonl.gz")).path
    await other.import_path(path)
    again = await worker(other, "b")
    await (await take(again)).reply("coordination_response", {"answer": 2})
    (reply,) = [record for record in (await other.messages.list()).items if record.payload == {"answer": 2}]
    assert reply.recipient == "a (reply)"
    assert b.epoch == 1


async def test_work_finished_since_the_export_is_not_restored(bus: Bus, tmp_path: Path) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note", "once")
    report = await bus.export(tmp_path / "x.jsonl.gz")
    await (await take(a)).ack()
    assert (await bus.import_path(report.path)).imported == {}
    await bus.messages.purge()
    imported = await bus.import_path(report.path)
    assert imported.imported == {}
    assert "finished and removed since" in imported.problems[0].reason
    assert await nothing_for(a)


async def test_a_session_is_exported_with_what_belongs_to_it(bus: Bus, other: Bus, tmp_path: Path) -> None:
    await filled(bus)
    session = await bus.sessions.open("s1")
    async with bus.session("other", id="s2") as second, second.agent("z", type="worker") as z:
        await z.send("z", "note", "not this one")
        await z.checkpoint("n", 1)
        await second.document("d").save(1)
    report = await bus.export(tmp_path, session="s1")
    assert Path(report.path).parent == tmp_path
    assert Path(report.path).name.startswith("s1-")
    kinds = report.exported
    assert (kinds["session"], kinds["agent"], kinds["document"], kinds["checkpoint"]) == (1, 1, 2, 1)
    assert (kinds["message"], kinds["state"], kinds["participant"]) == (2, 3, 2)
    imported = await other.import_path(report.path)
    assert (imported.imported, imported.refused) == (kinds, 0)
    assert placeless(await held(other, "s1")) == placeless(await held(bus, "s1"))
    assert placeless(await known(other, "a")) == placeless(await known(bus, "a"))
    assert (await stored(other, "mine")).payload == {"text": "grüße"}
    assert await other.agents.get("z") is None
    assert await (await other.sessions.open("s1")).documents() == await session.documents()


async def test_an_active_session_comes_in_as_interrupted_and_can_be_resumed(
    bus: Bus, other: Bus, tmp_path: Path
) -> None:
    async with bus.session("planning", id="s1") as session, session.agent("a", type="worker") as a:
        await a.checkpoint("half", {"step": 2})
        path = (await bus.export(tmp_path / "x.jsonl.gz")).path
    await other.import_path(path)
    assert (await held(other, "s1")).status == "interrupted"
    plan = await other.recovery.plan("s1")
    await plan.resume()
    async with other.session("planning", id="s1") as resumed, resumed.agent("a", type="worker") as again:
        assert again.restored is not None
        assert again.restored.name == "half"


async def test_a_message_that_waits_must_be_what_its_type_promises_here(bus: Bus, other: Bus, tmp_path: Path) -> None:
    await bus.define("plan")
    a = await worker(bus, "a")
    await a.send_many([("a", "plan", payload) for payload in ("done", {"steps": 1}, "waits", "x" * 50_000)])
    await (await take(a)).ack()
    await other.define("plan", schema={"type": "object"})
    report = await other.import_path((await bus.export(tmp_path / "x.jsonl.gz")).path)
    assert report.imported["message"] == 2, "one that fits, and one that is already acknowledged"
    assert report.refused == 2
    assert all("for 'plan', $ must be an object, is a string" in problem.reason for problem in report.problems)
    assert [message.payload for message in await take_all(await worker(other, "a"))] == [{"steps": 1}]


@pytest.mark.one_engine
@pytest.mark.parametrize("schema", ["[]", "{", '{"type":"objekt"}', '{"unheard":1}', '{ "type": "object" }'])
async def test_a_schema_that_the_bus_would_not_take_is_refused(
    bus: Bus, other: Bus, tmp_path: Path, schema: str
) -> None:
    await bus.define("plan", schema={"type": "object"})
    a = await worker(bus, "a")
    await a.send("a", "plan", {})
    path = Path((await bus.export(tmp_path / "x.jsonl.gz")).path)
    lines = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    for line in lines:
        if line["record"] == "type":
            line["schema"] = schema
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, lines)).encode()))
    report = await other.import_path(path)
    assert (report.refused, report.imported["message"]) == (1, 1)
    assert [type.schema for type in await other.types() if type.name == "plan"] == [None], "as any unknown type"


async def test_versions_of_documents_never_repeat_after_an_import(bus: Bus, tmp_path: Path) -> None:
    async with bus.session("planning", id="s1") as session:
        point = await session.checkpoint_all("start")
        for number in range(3):
            await session.document("d").save(number)
        path = (await bus.export(tmp_path / "x.jsonl.gz")).path
        await session.document("d").save(3)
        assert (await session.rollback(point.id)).removed == ["d"]
        assert (await bus.import_path(path)).imported == {"document": 3}
        assert (await session.document("d").save("new")).version == 5


@pytest.mark.one_engine
async def test_an_export_that_is_cancelled_leaves_nothing(bus: Bus, tmp_path: Path) -> None:
    a = await worker(bus, "a")
    await a.send_many([("a", "note", os.urandom(20).hex()) for _ in range(600)])
    for number in range(10):
        task = asyncio.create_task(bus.export(tmp_path / "x.jsonl.gz"))
        await asyncio.sleep(0.002 * number)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert {file.name for file in tmp_path.iterdir()} <= {"x.jsonl.gz"}
        (tmp_path / "x.jsonl.gz").unlink(missing_ok=True)


@pytest.mark.one_engine
async def test_the_next_export_removes_leftovers_of_a_killed_export_and_no_other_file(bus: Bus, tmp_path: Path) -> None:
    begun: set[Path] = set()
    await bus.export(tmp_path / "x.jsonl.gz", progress=lambda *_: begun.update(tmp_path.glob(".agentbus-export-*")))
    (own,) = begun
    assert not own.exists()
    left, held = own.with_name(f"{own.name[:-8]}00000000"), own.with_name(f"{own.name[:-8]}11111111")
    others = own.with_name(".agentbus-export-0123456789abcdef-00000000")
    for file in (left, held, others):
        file.write_text("unfinished")
    with held.open() as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        await bus.export(tmp_path / "y.jsonl.gz")
    assert [file.exists() for file in (left, held, others)] == [False, True, True]


@pytest.mark.one_engine
async def test_the_doctor_knows_what_a_killed_export_left_in_the_archives(bus: Bus) -> None:
    folder = bus._engine.directory / "archive"
    folder.mkdir(parents=True)
    begun: set[Path] = set()
    await bus.export(folder, progress=lambda *_: begun.update(folder.glob(".agentbus-export-*")))
    (left,) = begun
    left.write_text("unfinished")
    left.chmod(0o600)
    with left.open() as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        assert not [check for check in await bus.doctor() if check.name == "orphans" and check.status != "ok"]
    (found,) = [check for check in await bus.doctor() if check.name == "orphans"]
    assert (found.status, str(left) in found.text) == ("warning", True)
    await bus.export(folder / "again.jsonl.gz")
    assert not left.exists()


@pytest.mark.one_engine
async def test_an_export_is_not_put_among_the_files_of_a_bus(bus: Bus, tmp_path: Path) -> None:
    home = bus._engine.directory
    for path in (home, home / "bus.db-journal", home / "bells" / "x", tmp_path / "x-wal"):
        with pytest.raises(NotWritable):
            await bus.export(path)
    (home / "archive").mkdir(parents=True)
    assert (await bus.export(home / "archive")).size
    assert not [check for check in await bus.doctor() if check.status == "error"]


async def test_an_empty_bus_can_be_exported(bus: Bus, other: Bus, tmp_path: Path) -> None:
    report = await bus.export(tmp_path / "x.jsonl.gz")
    assert report.exported == {}
    assert (await other.import_path(report.path)).refused == 0


async def test_more_than_a_page_of_everything(
    bus: Bus, other: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentbus.operations.export._PAGE", 20)
    monkeypatch.setattr("agentbus.api.maintenance.export._MAX_ROWS", 10)
    monkeypatch.setattr("agentbus.api.maintenance.importer.importer._MAX_LINES", 10)
    a = await worker(bus, "a")
    await a.send_many([("a", "note", os.urandom(20).hex()) for _ in range(54)])
    for number in range(22):
        await bus.state("s").set(f"k{number}", number)
    steps: list[tuple[int, int, str]] = []
    report = await bus.export(tmp_path / "x.jsonl.gz", progress=lambda *step: steps.append(step))
    assert (report.exported["message"], report.exported["state"]) == (54, 22)
    assert steps[-1][0] == steps[-1][1]
    imported = await other.import_path(report.path, progress=lambda *step: steps.append(step))
    assert (imported.imported, imported.refused) == (report.exported, 0)
    assert steps[-1][:2] == (report.size, report.size)
    assert [message.payload for message in await take_all(await worker(other, "a"))][:5] == [
        message.payload for message in await take_all(a)
    ][:5]


@pytest.mark.one_engine
async def test_an_export_never_replaces_anything(bus: Bus, tmp_path: Path) -> None:
    (tmp_path / "there").write_text("mine")
    for path in (tmp_path / "there", tmp_path / "no" / "where" / "x"):
        with pytest.raises(NotWritable):
            await bus.export(path)
    assert (tmp_path / "there").read_text() == "mine"
    assert [file.name for file in tmp_path.iterdir()] == ["there"]


@pytest.mark.one_engine
async def test_bad_input_to_export(bus: Bus, tmp_path: Path) -> None:
    with pytest.raises(UnknownSession):
        await bus.export(tmp_path / "x", session="nobody")
    with pytest.raises(InvalidName):
        await bus.export(tmp_path / "x", session="not a name")
    for wrong in (None, 7, "", "a\0b"):
        with pytest.raises(InvalidInput):
            await bus.export(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        await bus.export(tmp_path / "x", progress=7)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


async def test_a_held_message_can_be_released_where_it_is_imported(bus: Bus, other: Bus, tmp_path: Path) -> None:
    await bus.quotas.change(thread=1)
    a = await worker(bus, "a")
    for number in range(2):
        await a.send("a", "note", number, correlation="t")
    await bus.export(tmp_path / "bus.jsonl.gz")
    await other.import_archive(tmp_path / "bus.jsonl.gz")
    assert [(one.thread, one.held) for one in (await other.holds.list()).items] == [("t", 1)]
    assert await other.holds.release("t", by="ada") == 1
    assert [message.payload for message in await take_all(await worker(other, "a"))] == [0, 1]
