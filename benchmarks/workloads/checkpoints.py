"""Checkpoints: saving and loading snapshots from 1 kB to 10 MB, compared with an fsynced JSON file."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import agentbus
from benchmarks.measure import Results, Series
from benchmarks.progress import Progress

SIZES = {"1 kB": 1_000, "10 kB": 10_000, "100 kB": 100_000, "1 MB": 1_000_000, "10 MB": 10_000_000}
KEY = "checkpoints"
UNIT = "ms"
_LINE = {"file": "agentbus/operations/state.py", "line": 128, "done": True, "note": "x" * 36}
_LINE_BYTES = len(json.dumps(_LINE, separators=(",", ":"))) + 1


def measure(directory: Path, rounds: int, largest: int, results: Results, progress: Progress) -> None:
    """Measure sizes up to ``largest`` bytes."""
    sizes = {title: size for title, size in SIZES.items() if size <= largest}
    asyncio.run(_measure(directory, rounds, sizes, results, progress))


async def _measure(directory: Path, rounds: int, sizes: dict[str, int], results: Results, progress: Progress) -> None:
    async with (
        agentbus.connect(directory / "bus") as bus,
        bus.agent("agent-0", type="worker") as agent,
    ):
        progress.expect(len(sizes) * (rounds + 1))
        for title, size in sizes.items():
            snapshot = {"steps": [_LINE] * (size // _LINE_BYTES)}
            file = directory / f"{size}.json"

            async def save(snapshot: Any = snapshot) -> None:
                await agent.checkpoint("snapshot", snapshot, keep=2)

            async def load() -> Any:
                found = await agent.restore("snapshot")
                assert found is not None
                return found.snapshot

            async def save_file(file: Path = file, snapshot: Any = snapshot) -> None:
                _write(file, snapshot)

            async def load_file(file: Path = file) -> Any:
                return json.loads(file.read_bytes())

            cases: list[tuple[str, Callable[[], Awaitable[Any]]]] = [
                ("checkpoint saved", save),
                ("checkpoint loaded", load),
                ("JSON file saved, fsynced", save_file),
                ("JSON file loaded", load_file),
            ]
            series = [results.add(Series(KEY, f"{name}, {title}", UNIT, title=f"{title}: {name}")) for name, _ in cases]
            # The first round warms the caches and verifies the loaded snapshots.
            for number in range(rounds + 1):
                progress.say(f"{KEY}: {title}, round {number} of {rounds}")
                for (_, call), figures in zip(cases, series, strict=True):
                    started = time.perf_counter()
                    found = await call()
                    taken = (time.perf_counter() - started) * 1000
                    if number:
                        figures.values.append(taken)
                    elif found is not None and found != snapshot:
                        raise RuntimeError(f"{title}: the loaded snapshot differs from the saved one")


def _write(file: Path, snapshot: Any) -> None:
    temporary = file.with_suffix(".new")
    with open(temporary, "wb") as out:
        out.write(json.dumps(snapshot, separators=(",", ":")).encode())
        out.flush()
        os.fsync(out.fileno())
    temporary.rename(file)
    directory = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
