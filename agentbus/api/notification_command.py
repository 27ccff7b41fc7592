"""Run a command of the user for a notification.

Its arguments are those of the settings, the notification is on standard input, and the environment has nothing that a
bus can choose.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress

from agentbus.api.webhook import Delivery
from agentbus.core.notification_settings import Command

_PATH = "/usr/local/bin:/usr/bin:/bin"
_PASSED = ("HOME", "LANG", "LC_ALL", "USER", "TZ")
"""Variables that every command gets."""
_MAX_OUTPUT = 4096
"""Bytes of the output that are kept; the rest is read and discarded."""
_LEFT = 1.0
"""Seconds for the output of a command that has ended: a process that it left behind may hold it open."""


async def run(command: Command, facts: dict[str, str], body: bytes) -> Delivery:
    """Run the command, and return what became of it: its exit status decides. Never raises but for cancellation.

    ``facts`` become variables ``AGENTBUS_NOTIFICATION_…``: they must not contain text of the bus.
    """
    environment = {name: os.environ[name] for name in (*_PASSED, *command.environment) if name in os.environ}
    environment.setdefault("PATH", _PATH)
    environment |= {f"AGENTBUS_NOTIFICATION_{name}": value for name, value in facts.items()}
    try:
        process = await asyncio.create_subprocess_exec(
            *command.command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            # Not the working directory of the monitor, which may be that of a repository.
            cwd="/",
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        return Delivery(f"the command was not started: {error.strerror or type(error).__name__}")
    try:
        async with asyncio.timeout(command.timeout):
            output = await _finish(process, body)
    except TimeoutError:
        _kill(process)
        await process.wait()
        return Delivery(f"the command was ended after {command.timeout:g} s")
    except BaseException:
        _kill(process)
        raise
    status = process.returncode or 0
    if status == 0:
        return Delivery(output=output)
    ending = f"signal {-status}" if status < 0 else f"exit status {status}"
    return Delivery(f"the command failed: {ending}", output=output)


async def _finish(process: asyncio.subprocess.Process, body: bytes) -> str:
    reading = asyncio.ensure_future(_read(process))
    writing = asyncio.ensure_future(_write(process, body))
    try:
        await process.wait()
        await asyncio.wait({reading}, timeout=_LEFT)
    finally:
        kept = b"" if not reading.done() or reading.cancelled() else reading.result()
        for task in (reading, writing):
            task.cancel()
        await asyncio.gather(reading, writing, return_exceptions=True)
    return kept.decode("utf-8", "replace")


async def _read(process: asyncio.subprocess.Process) -> bytes:
    """Return the start of the output."""
    assert process.stdout is not None  # noqa: S101 - it is a pipe
    kept = b""
    while part := await process.stdout.read(65536):
        kept += part[: _MAX_OUTPUT - len(kept)]
    return kept


async def _write(process: asyncio.subprocess.Process, body: bytes) -> None:
    assert process.stdin is not None  # noqa: S101 - it is a pipe
    # A command need not read it.
    with suppress(OSError):
        process.stdin.write(body)
        await process.stdin.drain()
        process.stdin.close()


def _kill(process: asyncio.subprocess.Process) -> None:
    """End the command and what it started, unless they left its process group."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
