"""Archives: what retention took comes back, once; what is damaged or foreign is reported and left out."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

import agentbus
from agentbus import Bus, RetentionPolicy
from agentbus.errors import DamagedArchive, InvalidInput, NoSuchFile, NotWritable
from tests.conformance.helpers import held, known, stored, take, worker
from tests.conftest import Engine
from tests.support.clock import FakeClock

DAY = 24 * 3600.0


async def full(bus: Bus, clock: FakeClock) -> Path:
    """A bus with something of every kind that grows old; the archive of all of it."""
    async with bus.session("planning", id="s1", milestone="ms-1", metadata={"a": [1]}) as session:
        async with session.agent("a", type="worker", capabilities=["python"]) as agent:
            await agent.send("a", "note", {"text": "grüße\r\n\u2028"}, message_id="mine", correlation="c-1")
            await (await take(agent)).ack()
            await agent.send("a", "note", "dead")
            await (await take(agent)).reject("bad")
            await agent.state.set("k", {"v": 1}, type="progress")
            await agent.state.set("k", {"v": 2}, type="progress")
            await agent.checkpoint("n", {"step": 1}, notes="half")
        await session.document("plan").save({"v": 1}, author="a")
        await session.document("plan").save({"v": 2})
        await (await session.participants(["x", "y"])).finish("x", {"agrees": True})
        await bus.state("session:s1").set("key", [1])
    clock.advance(100 * DAY)
    report = await bus.retention.apply()
    assert report.archive is not None
    return Path(report.archive)


async def everything(bus: Bus) -> list[Any]:
    session = await bus.sessions.open("s1")
    return [
        await held(bus, "s1"),
        await known(bus, "a"),
        await stored(bus, "mine"),
        await stored(bus, "m-2"),
        await bus.state("a").get("k"),
        await bus.state("session:s1").get("key"),
        await bus.checkpoints.latest("a"),
        await session.document("plan").history(),
        (await session.participants(["x", "y"])).results,
        [event async for event in bus.events(limit=2)],
    ]


async def test_everything_comes_back_as_it_was_and_only_once(bus: Bus, clock: FakeClock) -> None:
    archive = await full(bus, clock)
    assert await bus.sessions.get("s1") is None
    report = await bus.import_archive(archive)
    assert report.imported == {
        "session": 1, "message": 2, "checkpoint": 1, "document": 2, "agent": 1, "state": 2, "participant": 2,
        "event": 5,
    }  # fmt: skip
    assert (report.present, report.refused, report.problems) == (0, 0, [])
    session, agent, mine, dead, state, key, checkpoint, history, results, trail = await everything(bus)
    assert (session.status, session.milestone, session.metadata) == ("completed", "ms-1", {"a": [1]})
    assert (agent.status, agent.session, agent.capabilities, agent.epoch) == ("completed", "s1", ["python"], 1)
    assert (mine.status, mine.payload, mine.correlation) == ("acked", {"text": "grüße\r\n\u2028"}, "c-1")
    assert (dead.status, dead.error, dead.attempts) == ("dead", "bad", 1)
    assert (state, key) == ({"v": 2}, [1])
    assert (checkpoint.snapshot, checkpoint.notes) == ({"step": 1}, "half")
    assert [(record.version, record.value, record.author) for record in history] == [
        (2, {"v": 2}, None),
        (1, {"v": 1}, "a"),
    ]
    assert results == {"x": {"agrees": True}}
    assert [event.kind for event in trail] == ["session_started", "agent_registered"]
    again = await bus.import_archive(str(archive))
    assert (again.imported, again.present, again.refused) == ({}, 16, 0)
    assert await everything(bus) == [session, agent, mine, dead, state, key, checkpoint, history, results, trail]
    (event,) = [event async for event in bus.events(kind="archive_imported")]
    assert event.facts["counts"] == report.imported


async def test_an_archive_can_be_read_into_another_bus(
    engine: Engine, bus: Bus, clock: FakeClock, tmp_path: Path
) -> None:
    archive = await full(bus, clock)
    async with agentbus.connect(tmp_path / "other", clock=clock) as other:
        report = await other.import_archive(archive)
        assert sum(report.imported.values()) == 16
        assert report.refused == 0
        assert (await stored(other, "mine")).recipient == "a"
        # What is new gets numbers of its own.
        b = await worker(other, "b")
        receipt = await b.send("b", "note", 1)
        assert receipt.id == 3


async def test_what_another_bus_has_under_the_same_number_is_left_alone(
    bus: Bus, clock: FakeClock, tmp_path: Path
) -> None:
    archive = await full(bus, clock)
    async with agentbus.connect(tmp_path / "other", clock=clock) as other:
        b = await worker(other, "b")
        await b.send("b", "note", "mine is number one")
        await b.checkpoint("n", "my own")
        report = await other.import_archive(archive)
        assert report.refused == 3, "a message, a checkpoint and an event"
        assert all("there is another" in problem.reason for problem in report.problems)
        assert (await take(b)).payload == "mine is number one"
        checkpoint = await other.checkpoints.get(1)
        assert checkpoint is not None
        assert checkpoint.snapshot == "my own"
        assert (await held(other, "s1")).status == "completed"


async def test_what_lives_is_never_overwritten(bus: Bus, clock: FakeClock) -> None:
    archive = await full(bus, clock)
    again = await worker(bus, "a")
    assert again.epoch == 2
    assert await again.state.set("k", "new") == 3
    report = await bus.import_archive(archive)
    assert report.imported == {
        "session": 1, "message": 2, "checkpoint": 1, "document": 2, "state": 1, "participant": 2, "event": 5,
    }  # fmt: skip
    assert (await known(bus, "a")).status == "running"
    assert await again.state.get("k") == "new"
    await again.progress(50)


async def test_nothing_of_an_earlier_session_comes_into_a_later_one_of_the_same_name(
    bus: Bus, clock: FakeClock
) -> None:
    async with bus.session("planning", id="s1") as session:
        for number in range(3):
            await session.document("plan").save({"old": number})
        await session.document("other").save("old")
        await session.state.set("k", "old")
        await (await session.participants(["x"])).finish("x", "old")
        await session.checkpoint("half", "old")
        await session.checkpoint_all("half")
    clock.advance(100 * DAY)
    archive = (await bus.retention.apply()).archive
    assert archive is not None
    async with bus.session("execution", id="s1") as session:
        await session.document("plan").save({"new": 1})
        meeting = await session.participants(["n"])
        report = await bus.import_archive(archive)
        assert set(report.imported) <= {"event", "process"}
        assert report.refused == 9, "the session, 4 documents, an entry, a participant, 2 checkpoints"
        assert await session.document("plan").latest() == {"new": 1}
        assert [document.name for document in await session.documents()] == ["plan"]
        assert await session.state.get("k") is None
        assert await session.restore("half") is None
        assert (await bus.checkpoints.list(kind="composite")).items == []
        await meeting.refresh()
        assert (meeting.remaining, meeting.finished) == (("n",), ())


async def test_no_state_of_an_earlier_life_comes_to_an_agent_that_is_alive(bus: Bus, clock: FakeClock) -> None:
    archive = await full(bus, clock)
    again = await worker(bus, "a")
    report = await bus.import_archive(archive)
    assert [problem.reason for problem in report.problems if "agent a" in problem.reason]
    assert (await again.state.list()).items == []
    await again.complete()
    assert (await bus.import_archive(archive)).imported == {"state": 1}, "it has ended: this is its state"


async def test_versions_of_state_never_repeat_after_an_import(bus: Bus, clock: FakeClock) -> None:
    """A holder of ``if_version`` from before must not win."""
    archives = []
    policy = RetentionPolicy(agents=0, tombstones=0)
    for life in range(3):
        a = await worker(bus, "a")
        await a.state.set("k", life)
        await a.complete()
        clock.advance(10)
        archives.append((await bus.retention.apply(policy=policy)).archive)
    await bus.import_archive(archives[0] or "")
    entry = await bus.state("a").entry("k")
    assert entry is not None
    assert (entry.value, entry.version) == (0, 4)
    assert await bus.state("a").set("k", "new") == 5


async def test_an_agent_that_comes_back_from_an_archive_has_no_epoch_of_another_life(
    bus: Bus, clock: FakeClock
) -> None:
    first = await worker(bus, "a")
    await first.complete()
    clock.advance(8 * DAY)
    older = await bus.retention.apply()
    second = await worker(bus, "a")
    await second.complete()
    clock.advance(8 * DAY)
    await bus.retention.apply()
    assert older.archive is not None
    assert (await bus.import_archive(older.archive)).imported["agent"] == 1
    third = await worker(bus, "a")
    assert [agent.epoch for agent in (first, second, third)] == [1, 2, 3]


async def test_state_comes_back_when_even_its_tombstone_is_gone(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    await a.state.set("k", 1)
    await a.state.set("k", 2)
    await a.complete()
    clock.advance(8 * DAY)
    report = await bus.retention.apply()
    clock.advance(31 * DAY)
    assert (await bus.retention.apply()).removed["tombstone"] == 1
    assert report.archive is not None
    assert (await bus.import_archive(report.archive)).imported["state"] == 1
    entry = await bus.state("a").entry("k")
    assert entry is not None
    assert (entry.value, entry.version) == (2, 2)
    assert await bus.state("a").set("k", 3) == 3


async def test_what_was_imported_goes_again_with_the_next_retention(bus: Bus, clock: FakeClock) -> None:
    archive = await full(bus, clock)
    await bus.import_archive(archive)
    report = await bus.retention.apply()
    assert report.removed == {
        "checkpoint": 1, "message": 2, "document": 2, "agent": 1, "session": 1, "event": 5,
    }  # fmt: skip
    assert report.archive != str(archive)


async def test_those_who_watch_hear_of_state_that_comes_back(bus: Bus, clock: FakeClock) -> None:
    archive = await full(bus, clock)
    last = (await bus.state("b").set("k", 1), await bus.state("b").entry("k"))[1]
    assert last is not None
    await bus.import_archive(archive)
    async for entry in bus.state("a").watch(after=last.change):
        assert (entry.key, entry.value) == ("k", {"v": 2})
        break


# Damage


def rewritten(archive: Path, change: Callable[[list[dict[str, Any]]], Any]) -> Path:
    """A copy with other lines in it; ``change`` gets the lines and may give texts instead."""
    with gzip.open(archive, "rt", encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    lines = change(lines) or lines
    target = archive.with_name("changed.jsonl.gz")
    with gzip.open(target, "wt", encoding="utf-8") as file:
        for line in lines:
            file.write((line if isinstance(line, str) else json.dumps(line)) + "\n")
    return target


def of(lines: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    return next(line for line in lines if line["record"] == kind)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("message", {"payload": '"forged"'}),
        ("message", {"payload": "{"}),
        ("message", {"priority": 99}),
        ("message", {"status": "queued"}),
        ("message", {"type": "not a name"}),
        ("message", {"id": "1"}),
        ("message", {"finished": None}),
        ("message", {"mailbox_kind": "letterbox"}),
        ("message", {"extra": 1}),
        ("checkpoint", {"snapshot": '{"step":2}'}),
        ("checkpoint", {"owner_kind": "nobody"}),
        ("document", {"value": "[]"}),
        ("document", {"session": "s2"}),
        ("agent", {"status": "running"}),
        ("agent", {"ended": None}),
        ("agent", {"type": "not a name"}),
        ("agent", {"id": "not a name"}),
        ("state", {"value": "3"}),
        ("state", {"version": 0, "key": "other"}),
        ("participant", {"result": "{}"}),
        ("event", {"facts": "no json"}),
        ("event", {"record": "unheard-of"}),
        # Numbers that would leave none for what comes after, or that no row can have.
        ("message", {"id": 2**63 - 1}),
        ("message", {"id": 2**70}),
        ("message", {"id": 0}),
        ("message", {"id": -7}),
        ("checkpoint", {"id": 2**63 - 1}),
        ("event", {"id": 2**63 - 1}),
        ("agent", {"epoch": 2**63 - 1}),
        ("state", {"version": 2**63 - 1, "key": "other"}),
        ("message", {"sender": "a\0b"}),
        # JSON that is none of what is read there.
        ("agent", {"metadata": '{"x": ' + "[" * 200 + "]" * 200 + "}"}),
        ("agent", {"capabilities": "[1]"}),
        ("agent", {"metadata": "[]"}),
        ("agent", {"evidence": "[1]"}),
        ("checkpoint", {"files": '[{"path": 1}]', "file_count": 1}),
    ],
)
async def test_a_line_that_was_tampered_with_is_reported_and_the_others_come_back(
    bus: Bus, clock: FakeClock, kind: str, change: dict[str, Any]
) -> None:
    archive = rewritten(await full(bus, clock), lambda lines: of(lines, kind).update(change))
    with gzip.open(archive, "rt", encoding="utf-8") as file:
        changed = {"record": kind, **change}
        (number,) = (n for n, line in enumerate(file, 1) if changed.items() <= json.loads(line).items())
    report = await bus.import_archive(archive)
    assert [problem.line for problem in report.problems] == [number]
    assert report.refused == 1
    assert report.problems[0].reason
    assert sum(report.imported.values()) == 15
    a = await worker(bus, "b")
    await a.send("b", "note", "the bus still works")
    await a.checkpoint("n", "so do checkpoints")
    assert (await worker(bus, "a")).epoch == 2
    assert not [check for check in await bus.doctor() if check.status == "error"]


async def test_what_is_larger_than_the_bus_takes_is_refused(bus: Bus, clock: FakeClock, tmp_path: Path) -> None:
    archive = await full(bus, clock)
    async with agentbus.connect(tmp_path / "other", clock=clock, max_payload=10, max_snapshot=9) as other:
        report = await other.import_archive(archive)
        reasons = sorted(problem.reason.partition(" has")[0] for problem in report.problems)
        assert reasons == ["the payload"] * 2 + ["the snapshot"], "a message, a result, a checkpoint"
        assert sum(report.imported.values()) == 13
    endless = rewritten(archive, lambda lines: of(lines, "agent").update(prompt="x" * 2_000_000))
    report = await bus.import_archive(endless)
    assert [problem.reason for problem in report.problems] == ["its prompt has 2000000 bytes"]


@pytest.mark.parametrize("expected", ['{"a": 1}', "[1]", '{"a": null}'])
async def test_a_session_that_expects_what_is_no_document_is_refused(bus: Bus, clock: FakeClock, expected: str) -> None:
    archive = rewritten(await full(bus, clock), lambda lines: of(lines, "session").update(expected=expected))
    assert (await bus.import_archive(archive)).refused == 5
    assert not [check for check in await bus.doctor() if check.status == "error"]


async def test_types_that_nobody_knows_are_defined_and_who_was_running_failed(bus: Bus, clock: FakeClock) -> None:
    def change(lines: list[dict[str, Any]]) -> None:
        of(lines, "message").update(type="unheard-of")
        of(lines, "agent").update(type="stranger", status="running", ended=None)

    report = await bus.import_archive(rewritten(await full(bus, clock), change))
    assert (report.refused, sum(report.imported.values())) == (0, 16)
    agent = await known(bus, "a")
    assert (agent.status, agent.error, agent.type) == ("failed", "imported", "stranger")
    assert {("message", "unheard-of"), ("agent", "stranger")} <= {(one.kind, one.name) for one in await bus.types()}


async def test_a_session_that_is_refused_takes_what_belongs_to_it_along(bus: Bus, clock: FakeClock) -> None:
    archive = rewritten(await full(bus, clock), lambda lines: of(lines, "session").update(status="active"))
    report = await bus.import_archive(archive)
    assert report.refused == 5, "the session, two documents, two participants"
    assert report.imported["agent"] == 1
    assert (await known(bus, "a")).session is None


async def test_garbage_between_the_lines_is_reported(bus: Bus, clock: FakeClock) -> None:
    def garbage(lines: list[dict[str, Any]]) -> list[Any]:
        return [
            lines[0], "no json", '{"record": "message"}', "[]", "", '{"record": "\\ud800"}',
            '{"a": ' + "[" * 100_000 + "]" * 100_000 + ', "record": "message"}', *lines[1:],
        ]  # fmt: skip

    report = await bus.import_archive(rewritten(await full(bus, clock), garbage))
    assert [problem.line for problem in report.problems] == [2, 3, 4, 5, 6, 7]
    assert sum(report.imported.values()) == 16


async def portions(bus: Bus, clock: FakeClock) -> Path:
    """An archive of three portions of 500 messages each."""
    a = await worker(bus, "a")
    for _ in range(3):
        await a.send_many([("a", "note", os.urandom(20).hex()) for _ in range(500)])
        await a.ack(await a.receive_many(500, timeout=0))
    clock.advance(8 * DAY)
    report = await bus.retention.apply()
    assert report.removed == {"message": 1500}
    assert report.archive is not None
    return Path(report.archive)


async def test_a_torn_end_loses_only_the_last_portion(bus: Bus, clock: FakeClock) -> None:
    archive = await portions(bus, clock)
    archive.write_bytes(archive.read_bytes()[:-100])
    report = await bus.import_archive(archive)
    assert report.imported == {"message": 1000}
    assert [problem.line for problem in report.problems] == [0]
    assert "cut off" in report.problems[0].reason


async def test_a_damaged_portion_loses_only_itself(bus: Bus, clock: FakeClock) -> None:
    archive = await portions(bus, clock)
    data = bytearray(archive.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 50] = os.urandom(50)
    archive.write_bytes(data)
    report = await bus.import_archive(archive)
    assert report.imported == {"message": 1000}
    assert report.refused >= 1
    messages = [record.id for record in (await bus.messages.list(limit=1000)).items]
    assert sorted(messages) == [*range(1, 501), *range(1001, 1501)]


def not_an_archive(path: Path, how: str) -> None:
    contents: dict[str, bytes] = {
        "empty": b"",
        "text": b"hello",
        "random": os.urandom(5000),
        "other gzip": gzip.compress(b"hello\n"),
        "json": gzip.compress(b'{"hello": 1}\n'),
        "no header": gzip.compress(b'{"record": "event"}\n'),
        "newer": gzip.compress(b'{"record": "archive", "format": 2, "created": 1}\n'),
        "cut off": gzip.compress(b'{"record": "archive", "format": 1, "created": 1}\n')[:-6],
    }
    path.write_bytes(contents[how])


@pytest.mark.parametrize(
    "how", ["empty", "text", "random", "other gzip", "json", "no header", "newer", "cut off"]
)  # fmt: skip
async def test_a_file_that_is_no_archive_is_refused(bus: Bus, tmp_path: Path, how: str) -> None:
    a = await worker(bus, "a")
    before = [event async for event in bus.events()]
    path = tmp_path / "file"
    not_an_archive(path, how)
    with pytest.raises(DamagedArchive) as refused:
        await bus.import_archive(path)
    assert refused.value.path == str(path)
    assert [event async for event in bus.events()] == before
    await a.send("a", "note", 1)


async def test_what_is_no_file_at_all_is_refused(bus: Bus, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/null")):
        with pytest.raises(DamagedArchive):
            await bus.import_archive(path)
    with pytest.raises(NoSuchFile, match="that is a directory"):
        await bus.import_archive(tmp_path)
    with pytest.raises(NoSuchFile, match="there is no such file"):
        await bus.import_archive(tmp_path / "nothing")
    for wrong in (None, 7, "", "a\0b", b"bytes", "\udcff" * 3 + "\ud800"):
        with pytest.raises((InvalidInput, DamagedArchive)):
            await bus.import_archive(wrong)  # type: ignore[arg-type]


async def test_an_archive_that_cannot_be_written_keeps_everything(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note", 1)
    await (await take(a)).ack()
    bus.engine.directory.mkdir(parents=True, exist_ok=True)
    (bus.engine.directory / "archive").write_text("in the way")
    clock.advance(8 * DAY)
    with pytest.raises(NotWritable):
        await bus.retention.apply()
    assert (await stored(bus, "m-1")).status == "acked"
    (bus.engine.directory / "archive").unlink()
    assert (await bus.retention.apply(policy=RetentionPolicy())).removed == {"message": 1}


# Cancelling, and traps


async def test_a_cancelled_import_is_cancelled_and_can_be_repeated(bus: Bus, clock: FakeClock) -> None:
    archive = await portions(bus, clock)
    for delay in range(10):
        task = asyncio.create_task(bus.import_archive(archive))
        await asyncio.sleep(0.001 * delay)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    await bus.import_archive(archive)
    assert (await bus.stats()).messages == {"acked": 1500}


async def test_a_cancelled_retention_leaves_no_file_open(bus: Bus, clock: FakeClock) -> None:
    def archives() -> list[str]:
        opened = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
        return [path for path in (os.readlink(link) for link in opened if os.path.lexists(link)) if ".jsonl" in path]

    a = await worker(bus, "a")
    for number in range(10):
        await a.send_many([("a", "note", n) for n in range(100)])
        await a.ack(await a.receive_many(100, timeout=0))
        task = asyncio.create_task(bus.retention.apply(policy=RetentionPolicy(messages=0)))
        await asyncio.sleep(0.001 * number)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    assert archives() == []
    await bus.retention.apply(policy=RetentionPolicy(messages=0))
    stored = set()
    for file in (bus.engine.directory / "archive").iterdir():
        assert file.stat().st_size
        with gzip.open(file, "rt", encoding="utf-8") as text:
            stored |= {line["id"] for line in map(json.loads, text) if line["record"] == "message"}
    assert len(stored) == 1000


@pytest.mark.parametrize("trap", ["lines", "members", "one line"])
async def test_a_small_file_that_would_be_endless_is_soon_given_up(bus: Bus, tmp_path: Path, trap: str) -> None:
    path = tmp_path / "trap.jsonl.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b'{"record": "archive", "format": 1, "created": 1}\n')
        for _ in range(0 if trap == "members" else 200):
            file.write((b"\n" if trap == "lines" else b"0") * 1_000_000)
    if trap == "members":
        path.write_bytes(path.read_bytes() + b"\x1f\x8b\x08\0" * 50_000)
    tracemalloc.start()
    try:
        with anyio.fail_after(40):
            report = await bus.import_archive(path)
        assert tracemalloc.get_traced_memory()[1] < 200_000_000
    finally:
        tracemalloc.stop()
    assert report.imported == {}
    assert 1 <= report.refused <= 1001
