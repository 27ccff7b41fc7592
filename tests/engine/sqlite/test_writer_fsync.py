"""Only promises are fsynced, counted where it happens: in the kernel's calls."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# Directories are made between the steps: they show in the trace where one ends and the next begins.
SCRIPT = """
import asyncio, os, sys
from agentbus.core.clock import SystemClock
from agentbus.engine.sqlite.engine import SQLiteEngine
from agentbus.engine.sqlite.paths import find
from agentbus.operations.processes import HeartbeatRequest, heartbeat
from agentbus.operations.types import DefineRequest, define

async def main(path, durability):
    engine = SQLiteEngine(find(f"{path}/bus"), durability=durability, clock=SystemClock(), lock_timeout=10)
    await engine.open()
    try:
        beats = lambda: engine.write(heartbeat, HeartbeatRequest(engine.process, ()))
        defines = lambda name: engine.write(define, DefineRequest("message", name, ""))
        os.mkdir(f"{path}/mark-cheap")
        for _ in range(10):
            await beats()
        os.mkdir(f"{path}/mark-promise")
        for number in range(10):
            await defines(f"type-{number}")
        os.mkdir(f"{path}/mark-mixed")
        for number in range(5):
            await asyncio.gather(beats(), defines(f"mixed-{number}"), *(beats() for _ in range(10)))
        os.mkdir(f"{path}/mark-end")
    finally:
        await engine.close()

asyncio.run(main(*sys.argv[1:]))
"""


def fsyncs(tmp_path: Path, durability: str) -> dict[str, int]:
    """Return the number of fsyncs of each step of the script."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed: the fsyncs cannot be counted")
    trace = tmp_path / "trace"
    command = [strace, "-f", "-e", "trace=fsync,fdatasync,mkdir,mkdirat", "-o", str(trace)]
    run = subprocess.run(
        [*command, sys.executable, "-c", SCRIPT, str(tmp_path), durability],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    if run.returncode != 0 and "ptrace" in run.stderr:
        pytest.skip("strace may not trace here: the fsyncs cannot be counted")
    assert run.returncode == 0, run.stderr
    counts: dict[str, int] = {}
    step = "opening"
    for line in trace.read_text().splitlines():
        mark = re.search(r"/mark-(\w+)", line)
        if mark is not None:
            step = mark[1]
        # A call that another thread interrupted stands in two lines; the second says "resumed".
        elif re.search(r"\bf(data)?sync\(", line):
            counts[step] = counts.get(step, 0) + 1
    return counts


def test_a_commit_is_fsynced_once_if_it_holds_a_promise_and_not_at_all_otherwise(tmp_path: Path) -> None:
    counts = fsyncs(tmp_path, "disk")
    assert counts.get("cheap", 0) == 0
    assert counts["promise"] == 10
    assert counts["mixed"] == 5


def test_durability_process_leaves_the_disk_alone(tmp_path: Path) -> None:
    counts = fsyncs(tmp_path, "process")
    assert not {"cheap", "promise", "mixed"} & counts.keys()
