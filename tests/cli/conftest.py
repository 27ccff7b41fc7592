"""The installed command, on a bus of its own."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import chdir, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from agentbus.blocking import open_bus
from agentbus.interfaces.cli.main import main

COMMAND = str(Path(sys.executable).with_name("agentbus"))
PATIENCE = 30.0


class Outcome:
    """What a run of the command came to."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err

    def __repr__(self) -> str:
        return f"exit {self.code}\n{self.out}\n{self.err}"


class Shell:
    """A directory with a bus in it, where ``agentbus`` is run."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.hidden = [name for name in os.environ if name.startswith("AGENTBUS_")]
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("AGENTBUS_", "PYTHONDONTWRITE"))
        }

    def run(self, *words: str | bytes, agent: str | None = None, input: bytes | None = None) -> Outcome:
        """Run it, whatever comes of it; standard output is a pipe."""
        done = subprocess.run(
            [COMMAND, *words],
            cwd=self.directory,
            env=self._environment(agent),
            input=b"" if input is None else input,
            capture_output=True,
            timeout=PATIENCE,
            check=False,
        )
        assert b"Traceback" not in done.stderr, done.stderr.decode(errors="replace")
        return Outcome(done.returncode, done.stdout.decode(), done.stderr.decode())

    def say(self, *words: str, agent: str | None = None, input: bytes | None = None) -> str:
        """Run what must succeed; what it printed, without the last line's end."""
        outcome = self.run(*words, agent=agent, input=input)
        assert outcome.code == 0, outcome
        return outcome.out.removesuffix("\n")

    def json(self, *words: str, agent: str | None = None, code: int = 0, input: bytes | None = None) -> Any:
        """Run it with --json; the data of its envelope, or the error."""
        outcome = self.run(*words, "--json", agent=agent, input=input)
        assert outcome.code == code, outcome
        envelope = json.loads(outcome.out)
        assert envelope.pop("schema_version") == 1
        ((kind, value),) = envelope.items()
        assert kind == ("error" if "error" in envelope else "data")
        return value

    def refused(self, *words: str, agent: str | None = None, code: int) -> dict[str, Any]:
        """The error of what must fail. Not in a process of its own: there are many ways to be wrong."""
        found, envelope = self._main(words, agent)
        assert (found, list(envelope)) == (code, ["schema_version", "error"]), envelope
        error: dict[str, Any] = envelope["error"]
        assert error["message"]
        # What to do is said in the words of the command line.
        assert not re.search(r"\bbus\.|^\?$", error["fix"] or ""), error
        return error

    def told(self, *words: str, agent: str | None = None, code: int = 0) -> Any:
        """The data of what must succeed, the same way."""
        found, envelope = self._main(words, agent)
        assert (found, list(envelope)) == (code, ["schema_version", "data"]), envelope
        return envelope["data"]

    def _main(self, words: tuple[str, ...], agent: str | None) -> tuple[int, dict[str, Any]]:
        printed = io.TextIOWrapper(io.BytesIO())
        environment = {**dict.fromkeys(self.hidden, ""), **({} if agent is None else {"AGENTBUS_AGENT": agent})}
        with chdir(self.directory), patch.dict(os.environ, environment), redirect_stdout(printed):
            found = main([*words, "--json"])
        return found, json.loads(printed.buffer.getvalue())

    def register(self, agent: str, **options: Any) -> str:
        """Register a worker, without starting a process for it."""
        with open_bus(self.directory / ".agentbus") as bus:
            return bus.register(agent, **{"type": "worker", **options}).identity

    def start(self, *words: str | bytes, agent: str | None = None, **options: Any) -> subprocess.Popen[bytes]:
        """Start what takes a while. Whoever starts it ends it."""
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        return subprocess.Popen([COMMAND, *words], cwd=self.directory, env=self._environment(agent), **pipes)

    def _environment(self, agent: str | None) -> dict[str, str]:
        return self.environment if agent is None else {**self.environment, "AGENTBUS_AGENT": agent}


@pytest.fixture
def nowhere() -> Iterator[Shell]:
    """A directory without a bus. Not tmp_path: a short path leaves room for the doorbells."""
    with tempfile.TemporaryDirectory(prefix="agentbus-cli-") as directory:
        yield Shell(Path(directory))


@pytest.fixture
def shell(nowhere: Shell) -> Shell:
    """A directory with a fresh bus."""
    open_bus(nowhere.directory / ".agentbus", create=True).close()
    return nowhere


def until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.01)
