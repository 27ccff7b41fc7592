"""Start Python processes by forking one that has imported and used the package: 10 ms instead of 400.

Each is a process of its own, with its own pid, streams, environment and session, and a child of the test: it can be
stopped, killed and awaited like any other. It ends as an interpreter ends, by the same signals and statuses. Where the
system cannot give it to the test as a child (anything but Linux), ``spawn`` starts an ordinary interpreter.
"""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import gc
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
_PR_SET_CHILD_SUBREAPER = 36
_PACKAGES = ("core", "errors", "records", "operations", "engine", "api", "sync")
_LENGTH = struct.Struct("!I")


class Process:
    """A child that was not started by ``subprocess``; has the methods of ``Popen`` that tests need."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        with self._lock:
            if self.returncode is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.poll() is None:
            descriptor = os.pidfd_open(self.pid)
            try:
                readable, _, _ = select.select([descriptor], [], [], timeout)
            finally:
                os.close(descriptor)
            if not readable:
                raise subprocess.TimeoutExpired("a forked process", timeout or 0)
        status = self.poll()
        assert status is not None
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Zygote:
    """The process that is forked. It is started when it is first needed, and ends with this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def spawn(
        self, module: str, arguments: Sequence[str], *, environment: Mapping[str, str], streams: Sequence[int]
    ) -> Process:
        """Run ``python -m module arguments…`` from the checkout in a session of its own.

        ``streams`` become its standard input, output and error.
        """
        order = {
            "module": module,
            "arguments": list(arguments),
            "environment": dict(environment),
            "umask": _umask(),
        }
        data = json.dumps(order).encode("utf-8", "surrogateescape")
        with self._lock:
            connection = self._socket or self._start()
            libc = ctypes.CDLL(None)
            # An orphan becomes a child of this process, and only this one: its forks are not ours to await.
            libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            try:
                socket.send_fds(connection, [_LENGTH.pack(len(data))], list(streams))
                connection.sendall(data)
                answer = connection.recv(_LENGTH.size, socket.MSG_WAITALL)
            finally:
                libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        if not answer:
            raise RuntimeError("the process to be forked has ended")
        return Process(*_LENGTH.unpack(answer))

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.zygote", str(theirs.fileno())],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()
        self._socket = ours
        atexit.register(self._stop)
        return ours

    def _stop(self) -> None:
        if self._socket is not None and self._process is not None:
            self._socket.close()
            self._process.wait()


zygote = Zygote()
"""The one of this process."""


def is_available() -> bool:
    return sys.platform == "linux" and hasattr(os, "pidfd_open")


def _umask() -> int:
    """Read it without changing it: another thread may create a file meanwhile."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        return next(int(line.split()[1], 8) for line in status if line.startswith("Umask"))


# In the process that is forked


class _Order(NamedTuple):
    module: str
    arguments: list[str]


def _serve(connection: socket.socket) -> _Order | None:
    """Return in each process that was forked, with what it is to run; and without an order at the end."""
    while True:
        head, streams, _, _ = socket.recv_fds(connection, _LENGTH.size, 3)
        if not head:
            return None
        order = json.loads(connection.recv(*_LENGTH.unpack(head), socket.MSG_WAITALL))
        # The one in between ends at once: its child is an orphan then, and given to the test.
        reading, writing = os.pipe()
        between = os.fork()
        if between == 0:
            pid = os.fork()
            if pid:
                os.write(writing, _LENGTH.pack(pid))
                os._exit(0)
            for descriptor in (reading, writing, connection.detach()):
                os.close(descriptor)
            return _become(order, streams)
        os.close(writing)
        pid_of_child = os.read(reading, _LENGTH.size)
        os.close(reading)
        os.waitpid(between, 0)
        for descriptor in streams:
            os.close(descriptor)
        connection.sendall(pid_of_child)


def _become(order: dict[str, Any], streams: list[int]) -> _Order:
    os.setsid()
    os.umask(order["umask"])
    os.environ.clear()
    os.environ.update(order["environment"])
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    # Their predecessors have read and written nothing.
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    return _Order(order["module"], order["arguments"])


def _import_package() -> None:
    for package in _PACKAGES:
        name = f"agentbus.{package}"
        for found in pkgutil.walk_packages(import_module(name).__path__, f"{name}."):
            import_module(found.name)
    import_module("tests.support.processes")


async def _use(directory: str) -> None:
    """Use a bus once: queries are read and modules imported when they are first needed."""
    import agentbus

    async with (
        agentbus.connect(directory) as bus,
        bus.session("warming") as session,
        session.agent("a", type="worker") as agent,
    ):
        await agent.send("a", "note", 1)
        message = await agent.receive()
        assert message is not None
        async with message as unit:
            unit.reply(message, "note", 1)
            unit.state.set("k", 1)
            unit.checkpoint("c", 1)
        await bus.stats()


def _warm_up() -> None:
    with tempfile.TemporaryDirectory(prefix="bus-") as directory:
        asyncio.run(_use(directory))
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join()


def _main(descriptor: str) -> None:
    _import_package()
    _warm_up()
    gc.collect()
    gc.freeze()
    order = _serve(socket.socket(fileno=int(descriptor)))
    if order is not None:
        sys.argv[:] = [order.module, *order.arguments]
        runpy.run_module(order.module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main(sys.argv[1])
