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
from agentbus.core.cancellation import complete
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
    running = _Running()
    start = asyncio.get_running_loop().subprocess_exec(
        lambda: running,
        *command.command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        # Not the working directory of the monitor, which may be that of a repository.
        cwd="/",
        env=environment,
        start_new_session=True,
    )
    try:
        # asyncio would answer a cancellation by killing only the command itself, and wait until every process that the
        # command has started closes its pipes.
        await complete(start)
    except OSError as error:
        return Delivery(f"the command was not started: {error.strerror or type(error).__name__}")
    except asyncio.CancelledError:
        if running.is_started:
            running.kill()
            running.close()
        raise
    try:
        running.write(body)
        async with asyncio.timeout(command.timeout):
            await running.exited.wait()
        await running.finish_output()
    except TimeoutError:
        running.kill()
        # It ends at once, unless the kernel holds it.
        await _wait(running.exited)
        return Delivery(f"the command was ended after {command.timeout:g} s")
    except BaseException:
        running.kill()
        raise
    finally:
        running.close()
    status = running.status
    if status == 0:
        return Delivery(output=running.output)
    ending = f"signal {-status}" if status < 0 else f"exit status {status}"
    return Delivery(f"the command failed: {ending}", output=running.output)


class _Running(asyncio.SubprocessProtocol):
    """A command that runs. Its end is that of its own process: one that it left behind, which may hold its pipes open,
    is not waited for, as ``Process.wait`` would."""

    def __init__(self) -> None:
        self.is_started = False
        self.exited = asyncio.Event()
        self.status = 0
        self._ended = asyncio.Event()
        """The output has ended."""
        self._kept = b""

    @property
    def output(self) -> str:
        """Return the start of the output."""
        return self._kept.decode("utf-8", "replace")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.SubprocessTransport)  # noqa: S101 - that of a command
        self._transport = transport
        self._pid = transport.get_pid()
        self.is_started = True

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self._kept += data[: _MAX_OUTPUT - len(self._kept)]

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 1:
            self._ended.set()

    def process_exited(self) -> None:
        self.status = self._transport.get_returncode() or 0
        self.exited.set()
        if self._ended.is_set():
            self._transport.close()

    def write(self, body: bytes) -> None:
        """Give it the notification, which it need not read."""
        given = self._transport.get_pipe_transport(0)
        if isinstance(given, asyncio.WriteTransport):
            given.write(body)
            given.write_eof()

    async def finish_output(self) -> None:
        """Wait for the rest of the output, though not long."""
        await _wait(self._ended)

    def kill(self) -> None:
        """End the command and what it started, unless they left its process group."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._pid, signal.SIGKILL)

    def close(self) -> None:
        """Close the pipes, even if another process has them open, and the transport once the command has ended: to
        close it before would take the exit status from the event loop."""
        self._ended.set()
        given, printed = self._transport.get_pipe_transport(0), self._transport.get_pipe_transport(1)
        if isinstance(given, asyncio.WriteTransport) and given.get_write_buffer_size():
            given.abort()
        if printed is not None:
            printed.close()
        if self.exited.is_set():
            self._transport.close()


async def _wait(event: asyncio.Event) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(_LEFT):
            await event.wait()
