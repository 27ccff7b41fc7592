"""Runs of commands, and what the bus knows of them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from agentbus.core import process_info
from agentbus.records import AgentRecord
from agentbus.sync.bus import open_bus
from tests.cli.conftest import Outcome, Shell


@contextmanager
def running(shell: Shell, *words: str, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A run, which is over when the block ends; whatever it started is then gone by itself."""
    process = shell.start("run", "--quiet", *words, **options)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def line(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().decode().rstrip("\n")


def gone(pid: int) -> bool:
    return process_info.is_gone(pid, "", None)


def record(shell: Shell, agent: str) -> AgentRecord:
    with open_bus(shell.directory / ".agentbus") as bus:
        found = bus.do(bus.agents.get(agent))
    assert found is not None
    return found


def known(shell: Shell, agent: str) -> bool:
    with open_bus(shell.directory / ".agentbus") as bus:
        return bus.do(bus.agents.get(agent)) is not None


def recorded(shell: Shell, agent: str) -> Any:
    """Return what the bus knows of the run of an agent."""
    with open_bus(shell.directory / ".agentbus") as bus:
        return bus.do(bus.state(agent).get("agentbus.run"))


def error(outcome: Outcome) -> Any:
    return json.loads(outcome.out)["error"]["code"]
