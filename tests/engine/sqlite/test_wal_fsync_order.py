"""Data that must survive a power cut is on the disk before anything relies on it: the order of fsync, link, delete."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import agentbus
from agentbus import RetentionPolicy
from agentbus.operations.removal import remove

Steps = list[str]


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[Steps]:
    """Record file operations in order: fsync, link, replace and rename, with the names of files and directories."""
    done: Steps = []

    def name(path: Any) -> str:
        return re.sub(r"[0-9a-f]{8,}[^/]*|restoring-\w+|agentbus-\w+[^/]*", "*", Path(path).name)

    def watch(call: str, target: Any) -> None:
        really = getattr(os, call)

        def watched(*arguments: Any, **options: Any) -> Any:
            done.append(f"{call} {target(*arguments)}")
            return really(*arguments, **options)

        monkeypatch.setattr(os, call, watched)

    watch("fsync", lambda descriptor: name(os.readlink(f"/proc/self/fd/{descriptor}")))
    watch("link", lambda _, target, **__: name(target))
    watch("replace", lambda _, target, **__: name(target))
    watch("rename", lambda _, target, **__: name(target))
    yield done
    monkeypatch.undo()


def order(steps: Steps, *wanted: str) -> None:
    """These are among the steps, in this order."""
    left = iter(steps)
    for step in wanted:
        assert any(re.fullmatch(step, found) for found in left), f"no {step} at its place in {steps}"


async def test_nothing_goes_before_its_archive_is_on_the_disk(
    tmp_path: Path, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with agentbus.connect(tmp_path) as bus, bus.agent("a", type="worker") as agent:
        await agent.send("a", "note", 1)
        await agent.ack(await agent.receive_many(1, timeout=0))
        really = remove.run

        def watched(*arguments: Any) -> Any:
            steps.append("remove")
            return really(*arguments)

        monkeypatch.setattr(remove, "run", watched)
        steps.clear()
        await bus.retention.apply(policy=RetentionPolicy(messages=0))
        order(steps, "fsync archive", r"fsync .*\*.*", "remove")


async def test_a_backup_has_its_name_once_it_is_on_the_disk(tmp_path: Path, steps: Steps) -> None:
    async with agentbus.connect(tmp_path) as bus:
        steps.clear()
        await bus.backup()
        order(steps, r"fsync \..*", r"link bus-.*", "fsync backups")


async def test_a_restored_bus_takes_its_place_once_it_is_on_the_disk(tmp_path: Path, steps: Steps) -> None:
    path = tmp_path / "bus"
    async with agentbus.connect(path) as bus:
        backup = (await bus.backup()).path
    steps.clear()
    agentbus.restore_backup(backup, path)
    order(steps, r"fsync bus\.db", r"link \.replacing-.*", "fsync backups", r"replace bus\.db", "fsync bus")
    order(steps, r"replace bus\.db", "fsync bus", r"rename replaced-.*", "fsync backups")
