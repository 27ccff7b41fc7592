"""A directory with a bus, and ``agentbus`` run in it: in this process, or where a process matters in one of its own.

Starting an interpreter takes longer than most commands. ``Shell.run`` therefore calls the entry point of the command
with streams, environment and working directory of its own. Tests marked ``process`` run it in a process, as do commands
that fork or change the handling of signals; ``tests.support.zygote`` forks these.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from agentbus.cli.main import main
from agentbus.sync.bus import open_bus
from tests.conftest import copy_bus
from tests.support import zygote
from tests.support.postgres import Schemas, at_schema

COMMAND = zygote.COMMAND
TIMEOUT = 30.0
_OWN_PROCESS = frozenset({"run", "worker", "monitor", "demo", "hook"})
"""Commands that start processes, load code of the user, set up logging for the whole process, or end it in time."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "process: run every command in a process of its own")


class Outcome:
    """The exit code and the output of a command."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err

    def __repr__(self) -> str:
        return f"exit {self.code}\n{self.out}\n{self.err}"


class Shell:
    """A directory with a bus in it, where ``agentbus`` is run."""

    def __init__(self, directory: Path, *, processes: bool = False) -> None:
        self.directory = directory
        self.processes = processes
        self._inherited = dict(os.environ)
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("AGENTBUS_", "PYTHONDONTWRITE"))
        }

    def run(self, *words: str | bytes, agent: str | None = None, input: bytes | None = None) -> Outcome:
        """Run a command, whatever its outcome. Standard output is no terminal."""
        if self.processes or _needs_process(words):
            return self.run_process(*words, agent=agent, input=input)
        code, out, err = call_main(
            [os.fsdecode(word) for word in words], self.directory, self._environment(agent), input or b""
        )
        return Outcome(code, out.decode(), err.decode())

    def draw(self, *words: str, width: int = 200, agent: str | None = None, input: bytes = b"") -> Outcome:
        """Run a command whose streams are a terminal of this width, without colours."""
        environment = {
            **self._environment(agent),
            "COLUMNS": str(width),
            "LINES": "50",
            "NO_COLOR": "1",
            "TERM": "dumb",
        }
        code, out, err = call_main(list(words), self.directory, environment, input, stream=_Terminal)
        return Outcome(code, out.decode(), err.decode())

    def run_process(self, *words: str | bytes, agent: str | None = None, input: bytes | None = None) -> Outcome:
        """Run a command in a process of its own."""
        done = zygote.run(
            [COMMAND, *words],
            cwd=self.directory,
            env=self._environment(agent),
            input=b"" if input is None else input,
            timeout=TIMEOUT,
        )
        assert b"Traceback" not in done.stderr, done.stderr.decode(errors="replace")
        return Outcome(done.returncode, done.stdout.decode(), done.stderr.decode())

    def say(self, *words: str, agent: str | None = None, input: bytes | None = None) -> str:
        """Run a command that must succeed. Return its output without the last newline."""
        outcome = self.run(*words, agent=agent, input=input)
        assert outcome.code == 0, outcome
        return outcome.out.removesuffix("\n")

    def json(self, *words: str, agent: str | None = None, code: int = 0, input: bytes | None = None) -> Any:
        """Run a command with --json. Return the data of its envelope, or the error."""
        outcome = self.run(*words, "--json", agent=agent, input=input)
        assert outcome.code == code, outcome
        envelope = json.loads(outcome.out)
        assert envelope.pop("schema_version") == 1
        ((kind, value),) = envelope.items()
        assert kind == ("error" if "error" in envelope else "data")
        return value

    def refused(self, *words: str, agent: str | None = None, code: int) -> dict[str, Any]:
        """Return the error of a command that must fail."""
        error: dict[str, Any] = self.json(*words, agent=agent, code=code)
        assert error.keys() == {"code", "message", "fix"}, error
        assert error["message"]
        # The fix is a command, not a call of the API.
        assert not re.search(r"\bbus\.|^\?$", error["fix"] or ""), error
        return error

    def told(self, *words: str, agent: str | None = None, code: int = 0) -> Any:
        """Return the data of a command that must succeed."""
        data = self.json(*words, agent=agent, code=code)
        assert not (isinstance(data, dict) and data.keys() == {"code", "message", "fix"}), data
        return data

    def register(self, agent: str, **options: Any) -> str:
        """Register a worker, without starting a process for it."""
        with open_bus(self.directory / ".agentbus") as bus:
            return bus.register(agent, **{"type": "worker", **options}).identity

    def start(
        self,
        *words: str | bytes,
        agent: str | None = None,
        constants: Mapping[str, float] | None = None,
        **options: Any,
    ) -> subprocess.Popen[bytes]:
        """Start a command in a process of its own, with ``constants`` as in ``command_with``. The caller ends it."""
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        command = command_with(constants or {})
        return zygote.Popen([*command, *words], cwd=self.directory, env=self._environment(agent), **pipes)

    def _environment(self, agent: str | None) -> dict[str, str]:
        # What the test has set since, too.
        changed = {name: value for name, value in os.environ.items() if self._inherited.get(name) != value}
        named = {} if agent is None else {"AGENTBUS_AGENT": agent}
        return {**self.environment, **changed, **named}


def command_with(constants: Mapping[str, float]) -> list[str]:
    """Return the words that start ``agentbus`` with other values of constants, by their dotted names."""
    return [sys.executable, "-c", _PATCHED, json.dumps(constants)] if constants else [COMMAND]


_PATCHED = f"""
import json, sys
from importlib import import_module
from agentbus.cli.entry_point import script
for name, value in json.loads(sys.argv.pop(1)).items():
    module, _, constant = name.rpartition(".")
    assert hasattr(import_module(module), constant), name
    setattr(import_module(module), constant, value)
sys.argv[0] = {COMMAND!r}
script()
"""


def call_main(
    words: list[str],
    directory: Path,
    environment: dict[str, str],
    input: bytes = b"",
    stream: type[io.TextIOWrapper] = io.TextIOWrapper,
) -> tuple[int, bytes, bytes]:
    """Call the entry point of the command as a process of its own would be: exit code, standard output and error."""
    out, err = (stream(io.BytesIO(), encoding="utf-8", errors="surrogateescape") for _ in range(2))
    # A process without handlers prints warnings; here pytest has handlers.
    warnings = logging.StreamHandler(err)
    warnings.setLevel(logging.WARNING)
    with ExitStack() as stack:
        stack.enter_context(chdir(directory))
        stack.enter_context(patch.dict(os.environ, environment, clear=True))
        given = stream(io.BytesIO(input), encoding="utf-8", errors="surrogateescape")
        stack.enter_context(patch("sys.stdin", given))
        # The width of the terminal is read from this one.
        stack.enter_context(patch("sys.__stdout__", out))
        stack.enter_context(redirect_stdout(out))
        stack.enter_context(redirect_stderr(err))
        log = logging.getLogger("agentbus")
        stack.enter_context(patch.object(log, "handlers", [warnings]))
        stack.enter_context(patch.object(log, "propagate", log.propagate))
        code = main(words)
        out.flush()
        err.flush()
    return code, out.buffer.getvalue(), err.buffer.getvalue()  # type: ignore[attr-defined]


class _Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


def _needs_process(words: tuple[str | bytes, ...]) -> bool:
    """Return whether a command cannot run here: it affects its process, or this is no place for an event loop."""
    command = next((word for word in words if word[:1] not in {"-", b"-"}), "")
    if command in _OWN_PROCESS or threading.current_thread() is not threading.main_thread():
        return True
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


@pytest.fixture
def nowhere(request: pytest.FixtureRequest) -> Iterator[Shell]:
    """A directory without a bus. Not tmp_path: a short path leaves room for the doorbells."""
    processes = request.node.get_closest_marker("process") is not None
    with tempfile.TemporaryDirectory(prefix="agentbus-cli-") as directory:
        yield Shell(Path(directory), processes=processes)


@pytest.fixture
def shell(nowhere: Shell, template: Path) -> Shell:
    """A directory with a fresh bus."""
    copy_bus(template, nowhere.directory / ".agentbus")
    return nowhere


def until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, nowhere: Shell) -> Iterator[str]:
    """A fresh bus on each engine."""
    if request.param == "sqlite":
        place = str(nowhere.directory / ".agentbus")
        open_bus(place, create=True).close()
        yield place
        return
    schemas: Schemas = request.getfixturevalue("schemas")
    name = schemas.take()
    yield at_schema(schemas.url, name)
    schemas.give_back(name)
