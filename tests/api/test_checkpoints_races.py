"""Files that change while a checkpoint reads them: links, pipes, writers, cancelled callers, lost leases."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

import agentbus
from agentbus import Agent, Bus, Message
from agentbus.api import checkpoint_files as files_module
from agentbus.errors import AgentFenced, UnreadableFile, UnsafePath
from agentbus.records import FileReference
from tests.api.helpers import refusing, running, soon, stored, take, worker
from tests.support.clock import FakeClock


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with two files."""
    root = tmp_path / "root"
    (root / "docs").mkdir(parents=True)
    (root / "plan.md").write_text("the plan")
    (root / "docs" / "design.md").write_text("the design")
    return root


@pytest.fixture
async def a(bus: Bus) -> Agent:
    return await worker(bus, "a")


async def nothing_saved(bus: Bus) -> bool:
    return (await bus.checkpoints.list()).items == []


class Interrupt:
    """Does something when a file has been looked at and is about to be opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, act: Callable[[], None]) -> None:
        self.happened = False
        original = os.open

        def opening(path: Any, flags: int, *args: Any, **options: Any) -> int:
            if path == name and not self.happened:
                self.happened = True
                act()
            return original(path, flags, *args, **options)

        monkeypatch.setattr(os, "open", opening)


async def test_a_file_swapped_for_the_database_between_check_and_open_is_not_closed(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing it would drop SQLite's locks: commits could vanish."""

    def swap() -> None:
        (root / "plan.md").unlink()
        os.link(tmp_path / "bus" / "bus.db", root / "plan.md")

    closed: list[tuple[int, int]] = []
    original = os.close

    def closing(descriptor: int) -> None:
        found = os.fstat(descriptor)
        closed.append((found.st_dev, found.st_ino))
        original(descriptor)

    async with agentbus.connect(tmp_path / "bus") as bus, bus.agent("a", type="worker") as a:
        with monkeypatch.context() as patch:
            patch.setattr(os, "close", closing)
            interrupt = Interrupt(patch, "plan.md", swap)
            with pytest.raises(UnsafePath, match="part of a bus"):
                await a.checkpoint("n", 1, files=["plan.md"], root=root)
        assert interrupt.happened
        database = (tmp_path / "bus" / "bus.db").stat()
        assert (database.st_dev, database.st_ino) not in closed


@pytest.mark.one_engine
@pytest.mark.parametrize("target", ["docs", "design.md"])
async def test_a_file_swapped_for_a_link_between_check_and_open_is_not_followed(
    bus: Bus, a: Agent, root: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / "design.md").write_text("secret")
    victim = root / "docs" if target == "docs" else root / "docs" / "design.md"
    goal = outside if target == "docs" else outside / "design.md"

    def swap() -> None:
        victim.rename(root / "moved")
        victim.symlink_to(goal)

    swapped = Interrupt(monkeypatch, target, swap)
    with pytest.raises(UnsafePath):
        await a.checkpoint("n", 1, files=["docs/design.md"], root=root)
    assert swapped.happened
    assert await nothing_saved(bus)


@pytest.mark.one_engine
async def test_a_file_swapped_for_a_pipe_does_not_block(
    bus: Bus, a: Agent, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def swap() -> None:
        (root / "plan.md").unlink()
        os.mkfifo(root / "plan.md")

    waited: list[bool] = []

    def write() -> None:
        waited.append(True)
        os.close(os.open(str(root / "plan.md"), os.O_WRONLY | os.O_NONBLOCK))

    Interrupt(monkeypatch, "plan.md", swap)
    rescue = threading.Timer(10, write)
    rescue.start()
    with pytest.raises(UnsafePath):
        await a.checkpoint("n", 1, files=["plan.md"], root=root)
    rescue.cancel()
    assert waited == [], "it waited for a writer"
    assert await nothing_saved(bus)


def _append(file: Path) -> None:
    with file.open("a") as stream:
        stream.write("more")


def _truncate(file: Path) -> None:
    os.truncate(file, 3)


def _rewrite(file: Path) -> None:
    file.write_text("THE PLAN")
    os.utime(file, ns=(0, 0))


@pytest.mark.one_engine
@pytest.mark.parametrize("change", [_append, _truncate, _rewrite])
async def test_a_file_that_changes_while_it_is_read_is_noticed(
    bus: Bus, a: Agent, root: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None]
) -> None:
    """The change comes after the first look at the file's stamp, which is taken right before reading."""
    original = os.readv
    changed: list[bool] = []

    def reading(descriptor: int, buffers: Any) -> int:
        if not changed:
            changed.append(True)
            change(root / "plan.md")
        return original(descriptor, buffers)

    monkeypatch.setattr(os, "readv", reading)
    async with refusing(bus, a, UnreadableFile) as refused:
        await a.checkpoint("n", 1, files=["plan.md"], root=root)
    assert changed
    assert (refused.value.path, refused.value.reason) == ("plan.md", "it changed while it was read")
    assert await nothing_saved(bus)


@pytest.mark.one_engine
async def test_a_cancelled_caller_stops_the_reading(a: Agent, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that never ends would keep the process from exiting."""
    reading, ended = threading.Event(), threading.Event()
    original = files_module._Reader._hash

    def endless(descriptor: int, buffers: list[bytearray]) -> int:
        reading.set()
        return len(buffers[0])

    def hashing(self: Any, path: str, file: int) -> FileReference:
        try:
            return original(self, path, file)
        finally:
            ended.set()

    os.truncate(root / "plan.md", 1 << 42)
    monkeypatch.setattr(os, "readv", endless)
    monkeypatch.setattr(files_module._Reader, "_hash", hashing)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: a.checkpoint("n", 1, files=["plan.md"], root=root))
        assert await asyncio.to_thread(reading.wait, 10)
        tasks.cancel_scope.cancel()
    assert ended.wait(10)


@pytest.fixture
def held_up(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Files are read slowly: the first event says that reading began, the second lets it go on."""
    reading, resume = threading.Event(), threading.Event()
    original = os.readv

    def slow(descriptor: int, buffers: Any) -> int:
        reading.set()
        assert resume.wait(10)
        return original(descriptor, buffers)

    monkeypatch.setattr(os, "readv", slow)
    return reading, resume


async def _handle(message: Message, root: Path) -> None:
    async with message as unit:
        unit.checkpoint("n", 1, files=["plan.md"], root=root)


async def test_the_lease_is_renewed_while_the_files_of_a_message_are_read(
    bus: Bus, a: Agent, root: Path, clock: FakeClock, held_up: tuple[threading.Event, threading.Event]
) -> None:
    """Hashing large files can take longer than the lease."""
    reading, resume = held_up
    receipt = await a.send("a", "note")
    message = await take(a, lease=10)
    async with running(_handle(message, root)) as task:
        assert await asyncio.to_thread(reading.wait, 10)
        await clock.pass_time(60)
        assert await a.receive(timeout=0) is None, "it would have been handed out again"
        resume.set()
        await soon(task)
    assert (await stored(bus, receipt.message_id)).status == "acked"
    assert await a.restore() is not None


async def test_a_lease_that_is_lost_while_files_are_read_ends_the_block(
    bus: Bus, a: Agent, root: Path, clock: FakeClock, held_up: tuple[threading.Event, threading.Event]
) -> None:
    reading, resume = held_up
    await a.send("a", "note")
    message = await take(a, lease=10)
    async with running(_handle(message, root)) as task:
        assert await asyncio.to_thread(reading.wait, 10)
        await worker(bus, "a", takeover=True)
        await clock.pass_time(60)
        with pytest.raises(AgentFenced):
            await soon(task)
        resume.set()
    assert await a.restore() is None
