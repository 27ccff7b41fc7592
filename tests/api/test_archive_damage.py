"""Damaged, foreign or unbounded archives are reported and skipped; a cancelled import can be repeated."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import shutil
import tempfile
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

import agentbus
from agentbus import Bus, RetentionPolicy
from agentbus.errors import DamagedArchive, InvalidInput, NoSuchFile, NotWritable
from tests.api.helpers import known, stored, take, worker
from tests.api.retention_helpers import DAY, full
from tests.conftest import copy_file
from tests.support.cases import each
from tests.support.clock import FakeClock
from tests.support.examples import examples

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


@pytest.fixture(scope="module")
def retired() -> Iterator[Path]:
    """The directory of a closed bus whose rows are all in its archive."""
    with tempfile.TemporaryDirectory(prefix="agentbus-test-") as directory:
        asyncio.run(_retire(Path(directory) / "bus"))
        yield Path(directory) / "bus"


async def _retire(directory: Path) -> None:
    clock = FakeClock()
    async with agentbus.connect(directory, clock=clock) as bus:
        clock.attach(bus)
        await full(bus, clock)


@asynccontextmanager
async def copied(retired: Path) -> AsyncIterator[tuple[Bus, Path]]:
    """Open a copy of the retired bus; with it comes the path of its archive."""
    with tempfile.TemporaryDirectory(prefix="agentbus-test-") as directory:
        target = Path(directory) / "bus"
        shutil.copytree(retired, target, copy_function=copy_file)
        clock = FakeClock()
        clock.advance(100 * DAY)
        (archive,) = (target / "archive").iterdir()
        async with agentbus.connect(target, clock=clock) as bus:
            yield bus, archive


TAMPERED: list[tuple[str, dict[str, Any]]] = [
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
]
FIRST_OF_KIND = [next(case for case in TAMPERED if case[0] == kind) for kind in dict(TAMPERED)]


@each(("kind", "change"), TAMPERED)
async def test_a_tampered_line_is_reported_and_the_others_are_restored(
    retired: Path, kind: str, change: dict[str, Any]
) -> None:
    async with copied(retired) as (bus, original):
        archive = rewritten(original, lambda lines: of(lines, kind).update(change))
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
        # The rows that are restored are the same for each tampered line of a kind.
        if (kind, change) in FIRST_OF_KIND or examples.full:
            assert not [check for check in await bus.doctor() if check.status == "error"]


@pytest.mark.one_engine
async def test_a_line_over_the_size_limit_is_refused(bus: Bus, clock: FakeClock, tmp_path: Path) -> None:
    archive = await full(bus, clock)
    async with agentbus.connect(tmp_path / "other", clock=clock, max_payload=10, max_snapshot=9) as other:
        report = await other.import_archive(archive)
        reasons = sorted(problem.reason.partition(" too large")[0] for problem in report.problems)
        assert reasons == ["payload", "payload", "snapshot"], "a message, a result, a checkpoint"
        assert sum(report.imported.values()) == 13
    endless = rewritten(archive, lambda lines: of(lines, "agent").update(prompt="x" * 2_000_000))
    report = await bus.import_archive(endless)
    assert [problem.reason for problem in report.problems] == ["prompt has 2000000 bytes"]


@each("expected", ['{"a": 1}', "[1]", '{"a": null}'])
async def test_a_session_that_expects_an_invalid_document_name_is_refused(retired: Path, expected: str) -> None:
    async with copied(retired) as (bus, original):
        archive = rewritten(original, lambda lines: of(lines, "session").update(expected=expected))
        assert (await bus.import_archive(archive)).refused == 5
        assert not [check for check in await bus.doctor() if check.status == "error"]


async def test_unknown_types_are_defined_and_running_agents_are_imported_as_failed(bus: Bus, clock: FakeClock) -> None:
    def change(lines: list[dict[str, Any]]) -> None:
        of(lines, "message").update(type="unheard-of")
        of(lines, "agent").update(type="stranger", status="running", ended=None)

    report = await bus.import_archive(rewritten(await full(bus, clock), change))
    assert (report.refused, sum(report.imported.values())) == (0, 16)
    agent = await known(bus, "a")
    assert (agent.status, agent.error, agent.type) == ("failed", "imported", "stranger")
    assert {("message", "unheard-of"), ("agent", "stranger")} <= {(one.kind, one.name) for one in await bus.types()}


async def test_the_data_of_a_refused_session_is_refused_too(bus: Bus, clock: FakeClock) -> None:
    archive = rewritten(await full(bus, clock), lambda lines: of(lines, "session").update(status="active"))
    report = await bus.import_archive(archive)
    assert report.refused == 5, "the session, two documents, two participants"
    assert report.imported["agent"] == 1
    assert (await known(bus, "a")).session is None


@pytest.mark.one_engine
async def test_garbage_between_the_lines_is_reported(bus: Bus, clock: FakeClock) -> None:
    def garbage(lines: list[dict[str, Any]]) -> list[Any]:
        return [
            lines[0], "no json", '{"record": "message"}', "[]", "", '{"record": "\\ud800"}',
            '{"a": ' + "[" * 100_000 + "]" * 100_000 + ', "record": "message"}', *lines[1:],
        ]  # fmt: skip

    report = await bus.import_archive(rewritten(await full(bus, clock), garbage))
    assert [problem.line for problem in report.problems] == [2, 3, 4, 5, 6, 7]
    assert sum(report.imported.values()) == 16


async def portions(bus: Bus, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an archive of three portions of 50 messages each."""
    monkeypatch.setattr("agentbus.api.maintenance.retention._MAX_ROWS", 50)
    monkeypatch.setattr("agentbus.api.maintenance.importer.importer._MAX_LINES", 20)
    a = await worker(bus, "a")
    for _ in range(3):
        await a.send_many([("a", "note", os.urandom(20).hex()) for _ in range(50)])
        await a.ack(await a.receive_many(50, timeout=0))
    clock.advance(8 * DAY)
    report = await bus.retention.apply()
    assert report.removed == {"message": 150}
    assert report.archive is not None
    return Path(report.archive)


@pytest.mark.one_engine
async def test_a_torn_end_loses_only_the_last_portion(
    bus: Bus, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = await portions(bus, clock, monkeypatch)
    archive.write_bytes(archive.read_bytes()[:-100])
    report = await bus.import_archive(archive)
    assert report.imported == {"message": 100}
    assert [problem.line for problem in report.problems] == [0]
    assert "truncated" in report.problems[0].reason


@pytest.mark.one_engine
async def test_a_damaged_portion_loses_only_itself(bus: Bus, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = await portions(bus, clock, monkeypatch)
    data = bytearray(archive.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 50] = os.urandom(50)
    archive.write_bytes(data)
    report = await bus.import_archive(archive)
    assert report.imported == {"message": 100}
    assert report.refused >= 1
    messages = [record.id for record in (await bus.messages.list(limit=1000)).items]
    assert sorted(messages) == [*range(1, 51), *range(101, 151)]


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


@pytest.mark.one_engine
@each(
    "how", ["empty", "text", "random", "other gzip", "json", "no header", "newer", "cut off"]
)  # fmt: skip
async def test_a_file_that_is_no_archive_is_refused(bus: Bus, tmp_path: Path, how: str) -> None:
    a = await worker(bus, "a", takeover=True)
    before = [event async for event in bus.events()]
    path = tmp_path / "file"
    not_an_archive(path, how)
    with pytest.raises(DamagedArchive) as refused:
        await bus.import_archive(path)
    assert refused.value.path == str(path)
    assert [event async for event in bus.events()] == before
    await a.send("a", "note", 1)


@pytest.mark.one_engine
async def test_a_path_that_is_not_a_file_is_refused(bus: Bus, tmp_path: Path) -> None:
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


@pytest.mark.one_engine
async def test_retention_removes_nothing_if_the_archive_cannot_be_written(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note", 1)
    await (await take(a)).ack()
    bus._engine.directory.mkdir(parents=True, exist_ok=True)
    (bus._engine.directory / "archive").write_text("in the way")
    clock.advance(8 * DAY)
    with pytest.raises(NotWritable):
        await bus.retention.apply()
    assert (await stored(bus, "m-1")).status == "acked"
    (bus._engine.directory / "archive").unlink()
    assert (await bus.retention.apply(policy=RetentionPolicy())).removed == {"message": 1}


# Cancelling, and traps


async def test_a_cancelled_import_is_cancelled_and_can_be_repeated(
    bus: Bus, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = await portions(bus, clock, monkeypatch)
    for delay in range(10):
        task = asyncio.create_task(bus.import_archive(archive))
        await asyncio.sleep(0.001 * delay)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    await bus.import_archive(archive)
    assert (await bus.stats()).messages == {"acked": 150}


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
    for file in (bus._engine.directory / "archive").iterdir():
        assert file.stat().st_size
        with gzip.open(file, "rt", encoding="utf-8") as text:
            stored |= {line["id"] for line in map(json.loads, text) if line["record"] == "message"}
    assert len(stored) == 1000


@pytest.mark.one_engine
@pytest.mark.parametrize("trap", ["lines", "members", "one line"])
async def test_a_small_file_that_inflates_without_end_is_refused_early(bus: Bus, tmp_path: Path, trap: str) -> None:
    path = tmp_path / "trap.jsonl.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b'{"record": "archive", "format": 1, "created": 1}\n')
        for _ in range(0 if trap == "members" else 120):
            file.write((b"\n" if trap == "lines" else b"0") * 1_000_000)
    if trap == "members":
        path.write_bytes(path.read_bytes() + b"\x1f\x8b\x08\0" * 3_000)
    tracemalloc.start()
    try:
        with anyio.fail_after(60):
            report = await bus.import_archive(path)
        assert tracemalloc.get_traced_memory()[1] < 120_000_000
    finally:
        tracemalloc.stop()
    assert report.imported == {}
    assert 1 <= report.refused <= 1001
