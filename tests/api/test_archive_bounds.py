"""Archives built to block an import, or truncated during it: bounded work and prompt cancellation.

Work is counted in bytes that zlib inflates, not in seconds.
"""

from __future__ import annotations

import asyncio
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentbus import Bus
from agentbus.api.maintenance import archive
from tests.api.helpers import worker
from tests.support.bombs import HEADER, MB, member, overlapping

pytestmark = pytest.mark.one_engine
"""Reading a file touches no engine."""

_inflater = zlib.decompressobj


class Work:
    """Counts what is inflated; ``at`` is called whenever there is more."""

    def __init__(self) -> None:
        self.bytes = 0
        self.at: Callable[[int], object] = lambda count: None

    def __call__(self, wbits: int = 15) -> Counted:
        return Counted(_inflater(wbits), self)


class Counted:
    """An inflater whose work is counted."""

    def __init__(self, inner: Any, work: Work) -> None:
        self._inner = inner
        self._work = work

    def decompress(self, data: bytes, most: int = 0) -> bytes:
        part: bytes = self._inner.decompress(data, most)
        self._work.bytes += len(part)
        self._work.at(self._work.bytes)
        return part

    def copy(self) -> Counted:
        return Counted(self._inner.copy(), self._work)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    counter = Work()
    monkeypatch.setattr(zlib, "decompressobj", counter)
    return counter


async def test_overlapping_headers_of_one_stream_stay_within_the_budget(
    bus: Bus, tmp_path: Path, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "_WASTE", 20 * MB)
    bomb = overlapping(tmp_path / "bomb.jsonl.gz", 50, 10 * MB)
    report = await bus.import_archive(bomb)
    assert (report.imported, report.refused) == ({}, 2), "a damaged part, and the rest"
    # It is read twice, and was inflated a hundred times before. The last chunk of each may be beyond the budget.
    assert work.bytes <= 2 * (20 * MB + 32 * bomb.stat().st_size + 3 * MB)


async def test_data_is_inflated_only_once(bus: Bus, tmp_path: Path, work: Work) -> None:
    bomb = overlapping(tmp_path / "bomb.jsonl.gz", 50, 100 * MB)
    assert bomb.stat().st_size < 150_000
    report = await bus.import_archive(bomb)
    assert (report.imported, report.refused) == ({}, 1)
    assert work.bytes <= 2 * (100 * MB + 2 * MB)


async def test_headers_that_never_end_stay_within_the_budget(
    bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name of a file in a header ends with a NUL. Nothing is inflated, and all of the rest is read for each."""
    read = 0
    pread = os.pread

    def counted(descriptor: int, count: int, place: int) -> bytes:
        nonlocal read
        found = pread(descriptor, count, place)
        read += len(found)
        return found

    monkeypatch.setattr(archive, "_WASTE", 0)
    monkeypatch.setattr(os, "pread", counted)
    bomb = tmp_path / "bomb.jsonl.gz"
    bomb.write_bytes(member(HEADER) + b"\x1f\x8b\x08\x08" * 500_000)
    report = await bus.import_archive(bomb)
    assert (report.imported, report.refused) == ({}, 2)
    assert read < 2 * 64 * bomb.stat().st_size


async def test_whole_archives_are_not_limited_by_how_well_they_compress(
    bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = await worker(bus, "a")
    await a.send_many([("a", "note", "0" * 500_000) for _ in range(24)])
    await bus.export(tmp_path / "all.jsonl.gz")
    assert (tmp_path / "all.jsonl.gz").stat().st_size < 100_000
    monkeypatch.setattr(archive, "_WASTE", 6 * MB)
    report = await bus.import_archive(tmp_path / "all.jsonl.gz")
    assert (report.refused, report.imported) == (0, {})
    assert report.present > 24


async def test_a_cancelled_import_of_a_bomb_ends_between_chunks(bus: Bus, tmp_path: Path, work: Work) -> None:
    bomb = overlapping(tmp_path / "bomb.jsonl.gz", 1, 400 * MB)
    task = asyncio.ensure_future(bus.import_archive(bomb))
    loop = asyncio.get_running_loop()
    work.at = lambda count: count < 2 * MB and loop.call_soon_threadsafe(task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert work.bytes < 200 * MB, "of 800: the rest before the loop runs the cancellation"


@pytest.mark.parametrize("left", [0, 30_000])
async def test_an_archive_that_is_truncated_while_it_is_imported(bus: Bus, tmp_path: Path, left: int) -> None:
    a = await worker(bus, "a")
    await a.send_many([("a", "note", os.urandom(100_000).hex()) for _ in range(30)])
    path = tmp_path / "all.jsonl.gz"
    await bus.export(path)

    def truncate(done: int, total: int, file: str) -> None:
        # The second half: what others refer to is in, and the rest is read portion by portion.
        if total / 2 < done < total:
            os.truncate(path, min(left, path.stat().st_size))

    report = await bus.import_path(path, progress=truncate)
    assert path.stat().st_size == left
    assert report.refused >= 1
    assert "cut off" in report.problems[0].reason or "changed" in report.problems[0].reason
    await a.send("a", "note", "the bus still works")
