"""Tasks at work, for the tests of the command line."""

from __future__ import annotations

import asyncio
import shutil
from typing import Any

import agentbus
from agentbus.sync.bus import open_bus
from tests.cli import workflows as flows
from tests.cli.conftest import TIMEOUT, Shell

ALL = (flows.feature, flows.docs, flows.broken)


def start(shell: Shell, workflow: str, *arguments: Any, **options: Any) -> None:
    """Start a task."""
    with open_bus(shell.directory / ".agentbus") as bus:
        bus.do(bus.tasks.start(workflow, *arguments, **options))


def work(shell: Shell) -> None:
    """Do what there is to do."""

    async def run() -> None:
        async with agentbus.connect(shell.directory / ".agentbus") as bus:
            await asyncio.wait_for(bus.tasks.run_worker(*ALL, until_idle=True), TIMEOUT)

    asyncio.run(run())


def begun(shell: Shell, id: str = "f-1", **options: Any) -> None:
    """A task that waits for its plan to be approved."""
    start(shell, "feature", "login", id=id, **options)
    work(shell)


def add_module(shell: Shell) -> None:
    """Let workers find the workflows in the working directory."""
    shutil.copy(flows.__file__, shell.directory / "flows.py")
