"""Execute a page: Python blocks in this process, shell blocks in one real shell, in order."""

from __future__ import annotations

import asyncio
import inspect
import io
import os
import re
import select
import signal
import subprocess
import time
from ast import PyCF_ALLOW_TOP_LEVEL_AWAIT
from contextlib import AsyncExitStack, redirect_stdout, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agentbus import telemetry
from tests.docs.markdown import Block, Page

TIMEOUT = 90.0
"""Seconds that a page may take; far more than any needs."""

LOCALE = {"LANG": "C.UTF-8"}
GRACE = 5.0
"""Seconds after which a process that outlives its shell counts as left behind."""
_STARTED = 1.0
"""Seconds after which a background command has surely started: before, an interrupt would meet a half-made Python."""


def is_installed(module: str | None) -> bool:
    """Tell whether a module that a block needs can be imported."""
    try:
        return module is None or find_spec(module) is not None
    except ModuleNotFoundError:  # the package that it is in
        return False


def _shorten_sleeps(block: Block) -> str:
    """Return a program whose work takes as long as its mark ``sleep`` says: a reader needs time to kill it."""
    seconds = block.marks.get("sleep")
    if seconds is None:
        return block.text
    return re.sub(r"asyncio\.sleep\([\d.]+\)", f"asyncio.sleep({seconds})", block.text)


class BlockFailed(AssertionError):
    """A block did not do what its page says."""


class PageRun:
    """The execution of one page, in a directory of its own that is the working directory."""

    def __init__(self, page: Page, directory: Path, scratch: Path, environment: dict[str, str]) -> None:
        self._page = page
        self._directory = directory
        self._scratch = scratch
        self._environment = {**LOCALE, "TERM": "dumb", "COLUMNS": "120", **environment}
        self._namespace: dict[str, Any] = {"__name__": "__main__"}
        self._shell: Shell | None = None
        self._background: list[tuple[Block, subprocess.Popen[bytes], float]] = []
        self._output = ""

    async def run(self) -> None:
        """Run all blocks. Whatever was started has ended when this returns."""
        try:
            async with asyncio.timeout(TIMEOUT), AsyncExitStack() as stack:
                self._namespace["enter"] = stack.enter_async_context
                for block in self._page.blocks:
                    await self._run_block(block)
        finally:
            left = self._end()
        if left:
            raise BlockFailed(f"{self._page.path}: {left}")

    async def _run_block(self, block: Block) -> None:
        if "not run" in block.marks or not is_installed(block.marks.get("needs")):
            return
        if "file" in block.marks:
            path = self._directory / block.marks["file"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(_shorten_sleeps(block), encoding="utf-8")
        elif "output" in block.marks:
            self._compare(block, block.text, self._output)
        elif block.language in {"python", "setup"}:
            await self._run_python(block)
        elif "background" in block.marks:
            process = _start(["bash", "-c", block.text], self._environment, self._directory)
            self._background.append((block, process, time.monotonic()))
        elif block.language in {"sh", "bash"}:
            self._output = await self._run_shell(block, block.text, block.marks.get("exits"))
        elif block.language == "console":
            for command, expected in _commands(block.text):
                output = await self._run_shell(block, command, block.marks.get("exits"))
                self._compare(block, expected, output)

    async def _run_python(self, block: Block) -> None:
        # Moved down, so that a traceback has the line of the page.
        source = "\n" * (block.line - 1) + block.text
        output = io.StringIO()
        try:
            code = compile(source, str(self._page.path), "exec", PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
            with redirect_stdout(output):
                if code.co_flags & inspect.CO_COROUTINE:
                    await eval(code, self._namespace)  # noqa: S307 - our own pages
                else:
                    # A whole program has an event loop of its own, which needs a thread of its own.
                    await asyncio.to_thread(exec, code, self._namespace)
        except Exception as error:
            raise BlockFailed(f"{self._where(block)}: {type(error).__name__}: {error}\n{output.getvalue()}") from error
        finally:
            # A page may turn it on for its process, which is that of the tests.
            telemetry.disable()
        self._output = output.getvalue()

    async def _run_shell(self, block: Block, text: str, exits: str | None) -> str:
        if self._shell is None:
            self._shell = Shell(self._environment, self._directory, self._scratch)
        status, output = await asyncio.to_thread(self._shell.run, text, stop_on_error=exits is None)
        if status != int(exits or 0):
            raise BlockFailed(f"{self._where(block)}: exit status {status}\n{text}\n{output}")
        return output

    def _compare(self, block: Block, expected: str, output: str) -> None:
        wanted, found = self._normalised(expected), self._normalised(output)
        if wanted and not _matches(wanted.splitlines(), found.splitlines()):
            raise BlockFailed(f"{self._where(block)}: expected\n{wanted}\n\nand got\n{found}")

    def _normalised(self, text: str) -> str:
        """Return a text without what differs from run to run: times, ages, numbers of processes and messages, paths."""
        for pattern, name in (
            (re.escape(str(self._directory)), "PATH"),
            (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?Z?", "TIME"),
            (r"\b\d\d:\d\d:\d\d\b", "TIME"),
            (r"\b\d+(\.\d+)? ?(ms|s|min|h|d)\b", "AGE"),
            (r"\bpid \d+", "pid N"),
            (r"\bm-\d+\b", "m-N"),
            (r"\b[0-9a-f]{8,}\b", "HEX"),
            (r"[ \t]+", " "),
        ):
            text = re.sub(pattern, name, text)
        return "\n".join(line.strip() for line in text.strip().splitlines())

    def _where(self, block: Block) -> str:
        return f"{self._page.path}:{block.line}"

    def _end(self) -> str | None:
        """End what was started; say what did not end as it should."""
        problem = None
        for block, process, started in self._background:
            if process.poll() is None:
                time.sleep(max(0.0, started + _STARTED - time.monotonic()))
                os.killpg(process.pid, signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(15)
            if process.returncode not in (0, 130, -signal.SIGINT):
                problem = f"the background command of line {block.line} ended with {process.returncode}"
            if _left_behind(process.pid):
                problem = f"the background command of line {block.line} left processes behind"
        if self._shell is not None and self._shell.close():
            problem = "the shell blocks left processes behind"
        return problem


class Shell:
    """One bash for the shell blocks of a page: what one exports, the next sees."""

    def __init__(self, environment: dict[str, str], directory: Path, scratch: Path) -> None:
        self._scratch = scratch
        self._count = 0
        self._process = _start(["bash", "--norc", "--noprofile"], environment, directory, stdin=subprocess.PIPE)

    def run(self, text: str, *, stop_on_error: bool) -> tuple[int, str]:
        """Run commands; their exit status and what they printed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._count += 1
        script, output = self._scratch / f"{self._count}.sh", self._scratch / f"{self._count}.out"
        script.write_text(text, encoding="utf-8")
        flag = "-e" if stop_on_error else "+e"
        self._process.stdin.write(f"set {flag}; . {script} >{output} 2>&1 </dev/null; echo $?\n".encode())
        self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], TIMEOUT)
        answer = self._process.stdout.readline() if ready else b""
        if not answer:
            # It has ended at the command that failed, or waits for something that never comes.
            if not ready:
                os.killpg(self._process.pid, signal.SIGKILL)
            answer = str(self._process.wait()).encode()
        return int(answer), output.read_text(encoding="utf-8", errors="replace")

    def close(self) -> bool:
        """End the shell; say whether it left processes behind."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        self._process.wait(15)
        return _left_behind(self._process.pid)


def _start(
    command: list[str], environment: dict[str, str], directory: Path, stdin: int = subprocess.DEVNULL
) -> subprocess.Popen[bytes]:
    piped = stdin == subprocess.PIPE
    return subprocess.Popen(
        command,
        stdin=stdin,
        stdout=subprocess.PIPE if piped else subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        cwd=directory,
        start_new_session=True,
    )


def _left_behind(group: int) -> bool:
    """Return whether processes of a group outlive its leader; they are killed."""
    deadline = time.monotonic() + GRACE
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return False
        time.sleep(0.02)
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
    return True


def _matches(wanted: list[str], found: list[str]) -> bool:
    """Return whether these lines were found; ``…`` stands for any lines, and inside a line for any text."""
    if not wanted or not found:
        return not found and set(wanted) <= {"…"}
    if wanted[0] == "…":
        return any(_matches(wanted[1:], found[at:]) for at in range(len(found) + 1))
    line = re.escape(wanted[0]).replace("…", ".*")
    return re.fullmatch(line, found[0]) is not None and _matches(wanted[1:], found[1:])


def _commands(text: str) -> list[tuple[str, str]]:
    """Return the commands of a console block, each with the output that follows it."""
    found: list[tuple[str, str]] = []
    continued = False
    for line in text.splitlines(keepends=True):
        if line.startswith("$ "):
            found.append((line.removeprefix("$ "), ""))
        elif continued:
            found[-1] = (found[-1][0] + line.removeprefix("> "), "")
        elif found:
            found[-1] = (found[-1][0], found[-1][1] + line)
        continued = line.rstrip("\n").endswith("\\") and not found[-1][1] if found else False
    return found
