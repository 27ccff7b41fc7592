"""Real processes for tests: Python workers that take orders, and are awaited with a deadline, stopped and killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, NoReturn

from tests.support.zygote import ROOT, Popen

PATIENCE = 60.0
"""Seconds that a healthy worker may take for anything, on a busy machine."""


class Worker:
    """``python -m module arguments…``, run from the checkout. Its output is read line by line as it comes.

    It is forked from a process that has the package imported; unless it is traced, has an environment of its own, or
    is not to be ``preloaded``.
    """

    def __init__(
        self,
        module: str,
        *arguments: object,
        environment: Mapping[str, str] | None = None,
        before: Sequence[str] = (),
        preloaded: bool = True,
    ) -> None:
        """``before``: the command that runs it, such as strace with its options."""
        self.name = module.rpartition(".")[2]
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - closed with the worker
        start = Popen if preloaded and environment is None and not before else subprocess.Popen
        self._process: subprocess.Popen[str] = start(
            [*before, sys.executable, "-m", module, *map(str, arguments)],
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            bufsize=1,
            # A group of its own, so that the processes that it forked can be ended with it.
            start_new_session=True,
        )
        self.pid = self._process.pid
        self._lines: SimpleQueue[str | None] = SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def line(self, seconds: float = PATIENCE) -> str:
        """The next line that it said."""
        try:
            line = self._lines.get(timeout=seconds)
        except Empty:
            line = None
        if line is None:
            self.fail(f"said nothing for {seconds} s, or ended")
        return line

    def expect(self, word: str, seconds: float = PATIENCE) -> str:
        """Skip to the next line that begins with ``word``; give what follows it."""
        deadline = time.monotonic() + seconds
        while True:
            first, _, rest = self.line(max(0.001, deadline - time.monotonic())).partition(" ")
            if first == word:
                return rest

    def said(self) -> list[str]:
        """Every line that is left; once the worker has ended, all of them."""
        if self._process.poll() is not None:
            self._reader.join(PATIENCE)
        lines: list[str] = []
        while True:
            try:
                line = self._lines.get_nowait()
            except Empty:
                return lines
            if line is not None:
                lines.append(line)

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def stop(self) -> None:
        """Freeze it; returns once every thread of it stands still."""
        self.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """kill -9, and reap."""
        self.kill_unreaped()
        self._process.wait()

    def kill_unreaped(self) -> None:
        """kill -9; until someone waits for it, the process is a zombie."""
        self._process.kill()
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)

    def wait(self, seconds: float = PATIENCE) -> int:
        """Its exit status."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.fail(f"did not end within {seconds:g} s")

    def finish(self, seconds: float = PATIENCE) -> list[str]:
        """Wait for a good end; give what it said last."""
        if self.wait(seconds) != 0:
            self.fail(f"ended with {self._process.returncode}")
        return self.said()

    def errors(self) -> str:
        """Return what it has written to its standard error so far."""
        self._errors.seek(0)
        return self._errors.read()

    def fail(self, reason: str) -> NoReturn:
        import pytest

        pytest.fail(f"{self.name} ({self.pid}) {reason}\nits errors:\n{self.errors()[-4000:]}")

    def close(self) -> None:
        """End it and all that it started, whatever state it is in."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)


class Team:
    """The workers of one test; leaving ends them all."""

    def __init__(self) -> None:
        self._workers: list[Worker] = []

    def start(
        self,
        module: str,
        *arguments: object,
        environment: Mapping[str, str] | None = None,
        before: Sequence[str] = (),
        preloaded: bool = True,
    ) -> Worker:
        worker = Worker(
            f"tests.faults.{module}", *arguments, environment=environment, before=before, preloaded=preloaded
        )
        self._workers.append(worker)
        return worker

    def __enter__(self) -> Team:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.close()


def eventually(condition: Callable[[], bool], what: str | Callable[[], str], seconds: float = PATIENCE) -> float:
    """Wait until a condition holds, and return how long it took; fail after ``seconds``."""
    begun = time.monotonic()
    pause = threading.Event()
    while not condition():
        if time.monotonic() - begun > seconds:
            import pytest  # the workers of a test import this module too, and need no pytest

            pytest.fail(f"not within {seconds:g} s: {what if isinstance(what, str) else what()}")
        pause.wait(0.005)
    return time.monotonic() - begun


# In the workers


def say(*words: object) -> None:
    """A line for the test; it is in the pipe when this returns, so that it survives kill -9."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


async def listeners() -> asyncio.StreamReader:
    """Return a stream of the lines that the test sends to this worker, without blocking its loop."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


def crowd(count: int, task: Callable[[int, Callable[[], None]], Any]) -> list[Any]:
    """Fork ``count`` processes; return what each one answers, as JSON, or its traceback as {"error": …}.

    ``task`` gets its number and a gate: calling that waits until every process has called it.
    """
    ready, arrived = os.pipe()
    opened, opener = os.pipe()
    answers: list[int] = []
    pids: list[int] = []
    for number in range(count):
        answer, answering = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(opener)
            _answer(answering, number, task, _Gate(arrived, opened))
        os.close(answering)
        answers.append(answer)
        pids.append(pid)
    for _ in range(count):
        os.read(ready, 1)
    os.close(opener)
    results = [json.loads(b"".join(_chunks(answer))) for answer in answers]
    for pid in pids:
        os.waitpid(pid, 0)
    return results


class _Gate:
    def __init__(self, arrived: int, opened: int) -> None:
        self._arrived = arrived
        self._opened = opened
        self.passed = False

    def __call__(self) -> None:
        self.passed = True
        os.write(self._arrived, b".")
        os.read(self._opened, 1)


def _answer(pipe: int, number: int, task: Callable[[int, Callable[[], None]], Any], gate: _Gate) -> NoReturn:
    try:
        result = task(number, gate)
    except BaseException:
        result = {"error": traceback.format_exc()}
    if not gate.passed:
        gate()
    os.write(pipe, json.dumps(result).encode())
    os._exit(0)


def _chunks(pipe: int) -> Iterator[bytes]:
    while chunk := os.read(pipe, 65536):
        yield chunk
    os.close(pipe)
