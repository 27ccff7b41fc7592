"""What is run as an agent, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec


class Job(msgspec.Struct):
    """What is to be run, and as whom."""

    command: Sequence[str]
    environment: Mapping[str, str]
    id: str
    type: str
    about: dict[str, Any]
    restarts: int = 0
    pause: float = 1.0
    lease: float = 600.0


class Run(msgspec.Struct):
    """One run of the command, as it is recorded for everybody on the bus: the program alone, as arguments may hold what
    is secret. ``exit_code`` is what a shell says: 128 and more for a signal."""

    command: str
    pid: int | None = None
    started: int | None = None
    ended: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    restarts: int = 0
    output: str = ""


class Ended(msgspec.Struct):
    """What it came to, and what to exit with."""

    agent: str
    epoch: int
    status: str
    run: Run
    code: int | None


def outcome(run: Run) -> str:
    if run.started is None:
        return "it could not be started"
    return f"killed by {run.signal}" if run.signal else f"exit code {run.exit_code}"


def text(command: str) -> str:
    """Arguments may be any bytes, the record is Unicode."""
    return command.encode("utf-8", "surrogateescape").decode("utf-8", "replace").replace("\0", "")
